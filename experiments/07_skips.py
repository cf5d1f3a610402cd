"""What skip connections carry, and what becomes of attention without them.

python experiments/07_skips.py
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import anyformer as af
from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.positions import Sinusoidal
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, Verdict, main, plot, spread
from learn import learn
from models import BlockSpec, Reader, accuracy, block, read_with

CLAIM = Claim(
    number=7,
    name="skips",
    title="Skip connections carry the position; attention without them forgets its tokens",
    items=("000-2.5-03", "002-9-02", "004-R-07"),
    says="""Positions are added once, at the bottom; the skip connections carry them up to every layer. And attention
averages: a stack of attention alone, without skip connections and feed-forward networks, makes all tokens alike, faster
than exponentially (Dong et al. 2021); skips prevent that, feed-forward networks slow it down.""",
    did="""The probe: stacks of 6 blocks (width 64, 4 heads, layer norm, sines at the bottom) read 32 random letters; on
what comes out of each layer a linear map is fitted (ridge regression, on 200 sequences) that says at which of the 32
places a token stands, and tested on 100 others. Fresh, and after learning to say the letters in reverse (300 batches of
32, AdamW, rate 0.001), with skip connections around every part and without any. The rank: fresh stacks of 12 layers
without norms, of attention alone, with feed-forward networks, with skips, with both; after each layer, how far the
tokens of a sequence are from being all alike, ‖X − mean‖ / ‖X‖; and for how many of its layers there is more than a
thousandth of it left.""",
)

WIDTH, N_HEADS, LETTERS, LENGTH = 64, 4, 16, 32
N_PROBED, N_RANKED = 6, 12
ALIKE = 1e-3


def blocks(n: int, skips: bool, feedforward: bool = True, norms: bool = True) -> tuple[BlockSpec, ...]:
    attention = AttentionConfig(d_query=WIDTH, n_heads=N_HEADS)
    parts = [("self", attention)]
    parts += [("feedforward", FeedForwardConfig(d_model=WIDTH, d_hidden=2 * WIDTH))] if feedforward else []
    one = block(*parts, residual=skips) if norms else block(*parts, residual=skips, norm=None)
    return (one,) * n


def make(stack: tuple[BlockSpec, ...], seed: int, norms: bool = True) -> Model:
    config = Reader(vocab_size=LETTERS, n_labels=LETTERS, d_model=WIDTH, blocks=stack)
    return read_with(config if norms else config.replace(final_norm=None), seed=seed, embed=Sinusoidal(WIDTH))


def layers(model: Model, letters: Tensor) -> list[Tensor]:
    """The tokens that go in, and those after every block."""
    with torch.inference_mode(), af.look(model, "encoder.input", "encoder.blocks.*.output") as seen:
        model(input_ids=letters)
    n_layers = len(model.stages["encoder"].stack.blocks)
    return [seen["encoder.input"], *(seen[f"encoder.blocks.{n}.output"] for n in range(n_layers))]


# The probe


def probe(model: Model) -> list[float]:
    """How often a linear map of each layer's tokens finds their place, on sequences that it was not fitted on."""
    letters = torch.randint(0, LETTERS, (300, LENGTH), generator=Generator().manual_seed(0))
    return [find_places(x[:200], x[200:]) for x in layers(model, letters)]


def find_places(fit: Tensor, test: Tensor) -> float:
    fit, test = (_standard(x, fit) for x in (fit, test))
    wanted = F.one_hot(torch.arange(LENGTH)).double().repeat(len(fit), 1)
    a = fit.flatten(0, 1)
    map_ = torch.linalg.solve(a.T @ a + 1e-3 * len(a) * torch.eye(a.shape[1], dtype=a.dtype), a.T @ wanted)
    return ((test @ map_).argmax(-1) == torch.arange(LENGTH)).double().mean().item()


def _standard(x: Tensor, like: Tensor) -> Tensor:
    """Centered and scaled as the fitted tokens, so that the ridge means the same in every layer; with a constant."""
    flat = like.flatten(0, 1).double()
    x = (x.double() - flat.mean(0)) / flat.std(0).clamp(min=1e-12)
    return F.pad(x, (0, 1), value=1.0)


def draw(rows: int, chance: Generator) -> dict[str, Tensor]:
    letters = torch.randint(0, LETTERS, (rows, LENGTH), generator=chance)
    return {"input_ids": letters, "labels": letters.flip(1)}


Probes = dict[tuple[str, bool], list[list[float]]]  # (when, skips) -> for each seed, by layer


def probes(seeds: Sequence[int], steps: int) -> tuple[Probes, dict[bool, Spread]]:
    found: Probes = {}
    right: dict[bool, list[float]] = {}
    pace = Pace(2 * len(seeds))
    for skips in (True, False):
        for seed in seeds:
            model = make(blocks(N_PROBED, skips), seed)
            found.setdefault(("fresh", skips), []).append(probe(model))
            label = f"{'with' if skips else 'without'} skips, seed {seed}"
            learn(model, draw, steps=steps, seed=seed, pace=pace, label=label)
            found.setdefault(("trained", skips), []).append(probe(model))
            right.setdefault(skips, []).append(accuracy(model, draw(200, Generator().manual_seed(0))))
    return found, {skips: spread(values) for skips, values in right.items()}


# The rank


STACKS = {
    "attention alone": (False, False),
    "+ feed-forward": (False, True),
    "+ skips": (True, False),
    "+ both": (True, True),
}


def apart(model: Model, seed: int) -> list[float]:
    """‖X − mean of its tokens‖ / ‖X‖ after each layer."""
    letters = torch.randint(0, LETTERS, (8, LENGTH), generator=Generator().manual_seed(seed))
    tokens = layers(model.double(), letters)
    return [((x - x.mean(1, keepdim=True)).norm() / x.norm()).item() for x in tokens]


def ranks(seeds: Sequence[int]) -> dict[str, list[list[float]]]:
    return {
        name: [apart(make(blocks(N_RANKED, skips, wide, norms=False), seed, norms=False), seed) for seed in seeds]
        for name, (skips, wide) in STACKS.items()
    }


# What came out


def run(options: Options) -> Found:
    seeds = options.pick(options.seeds, options.seeds[:1])
    places, right = probes(seeds, options.pick(300, 5))
    left = ranks(options.seeds)
    whens = [("fresh", True), ("fresh", False), ("trained", True), ("trained", False)]
    names = [f"{when}, {'with' if skips else 'without'} skips" for when, skips in whens]
    probed = [[n, *(at(places[when], n) for when in whens)] for n in range(N_PROBED + 1)]
    shown = (0, 1, 2, 3, 4, 6, 8, 12)
    ranked = [[name, *(at(runs, n).mean for n in shown), alive(runs)] for name, runs in left.items()]
    verdict, words = judge(places, right, left)
    return Found(
        tables=[
            Table("Places found by a linear probe (chance 0.031) after layer", ["layer", *names], probed),
            Table("How far from all alike after layer", ["stack", *map(str, shown), "layers above 0.001"], ranked),
        ],
        pictures=[picture(places, names, left)],
        verdict=verdict,
        words=words,
    )


def at(runs: list[list[float]], layer: int) -> Spread:
    return spread([one[layer] for one in runs])


def alive(runs: list[list[float]]) -> Spread:
    return spread([float(sum(value > ALIKE for value in one[1:])) for one in runs])


def judge(places: Probes, right: dict[bool, Spread], left: dict[str, list[list[float]]]) -> tuple[Verdict, str]:
    fresh, without = (at(places["fresh", skips], N_PROBED).mean for skips in (True, False))
    after, after_without = (at(places["trained", skips], N_PROBED).mean for skips in (True, False))
    alone, both = (at(left[name], N_RANKED).mean for name in ("attention alone", "+ both"))
    carries, collapses = fresh > 0.5 and without < 0.5 * fresh, alone < ALIKE < 0.01 < both
    slows = alive(left["+ feed-forward"]).mean > alive(left["attention alone"]).mean
    words = (
        f"After {N_PROBED} fresh layers a probe finds {fresh:.0%} of the places with skips and {without:.0%} without;"
        f" after training {after:.0%} and {after_without:.0%} (right letters in reverse: {right[True]} with,"
        f" {right[False]} without). After {N_RANKED} layers of attention alone {alone:.1g} of the difference between"
        f" tokens is left, with skips and feed-forward networks {both:.2f}."
    )
    if not slows:
        words += " Feed-forward networks without skips did not slow this down here."
    if carries and collapses:
        return ("holds" if slows else "holds partly"), words
    return "does not hold here", words


def picture(places: Probes, names: Sequence[str], left: dict[str, list[list[float]]]) -> Picture:
    with plot(2) as (figure, (probe_axes, rank_axes)):
        styles = [("C0", "-"), ("C3", "-"), ("C0", "--"), ("C3", "--")]
        whens = [("fresh", True), ("fresh", False), ("trained", True), ("trained", False)]
        for name, when, (colour, style) in zip(names, whens, styles, strict=True):
            values = [at(places[when], n).mean for n in range(N_PROBED + 1)]
            probe_axes.plot(values, color=colour, linestyle=style, marker=".", label=name)
        for name, runs in left.items():
            rank_axes.plot([at(runs, n).mean for n in range(N_RANKED + 1)], marker=".", label=name)
        probe_axes.set(xlabel="layer", ylabel="places found", ylim=(0, 1.04))
        rank_axes.set(xlabel="layer", ylabel="‖X − mean‖ / ‖X‖", yscale="log")
    return Picture(
        figure, "Left: how often a linear probe finds a token's place. Right: how different tokens still are."
    )


if __name__ == "__main__":
    main(CLAIM, run)
