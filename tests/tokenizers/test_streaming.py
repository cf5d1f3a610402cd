"""Text that comes token by token is the whole text in the end, and nothing shown is ever taken back."""

from __future__ import annotations

import random

import pytest

from anyformer.tokenizers.streaming import BROKEN, IncrementalDecoder, StopStringFilter, find_stop
from anyformer.tokenizers.tokenizer import Tokenizer
from tests.tokenizers.samples import TEXTS, gpt2, minilm, smollm2
from tests.tokenizers.vocabularies import KINDS, make


def rows(tokenizer: Tokenizer, count: int, longest: int = 24) -> list[list[int]]:
    """Random ids, special ones and ones past the vocabulary among them, and real texts' ids."""
    draw = random.Random(1)
    made = [[draw.randrange(len(tokenizer) + 2) for _ in range(draw.randint(0, longest))] for _ in range(count)]
    return made + [tokenizer.encode(text) for text in TEXTS]


def check(tokenizer: Tokenizer, ids: list[int]) -> None:
    reader, shown = IncrementalDecoder(tokenizer), ""
    for n, token in enumerate(ids, 1):
        shown += reader.add(token)
        so_far = tokenizer.decode(ids[:n])
        assert so_far.startswith(shown) or BROKEN in so_far, (ids, n)
        assert tokenizer.decode(ids).startswith(shown), (ids, n)
    assert shown + reader.end() == tokenizer.decode(ids), ids


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_make_the_whole_text(kind: str) -> None:
    tokenizer = make(kind)
    for ids in rows(tokenizer, 600):
        check(tokenizer, ids)


@pytest.mark.parametrize("vocabulary", [gpt2, minilm, smollm2])
def test_real_vocabularies(vocabulary: object) -> None:
    tokenizer = Tokenizer.load(vocabulary())  # type: ignore[operator]
    for ids in rows(tokenizer, 150):
        check(tokenizer, ids)


def test_a_character_of_several_bytes_comes_whole() -> None:
    """🙂 is four bytes, one token each: nothing is shown for three of them."""
    tokenizer = make("byte")
    reader = IncrementalDecoder(tokenizer)
    pieces = [reader.add(i) for i in tokenizer.encode("a🙂b")]
    assert pieces == ["a", "", "", "", "🙂", "b"]


def test_a_run_of_byte_tokens_waits_for_its_end() -> None:
    """In sentencepiece's vocabularies one wrong byte makes the whole run unreadable, what looked whole before too."""
    tokenizer = make("sentencepiece")
    ids = [tokenizer.engine.token_to_id(name) for name in ("▁cat", "<0x41>", "<0xFF>", "▁the")]
    reader = IncrementalDecoder(tokenizer)
    assert [reader.add(i) for i in ids] == ["cat", "", "", BROKEN * 2 + " the"]
    assert reader.end() == ""


def test_most_text_is_shown_at_once() -> None:
    """Holding everything back would pass every other test here."""
    for kind in ("bpe", "wordpiece", "unigram", "char", "word"):
        tokenizer = make(kind)
        reader = IncrementalDecoder(tokenizer)
        ids = tokenizer.encode("the cat sat on the mat")
        shown = ""
        for n, token in enumerate(ids, 1):
            shown += reader.add(token)
            assert shown == tokenizer.decode(ids[:n])


def test_text_is_cut_at_a_stop_string() -> None:
    cut = StopStringFilter(["\n\nQ:"])
    assert [cut.add(piece) for piece in ("ye", "s\n", "\nno\n", "\nQ: what")] == ["ye", "s", "\n\nno", ""]
    assert cut.done and cut.end() == ""


@pytest.mark.parametrize("strip", [False, True])
def test_cutting_piece_by_piece_is_cutting_the_whole(strip: bool) -> None:
    draw = random.Random(2)
    for _ in range(3000):
        text = "".join(draw.choices("ab \n", k=draw.randint(0, 12)))
        stop = "".join(draw.choices("ab \n", k=draw.randint(1, 3)))
        cut = StopStringFilter([stop], strip)
        pieces, left = [], text
        while left:
            n = draw.randint(1, 3)
            pieces.append(cut.add(left[:n]))
            left = left[n:]
        whole = text[: find_stop(text, [stop])]
        assert "".join([*pieces, cut.end()]) == (whole.strip() if strip else whole), (text, stop)
