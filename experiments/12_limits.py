"""Claim 12: a language model learns from examples in its prompt; and a transformer cannot count where an LSTM can.

python experiments/12_limits.py
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

import anyformer as af
from anyformer.core.attention import AttentionConfig
from anyformer.core.cache import Cache
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import Causal
from anyformer.core.positions import Sinusoidal
from anyformer.generation.engine import prefill
from anyformer.layers.recurrent import RNNEncoderConfig
from anyformer.model import Model
from anyformer.tokenizers.few_shot import make_few_shot_prompt
from frame import Claim, Found, Options, Pace, Picture, Table, main, plot, spread
from learn import Batch, learn
from models import Reader, block, parameters, read_with
from real import data, weights

CLAIM = Claim(
    number=12,
    name="limits",
    title="Examples in the prompt, and languages that must be counted",
    items=("000-0-02", "001-11-07", "003-16-01", "004-3-04", "004-26-05"),
    says="A large language model does a task that it is shown a few examples of, better with more of them (GPT-3)."
    " And what a transformer computes has limits that a recurrent network has not: parity and nested brackets, which"
    " an LSTM can keep in its state, it cannot compute for any length.",
    did="Shots: SmolLM2-135M-Instruct (real weights) says whether 150 sentences of SST-2's dev set are positive or"
    " negative, after 0, 1, 4 and 16 examples drawn from the training sentences by the seed (as many of either kind):"
    " the likelier of"
    ' " positive" and " negative" counts as its answer, as it is, and with the bias taken off that it has for a review'
    ' that reads "N/A". Languages: at each token of a string, the parity of the ones so far, or the innermost open'
    " bracket (two kinds, at most four deep). An LSTM of one layer and causal transformers of two, with sines for"
    " positions or none, learn from strings of 32 tokens until the loss is 0.02 or for 500 steps, and are tested by"
    " place up to 256.",
)
SHOTS = (0, 1, 4, 16)
WORDS = (" negative", " positive")
TEMPLATE = "Review: {0}\nSentiment:{1}\n\n"


def run(options: Options) -> Found:
    shown = few_shots(options)
    counted = languages(options)
    verdict, words = judge(shown, counted)
    return Found(
        tables=[shot_table(shown), *(language_table(name, counted) for name in LANGUAGES)],
        pictures=[draw(shown, counted)],
        verdict=verdict,  # type: ignore[arg-type]
        words=words,
        exact={"read piece by piece, the model says what model.score says of the whole": shown.apart < 1e-3},
    )


# Examples in the prompt


@dataclass
class Shown:
    """By number of shots, one figure a seed."""

    raw: dict[int, list[float]] = field(default_factory=dict)
    calibrated: dict[int, list[float]] = field(default_factory=dict)
    positive: dict[int, list[float]] = field(default_factory=dict)
    most: float = 0.0  # the share of the commoner label
    apart: float = 0.0  # the largest difference from model.score


def few_shots(options: Options) -> Shown:
    path = weights("SmolLM2-135M-Instruct")
    asker = Asker(af.load(path).optimize(), af.Tokenizer.load(path))
    train, cases = rows("sst2/train_sentences.tsv"), rows("sst2/dev.tsv")[: options.pick(150, 4)]
    right = torch.tensor([label for _, label in cases])
    shown = Shown(most=max(right.float().mean().item(), 1 - right.float().mean().item()))
    pace = Pace(sum(1 if n == 0 else len(options.seeds) for n in options.pick(SHOTS, (0, 1))), "prompts")
    for n in options.pick(SHOTS, (0, 1)):
        for seed in options.seeds if n else options.seeds[:1]:
            pace.next(f"{n} shots, seed {seed}")
            prompt = write(pick(train, n, seed))
            leads = asker.leads(prompt, [text for text, _ in cases])
            bias = asker.leads(prompt, ["N/A"])
            said, fair = leads > 0, leads - bias > 0
            shown.raw.setdefault(n, []).append((said == right).float().mean().item())
            shown.calibrated.setdefault(n, []).append((fair == right).float().mean().item())
            shown.positive.setdefault(n, []).append(said.float().mean().item())
    shown.apart = max(asker.check(write(pick(train, 1, 0)), text) for text, _ in cases[:2])
    return shown


def rows(place: str) -> list[tuple[str, int]]:
    with data(place).open(encoding="utf-8") as file:
        return [
            (row["sentence"].strip(), int(row["label"]))
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def pick(train: Sequence[tuple[str, int]], n: int, seed: int) -> list[tuple[str, int]]:
    """As many of either kind, one more of one where the number is odd."""
    chance = random.Random(seed)
    first = chance.randrange(2)
    chosen = [chance.choice([row for row in train if row[1] == (first + i) % 2]) for i in range(n)]
    chance.shuffle(chosen)
    return chosen


def write(examples: Sequence[tuple[str, int]]) -> Callable[[str], str]:
    """The prompt for a case."""
    if not examples:
        return lambda case: TEMPLATE.partition("{1}")[0].replace("{0}", case)
    return make_few_shot_prompt([(text, WORDS[label]) for text, label in examples], TEMPLATE).prompt


def shared(prompt: Callable[[str], str]) -> str:
    """What the prompts of all cases begin with; the space before a case belongs to its first word."""
    return prompt("\0").partition("\0")[0].rstrip(" ")


@dataclass
class Asker:
    model: Model
    tokenizer: Any
    at_once: int = 25

    @property
    def answers(self) -> list[int]:
        return [self.tokenizer.encode(word, special=False)[0] for word in WORDS]

    def leads(self, prompt: Callable[[str], str], cases: Sequence[str]) -> Tensor:
        """How much likelier " positive" is than " negative" after each case. What all prompts begin with is read"
        " once."""
        before = shared(prompt)
        begun, rest = self._shared(before), [self.tokenizer.encode(prompt(case)[len(before) :]) for case in cases]
        order, found = sorted(range(len(cases)), key=lambda i: len(rest[i])), torch.zeros(len(cases))
        for at in range(0, len(order), self.at_once):
            some = order[at : at + self.at_once]
            found[some] = self._read(begun, [rest[i] for i in some])
        return found

    def _shared(self, text: str) -> Cache | None:
        ids = self.tokenizer.encode(text)
        if len(ids) < 8:  # no examples: nothing worth sharing
            return None
        with torch.inference_mode():
            return prefill(self.model, {"input_ids": torch.tensor([ids])}, None)[0]

    def _read(self, begun: Cache | None, rows: Sequence[list[int]]) -> Tensor:
        size = max(map(len, rows))
        head = self.tokenizer.encode(shared(write([]))) if begun is None else []
        ids = torch.tensor([[0] * (size - len(row)) + head + row for row in rows])
        real = torch.tensor([[0] * (size - len(row)) + [1] * (len(head) + len(row)) for row in rows])
        state = None if begun is None else begun.clone()
        if state is not None:
            state.reorder(torch.zeros(len(rows), dtype=torch.long))
        with torch.inference_mode():
            _, scores = prefill(self.model, {"input_ids": ids, "attention_mask": real}, None, state)
        negative, positive = (scores[:, answer] for answer in self.answers)
        return (positive - negative).float().clone()

    def check(self, prompt: Callable[[str], str], case: str) -> float:
        """The same by `model.score` on the whole prompt."""
        before = shared(prompt)
        ids = self.tokenizer.encode(before) + self.tokenizer.encode(prompt(case)[len(before) :])
        found = self.model.score(torch.tensor([ids]), continuations=[[answer] for answer in self.answers])
        return abs(float(found.totals[1] - found.totals[0]) - float(self.leads(prompt, [case])[0]))


# Languages that must be counted

LEARNED, LONGEST, DEPTH = 32, 256, 4
BANDS = ((1, 16), (17, 32), (33, 64), (65, 128), (129, 256))
D = 64


def parity(n: int, length: int, generator: Generator) -> Batch:
    bits = torch.randint(2, (n, length), generator=generator)
    return {"input_ids": bits, "labels": bits.cumsum(dim=1) % 2}


def brackets(n: int, length: int, generator: Generator) -> Batch:
    """( [ ) ] are 0 to 3; the label is the innermost open one: 0 none, 1 round, 2 square."""
    coins = torch.rand(n, length, 2, generator=generator).tolist()
    ids, labels = [], []
    for row in coins:
        stack: list[int] = []
        ids.append([])
        labels.append([])
        for opens, kind in row:
            if not stack or (opens < 0.5 and len(stack) < DEPTH):
                stack.append(int(kind < 0.5))
                ids[-1].append(stack[-1])
            else:
                ids[-1].append(2 + stack.pop())
            labels[-1].append(1 + stack[-1] if stack else 0)
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


LANGUAGES: dict[str, Callable[[int, int, Generator], Batch]] = {"parity": parity, "brackets": brackets}


def lstm(seed: int) -> Model:
    part = RNNEncoderConfig(d_model=D, d_hidden=D)
    alone = block(("recurrent", part), norm=None, residual=False)
    return read_with(Reader(vocab_size=4, n_labels=3, d_model=D, blocks=(alone,), final_norm=None), seed=seed)


def transformer(seed: int, positions: Sinusoidal | None) -> Model:
    looks = AttentionConfig(d_query=D, n_heads=4, mask=Causal())
    one = block(("self", looks), ("feedforward", FeedForwardConfig(d_model=D, d_hidden=2 * D)))
    return read_with(Reader(vocab_size=4, n_labels=3, d_model=D, blocks=(one, one)), seed=seed, embed=positions)


MODELS: dict[str, Callable[[int], Model]] = {
    "LSTM": lstm,
    "transformer, sines": lambda seed: transformer(seed, Sinusoidal(D)),
    "transformer, no positions": lambda seed: transformer(seed, None),
}
Counted = dict[tuple[str, str], list[list[float]]]  # (language, model) -> a seed's accuracies, one a band


def languages(options: Options) -> Counted:
    found: Counted = {}
    pace = Pace(len(LANGUAGES) * len(MODELS) * len(options.seeds))
    for name, language in LANGUAGES.items():
        test = language(options.pick(200, 8), LONGEST, Generator().manual_seed(0))
        for kind, make in MODELS.items():
            for seed in options.seeds:
                model = make(seed)
                learn(
                    model, lambda n, chance, of=language: of(n, LEARNED, chance), steps=options.pick(500, 2), seed=seed,
                    pace=pace, label=f"{name}, {kind}", lr=3e-3, warmup_steps=20, until=0.02,
                )  # fmt: skip
                found.setdefault((name, kind), []).append(by_band(model.eval(), test))
    return found


def by_band(model: Model, test: Batch) -> list[float]:
    with torch.inference_mode():
        right = (model(input_ids=test["input_ids"]).logits.argmax(dim=-1) == test["labels"]).float()
    return [right[:, first - 1 : last].mean().item() for first, last in BANDS]


# What is said of it


def judge(shown: Shown, counted: Counted) -> tuple[str, str]:
    most = max(shown.raw)
    means = {n: spread(values).mean for n, values in shown.raw.items()}
    fair = {n: spread(values).mean for n, values in shown.calibrated.items()}
    better, fairer = means[most] > means[0], fair[most] > fair[0]
    helped = (
        "help" if better and fairer else "help only once the bias is taken off" if fairer else "do not help this one"
    )
    first = (
        f"Shots: {means[0]:.3f} with none and {means[most]:.3f} with {most}, {fair[0]:.3f} and {fair[most]:.3f}"
        f" without the bias: more examples {helped}, a model of 135 million parameters."
    )
    ends = {key: spread([bands[-1] for bands in values]).mean for key, values in counted.items()}
    short = {key: spread([bands[0] for bands in values]).mean for key, values in counted.items()}
    parts = []
    for name in LANGUAGES:
        kinds = ", ".join(f"{kind} {short[name, kind]:.2f} and {ends[name, kind]:.2f}" for kind in MODELS)
        parts.append(f"{name} (places 1 to 16, and 129 to 256): {kinds}")
    wins = all(ends[name, "LSTM"] > max(ends[name, kind] for kind in MODELS if kind != "LSTM") for name in LANGUAGES)
    second = f" Languages: {'; '.join(parts)}. The LSTM goes further {'in both' if wins else 'not in both'}."
    whole = better and fairer and wins
    return ("holds" if whole else "holds partly" if wins or better else "does not hold here"), first + second


def shot_table(shown: Shown) -> Table:
    rows = [
        [n, spread(shown.raw[n]), spread(shown.calibrated[n]), spread(shown.positive[n])] for n in sorted(shown.raw)
    ]
    title = f"SST-2 by SmolLM2-135M (the commoner label alone: {shown.most:.3f})"
    return Table(title, ["shots", "accuracy", "without the bias", 'said "positive"'], rows)


def language_table(name: str, counted: Counted) -> Table:
    columns = ["model", "parameters", *(f"{first}–{last}" for first, last in BANDS)]
    rows = [
        [kind, parameters(make(0)), *(spread([bands[i] for bands in counted[name, kind]]) for i in range(len(BANDS)))]
        for kind, make in MODELS.items()
    ]
    return Table(f"{name.capitalize()}: accuracy by place, learned on 1–{LEARNED}", columns, rows)


def draw(shown: Shown, counted: Counted) -> Picture:
    with plot(1 + len(LANGUAGES), width=3.6) as (figure, (left, *others)):
        for label, values in (("as it is", shown.raw), ("without the bias", shown.calibrated)):
            found = {n: spread(some) for n, some in sorted(values.items())}
            left.errorbar(range(len(found)), [one.mean for one in found.values()],
                          [one.deviation for one in found.values()], marker="o", capsize=3, label=label)  # fmt: skip
        left.axhline(shown.most, color="grey", linestyle=":", label="commoner label")
        left.set_xticks(range(len(shown.raw)), [str(n) for n in sorted(shown.raw)])
        left.set(xlabel="examples in the prompt", ylabel="accuracy", title="SST-2, SmolLM2-135M")
        for axes, name in zip(others, LANGUAGES, strict=True):
            for kind in MODELS:
                found_bands = [spread([bands[i] for bands in counted[name, kind]]) for i in range(len(BANDS))]
                axes.errorbar([last for _, last in BANDS], [one.mean for one in found_bands],
                              [one.deviation for one in found_bands], marker="o", capsize=3, label=kind)  # fmt: skip
            axes.axvline(LEARNED, color="grey", linestyle=":")
            axes.set(xscale="log", xlabel="place in the string, up to", title=name, ylim=(0.3, 1.03))
            axes.set_xticks([last for _, last in BANDS], [str(last) for _, last in BANDS])
            axes.minorticks_off()
    return Picture(
        figure, "Left: answers after examples. Right: accuracy by place; longer than the dotted line was never seen."
    )


if __name__ == "__main__":
    main(CLAIM, run)
