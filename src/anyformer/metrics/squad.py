"""Exact match and F1 of answers with SQuAD's official normalization (Rajpurkar et al. 2016)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from anyformer.errors import InputError
from anyformer.metrics.text_generation import f_measure

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces.  "The  Cat!" -> "cat" """
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def answer_f1(prediction: str, reference: str) -> float:
    """F1 of shared words. An empty answer is correct only if the reference is empty (SQuAD 2)."""
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(reference).split()
    if not ours or not theirs:
        return float(ours == theirs)
    return f_measure((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs))


def squad(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return {"exact": …, "f1": …}, 0 to 100, by the best of each question's `references`; no answer: ""."""
    if len(predictions) != len(references) or not predictions:
        raise InputError(
            f"There are {len(predictions)} predictions for {len(references)} questions; give one per question."
        )
    exact, f1 = 0.0, 0.0
    for answer, given in zip(predictions, references, strict=True):
        right = list(given) or [""]
        exact += max(float(normalize_answer(answer) == normalize_answer(one)) for one in right)
        f1 += max(answer_f1(answer, one) for one in right)
    return {"exact": 100 * exact / len(predictions), "f1": 100 * f1 / len(predictions)}
