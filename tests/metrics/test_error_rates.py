"""Error rates against jiwer's."""

from __future__ import annotations

import random

import pytest

from anyformer.metrics.error_rates import cer_and_wer


def test_against_jiwer() -> None:
    jiwer = pytest.importorskip("jiwer")
    dice = random.Random(0)
    words = "the a cat dog sat ran on mat quickly".split()
    wanted = [" ".join(dice.choices(words, k=dice.randint(1, 9))) for _ in range(60)]
    said = [
        " ".join(word for word in text.split() if dice.random() > 0.2) + dice.choice(["", " cat"]) for text in wanted
    ]
    scores = cer_and_wer(said, wanted)
    ours = [text.strip() for text in said]
    assert scores["wer"] == pytest.approx(100 * jiwer.wer(wanted, ours))
    assert scores["cer"] == pytest.approx(100 * jiwer.cer(wanted, ours))
