"""Fit the temperature of a classifier or tagger and measure how well its probabilities hold.

    python models/calibrate.py sentiment paraphrase entities
    python models/calibrate.py questions        # how well a threshold finds questions without an answer

The temperature that minimizes the loss is fitted on one half of the validation rows (`halves.choosing_rows`). The
expected calibration error (ECE), in 15 bins of equal width, and the accuracy below and above thresholds are measured on
the other. The checkpoint was selected on both halves, the temperature on the first alone. Few rows have an error by
chance alone: the mean error of answers that are right exactly as often as they claim is printed beside it.
`task.temperature` and `task.unsure_below` in the notes' settings are chosen from what this prints. The confidence of a
tagger is that of an entity it found, the mean of its words' probabilities; it is right if a labeled entity has the same
words and label.

Questions without an answer are asked of a paragraph of any article, or of the paragraph that follows theirs.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
import torch.nn.functional as F
from halves import choosing_rows, in_half, wilson
from held_out import data_folder
from torch import Tensor

from anyformer.data.rows import ListRows
from anyformer.data.settings import DataSettings
from anyformer.metrics.entities import entities
from anyformer.metrics.squad import squad
from anyformer.tasks import find, task
from anyformer.tasks.answer import answers_of
from anyformer.tasks.tag import tags_of

SETS = {
    "sentiment": ("classify-text", "sst2/dev.tsv"),
    "paraphrase": ("classify-pair", "glue_mrpc/dev.tsv"),
    "entities": ("tag", "conll2003/eng.testa.gz"),
    "questions": ("answer", "squad11/dev_half.json.gz"),
}
THRESHOLDS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
BINS = 15
CHOOSE, SCORE = "the half that chose", "the half that did not"
QUESTIONS = 500  # of each half


def open_rows(name: str) -> tuple[Any, Any]:
    """The task with its model, and its validation rows."""
    kind, file = SETS[name]
    ready: Any = task(kind, name)
    columns = ready.model.origin.settings.get("data", {}).get("columns", "")
    return ready, find(kind).read(str(data_folder() / file), DataSettings(columns=columns))


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature at which the loss of these rows is lowest, to two digits."""
    choices = [i / 100 for i in range(30, 501)]
    losses = [float(F.cross_entropy(logits / one, labels)) for one in choices]
    return choices[losses.index(min(losses))]


def calibration_error(scores: list[float], right: list[bool]) -> float:
    """Expected calibration error: the mean distance of confidence and accuracy in bins, by their numbers of rows."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for score, one in zip(scores, right, strict=True):
        bins.setdefault(min(int(score * BINS), BINS - 1), []).append((score, one))
    gaps = [abs(sum(score for score, _ in rows) - sum(one for _, one in rows)) for rows in bins.values()]
    return sum(gaps) / max(len(scores), 1)


def error_by_chance(scores: list[float]) -> float:
    """The mean calibration error of answers that are right exactly as often as their confidence says."""
    draw = random.Random(0)
    draws = 200 if len(scores) < 5000 else 20
    errors = [calibration_error(scores, [draw.random() < score for score in scores]) for _ in range(draws)]
    return sum(errors) / len(errors)


def report(name: str, temperature: float, scores: list[float], right: list[bool]) -> None:
    n = len(scores)
    print(f"{name}, temperature {temperature:.2f}: {n:,} answers, {sum(right) / n:.1%} right,", end=" ")
    print(f"mean confidence {sum(scores) / n:.1%}, ECE {calibration_error(scores, right):.4f}", end=" ")
    print(f"(by chance {error_by_chance(scores):.4f})")
    for limit in THRESHOLDS if temperature != 1 else ():
        parts = [[one for score, one in zip(scores, right, strict=True) if (score < limit) == low] for low in (1, 0)]
        low, high = parts
        below = f"{sum(low) / len(low):.1%} right" if low else "none"
        print(f"  unsure below {limit}: {len(low) / n:.1%} of the answers, {below}; {sum(high) / len(high):.1%} above")


def classifier(name: str) -> None:
    ready, rows = open_rows(name)
    logits = ready.predict(rows)
    labels = torch.tensor([int(one) for one in ready.prepared(rows).fields["labels"].flat])
    chosen = torch.tensor(choosing_rows(name, len(labels)))
    rest = torch.tensor([i for i in range(len(labels)) if in_half(name, i)])
    fitted = best_temperature(logits[chosen], labels[chosen])
    for part, half, temperature in ((CHOOSE, chosen, fitted), (SCORE, rest, 1.0), (SCORE, rest, fitted)):
        best = torch.softmax(logits[half] / temperature, dim=1).max(dim=1)
        report(f"{name}, {part}", temperature, best.values.tolist(), (best.indices == labels[half]).tolist())


def tagger(name: str) -> None:
    ready, rows = open_rows(name)
    logits, labels, sizes = tag_logits(ready, rows)
    starts = [0, *torch.tensor(sizes).cumsum(0).tolist()]
    chosen = torch.cat([torch.arange(starts[i], starts[i + 1]) for i in choosing_rows(name, len(sizes))])
    fitted = best_temperature(logits[chosen], labels[chosen])
    for part, temperature in ((CHOOSE, fitted), (SCORE, 1.0), (SCORE, fitted)):
        best = torch.softmax(logits / temperature, dim=1).max(dim=1)
        scores: list[float] = []
        right: list[bool] = []
        for i in (i for i in range(len(sizes)) if in_half(name, i) == (part == SCORE)):
            here = slice(starts[i], starts[i + 1])
            chance = best.values[here].tolist()
            found = entities([ready.labels[one] for one in best.indices[here].tolist()])
            truth = set(entities([ready.labels[one] for one in labels[here].tolist()]))
            scores += [sum(chance[first : last + 1]) / (last + 1 - first) for _, first, last in found]
            right += [one in truth for one in found]
        report(f"{name}, {part}", temperature, scores, right)


def tag_logits(ready: Any, rows: Any) -> tuple[Tensor, Tensor, list[int]]:
    """Logits and labels of all words, and the numbers of words of the rows."""
    examples = ready.prepared(rows)
    found: dict[int, tuple[Tensor, Tensor]] = {}
    with torch.no_grad():
        for numbers, batch in ready.batches_of(examples):
            logits = ready.scores(batch).float()
            for place, number in enumerate(numbers.tolist()):
                real = batch["labels"][place] >= 0
                found[number] = logits[place][real], batch["labels"][place][real]
    sizes = [0] * len(rows)
    for number in range(len(examples)):
        sizes[examples.row(number)] += len(found[number][1])
    assert sizes == [len(tags_of(row)) for row in rows]
    logits, labels = (torch.cat([found[number][side] for number in range(len(examples))]) for side in (0, 1))
    return logits, labels, sizes


def questions(name: str = "questions") -> None:
    ready, rows = open_rows(name)
    ready._or_nothing = lambda score, answer, nothing: (nothing - score, answer)  # predict keeps both
    draw = random.Random(0)
    contexts = list(dict.fromkeys(row["context"] for row in rows))
    following = dict(zip(contexts, [*contexts[1:], contexts[0]], strict=True))
    for part in (CHOOSE, SCORE):
        numbers = [i for i in range(len(rows)) if in_half(name, i) == (part == SCORE)]
        some = [rows[i] for i in draw.sample(numbers, QUESTIONS)]
        far, near = some[: QUESTIONS // 2], some[QUESTIONS // 2 :]
        far = [{**row, "context": draw.choice(contexts), "answers": []} for row in far]
        near = [{**row, "context": following[row["context"]], "answers": []} for row in near]
        own, *negatives = (ready.predict(ListRows(one)) for one in (some, far, near))
        wanted = [[text for text, _ in answers_of(row)] for row in some]
        print(f"questions, {part}: {len(some)} with an answer, {len(far)} and {len(near)} without")
        for limit in (0.0, -2.0, -4.0, -5.0, -6.0, -7.0, -8.0, -10.0):
            texts = ["" if margin > limit else answer.text for margin, answer in own]
            none = [sum(margin > limit for margin, _ in one) for one in negatives]
            low, high = wilson(sum(none) / QUESTIONS, QUESTIONS)
            left = texts.count("") / len(texts)
            print(
                f"  no answer above {limit}: f1 {squad(texts, wanted)['f1']:.1f}, {left:.1%} left unanswered; found"
                f" of other articles {none[0] / len(far):.1%}, of the next paragraph"
                f" {none[1] / len(near):.1%}, of both {sum(none) / QUESTIONS:.1%} (95%: {low:.1%} to {high:.1%})"
            )


if __name__ == "__main__":
    for given in sys.argv[1:] or SETS:
        {"entities": tagger, "questions": questions}.get(given, classifier)(given)
