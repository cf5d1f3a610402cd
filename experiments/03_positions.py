"""What positions are good for, what the sines are like, and which kinds of them reach past the length of training.

python experiments/03_positions.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

import anyformer as af
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import NO_MASK, Causal, Mask
from anyformer.core.positions import (
    ALiBi,
    Positions,
    RelativeBuckets,
    RelativeXL,
    Rotary,
    Sinusoidal,
    sinusoids,
)
from anyformer.core.positions import (
    LearnedPositions as Learned,
)
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Table, Verdict, main, plot, spread
from learn import learn
from models import Reader, block, read_with

CLAIM = Claim(
    number=3,
    name="positions",
    title="Positions: what sines can do, and who reads past the length of training",
    items=("000-2.7-05", "001-6-02", "001-6-05", "002-3-01", "003-11-01", "003-11-03"),
    says="""Attention alone does not know the order of its words: "She prefers cats to dogs" and "She prefers dogs to
cats" are one set. Sines and cosines tell it: they are bounded, no two positions are alike, PE(t + k) is a linear
function of PE(t), so that distances are easy to learn, and they go on for sentences longer than any in
training, which a learned table does not.""",
    did="""The sines (64 features): PE(t + k) against PE(t) turned by the angles of k, for 10,000 positions and eight
distances; the largest entry; the least distance between any two of the 10,000 positions. The sentence and its swap:
through two fresh blocks without positions, and with sines, and the largest difference between the one's outputs and the
other's, put in its order. Past the length of training: two causal blocks, 4 heads, width 64, learn to say at each place
the letter that stood three places before (16 letters, 32 places, batches of 32, AdamW at a rate of 0.002, 400 steps or
until the mean loss of ten is below 0.02), and are tested on 64 places; the learned table has 64 rows, of which 32 are
never trained.""",
)

WIDTH, N_HEADS, LETTERS, BACK = 64, 4, 16, 3
SHORT, LONG = 32, 64
D_HEAD = WIDTH // N_HEADS
CAUSAL = Causal()

# Each kind: what is added to the words, and what every attention is told.
KINDS: dict[str, Callable[[], tuple[Positions | None, Positions | None]]] = {
    "none": lambda: (None, None),
    "learned table": lambda: (Learned(LONG, WIDTH), None),
    "sinusoidal": lambda: (Sinusoidal(WIDTH), None),
    "rotary": lambda: (None, Rotary(D_HEAD)),
    "T5's buckets": lambda: (None, RelativeBuckets(N_HEADS, bidirectional=False)),
    "Transformer-XL's": lambda: (None, RelativeXL(N_HEADS, D_HEAD, WIDTH)),
    "ALiBi": lambda: (None, ALiBi(N_HEADS)),
}


def make(kind: str, seed: int, mask: Mask = CAUSAL, vocab_size: int = LETTERS) -> Model:
    attention = AttentionConfig(d_query=WIDTH, n_heads=N_HEADS, mask=mask)
    parts = ("self", attention), ("feedforward", FeedForwardConfig(d_model=WIDTH, d_hidden=2 * WIDTH))
    config = Reader(vocab_size=vocab_size, n_labels=LETTERS, d_model=WIDTH, blocks=(block(*parts),) * 2)
    embed, attend = KINDS[kind]()
    return read_with(config, seed=seed, embed=embed, attend=attend)


# The sines


def turn(k: int) -> Tensor:
    """The matrix with PE(t + k) = turn(k) PE(t), whatever t is: a small rotation for each pair of sine and cosine."""
    sine, cosine = sinusoids(torch.tensor([k]), WIDTH)[0].view(-1, 2).T
    matrix = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for pair in range(WIDTH // 2):
        a, b = 2 * pair, 2 * pair + 1
        matrix[a, a] = matrix[b, b] = cosine[pair]
        matrix[a, b], matrix[b, a] = sine[pair], -sine[pair]
    return matrix


def sines(n: int) -> tuple[Table, dict[str, bool]]:
    codes = sinusoids(torch.arange(n), WIDTH)
    shifts = [1, 2, 3, 10, 50, 100, 500, min(1000, n // 2)]
    off = max((codes[k:] - codes[:-k] @ turn(k).T).abs().max().item() for k in shifts)
    # The distance between two positions depends on their difference alone, so the first is compared with all others.
    nearest = (codes[1:] - codes[0]).norm(dim=1).min().item()
    largest, norms = codes.abs().max().item(), codes.norm(dim=1)
    rows = [
        ["PE(t + k) − turn(k) PE(t), largest entry", off],
        ["largest entry of any PE(t)", largest],
        ["norm of every PE(t); √(d/2) is 5.657", f"{norms.min():.3f} to {norms.max():.3f}"],
        [f"least distance between two of {n:,} positions", nearest],
    ]
    held = {"PE(t + k) is linear in PE(t)": off < 1e-10, "bounded by 1": largest <= 1, "unique": nearest > 0.1}
    return Table("Sines and cosines, 64 features", ["what", "measured"], rows), held


# The sentence and its swap


def swapped(seed: int) -> tuple[Table, dict[str, bool]]:
    words = ["She", "prefers", "cats", "to", "dogs"]
    order = [0, 1, 4, 3, 2]
    rows, largest = [], {}
    for kind in ("none", "sinusoidal"):
        model = make(kind, seed, NO_MASK, vocab_size=len(words)).double()
        with torch.inference_mode(), af.look(model, "encoder.output") as seen:
            model(input_ids=torch.stack([torch.arange(5), torch.tensor(order)]))
        plain, swap = seen["encoder.output"]
        largest[kind] = (swap - plain[order]).abs().max().item()
        rows.append([kind, largest[kind], (swap - plain).abs().max().item()])
    columns = ["positions", "against the first sentence's, put in its order", "against them as they stand"]
    title = f'"{" ".join(words)}" and "{" ".join(words[i] for i in order)}", largest difference of the outputs'
    held = {
        "without positions, outputs are permuted": largest["none"] < 1e-12,
        "with sines they are not": largest["sinusoidal"] > 0.1,
    }
    return Table(title, columns, rows), held


# Past the length of training


def draw(rows: int, chance: Generator, length: int = SHORT) -> dict[str, Tensor]:
    letters = torch.randint(0, LETTERS, (rows, length), generator=chance)
    labels = letters.roll(BACK, dims=1)
    labels[:, :BACK] = -100
    return {"input_ids": letters, "labels": labels}


def right(model: Model, length: int) -> Tensor:
    """The share of right letters at every place from the fourth."""
    batch = draw(256, Generator().manual_seed(0), length)
    with torch.inference_mode():
        found = model(input_ids=batch["input_ids"]).logits.argmax(-1) == batch["labels"]
    return found[:, BACK:].float().mean(0)


def reach(options: Options) -> dict[str, list[tuple[Tensor, Tensor]]]:
    seeds = options.pick(options.seeds, options.seeds[:1])
    pace = Pace(len(KINDS) * len(seeds))
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for kind in KINDS:
        for seed in seeds:
            model = make(kind, seed)
            steps, label = options.pick(400, 10), f"{kind}, seed {seed}"
            learn(model, draw, steps=steps, seed=seed, lr=2e-3, until=0.02, pace=pace, label=label)
            found.setdefault(kind, []).append((right(model, SHORT), right(model, LONG)))
    return found


def report(found: dict[str, list[tuple[Tensor, Tensor]]]) -> tuple[Table, Picture, dict[str, float], dict[str, float]]:
    rows, within, beyond = [], {}, {}
    with plot(1, width=7.5, beside=True) as (figure, (axes,)):
        for kind, runs in found.items():
            inside = [short.mean().item() for short, _ in runs]
            first, rest = (
                [part.mean().item() for part in parts]
                for parts in zip(*(long.split([SHORT - BACK, LONG - SHORT]) for _, long in runs), strict=True)
            )
            rows.append([kind, spread(inside), spread(first), spread(rest)])
            within[kind], beyond[kind] = spread(inside).mean, spread(rest).mean
            mean = torch.stack([long for _, long in runs]).mean(0)
            axes.plot(range(BACK + 1, LONG + 1), mean, label=kind)
        axes.axvline(SHORT + 0.5, color="grey", linestyle=":")
        axes.set(xlabel="place (trained to the dotted line)", ylabel="right letters", ylim=(-0.02, 1.04))
    columns = ["positions", "32 places", "64 places: the first 32", "64 places: the last 32"]
    caption = "The share of right letters at each place of 64, trained on 32; mean of the seeds. Chance is 1/16."
    return Table("The letter three places before: share right", columns, rows), Picture(figure, caption), within, beyond


def judge(inside: dict[str, float], beyond: dict[str, float], exact: Sequence[bool]) -> tuple[Verdict, str]:
    listed = ", ".join(f"{kind} {beyond[kind]:.0%}" for kind in sorted(beyond, key=lambda kind: -beyond[kind]))
    sines = beyond["sinusoidal"] > 0.9
    verdict: Verdict = "does not hold here" if not all(exact) else "holds" if sines else "holds partly"
    words = f"What is said of the sines as formulas is exact. Right letters beyond the places of training: {listed}."
    if not sines:
        words += """ So sines *can* be computed for longer sentences, but the model that was trained on them cannot read
those: it has never seen these rows, much as with the learned table. What reaches further tells attention distances
and not places."""
    weak = [f"{kind} ({inside[kind]:.0%} right within {SHORT} places)" for kind in inside if inside[kind] < 0.9]
    return verdict, words + (f" Not learned in the first place with: {', '.join(weak)}." if weak else "")


def run(options: Options) -> Found:
    formulas, formulas_held = sines(options.pick(10_000, 3_000))
    sentence, sentence_held = swapped(options.seeds[0])
    table, picture, within, beyond = report(reach(options))
    exact = formulas_held | sentence_held
    verdict, words = judge(within, beyond, list(exact.values()))
    return Found(tables=[formulas, sentence, table], pictures=[picture], verdict=verdict, words=words, exact=exact)


if __name__ == "__main__":
    main(CLAIM, run)
