"""Limited span: time and memory of windowed and dilated attention against length, beside full attention.

    python benchmarks/window.py                  # one CPU thread, float32
    python benchmarks/window.py --device cuda    # one GPU, bfloat16

Every span is causal; window and dilated see 256 keys each. Peak memory is what a forward and backward pass takes beyond
its inputs: the allocator's count on a GPU, resident pages on a CPU (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import re
import time
from collections.abc import Callable
from pathlib import Path

import torch

from anyformer.core.attend import attend
from anyformer.core.masks import Causal, Dilated, Mask, Window
from anyformer.fast.attention import BLOCK

LENGTHS = [2**n * 1024 for n in range(7)]
N_HEADS, D_HEAD, SPAN, STEP = 4, 64, 256, 4
SPANS: dict[str, Mask] = {
    "full": Causal(),
    "window": Causal() & Window(SPAN - 1),
    "dilated": Causal() & Dilated(STEP, SPAN - 1),
}


class Peak:
    """The most memory in use while the block runs, in MiB beyond what was in use before."""

    def __init__(self, device: str) -> None:
        self.device, self.mib = device, 0.0

    def __enter__(self) -> Peak:
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
        else:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed before goes back, or it would serve unseen
            Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
            self.before = resident("VmRSS")
        return self

    def __exit__(self, *error: object) -> None:
        now = torch.cuda.max_memory_allocated() / 2**20 if self.device == "cuda" else resident("VmHWM")
        self.mib = now - self.before


def resident(field: str) -> float:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def measure(span: str, length: int, device: str) -> dict[str, float]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    torch.manual_seed(0)
    shape = (1, N_HEADS, length, D_HEAD)
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def forward() -> None:
        with torch.no_grad():
            attend(query, key, value, SPANS[span])

    def both() -> None:
        torch.autograd.grad(attend(query, key, value, SPANS[span]).sum(), (query, key, value))

    seconds = timed(forward, device)
    with Peak(device) as peak:
        both()
    return {"forward": seconds, "both": timed(both, device), "memory": peak.mib}


def timed(work: Callable[[], None], device: str) -> float:
    """Median seconds of up to five runs after one to warm up; of fewer where they are long."""
    times: list[float] = []
    while len(times) < 6 and (len(times) < 2 or sum(times) < 4):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times[1:])[len(times[1:]) // 2]


def check(device: str) -> float:
    """The largest difference from the dense masked reference, at a length where the fast kernels are taken."""
    torch.manual_seed(0)
    worst = 0.0
    for mask in SPANS.values():
        inputs = [torch.randn(1, 2, 5 * BLOCK, D_HEAD, device=device, dtype=torch.float64) for _ in range(3)]
        dense = attend(*inputs, mask, kernel="reference")
        worst = max(worst, float((attend(*inputs, mask) - dense).abs().max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--full-up-to", type=int, default=16384, help="longest length for full attention")
    given = parser.parse_args()
    torch.set_num_threads(1)  # two threads on a shared machine measure the neighbors
    print(f"torch {torch.__version__}, {given.device}")
    print(f"largest difference from the dense reference, float64: {check(given.device):.1e}")
    print("| length | " + " | ".join(f"{span} ms, + backward ms, MiB" for span in SPANS) + " |")
    print("|---" * (len(SPANS) + 1) + "|")
    for length in LENGTHS:
        cells = []
        for span in SPANS:
            if span == "full" and length > given.full_up_to:
                cells.append("-")
                continue
            got = measure(span, length, given.device)
            cells.append(f"{got['forward'] * 1e3:,.1f}, {got['both'] * 1e3:,.1f}, {got['memory']:,.0f}")
        print(f"| {length // 1024}k | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
