"""Classification or regression of text pairs (entailment, paraphrase, similarity), and multiple choice.

compare = af.task("classify-pair", "folder")
print(compare(("A man sleeps.", "Somebody is awake.")))     # not_entailment (0.97)
pick(("It rained, so", ["she took an umbrella", "she took the sun"]))   # a model of choices
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import ListRows, Rows
from anyformer.data.settings import class_name
from anyformer.data.tables.formats import Row
from anyformer.errors import InputError
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.classification import accuracy
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, Label
from anyformer.tasks.base import Batch, Column, Loss, Metrics, Source
from anyformer.tasks.classify_text import ClassifyOptions, ClassifyText, RegressionValue
from anyformer.tasks.inputs import TextPair
from anyformer.tasks.text import pair_of, text_of, texts_of

FIRST = Column(
    "first",
    (
        "sentence1",
        "text1",
        "premise",
        "question1",
        "#1 string",
        "context",
        "question",
        "a",
        "startphrase",
        "ctx",
        "goal",
    ),
)
SECOND = Column("second", ("sentence2", "text2", "hypothesis", "question2", "#2 string", "sentence", "b"))
LABEL = Column("label", ("labels", "class", "quality", "is_duplicate", "gold_label", "score", "similarity", "answer"))
CHOICES = Column("choices", ("endings", "options"))
NUMBERED = re.compile(r"(ending|choice|option|answer|alternative|solution|sol)[ _]?\d+")  # ending0, ending1, …


@dataclass(frozen=True)
class Choice(Answer):
    """The chosen text, its index and its probability; `scores` are those of all choices."""

    text: str
    index: int
    score: float
    scores: tuple[float, ...] = field(repr=False)
    unsure: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.score:.2f}{', unsure' if self.unsure else ''})"


@dataclass(frozen=True, kw_only=True)
class PairOptions(ClassifyOptions):
    # Whether the relation is the same both ways (paraphrase, similarity): while the model learns, the texts of half of
    # the pairs, drawn anew each time, change places; its answers are the mean of both ways, at twice the time.
    symmetric: bool = False


class ClassifyPair(ClassifyText[TextPair | tuple[str, list[str]], Label | RegressionValue | Choice]):
    name = "classify-pair"
    options_class = PairOptions
    settings: PairOptions

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        if self.settings.symmetric and (self.chooses or not self.takes_types):
            raise InputError(
                "task.symmetric needs a model that distinguishes the two texts by token types, such as BERT."
            )

    about = "classify or score pairs of texts, or multiple choice"
    columns = (FIRST, SECOND, LABEL)
    asks = 2
    text_columns = ("first", "second", "choices")

    @classmethod
    def layout(cls, rows: Rows, chosen: Mapping[str, str]) -> tuple[Rows, Sequence[Column]]:
        """With a column of choices, or several that are numbered, those instead of the second text."""
        numbered = [column for column in rows.columns if NUMBERED.fullmatch(column.lower())]
        if len(numbered) > 1 and not chosen.keys() & {"second", "choices"}:
            rows = rows.merge_columns(CHOICES.name, numbered)
        names = {column.lower() for column in rows.columns}
        if "choices" in chosen or names & {CHOICES.name, *CHOICES.also}:
            return rows, (FIRST, CHOICES, LABEL)
        return rows, cls.columns

    @classmethod
    def fit(cls, rows: Rows, chosen: Mapping[str, str] = MappingProxyType({})) -> Rows:
        return super(ClassifyText, cls).fit(rows, chosen)  # a class and a text have no rule for three columns

    @classmethod
    def find_problem(cls, rows: Rows) -> str:
        return "choices" if "choices" in rows.columns else super().find_problem(rows)

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return build.has_head("classify", "choice")(config)

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: PairOptions) -> Settings:
        return config.replace(head="choice") if options.problem == "choices" else super().shape(config, labels, options)

    @classmethod
    def take_further(cls, model: Model, labels: tuple[str, ...], options: PairOptions) -> tuple[Model, tuple[str, ...]]:
        if options.problem == "choices":
            return build.with_head(model, True, head="choice"), ()
        return super().take_further(model, labels, options)

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        if model.config.to_json().get("head") != "choice":
            super().check(model, path)

    @property
    def chooses(self) -> bool:
        return bool(self.settings.problem == "choices")

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        if self.chooses:
            return [self._choices(row) for row in rows]
        encoded = self.encode(texts_of(rows, "first"), texts_of(rows, "second"))
        return [{**ids, **self.wish(row)} for ids, row in zip(encoded, rows, strict=True)]

    def _choices(self, row: Row) -> Example:
        """All choices one after another, and the length of each."""
        choices = row["choices"]
        if not isinstance(choices, (list, tuple)) or len(choices) < 2:
            raise InputError("choices must be a list of two texts or more.")
        texts = [text_of(choice, "choice") for choice in choices]
        encoded = self.encode([text_of(row["first"], "first text")] * len(texts), texts)
        example = {name: [i for one in encoded for i in one[name]] for name in encoded[0]}
        return {**example, "sizes": [len(one["input_ids"]) for one in encoded], **self._right(row, texts)}

    def _right(self, row: Row, choices: list[str]) -> dict[str, int]:
        if "label" not in row:
            return {}
        label = row["label"]
        number = class_name(label)
        place = choices.index(label) if label in choices else int(number) if number.isdigit() else -1
        if not 0 <= place < len(choices):
            raise InputError(f'the label "{label}" is neither one of the {len(choices)} choices nor its index.')
        return {"labels": place}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        if generator is None or not self.settings.symmetric:
            return batch
        swapped = torch.rand(len(batch["labels"]), generator=generator, device=batch["labels"].device) < 0.5
        return swap_pair(batch, swapped)

    def lengths(self, examples: Examples) -> Any:
        if not self.chooses:
            return super().lengths(examples)
        sizes = examples.fields["sizes"]
        return np.array([int(np.max(sizes[i])) for i in range(len(examples))])

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        if not self.chooses:
            return super().collate(examples, generator)
        names = [name for name in ("input_ids", "token_type_ids") if name in examples[0]]
        cuts = [np.cumsum(np.asarray(example["sizes"]))[:-1] for example in examples]
        parts = {
            name: [part for example, cut in zip(examples, cuts, strict=True) for part in np.split(example[name], cut)]
            for name in names
        }
        flat = self.pad([{name: parts[name][i] for name in names} for i in range(len(parts["input_ids"]))])
        batch = {name: value.unsqueeze(1) for name, value in flat.items()}  # each choice is a row with one choice
        batch["choices"] = torch.tensor([len(example["sizes"]) for example in examples])
        if "labels" in examples[0]:
            batch["labels"] = torch.tensor([int(example["labels"]) for example in examples])
        return batch

    def scores(self, batch: Batch) -> Tensor:
        """[rows, choices], of choices that a row does not have -inf. Of pairs that are read either way, the logarithms
        of the mean probabilities."""
        if not self.chooses:
            return self._both_ways(batch) if self.settings.symmetric else super().scores(batch)
        given = {name: value for name, value in batch.items() if name not in ("labels", "choices")}
        logits = self.model(**given).logits[:, 0].float()
        counts = batch["choices"]
        real = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
        return logits.new_full(real.shape, float("-inf")).masked_scatter(real, logits)

    def _both_ways(self, batch: Batch) -> Tensor:
        one = super().scores(batch)
        if self.model.training:
            return one
        other = super().scores(swap_pair(batch, torch.ones(len(one), dtype=torch.bool, device=one.device)))
        if self.number:
            return (one + other) / 2
        chances = [logits.float().log_softmax(dim=-1) for logits in (one, other)]
        return torch.logaddexp(*chances) - math.log(2)

    def loss(self, batch: Batch) -> Loss:
        """Choices that are not there take no part in the smoothing of labels, so there is none."""
        if not self.chooses:
            return super().loss(batch)
        return Loss(*token_loss(self.scores(batch), batch["labels"]))

    def figures(self, said: list[int], right: list[int]) -> Metrics:
        return {"accuracy": accuracy(said, right)} if self.chooses else super().figures(said, right)

    def one_input(self, things: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """A text and its choices may be several arguments."""
        return super().one_input(things, options) if len(things) < 3 else (things, options)

    def row_of_input(self, thing: Any) -> Row:
        """A pair of texts, a mapping, or a line with a tab between the two; for choices, a text and a list."""
        return self._row(thing)

    def _row(self, thing: Any) -> Row:
        if not self.chooses:
            first, second = pair_of(thing, self.text_columns[:2], self.name)
            return {"first": first, "second": second}
        first, *choices = pair_of(thing, ("first", "choices"), self.name, most=sys.maxsize)
        listed = len(choices) == 1 and isinstance(choices[0], (list, tuple))
        return {"first": first, "choices": list(choices[0]) if listed else choices}

    def answer(self, rows: list[Row]) -> list[Any]:
        if not self.chooses:
            return super().answer(rows)
        found = self.settings.probabilities(self.predict(ListRows(rows)))
        return [self._choice(row["choices"], scores) for row, scores in zip(rows, found, strict=True)]

    def _choice(self, choices: Sequence[str], scores: Tensor) -> Choice:
        best = int(scores.argmax())
        score = float(scores[best])
        return Choice(choices[best], best, score, tuple(scores[: len(choices)].tolist()), self.settings.unsure(score))


def swap_pair(batch: Batch, rows: Tensor) -> Batch:
    """`[CLS] first [SEP] second [SEP]` as `[CLS] second [SEP] first [SEP]`, in the rows that are True."""
    types = batch["token_type_ids"]
    mask = batch.get("attention_mask", torch.ones_like(types))
    second = (types * mask).sum(dim=1, keepdim=True)  # how many tokens each text has, its separator counted
    first = mask.sum(dim=1, keepdim=True) - second - 1
    place = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    source = torch.where(place <= second, place + first, place - second)
    moved = (place > 0) & (place <= first + second) & rows.unsqueeze(1)
    swapped = {
        "input_ids": batch["input_ids"].gather(1, torch.where(moved, source, place)),
        "token_type_ids": torch.where(moved, (place > second).to(types.dtype), types),
    }
    return {**batch, **swapped}
