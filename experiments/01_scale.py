"""What dividing the scores by √d_k is for.

python experiments/01_scale.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from anyformer.core.attend import attention_weights
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.positions import Sinusoidal
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, Verdict, main, plot, spread
from learn import Course, learn
from models import Reader, block, read_with

CLAIM = Claim(
    number=1,
    name="scale",
    title="Scores are divided by √d_k so that the softmax does not saturate",
    items=("001-4-03", "001-4-04", "001-4-05", "003-7-02"),
    says="""The dot product of two random vectors of d_k numbers has a variance of d_k, so with wide heads some scores
tower above the others, the softmax puts all its weight on one key and hardly any gradient gets through; divided by √d_k
the scores keep a variance of 1. (The lectures' worked example, 102 and 99 → 58.9 and 57.2 → 0.85 and 0.15, divides by
√3.)""",
    did="""At the start: 64 keys and 256 queries with standard normal entries; the entropy of the weights as a share of
the largest possible, log 64, and how much a weight moves with its own score, w(1 − w), as a share of what it is when
all weights are equal. In training: one block (one head, whose d_k alone is varied: values and everything else stay 64
wide), sinusoidal positions, 16 random letters to be said in reverse; AdamW, batches of 32, until the mean loss of ten
steps is below 0.1 (chance: 2.77), at most 1,000 steps, at two learning rates.""",
)

N_KEYS, N_QUERIES = 64, 256
LENGTH, LETTERS, WIDTH = 16, 16, 64
GOAL = 0.1
RATES = (1e-3, 3e-3)


def at_the_start(d_k: int, scaled: bool, seed: int) -> tuple[float, float]:
    """Entropy and gradient of fresh weights, each as a share of what equal weights have."""
    chance = Generator().manual_seed(seed)
    query = torch.randn(1, 1, N_QUERIES, d_k, generator=chance)
    key = torch.randn(1, 1, N_KEYS, d_k, generator=chance)
    weights = attention_weights(query, key, scale=None if scaled else 1.0)
    entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean() / math.log(N_KEYS)
    moves = (weights * (1 - weights)).sum(-1).mean() / (1 - 1 / N_KEYS)
    return entropy.item(), moves.item()


def draw(rows: int, chance: Generator) -> dict[str, Tensor]:
    letters = torch.randint(0, LETTERS, (rows, LENGTH), generator=chance)
    return {"input_ids": letters, "labels": letters.flip(1)}


def make(d_k: int, scaled: bool, seed: int) -> Model:
    attention = AttentionConfig(
        d_query=WIDTH, n_heads=1, d_qk=d_k, d_value=WIDTH, scale=None if scaled else 1.0, bias=False
    )
    blocks = (block(("self", attention), ("feedforward", FeedForwardConfig(d_model=WIDTH, d_hidden=2 * WIDTH))),)
    config = Reader(vocab_size=LETTERS, n_labels=LETTERS, d_model=WIDTH, blocks=blocks)
    return read_with(config, seed=seed, embed=Sinusoidal(WIDTH))


def worked_example() -> list[tuple[int, Tensor, Tensor]]:
    """Scores of 102 and 99 at several d_k: what the softmax sees, and what it makes of it."""
    found = []
    for d_k in (1, 3, 64):
        query, key = torch.zeros(1, 1, 1, d_k), torch.zeros(1, 1, 2, d_k)
        query[..., 0], key[..., 0, 0], key[..., 1, 0] = 3.0, 34.0, 33.0
        found.append((d_k, torch.tensor([102.0, 99.0]) / math.sqrt(d_k), attention_weights(query, key)[0, 0, 0]))
    return found


def steps(courses: list[Course], limit: int) -> Spread | str:
    """How many it took; where not all got there, how many did."""
    reached = [found for found in (course.steps_to(GOAL) for course in courses) if found is not None]
    if len(reached) < len(courses):
        return f"not in {limit:,} ({len(reached)} of {len(courses)} did)"
    return spread(reached)


def run(options: Options) -> Found:
    widths = options.pick((16, 64, 256, 1024), (16, 64))
    limit, seeds = options.pick(1000, 30), options.pick(options.seeds, options.seeds[:1])
    rates = options.pick(RATES, (1e-3,))
    pace = Pace(len(widths) * 2 * len(seeds) * len(rates))
    starts = {
        (d_k, scaled): [spread(one) for one in zip(*(at_the_start(d_k, scaled, seed) for seed in seeds), strict=True)]
        for d_k in widths
        for scaled in (True, False)
    }
    courses = {
        (d_k, scaled, lr): [
            learn(
                make(d_k, scaled, seed), draw, steps=limit, seed=seed, lr=lr, until=GOAL, pace=pace,
                label=f"d_k {d_k}, {'with' if scaled else 'without'} 1/√d_k, rate {lr:g}, seed {seed}",
            )
            for seed in seeds
        ]
        for d_k in widths
        for scaled in (True, False)
        for lr in rates
    }  # fmt: skip
    return report(widths, limit, starts, courses)


Starts = dict[tuple[int, bool], list[Spread]]
Courses = dict[tuple[int, bool, float], list[Course]]
NAMES = {True: "with 1/√d_k", False: "without"}


def report(widths: Sequence[int], limit: int, starts: Starts, courses: Courses) -> Found:
    rates = sorted({lr for _, _, lr in courses})
    first = [[d_k, *(one for scaled in (True, False) for one in starts[d_k, scaled])] for d_k in widths]
    second = [
        [d_k, *(steps(courses[d_k, scaled, lr], limit) for lr in rates for scaled in (True, False))] for d_k in widths
    ]
    example = [
        [d_k, *(f"{a:.3g}, {b:.3g}" for a, b in (seen.tolist(), made.tolist()))] for d_k, seen, made in worked_example()
    ]
    _, seen, made = worked_example()[1]
    rounded = [round(value, 1) for value in seen.tolist()], [round(value, 2) for value in made.tolist()]
    ends = [f"{name} {NAMES[scaled]}" for scaled in (True, False) for name in ("entropy", "gradient")]
    return Found(
        tables=[
            Table("Fresh weights, as a share of what equal weights have", ["d_k", *ends], first),
            Table(
                f"Steps to a loss of {GOAL}",
                ["d_k", *(f"rate {lr:g}, {NAMES[scaled]}" for lr in rates for scaled in (True, False))],
                second,
            ),
            Table("The worked example: scores of 102 and 99", ["d_k", "divided by √d_k", "after the softmax"], example),
        ],
        pictures=[picture(widths, limit, starts, courses)],
        exact={"102, 99 → 58.9, 57.2 → 0.85, 0.15 at d_k = 3": rounded == ([58.9, 57.2], [0.85, 0.15])},
        **judge(widths, limit, starts, courses),
    )


def judge(widths: Sequence[int], limit: int, starts: Starts, courses: Courses) -> dict[str, Any]:
    """Saturated at the start, and slower (or never there) in the widest heads; what happens in narrow ones is said."""
    wide, narrow, lr = max(widths), min(widths), min(lr for _, _, lr in courses)

    def took(d_k: int, scaled: bool) -> Spread:
        return spread([float(course.steps_to(GOAL) or limit) for course in courses[d_k, scaled, lr]])

    def gain(d_k: int) -> int:
        """1: the scale clearly saves steps, by more than both spreads together; -1: it clearly costs some."""
        one, other = took(d_k, False), took(d_k, True)
        gap, margin = one.mean - other.mean, one.deviation + other.deviation
        return (gap > margin) - (gap < -margin)

    saturates = starts[wide, False][0].mean < 0.5 * starts[wide, True][0].mean
    helps = saturates and gain(wide) > 0
    against = [d_k for d_k in widths if gain(d_k) < 0]
    verdict: Verdict = "does not hold here" if not helps else "holds partly" if against else "holds"
    words = (
        f"Without the scale the entropy of fresh weights at d_k = {wide:,} is {starts[wide, False][0].mean:.1%} of the"
        f" largest possible, and {starts[wide, True][0].mean:.0%} with it, whatever d_k is. To the same loss it takes"
        f" {took(wide, True).mean:,.0f} steps with and {took(wide, False).mean:,.0f} without at d_k = {wide:,} (rate"
        f" {lr:g}; a run that never got there counts as {limit:,}), and {took(narrow, True).mean:,.0f} with and"
        f" {took(narrow, False).mean:,.0f} without at d_k = {narrow}."
    )
    if not gain(narrow):
        words += f" So the scale matters where heads are wide; at {narrow} there is no clear difference."
    elif against:
        words += f" So the scale matters where heads are wide; at {', '.join(map(str, against))} it costs steps."
    return {"verdict": verdict, "words": words}


def picture(widths: Sequence[int], limit: int, starts: Starts, courses: Courses) -> Picture:
    rates = sorted({lr for _, _, lr in courses})
    with plot(2) as (figure, (left, right)):
        for scaled, colour in ((True, "C0"), (False, "C3")):
            entropy = [starts[d_k, scaled][0] for d_k in widths]
            error = [one.deviation for one in entropy]
            left.errorbar(widths, [one.mean for one in entropy], error, color=colour, marker="o", label=NAMES[scaled])
            for lr, style in zip(rates, ("-", "--"), strict=False):
                taken = [[c.steps_to(GOAL) or limit for c in courses[d_k, scaled, lr]] for d_k in widths]
                found = [spread(one) for one in taken]
                right.errorbar(
                    widths, [one.mean for one in found], [one.deviation for one in found], color=colour,
                    linestyle=style, marker="o", label=f"{NAMES[scaled]}, rate {lr:g}",
                )  # fmt: skip
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(widths, [f"{d_k:,}" for d_k in widths])
            axes.set_xlabel("d_k")
        left.set(ylabel="entropy at the start / log 64", ylim=(0, 1))
        right.set(ylabel=f"steps to a loss of {GOAL}", ylim=(0, None))
    return Picture(figure, f"Left: fresh weights. Right: steps to learn to reverse; {limit:,} also means never.")


if __name__ == "__main__":
    main(CLAIM, run)
