"""Question answering over long contexts: overlapping windows with the answer's position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.tokenizers.components import Span
from anyformer.tokenizers.padding import pad, token_budget

if TYPE_CHECKING:
    from anyformer.tokenizers.tokenizer import Tokenizer

NOWHERE = (-1, -1)


@dataclass
class QuestionWindows:
    """A padded batch, `batch`, with one row per window, and the example index of each row.

    `spans[row][token]` are characters of the context, (-1, -1) at all other tokens. With answers, the batch holds
    start_positions and end_positions, and `whole` tells which windows contain the whole answer.
    """

    batch: dict[str, Tensor]
    examples: list[int]
    spans: list[list[Span]]
    whole: list[bool]


@dataclass
class _Window:
    example: int
    encoding: Any
    spans: list[Span]
    answer: Span | None = None  # tokens, inclusive

    def off_center(self) -> float:
        """Distance of the answer from the window's middle; windows without it sort last."""
        inside = [i for i, span in enumerate(self.spans) if span != NOWHERE]
        if self.answer is None or not inside:
            return float("inf")
        return abs(sum(self.answer) / 2 - (inside[0] + inside[-1]) / 2)


def windows(
    tok: Tokenizer,
    questions: list[str],
    contexts: list[str],
    max_length: int,
    stride: int,
    answers: Sequence[Span | None] | None,
    keep_answer: bool,
) -> QuestionWindows:
    if len(questions) != len(contexts) or (answers is not None and len(answers) != len(contexts)):
        raise InputError("questions, contexts and answers must have equal lengths.")
    if keep_answer and answers is None:
        raise InputError("keep_answer=True needs answers.")
    made: list[_Window] = []
    encoded_questions, encoded_contexts = (
        tok.encodings(texts, special=False, fast=False) for texts in (questions, contexts)
    )
    for example, context in enumerate(contexts):
        rows = _cut(tok, example, encoded_questions[example], encoded_contexts[example], context, max_length, stride)
        answer = answers[example] if answers is not None else None
        for row in rows:
            row.answer = _locate(row.spans, _checked(answer, context)) if answer is not None else None
        made += [min(rows, key=_Window.off_center)] if keep_answer else rows
    return _stack(tok, made, answers is not None)


def _cut(
    tok: Tokenizer, example: int, question: Any, encoding: Any, context: str, max_length: int, stride: int
) -> list[_Window]:
    left = token_budget(tok.engine, max_length, True, True) - len(question.ids)
    if left <= stride:
        raise InputError(
            f"A question of {len(question.ids)} tokens leaves {max(left, 0)} of max_length {max_length} for the context"
            f"; that must be more than stride, {stride}."
        )
    spans = tok.offsets(encoding, context)
    total = len(encoding.ids)
    encoding.truncate(left, stride)
    rows, start = [], 0
    for piece in (encoding, *encoding.overflowing):
        framed = tok.engine.post_process(question, piece, True)
        owners = framed.sequence_ids
        inside = iter(spans[start : min(start + left, total)])
        rows.append(_Window(example, framed, [next(inside) if owner == 1 else NOWHERE for owner in owners]))
        start += left - stride
    return rows


def _checked(answer: Span, context: str) -> Span:
    start, end = answer
    if not 0 <= start < end <= len(context):
        raise InputError(f"An answer at characters {start} to {end} exceeds its context of {len(context)} characters.")
    return answer


def _locate(spans: list[Span], answer: Span) -> Span | None:
    """Return the first and last token of an answer, or None if the window does not contain all of it."""
    inside = [i for i, (start, end) in enumerate(spans) if start < answer[1] and end > answer[0] and end > start]
    if not inside or spans[inside[0]][0] > answer[0] or spans[inside[-1]][1] < answer[1]:
        return None
    return inside[0], inside[-1]


def _stack(tok: Tokenizer, made: list[_Window], answered: bool) -> QuestionWindows:
    ids = [row.encoding.ids for row in made]
    types = {"token_type_ids": [row.encoding.type_ids for row in made]} if tok.takes_type_ids else {}
    batch = pad(ids, tok.pad_id or 0, "right", types)
    if answered:
        for name, end in (("start_positions", 0), ("end_positions", 1)):
            batch[name] = torch.tensor([row.answer[end] if row.answer else 0 for row in made])
    return QuestionWindows(
        batch, [row.example for row in made], [row.spans for row in made], [row.answer is not None for row in made]
    )
