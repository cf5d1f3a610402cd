"""How far apart two words are in five ways of mixing places, and what that does to gradients and to copying.

python experiments/05_paths.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, log2

import torch
from torch import Generator, Tensor

from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import Causal
from anyformer.core.positions import Sinusoidal
from anyformer.explorer.path_length import path_length
from anyformer.layers.convolution import DilatedConvBlockConfig, TokenMixingConfig
from anyformer.layers.recurrent import RNNEncoderConfig
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, Verdict, main, plot, spread
from learn import Course, learn
from models import BlockSpec, Reader, accuracy, block, parameters, read_with

CLAIM = Claim(
    number=5,
    name="paths",
    title="The shorter the path between two words, the easier it is to learn what joins them",
    items=(
        "000-1-10",
        "000-1-11",
        "000-2.2-04",
        "000-2.2-05",
        "000-2.2-06",
        "000-2.2-07",
        "001-11-02",
        "003-16-01",
        "003-16-04",
        "004-2-04",
        "004-3-04",
        "004-8-01",
    ),
    says="""Between two words that are n places apart, a recurrent network takes n steps, a convolution of width k about
n/k layers, a dilated one about log n, a fully connected layer and attention one. Signals and gradients fade along the
way, so long dependencies are hard for recurrent networks and convolutions and easy for attention.""",
    did="""A model reads n + 1 random letters (out of 8) and must say at the last place what the first one was. Five
causal mixers of width 32: fully connected over places (two blocks), an LSTM (one layer), convolutions of
width 3 with as many blocks as it takes to reach n places back, dilated convolutions (1, 2, 4, …, as many as
it takes), attention with sines (two blocks). All but the LSTM have skip connections and layer norms, as
their recipes do. Path lengths were measured, not looked up: the least number of layers (for the LSTM, of
steps) after which a gradient gets from the last place to the first. The gradient of a fresh model is that of
the last place's output with respect to the first word's vector, as a share of that with respect to the last
word's own. Then each was trained (AdamW, rate 0.003, batches of 32, at most 250 steps, ended where the mean
loss of ten is below 0.05; chance is 2.08).""",
)

WIDTH, LETTERS, KERNEL = 32, 8, 3
GOAL = 0.05


def fully_connected(n: int) -> tuple[BlockSpec, ...]:
    return (_with_feedforward("positions", TokenMixingConfig(d_model=WIDTH, length=n + 1)),) * 2


def recurrent(n: int) -> tuple[BlockSpec, ...]:
    part = RNNEncoderConfig(d_model=WIDTH, d_hidden=WIDTH)
    return (block(("recurrent", part), norm=None, residual=False),)


def convolutional(n: int) -> tuple[BlockSpec, ...]:
    return tuple(_convolution(1) for _ in range(ceil(n / (KERNEL - 1))))


def dilated(n: int) -> tuple[BlockSpec, ...]:
    """The reach is (KERNEL - 1)·(1 + 2 + 4 + …)."""
    return tuple(_convolution(2**layer) for layer in range(ceil(log2(n / (KERNEL - 1) + 1))))


def attention(n: int) -> tuple[BlockSpec, ...]:
    return (_with_feedforward("self", AttentionConfig(d_query=WIDTH, n_heads=4, mask=Causal())),) * 2


def _convolution(dilation: int) -> BlockSpec:
    part = DilatedConvBlockConfig(d_model=WIDTH, d_inner=WIDTH // 2, kernel=KERNEL, dilation=dilation)
    return block(("convolution", part))


def _with_feedforward(name: str, part: TokenMixingConfig | AttentionConfig) -> BlockSpec:
    return block((name, part), ("feedforward", FeedForwardConfig(d_model=WIDTH, d_hidden=2 * WIDTH)))


MIXERS: dict[str, Callable[[int], tuple[BlockSpec, ...]]] = {
    "fully connected": fully_connected,
    "recurrent (LSTM)": recurrent,
    "convolution": convolutional,
    "dilated": dilated,
    "attention": attention,
}


def make(mixer: str, n: int, seed: int) -> Model:
    plain = mixer.startswith("recurrent")
    config = Reader(vocab_size=LETTERS, n_labels=LETTERS, d_model=WIDTH, blocks=MIXERS[mixer](n))
    config = config.replace(final_norm=None) if plain else config
    return read_with(config, seed=seed, embed=Sinusoidal(WIDTH) if mixer == "attention" else None)


def faded(model: Model, n: int, seed: int) -> float:
    """The gradient that reaches the first word, as a share of what reaches the last."""
    vectors = torch.randn(8, n + 1, WIDTH, generator=Generator().manual_seed(seed)).requires_grad_()
    out = model(inputs_embeds=vectors).logits[:, -1]
    weights = torch.randn(out.shape, generator=Generator().manual_seed(seed + 1))
    (gradient,) = torch.autograd.grad((out * weights).sum(), vectors)
    return (gradient[:, 0].norm() / gradient[:, -1].norm()).item()


def drawer(n: int) -> Callable[[int, Generator], dict[str, Tensor]]:
    def draw(rows: int, chance: Generator) -> dict[str, Tensor]:
        letters = torch.randint(0, LETTERS, (rows, n + 1), generator=chance)
        labels = torch.full_like(letters, -100)
        labels[:, -1] = letters[:, 0]
        return {"input_ids": letters, "labels": labels}

    return draw


@dataclass
class Cell:
    """One mixer over one distance."""

    path: int | None
    size: int
    faded: Spread
    right: Spread
    courses: list[Course]

    def taken(self, limit: int) -> Spread:
        return spread([float(course.steps_to(GOAL) or limit) for course in self.courses])


def measure(mixer: str, n: int, seeds: Sequence[int], steps: int, pace: Pace) -> Cell:
    fresh = [make(mixer, n, seed) for seed in seeds]
    gradients = [faded(model, n, seed) for model, seed in zip(fresh, seeds, strict=True)]
    path = path_length(fresh[0].double(), 0, n)
    draw, courses, right = drawer(n), [], []
    test = draw(500, Generator().manual_seed(0))
    for seed in seeds:
        model = make(mixer, n, seed)
        label = f"{mixer}, {n} places, seed {seed}"
        courses.append(learn(model, draw, steps=steps, seed=seed, lr=3e-3, until=GOAL, pace=pace, label=label))
        right.append(accuracy(model, test))
    return Cell(path, parameters(fresh[0]), spread(gradients), spread(right), courses)


def run(options: Options) -> Found:
    distances = options.pick((4, 16, 32), (4, 8))
    steps, seeds = options.pick(250, 5), options.pick(options.seeds, options.seeds[:1])
    pace = Pace(len(MIXERS) * len(distances) * len(seeds))
    cells = {(mixer, n): measure(mixer, n, seeds, steps, pace) for mixer in MIXERS for n in distances}
    table = Table(
        "Each mixer over n places",
        ["mixer", "n", "path", "parameters", "gradient, first / last word", "steps to learn", "right after training"],
        [
            [mixer, n, cell.path, cell.size, cell.faded, taken(cell, steps), cell.right]
            for (mixer, n), cell in cells.items()
        ],
    )
    verdict, words = judge(cells, distances, steps)
    return Found(
        tables=[table],
        pictures=[picture(cells, distances, steps)],
        verdict=verdict,
        words=words,
        exact=exact(cells, distances),
    )


def taken(cell: Cell, limit: int) -> Spread | str:
    reached = [course for course in cell.courses if course.steps_to(GOAL) is not None]
    if len(reached) == len(cell.courses):
        return cell.taken(limit)
    return f"not in {limit} ({len(reached)} of {len(cell.courses)} did)"


def exact(cells: dict[tuple[str, int], Cell], distances: Sequence[int]) -> dict[str, bool]:
    """Path lengths are a matter of architecture, not of chance."""
    expected: dict[str, Callable[[int], int]] = {
        "fully connected": lambda n: 1,
        "recurrent (LSTM)": lambda n: n,
        "convolution": lambda n: ceil(n / (KERNEL - 1)),
        "dilated": lambda n: ceil(log2(n / (KERNEL - 1) + 1)),
        "attention": lambda n: 1,
    }
    return {f"path of {m}, {n} places": cells[m, n].path == expected[m](n) for m in MIXERS for n in distances}


def judge(cells: dict[tuple[str, int], Cell], distances: Sequence[int], limit: int) -> tuple[Verdict, str]:
    far = max(distances)
    learned = {mixer: all(c.steps_to(GOAL) is not None for c in cells[mixer, far].courses) for mixer in MIXERS}
    short, long = ("fully connected", "dilated", "attention"), ("recurrent (LSTM)", "convolution")
    words = f"The paths are as long as they are said to be. Over {far} places, "
    words += "; ".join(
        f"{mixer}: {'learned' if learned[mixer] else 'not learned'} ({cells[mixer, far].right.mean:.0%} right,"
        f" gradient share {cells[mixer, far].faded.mean:.2g})"
        for mixer in MIXERS
    )
    kept = [mixer for mixer in long if learned[mixer]]
    lost = [mixer for mixer in short if not learned[mixer]]
    if not kept and not lost:
        return "holds", words + "."
    against = [f"learned in spite of a long path: {', '.join(kept)}"] if kept else []
    against += [f"not learned in spite of a short one: {', '.join(lost)}"] if lost else []
    return "holds partly", f"{words}. Against the claim, {'; '.join(against)}."


def picture(cells: dict[tuple[str, int], Cell], distances: Sequence[int], limit: int) -> Picture:
    with plot(2) as (figure, (left, right)):
        for mixer in MIXERS:
            own = [cells[mixer, n] for n in distances]
            left.plot(distances, [cell.faded.mean for cell in own], marker="o", label=mixer)
            steps = [cell.taken(limit) for cell in own]
            bars = [one.deviation for one in steps]
            right.errorbar(distances, [one.mean for one in steps], bars, marker="o", label=mixer)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(distances, [str(n) for n in distances])
            axes.set_xlabel("places between the two words")
        left.set(yscale="log", ylabel="gradient at the first word / the last")
        right.set(ylabel="steps to learn", ylim=(0, None))
    return Picture(figure, f"Left: fresh models. Right: steps until the copy is learned; {limit} also means never.")


if __name__ == "__main__":
    main(CLAIM, run)
