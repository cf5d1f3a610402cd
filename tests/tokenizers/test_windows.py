"""Long contexts in overlapping windows: the reference's windows, and answers that are found again in them."""

from __future__ import annotations

import random

import pytest

import anyformer as af
from tests.tokenizers import samples

CONTEXT = " ".join(f"Sentence number {i} says naïve things about café {i * 7}, 日本 and 🙂." for i in range(60))
QUESTION = "What does it say about the café?"


@pytest.fixture(scope="module")
def tok() -> af.Tokenizer:
    return af.Tokenizer.load(samples.minilm())


def test_windows_are_those_of_transformers(tok: af.Tokenizer) -> None:
    theirs = pytest.importorskip("transformers.models.bert.tokenization_bert").BertTokenizer
    there = theirs.from_pretrained(samples.minilm())
    questions, contexts = [QUESTION, "Who?"], [CONTEXT, "A short one."]
    for longest, stride in ((64, 16), (100, 0), (384, 128)):
        wanted = there(
            questions,
            contexts,
            truncation="only_second",
            max_length=longest,
            stride=stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding=True,
            return_tensors="pt",
        )
        made = tok.windows(questions, contexts, max_length=longest, stride=stride)
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            assert made.batch[name].equal(wanted[name])
        assert made.examples == wanted["overflow_to_sample_mapping"].tolist()
        for row, spans in enumerate(made.spans):
            inside = [i for i, owner in enumerate(wanted.sequence_ids(row)) if owner == 1]
            assert [i for i, span in enumerate(spans) if span != (-1, -1)] == inside
            assert [list(spans[i]) for i in inside] == wanted["offset_mapping"][row][inside].tolist()


def test_an_answer_is_found_in_every_window_that_holds_it(tok: af.Tokenizer) -> None:
    draw = random.Random(0)
    words = [i for i in range(len(CONTEXT)) if i == 0 or CONTEXT[i - 1] == " "]
    for _ in range(30):
        start = draw.choice(words[:-4])
        end = CONTEXT.index(" ", start + draw.randint(1, 20))
        made = tok.windows(QUESTION, CONTEXT, max_length=64, stride=24, answers=[(start, end)])
        assert any(made.whole)  # shorter than the stride, so that no cut can go through every copy of it
        for row, whole in enumerate(made.whole):
            first, last = made.batch["start_positions"][row].item(), made.batch["end_positions"][row].item()
            if whole:
                assert (made.spans[row][first][0], made.spans[row][last][1]) == (start, end)
            else:
                assert (first, last) == (0, 0)


def test_one_window_keeps_the_answer(tok: af.Tokenizer) -> None:
    start = CONTEXT.index("number 31")
    answers = [(start, start + 9), None, (0, 8)]
    made = tok.windows([QUESTION] * 3, [CONTEXT] * 3, max_length=64, stride=24, answers=answers, keep_answer=True)
    assert made.examples == [0, 1, 2] and made.whole == [True, False, True]
    first, last = made.batch["start_positions"].tolist(), made.batch["end_positions"].tolist()
    for row in (0, 2):
        ids = made.batch["input_ids"][row, first[row] : last[row] + 1]
        begin, end = answers[row]  # type: ignore[misc]
        assert tok.decode(ids) == CONTEXT[begin:end].lower()
    every = tok.windows(QUESTION, CONTEXT, max_length=64, stride=24, answers=answers[:1])
    inside = [i for i, span in enumerate(made.spans[0]) if span != (-1, -1)]
    middle = (inside[0] + inside[-1]) / 2
    holding = [row for row, whole in enumerate(every.whole) if whole]
    best = min(abs((every.batch["start_positions"][r] + every.batch["end_positions"][r]) / 2 - middle) for r in holding)
    assert abs((first[0] + last[0]) / 2 - middle) <= best


def test_mistakes_are_explained(tok: af.Tokenizer) -> None:
    with pytest.raises(af.InputError, match="stride, 128"):
        tok.windows(QUESTION, CONTEXT, max_length=100)
    with pytest.raises(af.InputError, match="characters 3 to 9"):
        tok.windows(QUESTION, "short", answers=[(3, 9)])
    with pytest.raises(af.InputError, match="questions, contexts"):
        tok.windows([QUESTION], ["a", "b"])
    with pytest.raises(af.InputError, match="keep_answer"):
        tok.windows(QUESTION, "a", keep_answer=True)
