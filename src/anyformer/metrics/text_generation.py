"""Metrics of generated text: BLEU (by sacrebleu) and ROUGE (as in rouge_score)."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from anyformer.errors import ConfigError, InputError

References = Sequence[str] | Sequence[Sequence[str]]


def has_sacrebleu() -> bool:
    return importlib.util.find_spec("sacrebleu") is not None


def bleu(
    hypotheses: Sequence[str], references: References, *, lowercase: bool = False, tokenize: str = "13a"
) -> dict[str, float | str]:
    """Return {"bleu": 41.2, "signature": "nrefs:1|case:mixed|…"}. `references` has one per hypothesis, or a list of
    them.

    tokenize="none" is for texts that are already tokenized.
    """
    if not has_sacrebleu():
        raise ConfigError("BLEU needs sacrebleu: pip install 'anyformer[metrics]'.")
    from sacrebleu.metrics.bleu import BLEU

    # For tokenized texts sacrebleu warns of a final full stop; `force` disables that.
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=tokenize == "none")
    score = metric.corpus_score(list(hypotheses), _streams(hypotheses, references)).score
    return {"bleu": float(score), "signature": str(metric.get_signature())}


def by_length(sources: Sequence[str], score: Callable[[Sequence[int]], float], parts: int = 5) -> str:
    """Return a score by source length, from shortest to longest, in groups of about equal size: "1-8 words: 41.7, 9-11:
    42.4, …". It shows what a model loses that compresses a text into one vector.
    """
    words = [len(text.split()) for text in sources]
    ordered = sorted(range(len(words)), key=words.__getitem__)
    ends = [words[ordered[max(len(words) * part // parts - 1, 0)]] for part in range(1, parts)]
    edges = sorted({min(words), *(end + 1 for end in ends if end < max(words))})
    found: list[str] = []
    for low, high in zip(edges, [*edges[1:], max(words) + 1], strict=True):
        chosen = [i for i, count in enumerate(words) if low <= count < high]
        if chosen:
            name = f"{low}-{high - 1}" if high - 1 > low else f"{low}"
            found.append(f"{name}{' words' * (not found)}: {score(chosen):.1f}")
    return ", ".join(found)


def _streams(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """Transpose the references, as sacrebleu expects: the first of every text, then the second, and so on."""
    if len(hypotheses) != len(references):
        raise InputError(f"There are {len(hypotheses)} texts but references for {len(references)}; give both.")
    listed = [[one] if isinstance(one, str) else list(one) for one in references]
    if len({len(row) for row in listed}) > 1:
        raise InputError("All texts must have the same number of references.")
    return [list(stream) for stream in zip(*listed, strict=True)]


def rouge(hypotheses: Sequence[str], references: Sequence[str], *, stem: bool = False) -> dict[str, float | str]:
    """Return mean F1 of rouge1, rouge2, rougeL and rougeLsum, 0 to 100; `stem` applies the Porter stemmer."""
    if len(hypotheses) != len(references):
        raise InputError(f"There are {len(hypotheses)} texts but {len(references)} references; give one per text.")
    words = _stemmed if stem else tokens
    sums: defaultdict[str, float] = defaultdict(float)
    for predicted, reference in zip(hypotheses, references, strict=True):
        ours, theirs = words(predicted), words(reference)
        sums["rouge1"] += _overlap(_grams(ours, 1), _grams(theirs, 1))
        sums["rouge2"] += _overlap(_grams(ours, 2), _grams(theirs, 2))
        sums["rougeL"] += f_measure(len(longest_common_subsequence(ours, theirs)), len(ours), len(theirs))
        sums["rougeLsum"] += _by_lines(predicted, reference, words)
    scores: dict[str, float | str] = {
        name: 100 * sums[name] / max(len(hypotheses), 1) for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")
    }
    return {**scores, "signature": f"rouge:F1|case:lc|stem:{'porter' if stem else 'no'}|lines:newline"}


def tokens(text: str) -> list[str]:
    """rouge_score's tokens: lower-case runs of ASCII letters and digits."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _stemmed(text: str) -> list[str]:
    try:
        from nltk.stem.porter import PorterStemmer
    except ImportError:
        raise ConfigError("Stemming needs nltk: pip install nltk, or pass stem=False.") from None
    stem = PorterStemmer().stem
    return [stem(word) if len(word) > 3 else word for word in tokens(text)]


def _grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


def _overlap(ours: Counter[tuple[str, ...]], theirs: Counter[tuple[str, ...]]) -> float:
    return f_measure((ours & theirs).total(), ours.total(), theirs.total())


def f_measure(hits: int, predicted: int, reference: int) -> float:
    """Harmonic mean of precision (hits / predicted) and recall (hits / reference)."""
    return 2 * hits / (predicted + reference) if hits else 0.0


def longest_common_subsequence(ours: list[str], theirs: list[str]) -> list[int]:
    """Indices in `theirs` of a longest common subsequence with `ours`."""
    table = [[0] * (len(ours) + 1)]
    for word in theirs:
        last, row = table[-1], [0]
        for j, other in enumerate(ours):
            row.append(last[j] + 1 if word == other else max(last[j + 1], row[j]))
        table.append(row)
    matches, i, j = [], len(theirs), len(ours)
    while i and j:
        if theirs[i - 1] == ours[j - 1]:
            matches.append(i - 1)
            i, j = i - 1, j - 1
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return matches[::-1]


def _by_lines(predicted: str, reference: str, words: Callable[[str], list[str]]) -> float:
    """ROUGE-Lsum: for each reference line, the union of its common subsequences with all predicted lines."""
    ours = [words(line) for line in predicted.split("\n") if line]
    theirs = [words(line) for line in reference.split("\n") if line]
    left, right = (Counter(word for line in side for word in line) for side in (ours, theirs))
    hits, n_ours, n_theirs = 0, left.total(), right.total()
    for line in theirs:
        for place in sorted({place for other in ours for place in longest_common_subsequence(other, line)}):
            word = line[place]
            if left[word] > 0 and right[word] > 0:  # each word of either side counts once
                hits += 1
                left[word] -= 1
                right[word] -= 1
    return f_measure(hits, n_ours, n_theirs)
