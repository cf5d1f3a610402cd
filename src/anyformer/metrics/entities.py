"""Entity F1 as in seqeval and conlleval: an entity is correct if its type and both ends are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anyformer.errors import InputError
from anyformer.metrics.text_generation import f_measure

Entity = tuple[str, int, int]  # type, first token, last token


def entities(tags: Sequence[str]) -> list[Entity]:
    """["B-PER", "I-PER", "O"] -> [("PER", 0, 1)], for IOB1, IOB2 and BIOES. A stray I- or E- begins an entity."""
    found: list[Entity] = []
    before, kind_before = "O", ""
    for i, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        if mark != "O":
            goes_on = mark in "IE" and before in ("B", "I") and kind == kind_before
            found.append((kind, found.pop()[1] if goes_on else i, i))
        before, kind_before = mark, kind
    return found


def entity_scores(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 over all sentences, from 0 to 1."""
    hits, predicted, actual = _count(predictions, references)
    right, n_predicted, n_actual = hits.total(), predicted.total(), actual.total()
    return {
        "precision": right / n_predicted if n_predicted else 0.0,
        "recall": right / n_actual if n_actual else 0.0,
        "f1": f_measure(right, n_predicted, n_actual),
    }


def f1_by_type(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """F1 of each entity type."""
    hits, predicted, actual = _count(predictions, references)
    return {kind: f_measure(hits[kind], predicted[kind], actual[kind]) for kind in sorted(predicted | actual)}


def _count(
    predictions: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    if len(predictions) != len(targets) or any(len(a) != len(b) for a, b in zip(predictions, targets, strict=True)):
        raise InputError("Predictions and references must have equal numbers of sentences and of tags in each.")
    hits, predicted, actual = Counter[str](), Counter[str](), Counter[str]()
    for ours, theirs in zip(predictions, targets, strict=True):
        mine, right = set(entities(ours)), set(entities(theirs))
        hits.update(kind for kind, _, _ in mine & right)
        predicted.update(kind for kind, _, _ in mine)
        actual.update(kind for kind, _, _ in right)
    return hits, predicted, actual


def iob2(tags: Sequence[str]) -> list[str]:
    """Convert IOB1 tags (B- only between adjacent entities of a type) to IOB2 (B- begins every entity); others stay."""
    if not all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags):
        return list(tags)
    plain = ["O"] * len(tags)
    for kind, first, last in entities(tags):
        plain[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return plain
