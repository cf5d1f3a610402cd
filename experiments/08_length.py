"""Claim 8: what attention costs as texts grow from 1k to 64k tokens.

python experiments/08_length.py
python experiments/08_length.py --device cuda
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from anyformer.core.attend import attend
from anyformer.core.masks import Causal, Mask, Window
from anyformer.core.tokens import Tokens
from anyformer.layers.state_space import SelectiveStateSpace, SelectiveStateSpaceConfig
from frame import Claim, Found, Options, Pace, Picture, Table, main, plot

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from window import Peak  # how memory is measured is told in one place

CLAIM = Claim(
    number=8,
    name="length",
    title="Attention's time and memory from 1k to 64k tokens",
    items=("000-1-05", "000-2.2-10", "000-2.2-11", "000-2.2-13", "000-2.12-01", "004-16-02"),
    says="Every token looks at every other, so time and memory grow with the square of the length. Flash attention"
    " saves the memory and not the operations; a window and a state space grow in a straight line.",
    did="One row of tokens (eight on a GPU, which one does not keep busy), 4 heads of 64, causal, forwards and"
    " backwards: full attention that writes its weights down (our reference kernel), flash attention (PyTorch's,"
    " which we call), a window of 256 tokens (our blocks of it), and a selective state-space mixer of the same width"
    " with its projections (256 channels, 16 numbers each). Time is the processor's, or the clock's on a GPU; memory"
    " is what the pass takes beyond its inputs. A length is left out where the one before promises more than 10"
    " seconds or 3,000 MiB (60,000 on a GPU): nothing is extrapolated. The growth is from the last doubling: 1 is a"
    " straight line, 2 a square.",
    seeds=(0,),
    takes={"device": "cpu or cuda"},
)
LENGTHS = tuple(1024 * 2**n for n in range(7))
N_HEADS, D_HEAD, SPAN = 4, 64, 256
SECONDS = 10.0  # the most that a length may promise
MIB = {"cpu": 3000.0, "cuda": 60_000.0}
ROWS = {"cpu": 1, "cuda": 8}
SHORT = 0.5  # seconds below which it is done three times


@dataclass
class Grown:
    seconds: dict[int, float] = field(default_factory=dict)
    mib: dict[int, float] = field(default_factory=dict)

    def promises(self, device: str) -> bool:
        """Whether the next length is bearable, judged by how the last two grew (or fourfold, after one)."""
        if not self.seconds:
            return True
        times, sizes = list(self.seconds.values()), list(self.mib.values())
        rise = [now[-1] / max(now[-2], 1e-9) if len(now) > 1 else 4.0 for now in (times, sizes)]
        return times[-1] * max(rise[0], 2.0) <= SECONDS and sizes[-1] * max(rise[1], 2.0) <= MIB[device]

    def growth(self, of: dict[int, float]) -> float:
        values = list(of.values())
        return math.log2(values[-1] / values[-2]) if len(values) > 1 and values[-2] > 0 else math.nan


Pass = Callable[[], None]


def by_kernel(mask: Mask, kernel: str | None = None) -> Callable[[int, str], Pass]:
    def make(length: int, device: str) -> Pass:
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        shape = (ROWS[device], N_HEADS, length, D_HEAD)
        inputs = [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
        given = {} if kernel is None else {"kernel": kernel}
        return lambda: _drop(torch.autograd.grad(attend(*inputs, mask, **given).sum(), inputs))

    return make


def by_state(length: int, device: str) -> Pass:
    width = N_HEADS * D_HEAD
    mixer = SelectiveStateSpace(SelectiveStateSpaceConfig(d_model=width, d_inner=width, rank=16)).to(device)
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    x = torch.randn(ROWS[device], length, width, device=device, requires_grad=True)
    return lambda: _drop(torch.autograd.grad(mixer(Tokens(x)).sum(), [x, *mixer.parameters()]))


def _drop(found: tuple[Tensor, ...]) -> None:
    """Gradients are only wanted to have been computed."""


KINDS: dict[str, Callable[[int, str], Pass]] = {
    "full": by_kernel(Causal(), "reference"),
    "flash": by_kernel(Causal()),
    "window": by_kernel(Causal() & Window(SPAN - 1)),
    "state space": by_state,
}


def run(options: Options) -> Found:
    device = options.own.get("device", "cpu")
    torch.manual_seed(0)
    grown = {name: Grown() for name in KINDS}
    pace = Pace(len(KINDS) * len(LENGTHS), "lengths")
    for name, make in KINDS.items():
        for length in LENGTHS[: options.pick(len(LENGTHS), 2)]:
            pace.next(f"{name}, {length // 1024}k")
            if grown[name].promises(device):
                measure(grown[name], length, make, device)
    verdict, words = judge(grown)
    return Found(
        tables=[
            table("Seconds, forwards and backwards", {name: one.seconds for name, one in grown.items()}),
            table("Memory in MiB", {name: one.mib for name, one in grown.items()}),
            Table(
                "Growth at the last doubling (power of the length)",
                ["", "time", "memory"],
                [[name, one.growth(one.seconds), one.growth(one.mib)] for name, one in grown.items()],
            ),
        ],
        pictures=[draw(grown)],
        verdict=verdict,  # type: ignore[arg-type]
        words=words,
        exact={"the kernels agree with the reference": agree(device) < 1e-9},
    )


def measure(grown: Grown, length: int, make: Callable[[int, str], Pass], device: str) -> None:
    work = make(length, device)
    if length == LENGTHS[0]:
        work()  # what is loaded at the first call is no part of it
    with Peak(device) as peak:
        taken = [clock(work, device)]
    while len(taken) < 3 and taken[0] < SHORT:
        taken.append(clock(work, device))
    grown.seconds[length], grown.mib[length] = sorted(taken)[len(taken) // 2], peak.mib


def clock(work: Pass, device: str) -> float:
    """On a processor its own time, which others on the machine do not lengthen."""
    now = time.perf_counter if device == "cuda" else time.process_time
    if device == "cuda":
        torch.cuda.synchronize()
    started = now()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return now() - started


def agree(device: str) -> float:
    """The largest difference between a kernel and the reference, where both are long enough to take the fast one."""
    inputs = [torch.randn(1, 2, 1024, D_HEAD, device=device, dtype=torch.float64) for _ in range(3)]
    masks = Causal(), Causal() & Window(SPAN - 1)
    return max(float((attend(*inputs, mask) - attend(*inputs, mask, kernel="reference")).abs().max()) for mask in masks)


# What is said of it


def judge(grown: dict[str, Grown]) -> tuple[str, str]:
    power = {name: (one.growth(one.seconds), one.growth(one.mib)) for name, one in grown.items()}
    square = all(power[name][0] > 1.5 for name in ("full", "flash")) and power["full"][1] > 1.5
    straight = power["flash"][1] < 1.4 and all(max(power[name]) < 1.4 for name in ("window", "state space"))
    ends = {name: max(one.seconds) for name, one in grown.items()}
    shared = max(length for length in grown["full"].seconds if length in grown["flash"].seconds)
    saved = grown["full"].mib[shared] / max(grown["flash"].mib[shared], 1e-9)
    last = max(length for length in ends.values() if all(length in grown[name].seconds for name in ("flash", "window")))
    times = grown["flash"].seconds[last] / grown["window"].seconds[last]
    state, flash = grown["state space"].seconds, grown["flash"].seconds
    cross = [length for length in state if length in flash and state[length] < flash[length]]
    said = ", ".join(f"{name} {time:.1f} and {memory:.1f}" for name, (time, memory) in power.items())
    when = (
        f"faster than flash attention from {min(cross) // 1024}k on" if cross else "slower wherever both were measured"
    )
    words = (
        f"Powers of time and memory: {said}. At {shared // 1024}k tokens full attention takes {saved:.0f} times the"
        f" memory of flash attention; at {last // 1024}k flash attention takes {times:.1f} times as long as the"
        f" window. The state space, written in plain PyTorch, is {when}: a straight line with a steep start."
    )
    return ("holds" if square and straight else "holds partly"), words


def table(title: str, values: dict[str, dict[int, float]]) -> Table:
    lengths = [length for length in LENGTHS if any(length in one for one in values.values())]
    rows = [[f"{length // 1024}k", *(one.get(length, "–") for one in values.values())] for length in lengths]
    return Table(title, ["tokens", *values], rows)


def draw(grown: dict[str, Grown]) -> Picture:
    with plot(2) as (figure, (left, right)):
        for name, one in grown.items():
            left.plot([n / 1024 for n in one.seconds], list(one.seconds.values()), marker="o", label=name)
            right.plot(
                [n / 1024 for n in one.mib], [max(size, 0.1) for size in one.mib.values()], marker="o", label=name
            )
        for axes, label in ((left, "seconds"), (right, "MiB")):
            axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
            axes.set_xticks([n // 1024 for n in LENGTHS], [f"{n // 1024}k" for n in LENGTHS])
            axes.minorticks_off()
    return Picture(
        figure, "Time and memory of one pass forwards and backwards; a line that ends was not bearable further."
    )


if __name__ == "__main__":
    main(CLAIM, run)
