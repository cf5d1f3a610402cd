"""Each metric against the library that the field counts with, or against the official script's own lines."""

from __future__ import annotations

import math
import random
import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

import anyformer as af
from anyformer.metrics.classification import accuracy, f1, matthews_corrcoef, pearson, spearman
from anyformer.metrics.entities import entities, entity_scores, f1_by_type, iob2
from anyformer.metrics.language import bits_per_character, perplexity
from anyformer.metrics.squad import normalize_answer, squad
from anyformer.metrics.text_generation import bleu, by_length, rouge

WORDS = "the a cat cats dog running ran over, The quick-brown U.S. end. of it's 42 naïve".split()


def sentences(n: int, seed: int, lines: bool = False) -> list[str]:
    chance = random.Random(seed)
    made = []
    for _ in range(n):
        words = chance.choices(WORDS, k=chance.randint(0, 14))
        made.append("".join(word + chance.choice([" ", " ", "\n" if lines else " "]) for word in words).strip(" "))
    return made


def test_bleu_is_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    ours, theirs, more = sentences(50, 1), sentences(50, 1)[:40] + sentences(10, 2), sentences(50, 3)
    found = bleu(ours, theirs)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(ours, [theirs]).score, abs=1e-9)
    assert str(found["signature"]).startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    lower = bleu(ours, list(zip(theirs, more, strict=True)), lowercase=True, tokenize="none")
    expected = sacrebleu.corpus_bleu(ours, [theirs, more], lowercase=True, tokenize="none", force=True)
    assert lower["bleu"] == pytest.approx(expected.score, abs=1e-9)
    assert "nrefs:2|case:lc" in str(lower["signature"]) and "tok:none" in str(lower["signature"])
    with pytest.raises(af.InputError, match=r"50 texts .* 49"):
        bleu(ours, theirs[:49])


@pytest.mark.parametrize("stem", [False, True])
def test_rouge_is_rouge_score(stem: bool) -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    count = scorer.RougeScorer(kinds, use_stemmer=stem)
    ours, theirs = sentences(60, 4, lines=True), sentences(60, 5, lines=True)
    found = rouge(ours, theirs, stem=stem)
    each = [count.score(wanted, said) for said, wanted in zip(ours, theirs, strict=True)]
    for kind in kinds:
        assert found[kind] == pytest.approx(100 * np.mean([one[kind].fmeasure for one in each]), abs=1e-9)
    assert rouge(["the cat sat"], ["the cat sat"])["rougeL"] == 100


def test_classes_are_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    chance = random.Random(6)
    for names in (["no", "yes"], ["a", "b", "c"]):
        wanted = chance.choices(names, k=200)
        found = [right if chance.random() < 0.6 else chance.choice(names) for right in wanted]
        assert accuracy(found, wanted) == pytest.approx(metrics.accuracy_score(wanted, found))
        assert matthews_corrcoef(found, wanted) == pytest.approx(metrics.matthews_corrcoef(wanted, found))
        for average in ("macro", "micro"):
            expected = metrics.f1_score(wanted, found, average=average)
            assert f1(found, wanted, average=average) == pytest.approx(expected)
        one = metrics.f1_score(wanted, found, labels=[names[1]], average="macro")
        assert f1(found, wanted, positive=names[1]) == pytest.approx(one)
    assert matthews_corrcoef(["a", "a"], ["a", "b"]) == 0 == f1(["a"], ["a"], positive="b")
    with pytest.raises(af.InputError, match=r"1 .* 2 "):
        accuracy(["a"], ["a", "b"])


def test_correlations_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    chance = random.Random(7)
    x = [round(chance.gauss(0, 1), 1) for _ in range(100)]  # with ties
    y = [round(a + chance.gauss(0, 1), 1) for a in x]
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0])
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0])
    assert pearson([1, 1, 1], [1, 2, 3]) == 0 == spearman([1, 1, 1], [1, 2, 3])


@pytest.mark.parametrize("marks", ["BIO", "BIESO", "IO"])
def test_entities_are_seqevals(marks: str) -> None:
    """Any order of marks, well formed or not."""
    seqeval = pytest.importorskip("seqeval.metrics")
    from seqeval.metrics.sequence_labeling import get_entities

    chance = random.Random(8)

    def tag() -> str:
        mark = chance.choice(marks)
        return mark if mark == "O" else f"{mark}-{chance.choice(['PER', 'LOC'])}"

    wanted = [[tag() for _ in range(chance.randint(1, 9))] for _ in range(300)]
    found = [[right if chance.random() < 0.7 else tag() for right in row] for row in wanted]
    assert [entities(row) for row in wanted] == [[tuple(one) for one in get_entities(row)] for row in wanted]
    scores = entity_scores(found, wanted)
    assert scores["f1"] == pytest.approx(seqeval.f1_score(wanted, found))
    assert scores["precision"] == pytest.approx(seqeval.precision_score(wanted, found))
    assert scores["recall"] == pytest.approx(seqeval.recall_score(wanted, found))
    report = seqeval.classification_report(wanted, found, output_dict=True)
    assert f1_by_type(found, wanted) == pytest.approx({kind: report[kind]["f1-score"] for kind in ("LOC", "PER")})


def test_iob1_becomes_iob2() -> None:
    first = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG", "O"]
    assert iob2(first) == ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG", "O"]
    assert iob2(iob2(first)) == iob2(first) and entities(iob2(first)) == entities(first)
    for other in (["S-PER", "O", "B-LOC", "E-LOC"], ["NN", "VB"]):
        assert iob2(other) == other


def official_normalize(text: str) -> str:
    """The lines of the official evaluation script of SQuAD v1.1."""

    def remove_articles(text: str) -> str:
        return re.sub(r"\b(a|an|the)\b", " ", text)

    def white_space_fix(text: str) -> str:
        return " ".join(text.split())

    def remove_punc(text: str) -> str:
        exclude = set(string.punctuation)
        return "".join(ch for ch in text if ch not in exclude)

    return white_space_fix(remove_articles(remove_punc(text.lower())))


def official_f1(prediction: str, truth: str) -> float:
    prediction_tokens, truth_tokens = official_normalize(prediction).split(), official_normalize(truth).split()
    common = Counter(prediction_tokens) & Counter(truth_tokens)
    num_same = sum(common.values())
    if num_same == 0:
        return 0
    precision, recall = num_same / len(prediction_tokens), num_same / len(truth_tokens)
    return 2 * precision * recall / (precision + recall)


def test_squad_is_the_official_script() -> None:
    ours, theirs, others = (sentences(80, seed) for seed in (9, 10, 11))
    rows = [row for row in zip(ours, theirs, others, strict=True) if all(official_normalize(text) for text in row)]
    assert len(rows) > 50
    assert all(normalize_answer(text) == official_normalize(text) for row in rows for text in row)
    found = squad([row[0] for row in rows], [row[1:] for row in rows])
    best = [max(official_f1(said, wanted) for wanted in right) for said, *right in rows]
    assert found["f1"] == pytest.approx(100 * np.mean(best))
    assert squad(["The  Cat!"], [["a dog", "cat"]]) == {"exact": 100.0, "f1": 100.0}
    assert squad(["", "cat"], [[], []]) == {"exact": 50.0, "f1": 50.0}  # SQuAD 2: nothing was right


def test_language() -> None:
    """A coin costs one bit a throw, and has two faces."""
    throws = 40
    total = throws * math.log(2)
    assert perplexity(total, throws) == pytest.approx(2)
    assert bits_per_character(total, throws) == pytest.approx(1)
    assert perplexity(1e9, 1) == math.inf


def test_scores_by_length_cover_every_text_once() -> None:
    sources = [" ".join("w" * n) for n in (1, 1, 2, 3, 3, 4, 5, 6, 7, 20)]
    asked: list[int] = []

    def score(chosen: Sequence[int]) -> float:
        asked.extend(chosen)
        return float(len(chosen))

    said = by_length(sources, score, parts=5)
    assert sorted(asked) == list(range(10))
    assert said == "1 words: 2.0, 2-3: 3.0, 4: 1.0, 5-6: 2.0, 7-20: 2.0"
    assert by_length(["a b", "c d"], score) == "2 words: 2.0"
    even = [" ".join("w" * n) for n in (5, 10, 15, 20, 25) for _ in range(20)]
    assert by_length(even, score) == "5 words: 20.0, 6-10: 20.0, 11-15: 20.0, 16-20: 20.0, 21-25: 20.0"
