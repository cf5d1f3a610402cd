"""Entity F1 as seqeval and conlleval count it: an entity counts where its type and both its ends are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anyformer.errors import InputError
from anyformer.metrics.text_generation import f_measure

Entity = tuple[str, int, int]  # type, first token, last token


def entities(tags: Sequence[str]) -> list[Entity]:
    """["B-PER", "I-PER", "O"] -> [("PER", 0, 1)]. IOB1, IOB2 and BIOES alike; a stray I- or E- begins an entity."""
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
    """Precision, recall and F1 over all sentences together, 0 to 1."""
    hits, said, there = _count(predictions, references)
    right, n_said, n_there = hits.total(), said.total(), there.total()
    return {
        "precision": right / n_said if n_said else 0.0,
        "recall": right / n_there if n_there else 0.0,
        "f1": f_measure(right, n_said, n_there),
    }


def f1_by_type(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """F1 of each type of entity by itself."""
    hits, said, there = _count(predictions, references)
    return {kind: f_measure(hits[kind], said[kind], there[kind]) for kind in sorted(said | there)}


def _count(
    found: Sequence[Sequence[str]], wanted: Sequence[Sequence[str]]
) -> tuple[Counter[str], Counter[str], Counter[str]]:
    if len(found) != len(wanted) or any(len(a) != len(b) for a, b in zip(found, wanted, strict=True)):
        raise InputError("Every sentence needs as many tags as were wanted.")
    hits, said, there = Counter[str](), Counter[str](), Counter[str]()
    for ours, theirs in zip(found, wanted, strict=True):
        mine, right = set(entities(ours)), set(entities(theirs))
        hits.update(kind for kind, _, _ in mine & right)
        said.update(kind for kind, _, _ in mine)
        there.update(kind for kind, _, _ in right)
    return hits, said, there


def iob2(tags: Sequence[str]) -> list[str]:
    """IOB1, where B- stands only between neighbors of a type, as IOB2, where it opens every entity. Others stay."""
    if not all(tag == "O" or tag[:2] in ("B-", "I-") for tag in tags):
        return list(tags)
    plain = ["O"] * len(tags)
    for kind, first, last in entities(tags):
        plain[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return plain
