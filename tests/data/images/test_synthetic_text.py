"""Lines drawn by fonts: the same for the same numbers, whoever draws them, and readable."""

from __future__ import annotations

import numpy as np
import pytest

from anyformer.data.images.render_pool import RenderPool
from anyformer.data.images.synthetic_text import TextLineGenerator, font, fonts

TEXTS = ["TOTAL 12.50", "THANK YOU", "PLEASE COME AGAIN"]


def test_the_same_numbers_give_the_same_line() -> None:
    source = TextLineGenerator(TEXTS)
    for number in range(20):
        one, text = source.line(1, 2, number)
        again, same = TextLineGenerator(TEXTS).line(1, 2, number)
        assert text == same and np.array_equal(one, again)
    assert len({source.line(1, 2, n)[1] for n in range(40)}) > 10
    assert not np.array_equal(source.line(1, 2, 0)[0], source.line(1, 3, 0)[0])
    assert not np.array_equal(source.line(1, 2, 0)[0], source.line(2, 2, 0)[0])


def test_lines_are_as_high_as_asked_and_not_too_wide() -> None:
    source = TextLineGenerator(TEXTS, height=24, widest=200)
    sizes = [source.line(0, 0, n)[0].shape for n in range(60)]
    assert {rows for rows, _ in sizes} == {24} and max(columns for _, columns in sizes) <= 201


def test_words_come_from_the_texts_and_letters_too() -> None:
    source = TextLineGenerator(TEXTS)
    chance = np.random.default_rng(0)
    drawn = [source.compose(chance) for _ in range(300)]
    known = {word for text in TEXTS for word in text.split()}
    assert sum(set(text.split()) <= known for text in drawn) > 100
    assert any(any(c.isdigit() for c in text) and not set(text.split()) <= known for text in drawn)


def test_there_is_ink_on_paper() -> None:
    """Letters are darker than what surrounds them, whatever was done to the line."""
    for number in range(30):
        pixels, _ = TextLineGenerator(TEXTS).line(0, 0, number)
        assert pixels.dtype == np.uint8 and float(pixels.std()) > 5
        assert np.percentile(pixels, 2) < pixels.mean() - 10


def test_fonts_spell() -> None:
    assert fonts() and all(font(path, 20).getmask("Ag").size[0] > 5 for path in fonts())


@pytest.mark.parametrize("workers", [0, 2])
def test_whoever_draws_them(workers: int) -> None:
    press = RenderPool(TextLineGenerator(TEXTS), workers)
    seeds = [5, 1, 9, 3, 7]
    try:
        found = press.draw(seeds)
        assert press.draw([]) == []
    finally:
        press.close()
    for seed, (pixels, text) in zip(seeds, found, strict=True):
        expected, wanted = TextLineGenerator(TEXTS).line(seed, 0, 0)
        assert text == wanted and np.array_equal(pixels, expected)


def test_prose_is_drawn_in_stretches_as_it_is_printed() -> None:
    """Large and small letters are what stands in the text, words come in its order, and every sign comes."""
    text = "The old King looked out of the window, and saw (far away) a Ship; it was not his."
    source = TextLineGenerator([text], prose=True)
    drawn = [source.line(0, 0, n)[1] for n in range(400)]
    as_printed = [one for one in drawn if one in text and " " in one]
    assert len(as_printed) > 80 and any(any(c.isupper() for c in one) for one in as_printed)
    assert any(one in text.upper() and len(one) > 9 for one in drawn)
    assert {c for one in drawn for c in one if c.isalpha()} >= set("ABCXYZabcxyz")
    assert not TextLineGenerator(["THE KING"], prose=True).capitals
