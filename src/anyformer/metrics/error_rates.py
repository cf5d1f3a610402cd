"""Error rates of recognized text: character and word error rate."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.errors import InputError


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Levenshtein distance: the fewest insertions, deletions and replacements that turn a into b (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def error_rate(hypotheses: Sequence[Sequence[object]], references: Sequence[Sequence[object]]) -> float:
    """Edits divided by reference length, over all texts; above 1 if there are many insertions."""
    if len(hypotheses) != len(references):
        raise InputError(f"There are {len(hypotheses)} texts but {len(references)} references; give one per text.")
    total = sum(len(text) for text in references)
    if not total:
        raise InputError("All references are empty, so the error rate is undefined.")
    return sum(map(edit_distance, hypotheses, references)) / total


def cer_and_wer(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> dict[str, float | str]:
    """Return cer and wer in percent, and `exact`, the fraction of texts without errors; `lowercase` ignores case."""
    ours, theirs = (
        [text.strip().lower() if lowercase else text.strip() for text in side] for side in (hypotheses, references)
    )
    return {
        "cer": 100 * error_rate(ours, theirs),
        "wer": 100 * error_rate([text.split() for text in ours], [text.split() for text in theirs]),
        "exact": 100 * sum(map(str.__eq__, ours, theirs)) / max(len(ours), 1),
        "signature": f"case:{'lc' if lowercase else 'mixed'}|micro",
    }
