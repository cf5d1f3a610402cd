"""Translation with and without attention, by the length of the sentence and against the time it takes.

python experiments/04_bottleneck.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from sacrebleu.metrics import BLEU

import anyformer as af
from anyformer.cli.demo.number_translation import Pair, join_german, split_english, split_german
from anyformer.model import Model
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, Verdict, main, plot, spread
from learn import Course, learn
from models import parameters
from numbers_written import GENERATION, Rows, corpus

CLAIM = Claim(
    number=4,
    name="bottleneck",
    title="The bottleneck: one vector for a whole sentence",
    items=("003-1-06", "003-15-02"),
    says="""An encoder and a decoder that are joined by one vector alone lose quality as sentences grow, since
everything must fit into it. Attention (Bahdanau, Luong) removes the bottleneck: quality no longer falls
with the length. The Transformer is better still, and faster to train, since it has no steps that must wait
for one another.""",
    did="""English number words into German ones, 1 to 9 digits (up to 17 words; "twenty one thousand" → "ein und
zwanzig tausend"): two real languages, a made-up domain, every length. Four recipes at about 150,000
parameters each: `sutskever-tiny` (an LSTM that hands over its last state), `bahdanau-tiny`, `luong-tiny`,
`transformer-tiny`. 4,000 numbers to learn from, the same batches of 32 for all, AdamW at a rate of 0.003
with a warm-up of 50 steps. BLEU (sacrebleu on the split words, greedy decoding) of 300 numbers that were
not learned from, by the number of English words (under five there are no four in a row for BLEU to count;
they are in "all"); and of 100 of them after every quarter of the training, against the processor time it
took by then. Real sentences (Multi30k, full sizes, on a GPU) are in [results.md](../results.md).""",
)

DIGITS = 9
BUCKETS = ((5, 8), (9, 12), (13, 20))  # English words; fewer have no four in a row for BLEU to count
SHARED = {"max_length": 64}

RECIPES = {
    "RNN, one vector (Sutskever)": partial(af.build, "sutskever-tiny", d_model=64, d_hidden=100, n_layers=1),
    "Bahdanau": partial(af.build, "bahdanau-tiny", d_model=64, d_hidden=64, d_out=64, dropout=0.0),
    "Luong": partial(af.build, "luong-tiny", d_model=64, d_hidden=76, n_layers=1, dropout=0.0),
    "Transformer": partial(af.build, "transformer-tiny", d_model=64, d_hidden=96, n_heads=4, dropout=0.0, **SHARED),
}


def make(name: str, words: int, seed: int) -> Model:
    torch.manual_seed(seed)
    model = RECIPES[name](vocab_size=words)
    model.origin.generation = {**GENERATION, "max_length": 64}
    return model


@dataclass
class Result:
    course: Course
    answers: list[str]


class Exam:
    """The numbers that were not learned from, and the BLEU of a model's answers."""

    def __init__(self, rows: Rows, pairs: Sequence[Pair], few: int) -> None:
        self.rows, self.few = rows, few
        self.wanted = [split_german(pair.german) for pair in pairs]
        self.lengths = [len(split_english(pair.english).split()) for pair in pairs]

    def translate(self, model: Model, n: int) -> list[str]:
        batch = self.rows.pairs(list(range(self.rows.count, self.rows.count + n)))
        with torch.inference_mode():
            ids = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        return [self.rows.corpus.tokenizer.decode(row) for row in ids]

    def bleu(self, answers: Sequence[str], bucket: tuple[int, int] | None = None) -> float:
        low, high = bucket if bucket is not None else (0, 1000)
        chosen = [i for i in range(len(answers)) if low <= self.lengths[i] <= high]
        score = BLEU(tokenize="none").corpus_score([answers[i] for i in chosen], [[self.wanted[i] for i in chosen]])
        return float(score.score)

    def right(self, answers: Sequence[str]) -> float:
        pairs = zip(answers, self.wanted, strict=False)
        return sum(join_german(a) == join_german(b) for a, b in pairs) / len(answers)

    def quarter(self, model: Model) -> dict[str, float]:
        return {"bleu": self.bleu(self.translate(model, self.few))}


def train_one(name: str, exam: Exam, steps: int, seed: int, pace: Pace) -> Result:
    model = make(name, len(exam.rows.corpus.tokenizer), seed)
    course = learn(
        model, exam.rows.draw_pairs, steps=steps, seed=seed, lr=3e-3, warmup_steps=min(50, steps), measure=exam.quarter,
        every=max(steps // 4, 1), pace=pace, label=f"{name}, seed {seed}",
    )  # fmt: skip
    return Result(course, exam.translate(model, exam.rows.tests))


def run(options: Options) -> Found:
    count, tests = options.pick((4000, 300), (200, 24))
    numbers, pairs = corpus(count, tests, DIGITS)
    exam = Exam(Rows(numbers, tests), pairs, options.pick(100, 8))
    seeds, steps = options.pick(options.seeds, options.seeds[:1]), options.pick(300, 2)
    pace = Pace(len(RECIPES) * len(seeds))
    found = {name: [train_one(name, exam, steps, seed, pace) for seed in seeds] for name in RECIPES}
    return report(found, exam)


def by_length(runs: Sequence[Result], exam: Exam) -> list[Spread]:
    return [spread([exam.bleu(one.answers, bucket) for one in runs]) for bucket in BUCKETS]


def report(found: dict[str, list[Result]], exam: Exam) -> Found:
    words = len(exam.rows.corpus.tokenizer)
    rows = [
        [
            name,
            parameters(make(name, words, 1)),
            *by_length(runs, exam),
            spread([exam.bleu(one.answers) for one in runs]),
            spread([exam.right(one.answers) for one in runs]),
            spread([one.course.clock[-1] for one in runs]),
        ]
        for name, runs in found.items()
    ]
    lengths = [f"BLEU, {low}–{high} words" for low, high in BUCKETS]
    columns = ["model", "parameters", *lengths, "BLEU, all", "numbers right", "seconds of training"]
    title = f"{exam.rows.tests} numbers that were not learned from (BLEU's signature: {signature()})"
    verdict, said = judge(found, exam)
    return Found(tables=[Table(title, columns, rows)], pictures=[picture(found, exam)], verdict=verdict, words=said)


def signature() -> str:
    metric = BLEU(tokenize="none")
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())


def judge(found: dict[str, list[Result]], exam: Exam) -> tuple[Verdict, str]:
    scores = {name: [one.mean for one in by_length(runs, exam)] for name, runs in found.items()}
    drop = {name: values[0] - values[-1] for name, values in scores.items()}
    clock = {name: spread([one.course.clock[-1] for one in runs]).mean for name, runs in found.items()}
    plain, bahdanau, luong, transformer = found
    bottleneck = drop[plain] > 5 + max(drop[bahdanau], drop[luong])
    best = all(scores[transformer][-1] >= scores[name][-1] - 1 for name in (bahdanau, luong))
    fastest = all(clock[transformer] < clock[name] for name in (bahdanau, luong))
    words = "From the shortest to the longest, BLEU goes " + "; ".join(
        f"from {values[0]:.0f} to {values[-1]:.0f} ({name}, {clock[name]:.0f} s)" for name, values in scores.items()
    )
    words += ". Attention " + ("removes most of what length costs." if bottleneck else "does not show its worth here.")
    if not best:
        words += " After equally many steps the Transformer is not the best of them."
    words += (
        f" Of those with attention, the Transformer is {'the fastest to train' if fastest else 'not the fastest'}: "
    )
    words += f"within the {clock[transformer]:.0f} s that it takes, BLEU over all lengths is " + ", ".join(
        f"{within(runs, clock[transformer]):.0f} ({name})" for name, runs in found.items()
    )
    words += "."
    held = [bottleneck, best, fastest]
    verdict: Verdict = "holds" if all(held) else "holds partly" if any(held) else "does not hold here"
    return verdict, words


def quarters(runs: Sequence[Result]) -> list[tuple[float, float]]:
    """Seconds and BLEU after every quarter, means of the seeds."""
    return [
        (
            spread([one.course.clock[step - 1] for one in runs]).mean,
            spread([one.course.measured[step]["bleu"] for one in runs]).mean,
        )
        for step in sorted(runs[0].course.measured)
    ]


def within(runs: Sequence[Result], seconds: float) -> float:
    """The last BLEU that was measured by then."""
    return max((point for point in quarters(runs) if point[0] <= seconds * 1.001), default=(0.0, 0.0))[1]


def picture(found: dict[str, list[Result]], exam: Exam) -> Picture:
    with plot(2, width=4.6) as (figure, (left, right)):
        for name, runs in found.items():
            scores = by_length(runs, exam)
            names = [f"{low}–{high}" for low, high in BUCKETS]
            bars = [one.deviation for one in scores]
            left.errorbar(names, [one.mean for one in scores], bars, marker="o", label=name)
            seconds, quality = zip(*quarters(runs), strict=True)
            right.plot(seconds, quality, marker="o", label=name)
        left.set(xlabel="English words", ylabel="BLEU", ylim=(0, 103))
        right.set(xlabel="seconds of training", ylabel="BLEU, all lengths", ylim=(0, 103))
    return Picture(figure, "Left: BLEU by length after training. Right: BLEU after each quarter, against its time.")


if __name__ == "__main__":
    main(CLAIM, run)
