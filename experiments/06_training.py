"""What helps a transformer to learn: heads, warm-up, the place of the norm and its kind, label smoothing.

python experiments/06_training.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from anyformer.core.attention import AttentionConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import Causal
from anyformer.core.norms import NormConfig
from anyformer.core.positions import Sinusoidal
from anyformer.forward_context import IGNORED
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, Verdict, main, plot, spread
from learn import Course, learn
from models import Reader, block, parameters, read_with
from numbers_written import Rows, corpus

CLAIM = Claim(
    number=6,
    name="training",
    title="Many heads, warm-up, norms and smoothing, one at a time",
    items=("000-2.6-02", "000-2.6-04", "001-5-01", "003-13-04", "004-15-01", "004-15-03"),
    says="""Eight heads do better than one of the same total width. A transformer wants a warm-up of its learning rate,
above all when it is normalized after the sublayers ("post"); normalized before them ("pre") it trains without. Label
smoothing makes the model less sure and its loss worse, but its answers better. Layer norm is used and not batch norm,
because a batch's sequences have uneven lengths and a token's result must not depend on its neighbors.""",
    did="""A causal stack of 6 blocks, width 64, reads a number in English words and goes on in German ("twenty one" →
"ein und zwanzig"; numbers of 1 to 4 digits, 3,000 to learn from, 500 others to be tested on, rows of a batch of uneven
length); AdamW at a rate of 0.003, 120 batches of 32, when
the usual way is nearly there. One thing is changed at a time: "as usual" has 8 heads, norms
before the sublayers, layer norm, a warm-up of 40 steps and no smoothing. Held-out loss is the plain cross entropy of
the German words, "numbers right" means every word of a number first choice, "sureness" is the mean probability of the
first choice. The last column: how far the result of one row moves in training when the other rows of its batch are
exchanged.""",
)

WIDTH, N_LAYERS = 64, 6


@dataclass(frozen=True)
class Way:
    n_heads: int = 8
    order: str = "pre"
    norm: str = "layer"
    warmup: int = 40
    smoothing: float = 0.0


USUAL = Way()
WAYS = {
    "as usual": USUAL,
    "1 head": replace(USUAL, n_heads=1),
    "no warm-up": replace(USUAL, warmup=0),
    "post-norm": replace(USUAL, order="post"),
    "post-norm, no warm-up": replace(USUAL, order="post", warmup=0),
    "label smoothing 0.1": replace(USUAL, smoothing=0.1),
    "batch norm": replace(USUAL, norm="batch"),
}


def make(way: Way, vocab_size: int, seed: int) -> Model:
    attention = AttentionConfig(d_query=WIDTH, n_heads=way.n_heads, mask=Causal())
    parts = ("self", attention), ("feedforward", FeedForwardConfig(d_model=WIDTH, d_hidden=2 * WIDTH))
    norm = NormConfig(kind=way.norm)  # type: ignore[arg-type]
    blocks = (block(*parts, order=way.order, norm=norm),) * N_LAYERS
    config = Reader(vocab_size=vocab_size, n_labels=vocab_size, d_model=WIDTH, blocks=blocks)
    return read_with(
        config.replace(final_norm=norm if way.order == "pre" else None), seed=seed, embed=Sinusoidal(WIDTH)
    )


@dataclass
class Result:
    """One run's figures on rows that were not learned from."""

    course: Course
    loss: float
    right: float  # of whole numbers
    sure: float


def examine(model: Model, rows: Rows) -> tuple[float, float, float]:
    batch = rows.one_stack(list(range(rows.count, rows.count + rows.tests)))
    labels = batch.pop("labels")
    with torch.inference_mode():
        logits = model(**batch).logits
    counts = labels != IGNORED
    chances, best = logits.softmax(-1).max(-1)
    right = ((best == labels) | ~counts).all(dim=1).float().mean().item()
    return F.cross_entropy(logits[counts], labels[counts]).item(), right, chances[counts].mean().item()


def disturbed(way: Way, rows: Rows, seed: int) -> float:
    """How far a row's scores move, as a share of their size, when its neighbors are others: the model in training."""
    model = make(way, len(rows.corpus.tokenizer), seed).train()
    results = []
    for others in (range(1, 8), range(8, 15)):
        batch = rows.one_stack([0, *others])
        real = int(batch["attention_mask"][0].sum())
        with torch.no_grad():
            results.append(model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0, :real])
    return ((results[0] - results[1]).norm() / results[0].norm()).item()


def train_one(way: Way, rows: Rows, steps: int, seed: int, pace: Pace, label: str) -> Result:
    model = make(way, len(rows.corpus.tokenizer), seed)
    warmup = min(way.warmup, steps)
    course = learn(
        model, rows.draw, steps=steps, seed=seed, lr=3e-3, warmup_steps=warmup, smoothing=way.smoothing, pace=pace,
        label=label,
    )  # fmt: skip
    return Result(course, *examine(model, rows))


def run(options: Options) -> Found:
    count, tests = options.pick((3000, 500), (200, 20))
    rows = Rows(corpus(count, tests, 4)[0], tests)
    seeds, steps = options.pick(options.seeds, options.seeds[:1]), options.pick(120, 4)
    pace = Pace(len(WAYS) * len(seeds))
    found = {
        name: [train_one(way, rows, steps, seed, pace, f"{name}, seed {seed}") for seed in seeds]
        for name, way in WAYS.items()
    }
    moved = {name: [disturbed(way, rows, seed) for seed in seeds] for name, way in WAYS.items()}
    return report(found, moved, rows)


def figure_of(runs: Sequence[Result], name: str) -> Spread:
    return spread([getattr(one, name) for one in runs])


def report(found: dict[str, list[Result]], moved: dict[str, list[float]], rows: Rows) -> Found:
    words = len(rows.corpus.tokenizer)
    table = Table(
        "Held out",
        ["way", "parameters", "loss", "numbers right", "sureness", "moved by neighbors"],
        [
            [
                name,
                parameters(make(WAYS[name], words, 1)),
                *(figure_of(runs, what) for what in ("loss", "right", "sure")),
                spread(moved[name]),
            ]
            for name, runs in found.items()
        ],
    )
    alone = {name: max(values) for name, values in moved.items()}
    exact = {
        "with layer norm a row does not depend on its neighbors": all(
            value < 1e-5 for name, value in alone.items() if name != "batch norm"
        ),
        "with batch norm it does": alone["batch norm"] > 1e-3,
    }
    verdict, said = judge(found)
    return Found(tables=[table], pictures=[picture(found)], verdict=verdict, words=said, exact=exact)


def judge(found: dict[str, list[Result]]) -> tuple[Verdict, str]:
    """Each part of the claim by itself: better by more than the spread of the seeds, worse by more, or neither."""
    right = {name: figure_of(runs, "right") for name, runs in found.items()}
    loss = {name: figure_of(runs, "loss") for name, runs in found.items()}
    usual = right["as usual"]
    parts = [
        compare("eight heads against one", usual, right["1 head"]),
        compare("warm-up with norms after", right["post-norm"], right["post-norm, no warm-up"]),
        compare("label smoothing", right["label smoothing 0.1"], usual),
        compare("layer norm against batch norm", usual, right["batch norm"]),
    ]
    words = "; ".join(text for _, text in parts) + "."
    words += f" With norms before the sublayers: {compare('warm-up', usual, right['no warm-up'])[1]}."
    sure = {name: figure_of(runs, "sure") for name, runs in found.items()}
    words += (
        f" Label smoothing takes the held-out loss from {loss['as usual']} to {loss['label smoothing 0.1']} and the"
    )
    words += f" sureness from {sure['as usual']} to {sure['label smoothing 0.1']}."
    held = [better for better, _ in parts]
    verdict: Verdict = "holds" if all(held) else "holds partly" if any(held) else "does not hold here"
    return verdict, f"In numbers right, {words}"


def compare(what: str, one: Spread, other: Spread) -> tuple[bool, str]:
    margin = max(one.deviation, other.deviation)
    gap = one.mean - other.mean
    how = "better" if gap > margin else "worse" if gap < -margin else "no clear difference"
    return gap > margin, f"{what}: {how} ({one} against {other})"


def picture(found: dict[str, list[Result]]) -> Picture:
    with plot(2, width=4.6) as (figure, (left, right)):
        for name, runs in found.items():
            losses = torch.tensor([one.course.losses for one in runs if not one.course.diverged]).mean(0)
            smooth = losses.unfold(0, min(10, len(losses)), 1).mean(-1)
            left.plot(smooth, label=name, linewidth=1)
        left.set(xlabel="step", ylabel="loss in training", yscale="log")
        values = [figure_of(runs, "right") for runs in found.values()]
        right.barh(list(found), [one.mean for one in values], xerr=[one.deviation for one in values], color="C0")
        right.invert_yaxis()
        right.set(xlabel="numbers right, held out")
    return Picture(figure, "Left: loss in training, mean of the seeds and of ten steps. Right: held-out numbers right.")


if __name__ == "__main__":
    main(CLAIM, run)
