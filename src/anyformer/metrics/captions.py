"""Caption metrics against several references, as in the COCO caption evaluation (Chen et al. 2015): BLEU-1 to 4,
ROUGE-L and CIDEr-D. Texts are compared in lower case and without punctuation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from anyformer.errors import InputError
from anyformer.metrics.text_generation import has_sacrebleu, longest_common_subsequence

ORDERS = 4
SIGMA = 6.0  # of CIDEr-D's length penalty (Vedantam et al. 2015, §4)
BETA = 1.2  # weight of recall over precision in ROUGE-L
SIGNATURE = "coco-caption|case:lc|punctuation:no|CIDEr-D n:4 sigma:6|ROUGE-L beta:1.2"

Grams = Counter[tuple[str, ...]]


def normalize_words(text: str) -> list[str]:
    """Return lower-case words without punctuation, except inside words: "A dog 's ball , wet ." -> a dog 's ball wet"""
    return re.findall(r"[^\W_]+(?:[-.'’][^\W_]+)*|'(?:s|re|ve|ll|d|m|t)\b", text.lower())


def ngrams(text: Sequence[str]) -> Grams:
    """Count the n-grams of one to four words."""
    return Counter(tuple(text[i : i + n]) for n in range(1, ORDERS + 1) for i in range(len(text) - n + 1))


def caption_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float | str]:
    """Return bleu1 … bleu4, rougeL, cider and, with sacrebleu, chrf; from 0 to 100, but CIDEr is unbounded."""
    if len(hypotheses) != len(references):
        raise InputError(f"There are {len(hypotheses)} captions but references for {len(references)}; give both.")
    if not all(references):
        raise InputError("An image has no reference caption; give at least one per image.")
    ours = [normalize_words(text) for text in hypotheses]
    theirs = [[normalize_words(text) for text in texts] for texts in references]
    scores: dict[str, float | str] = {
        **{f"bleu{n}": 100 * value for n, value in enumerate(bleu(ours, theirs), 1)},
        "rougeL": 100 * sum(map(rouge_l, ours, theirs)) / max(len(ours), 1),
        "cider": cider(ours, theirs),
    }
    if has_sacrebleu() and len({len(texts) for texts in references}) == 1:
        scores["chrf"] = chrf(hypotheses, references)
    return {**scores, "signature": SIGNATURE}


def bleu(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> list[float]:
    """BLEU of orders 1 to 4 over all captions, with the reference of closest length."""
    hits, guesses = [0] * ORDERS, [0] * ORDERS
    length = reference = 0
    for text, texts in zip(hypotheses, references, strict=True):
        most: Grams = Counter()
        for other in texts:
            most |= ngrams(other)
        for gram, n in (ngrams(text) & most).items():
            hits[len(gram) - 1] += n
        for n in range(ORDERS):
            guesses[n] += max(len(text) - n, 0)
        length += len(text)
        reference += min((abs(len(other) - len(text)), len(other)) for other in texts)[1]
    brevity = math.exp(min(0.0, 1 - (reference + 1e-15) / (length + 1e-9)))
    product, found = 1.0, []
    for n in range(ORDERS):
        product *= (hits[n] + 1e-15) / (guesses[n] + 1e-9)
        found.append(brevity * product ** (1 / (n + 1)))
    return found


def rouge_l(hypotheses: list[str], references: Sequence[list[str]]) -> float:
    """ROUGE-L with the best precision and the best recall over the references."""
    shared = [(len(longest_common_subsequence(hypotheses, other)), len(other)) for other in references]
    precision = max(hits / max(len(hypotheses), 1) for hits, _ in shared)
    recall = max(hits / max(n, 1) for hits, n in shared)
    if not precision or not recall:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def cider(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> float:
    """CIDEr-D: cosine similarity of n-gram vectors, weighted by inverse document frequency."""
    if not hypotheses:
        return 0.0
    ours = [ngrams(text) for text in hypotheses]
    theirs = [[ngrams(text) for text in texts] for texts in references]
    document_counts = Counter(gram for refs in theirs for gram in set().union(*refs))
    log_images = math.log(len(hypotheses)) if len(hypotheses) > 1 else 1.0  # one image: else all zero
    weights = {gram: log_images - math.log(n) for gram, n in document_counts.items()}
    total = 0.0
    for text, refs, mine, other in zip(hypotheses, references, ours, theirs, strict=True):
        vector = NgramVector(mine, weights, log_images)
        each = [
            vector.like(NgramVector(ref, weights, log_images), len(text) - len(r))
            for ref, r in zip(other, refs, strict=True)
        ]
        total += 10 * sum(each) / len(each)
    return total / len(hypotheses)


class NgramVector:
    """The TF-IDF vector of a text's n-grams, with its norm per order."""

    def __init__(self, counts: Grams, weights: dict[tuple[str, ...], float], rare: float) -> None:
        self.values = {gram: n * weights.get(gram, rare) for gram, n in counts.items()}
        squares = [0.0] * ORDERS
        for gram, value in self.values.items():
            squares[len(gram) - 1] += value * value
        self.norms = [math.sqrt(square) for square in squares]

    def like(self, other: NgramVector, longer: int) -> float:
        """Mean cosine over the orders, with clipped counts and a length penalty."""
        dots = [0.0] * ORDERS
        for gram, value in self.values.items():
            reference = other.values.get(gram, 0.0)
            dots[len(gram) - 1] += min(value, reference) * reference
        pairs = zip(dots, self.norms, other.norms, strict=True)
        cosines = [dot / (a * b) if a and b else 0.0 for dot, a, b in pairs]
        return sum(cosines) / ORDERS * math.exp(-(longer**2) / (2 * SIGMA**2))


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    from sacrebleu.metrics.chrf import CHRF

    streams = [[" ".join(normalize_words(text)) for text in stream] for stream in zip(*references, strict=True)]
    return float(CHRF().corpus_score([" ".join(normalize_words(text)) for text in hypotheses], streams).score)
