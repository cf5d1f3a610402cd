"""Caption metrics against the public evaluation's own code, and reading errors against jiwer."""

from __future__ import annotations

import random

import jiwer
import pytest

import anyformer as af
from anyformer.metrics.captions import bleu, caption_scores, cider, normalize_words, rouge_l
from anyformer.metrics.error_rates import cer_and_wer, edit_distance

WORDS = "a the dog cat runs jumps on over green grass red ball two people are playing in water".split()


def corpus(n: int = 40) -> tuple[list[str], list[list[str]]]:
    chance = random.Random(3)

    def text(base: list[str]) -> str:
        return " ".join(word if chance.random() < 0.6 else chance.choice(WORDS) for word in base)

    bases = [[chance.choice(WORDS) for _ in range(chance.randint(3, 12))] for _ in range(n)]
    return [text(base) for base in bases], [[text(base) for _ in range(chance.randint(1, 5))] for base in bases]


def coco(said: list[str], wanted: list[list[str]]) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    return dict(enumerate(wanted)), {i: [text] for i, text in enumerate(said)}


def split(said: list[str], wanted: list[list[str]]) -> tuple[list[list[str]], list[list[list[str]]]]:
    return [text.split() for text in said], [[text.split() for text in texts] for texts in wanted]


def test_cider() -> None:
    oracle = pytest.importorskip("pycocoevalcap.cider.cider")
    score, _ = oracle.Cider().compute_score(*coco(*corpus()))
    assert cider(*split(*corpus())) == pytest.approx(score, rel=1e-9)
    assert 0.1 < score < 10


def test_bleu() -> None:
    oracle = pytest.importorskip("pycocoevalcap.bleu.bleu")
    scores, _ = oracle.Bleu(4).compute_score(*coco(*corpus()), verbose=0)
    assert bleu(*split(*corpus())) == pytest.approx(scores, rel=1e-9)
    said, wanted = ["a dog", "the cat runs"], [["a dog runs on the grass"], ["a cat jumps over it"]]  # much too short
    scores, _ = oracle.Bleu(4).compute_score(*coco(said, wanted), verbose=0)
    assert bleu(*split(said, wanted)) == pytest.approx(scores, rel=1e-9)


def test_rouge() -> None:
    oracle = pytest.importorskip("pycocoevalcap.rouge.rouge")
    said, wanted = corpus()
    score, _ = oracle.Rouge().compute_score(*coco(said, wanted))
    ours = [rouge_l(text, texts) for text, texts in zip(*split(said, wanted), strict=True)]
    assert sum(ours) / len(ours) == pytest.approx(score, rel=1e-9)


def test_cider_by_hand() -> None:
    """Two images; of what both references share the weight is nought. A perfect caption has 10 in every order that
    it has runs of: the first of these has two words and so two orders of four."""
    said = [["red", "ball"], ["a", "b", "c", "d"]]
    assert cider(said, [[said[0]], [said[1]]]) == pytest.approx((10 * 2 / 4 + 10) / 2)
    assert cider(said, [[said[1]], [said[0]]]) == 0.0


def test_words() -> None:
    assert normalize_words("A dog 's ball , wet .") == ["a", "dog", "'s", "ball", "wet"]
    assert (
        normalize_words("Two-year-old can't swim; it's 3.5 m (deep)!")
        == "two-year-old can't swim it's 3.5 m deep".split()
    )


def test_all_figures() -> None:
    figures = caption_scores(["A dog runs .", "a red ball"], [["a dog runs", "the dog"], ["a red ball", "one ball"]])
    assert figures["bleu1"] == pytest.approx(100) and figures["rougeL"] == pytest.approx(100)
    assert figures.keys() >= {"bleu1", "bleu2", "bleu3", "bleu4", "rougeL", "cider", "signature"}
    with pytest.raises(af.InputError, match=r"1 captions .* 2"):
        caption_scores(["a"], [["a"], ["b"]])
    with pytest.raises(af.InputError, match="reference"):
        caption_scores(["a"], [[]])


def test_reading_errors() -> None:
    said, references = corpus()
    wanted = [texts[0] for texts in references]
    figures = cer_and_wer(said, wanted)
    assert figures["cer"] == pytest.approx(100 * jiwer.cer(wanted, said))
    assert figures["wer"] == pytest.approx(100 * jiwer.wer(wanted, said))
    assert cer_and_wer(["ABC "], ["abc"], lowercase=True)["cer"] == 0
    assert cer_and_wer(["ABC", "x"], ["abc", "x"])["exact"] == 50
    assert edit_distance("kitten", "sitting") == 3 and edit_distance("", "ab") == 2
    with pytest.raises(af.InputError, match="empty"):
        cer_and_wer(["a"], [""])
