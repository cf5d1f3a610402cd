"""Extractive question answering: the answer to a question as a span of a text.

answer = af.task("answer", "folder")
print(answer(("Who baked cookies?", "Amanda baked cookies.")))      # Amanda
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import ListRows, Rows, map_rows
from anyformer.data.tables.formats import Row
from anyformer.errors import InputError
from anyformer.metrics.squad import squad
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, CalibratedOptions
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Column,
    Loss,
    Metrics,
    Progress,
    Source,
    TaskSetup,
    answering,
)
from anyformer.tasks.inputs import TextPair
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import TEXT_PAD_VALUES, TextTask, pair_of, text_of, texts_of
from anyformer.tokenizers.components import Span


@dataclass(frozen=True)
class ExtractedAnswer(Answer):
    """A span of the context from character `start` to before `end`, and its probability; "" if there is no answer.
    `unsure`: the probability is below the model's task.unsure_below."""

    text: str
    score: float
    start: int
    end: int
    unsure: bool = False

    def __str__(self) -> str:
        return f"{self.text or 'no answer'} (unsure)" if self.unsure else self.text or "no answer"


@dataclass(frozen=True, kw_only=True)
class AnswerOptions(CalibratedOptions):
    stride: int = 128  # tokens by which the windows of a long context overlap
    max_answer_length: int = 30  # tokens of an answer
    unanswerable: bool = False  # whether a question may have no answer in its context (SQuAD 2)
    # By how much the score of no answer must exceed that of the best span; above 0, more questions are answered.
    no_answer_margin: float = 0.0


class AnswerTask(TextTask[TextPair, ExtractedAnswer]):
    name = "answer"
    fills = MappingProxyType({**TEXT_PAD_VALUES, "inside": 0})
    about = "extract the answer to a question from a text"
    columns = (
        Column("question", ("query",)),
        Column("context", ("passage", "paragraph", "text", "document")),
        Column("answers", ("answer", "label")),
    )
    asks = 2
    format = "json"
    options_class = AnswerOptions
    settings: AnswerOptions
    text_columns = ("question", "context")
    usual_length = 384
    windows = True
    metric = "f1"
    wanted = "an encoder that supports a span head"

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        if any(not answers for answers in map_rows(rows, answers_of)):
            options = options.replace(unanswerable=True)
        return super().begin(source, rows, valid, replace(setup, task=options))

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return build.has_head("span")(config)

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: AnswerOptions) -> Settings:
        return config.replace(head="span")

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        build.want_head(model, path, ("span",), gives="spans", task=cls.name)

    # Rows to loss.

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        """A window each: its ids, the characters of its tokens, the tokens of the answer (0 where it has none)."""
        questions, contexts = texts_of(rows, "question"), texts_of(rows, "context")
        known = [_first_answer(row) for row in rows] if "answers" in rows[0] else [None] * len(rows)
        stride = min(self.settings.stride, self.max_length // 4)
        cut = self.tokenizer.windows(questions, contexts, max_length=self.max_length, stride=stride, answers=known)
        arrays = {name: value.numpy() for name, value in cut.batch.items()}
        sizes = arrays.pop("attention_mask").sum(axis=1)
        if not self.takes_types:
            arrays.pop("token_type_ids", None)
        made = []
        for i, (size, spans) in enumerate(zip(sizes.tolist(), cut.spans, strict=True)):
            ids = {name: rows[i, :size] for name, rows in arrays.items() if rows.ndim == 2}
            ends = {name: int(rows[i]) for name, rows in arrays.items() if rows.ndim == 1}
            begins, finishes = (np.array([span[side] for span in spans], dtype=np.int32) for side in (0, 1))
            made.append({"row": cut.examples[i], **ids, **ends, "begins": begins, "finishes": finishes})
        return made

    def lengths(self, examples: Examples) -> Any:
        return examples.sizes("input_ids")

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = self.pad(examples)
        for name in ("start_positions", "end_positions"):
            batch[name] = torch.tensor([int(example[name]) for example in examples])
        inside = torch.zeros_like(batch["attention_mask"])
        for i, example in enumerate(examples):
            inside[i, : len(example["begins"])] = torch.from_numpy(np.asarray(example["begins"]) >= 0).long()
        batch["inside"] = inside
        return batch

    def loss(self, batch: Batch) -> Loss:
        """The mean of both ends' cross entropies, summed over windows; padding is no place."""
        ends = [batch["start_positions"], batch["end_positions"]]
        logits = self.scores(batch)
        totals = [F.cross_entropy(one, end, reduction="sum") for one, end in zip(logits, ends, strict=True)]
        return Loss((totals[0] + totals[1]) / 2, torch.full((), len(ends[0]), device=totals[0].device))

    def scores(self, batch: Batch) -> tuple[Tensor, Tensor]:
        left = ("start_positions", "end_positions", "inside")
        out = self.model(**{name: value for name, value in batch.items() if name not in left})
        nowhere = batch["attention_mask"] == 0
        start, end = (one.float().masked_fill(nowhere, float("-inf")) for one in (out.start_logits, out.end_logits))
        return start, end

    # Figures and answers.

    def predict(self, rows: Rows, progress: Progress | None = None) -> list[ExtractedAnswer]:
        """The best span of each row, over all its windows."""
        examples = self.prepared(rows)
        best: dict[int, tuple[float, ExtractedAnswer]] = {}
        nothing: dict[int, float] = {}
        with answering(self.model):
            for numbers, batch in self.batches_of(examples, progress=progress):
                found = best_spans(*self.scores(batch), batch["inside"].bool(), self.settings)
                for number, score, none, chance, first, last in zip(numbers.tolist(), *found, strict=True):
                    row, example = examples.row(number), examples[number]
                    nothing[row] = min(nothing.get(row, float("inf")), none)
                    if row not in best or score > best[row][0]:
                        start, end = int(example["begins"][first]), int(example["finishes"][last])
                        text = rows[row]["context"][max(start, 0) : max(end, 0)]
                        best[row] = (score, ExtractedAnswer(text, chance, start, end))
        return [self._or_nothing(*best[row], nothing[row]) for row in range(len(rows))]

    def _or_nothing(self, score: float, answer: ExtractedAnswer, nothing: float) -> ExtractedAnswer:
        if self.settings.unanswerable and nothing > score + self.settings.no_answer_margin:
            answer = ExtractedAnswer("", 1.0 - answer.score, 0, 0)
        return replace(answer, unsure=self.settings.unsure(answer.score))

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        said = [answer.text for answer in self.predict(rows, progress)]
        wanted = [[text for text, _ in answers_of(row)] for row in rows]
        return {**squad(said, wanted), "signature": "squad:v1.1-normalisation|scale:100"}

    def answers(self, things: list[TextPair], **options: Any) -> list[ExtractedAnswer]:
        """Each a question and its context: a pair, a mapping, or a line with a tab between them."""
        return self.predict(ListRows([self._row(one) for one in things]))

    def _row(self, thing: Any) -> Row:
        thing = thing.split("\t", 1) if isinstance(thing, str) else thing
        question, context = pair_of(thing, self.text_columns, self.name)
        return {"question": question, "context": context}

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        return schedule_for(rows, 3, size=32, lr=1e-4, schedule="linear", warm=10)


def best_spans(start: Tensor, end: Tensor, inside: Tensor, options: AnswerOptions) -> tuple[list[Any], ...]:
    """For each row of [B, T]: the score of its best span within the context, that of no answer (the first token twice),
    the span's chance, its first and its last token."""
    none = (start[:, 0] + end[:, 0]).tolist()
    chance = [F.log_softmax(one / options.temperature, dim=1) for one in (start, end)]
    first, last = (one.masked_fill(~inside, float("-inf")) for one in (start, end))
    length = start.shape[1]
    sums = torch.full((len(start), min(options.max_answer_length, length), length), float("-inf"), device=start.device)
    for extra in range(sums.shape[1]):
        sums[:, extra, : length - extra] = first[:, : length - extra] + last[:, extra:]
    score, place = sums.flatten(1).max(dim=1)
    begin = place % length
    finish = begin + place // length
    rows = torch.arange(len(start), device=start.device)
    sure = (chance[0][rows, begin] + chance[1][rows, finish]).exp()
    return score.tolist(), none, sure.tolist(), begin.tolist(), finish.tolist()


def answers_of(row: Row) -> list[tuple[str, int]]:
    """Text and first character of each answer that people gave, in SQuAD's layout or the ecosystem's, or a text."""
    given = row["answers"]
    if isinstance(given, str):
        start = row["context"].find(given)
        if start < 0:
            raise InputError(f'the answer "{given[:80]}" is not in the context.')
        return [(given, start)] if given else []
    try:
        if isinstance(given, Mapping):
            given = [{"text": t, "answer_start": s} for t, s in zip(given["text"], given["answer_start"], strict=True)]
        return [(text_of(one["text"], "answer"), int(one["answer_start"])) for one in given]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise InputError('each answer must have a "text" and an "answer_start".') from None


def _first_answer(row: Row) -> Span | None:
    found = answers_of(row)
    if not found:
        return None
    text, start = found[0]
    if row["context"][start : start + len(text)] != text:
        raise InputError(f'"answer_start" is {start}, but the context does not have the answer "{text[:80]}" there.')
    return start, start + len(text)
