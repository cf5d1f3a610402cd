"""How well text was read: the share of characters and of words that must be changed."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.errors import InputError


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """The fewest insertions, deletions and replacements that make b of a (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def error_rate(hypotheses: Sequence[Sequence[object]], references: Sequence[Sequence[object]]) -> float:
    """All changes over all that should have been read; above 1 where much more was said."""
    if len(hypotheses) != len(references):
        raise InputError(f"There are {len(hypotheses)} texts and {len(references)} references.")
    total = sum(len(text) for text in references)
    if not total:
        raise InputError("The references are empty, so there is nothing that could have been read.")
    return sum(map(edit_distance, hypotheses, references)) / total


def cer_and_wer(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> dict[str, float | str]:
    """cer and wer, in percent, and `exact`, the share of texts without any mistake; `lowercase`: case aside."""
    ours, theirs = (
        [text.strip().lower() if lowercase else text.strip() for text in side] for side in (hypotheses, references)
    )
    return {
        "cer": 100 * error_rate(ours, theirs),
        "wer": 100 * error_rate([text.split() for text in ours], [text.split() for text in theirs]),
        "exact": 100 * sum(map(str.__eq__, ours, theirs)) / max(len(ours), 1),
        "signature": f"case:{'lc' if lowercase else 'mixed'}|micro",
    }
