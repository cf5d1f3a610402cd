"""Token classification: named entities, parts of speech.

tag = af.task("tag", "folder")
print(tag("Peter Blackburn lives in Brussels."))    # [Peter Blackburn: PER] lives in [Brussels: LOC].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any

from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example
from anyformer.data.rows import ListRows, Rows, map_rows
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, InputError
from anyformer.forward_context import IGNORED
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.classification import accuracy
from anyformer.metrics.entities import entities, entity_scores, iob2
from anyformer.model import Model
from anyformer.schema import shown
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, CalibratedOptions
from anyformer.tasks.base import Batch, Column, Loss, Metrics, Progress, Source, TaskSetup, answering
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import TEXT_PAD_VALUES, TextTask, labels_of, pad_labels
from anyformer.tokenizers.padding import beside
from anyformer.tokenizers.sentence_split import TITLES

Characters = tuple[int, int]  # from the first to after the last
SHORT = rf"(?:[^\W\d_]\.){{2,}}|(?i:{'|'.join(sorted(TITLES))})\.(?=\s)|[A-HJ-Z]\.(?=\s+[A-Z])"  # D.C., Prof., J. Smith
WORD = re.compile(rf"\b(?:{SHORT})|\w+(?:[-.&]\w+)*|'\w+|[^\w\s]")


@dataclass(frozen=True)
class Entity(Answer):
    """Consecutive words; `start` and `end` are their indices, the end exclusive. `span` are their characters in the
    given text."""

    text: str
    label: str
    start: int
    end: int
    score: float
    span: tuple[int, int] = (0, 0)
    unsure: bool = False  # the score is below the model's task.unsure_below


@dataclass(frozen=True)
class TaggedText(Answer):
    """A tag and its probability for each word; `entities` for tags in BIO format (B-PER, I-PER, O). `text` is the
    input, and `spans` are the characters of each word in it."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    scores: tuple[float, ...] = field(repr=False)
    entities: tuple[Entity, ...] = ()
    text: str = field(default="", repr=False)
    spans: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        if set(self.tags) - {"O"} and not chunked(self.tags):
            return " ".join(f"{word}/{tag}" for word, tag in zip(self.words, self.tags, strict=True))
        return "".join(f"[{part}: {label}]" if label else part for part, label in self.parts(unsure=", unsure"))

    def parts(self, unsure: str = "") -> list[tuple[str, str]]:
        """The text in parts, each with the label of the entity that it is, or "". `unsure` is appended to the label of
        an entity that is unsure."""
        shown, at = [], 0
        for entity in self.entities:
            start, end = entity.span
            shown += [(self.text[at:start], ""), (self.text[start:end], entity.label + unsure * entity.unsure)]
            at = end
        return [(part, label) for part, label in [*shown, (self.text[at:], "")] if part]


class Tag(TextTask[str | tuple[str, ...], TaggedText]):
    name = "tag"
    windows = True
    fills = MappingProxyType({**TEXT_PAD_VALUES, "labels": IGNORED})
    about = "label every word: named entities, parts of speech"
    columns = (
        Column("tokens", ("words", "text", "sentence")),
        Column("tags", ("ner_tags", "labels", "pos_tags", "ner", "pos")),
    )
    format = "conll"
    options_class = CalibratedOptions
    settings: CalibratedOptions
    wanted = "an encoder that supports a tagging head"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.index = {label: i for i, label in enumerate(self.labels)}
        self.chunks = chunked(self.labels)
        self.metric = "f1" if self.chunks else "accuracy"

    @classmethod
    def find_labels(cls, rows: Rows, options: Any, setup: TaskSetup) -> tuple[str, ...]:
        found: set[str] = set()
        for tags in map_rows(rows, tags_of):
            found.update(tags)
        if len(found) < 2:
            raise DataError(f"{rows.path} has {len(found)} different tags; give rows with two or more.")
        if chunked(found):  # every entity may be one word or more
            found |= {f"{mark}-{tag[2:]}" for tag in found if tag[:2] in ("B-", "I-") for mark in "BI"}
        return tuple(sorted(found, key=lambda tag: (tag != "O", tag[2:] if chunked(found) else tag, tag)))

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return build.has_head("tag")(config)

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        return config.replace(head="tag", n_labels=len(labels))

    @classmethod
    def take_further(cls, model: Model, labels: tuple[str, ...], options: Any) -> tuple[Model, tuple[str, ...]]:
        known = tuple(model.origin.settings.get("task", {}).get("labels") or labels_of(model))
        same = set(known) == set(labels)
        return build.with_head(model, same, head="tag", n_labels=len(labels)), known if same else labels

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        build.want_head(model, path, ("tag",), gives="tags", task=cls.name)

    @classmethod
    def texts(cls, rows: Rows) -> Any:
        return (" ".join(words) for words in map_rows(rows, words_of))

    # Rows to loss.

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        """Tokens of all words; the first of each word has its tag. A sentence that is too long gives several."""
        made = []
        sentences = [words_of(row) for row in rows]
        for i, (row, pieces) in enumerate(zip(rows, self.pieces(sentences), strict=True)):
            tags = self._numbers(row) if "tags" in row else [0] * len(pieces)
            made += [{"row": i, **example} for example in self._cut(pieces, tags)]
        return made

    def pieces(self, sentences: list[list[str]]) -> list[list[list[int]]]:
        """The ids of each word of each sentence; a word that has none becomes the unknown one."""
        flat = [" " + word if i and self._spaced else word for words in sentences for i, word in enumerate(words)]
        ids = iter(self.tokenizer.encode(flat, special=False)) if flat else iter([])
        unknown = [self.tokenizer.unknown_id or 0]
        return [[next(ids) or unknown for _ in words] for words in sentences]

    @cached_property
    def _spaced(self) -> bool:
        """Whether the vocabulary writes the space before a word into it."""
        return self.tokenizer.encode("a b", special=False) != [
            *self.tokenizer.encode("a", special=False),
            *self.tokenizer.encode("b", special=False),
        ]

    def _numbers(self, row: Row) -> list[int]:
        tags = tags_of(row)
        unknown = next((tag for tag in tags if tag not in self.index), None)
        if unknown is not None:
            raise InputError(
                f'the tag "{unknown}" is not in the training data. Its tags are: {", ".join(self.labels[:20])}.'
            )
        return [self.index[tag] for tag in tags]

    def _cut(self, pieces: list[list[int]], tags: list[int]) -> list[Example]:
        before, after = self._frame
        room = beside(len(before) + len(after), self.max_length)
        made: list[tuple[list[int], list[int]]] = []
        ids: list[int] = []
        labels: list[int] = []
        for piece, tag in zip(pieces, tags, strict=True):
            piece = piece[:room]
            if len(ids) + len(piece) > room:
                made.append((ids, labels))
                ids, labels = [], []
            ids = ids + piece
            labels = labels + [tag] + [IGNORED] * (len(piece) - 1)
        made.append((ids, labels))
        none = [IGNORED]
        return [
            {"input_ids": [*before, *ids, *after], "labels": [*none * len(before), *labels, *none * len(after)]}
            for ids, labels in made
        ]

    @cached_property
    def _frame(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text."""
        bare, framed = self.tokenizer.encode("a", special=False), self.tokenizer.encode("a")
        at = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
        return framed[:at], framed[at + len(bare) :]

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        return {**self.pad(examples), "labels": pad_labels([example["labels"] for example in examples])}

    def loss(self, batch: Batch) -> Loss:
        return Loss(*token_loss(self.scores(batch), batch["labels"], self.smoothing))

    def scores(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(**{name: value for name, value in batch.items() if name != "labels"}).logits
        return logits

    # Figures and answers.

    def predict(self, rows: Rows, progress: Progress | None = None) -> list[list[tuple[str, float]]]:
        """For each row the tag of each word, and its chance."""
        examples = self.prepared(rows)
        found: dict[int, list[tuple[str, float]]] = {}
        with answering(self.model):
            for numbers, batch in self.batches_of(examples, progress=progress):
                best = self.settings.probabilities(self.scores(batch)).max(dim=-1)
                for place, number in enumerate(numbers.tolist()):
                    real = batch["labels"][place] != IGNORED
                    tags = [self.labels[i] for i in best.indices[place][real].tolist()]
                    found[number] = list(zip(tags, best.values[place][real].tolist(), strict=True))
        joined: list[list[tuple[str, float]]] = [[] for _ in range(len(rows))]
        for number in range(len(examples)):
            joined[examples.row(number)] += found[number]
        return joined

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        said = [[tag for tag, _ in row] for row in self.predict(rows, progress)]
        wanted = [tags_of(row) for row in rows]
        flat = [[tag for row in side for tag in row] for side in (said, wanted)]
        figures: Metrics = {"accuracy": accuracy(*flat)}
        if self.chunks:
            scores = {name: 100 * value for name, value in entity_scores(said, wanted).items()}
            figures = {**scores, **figures, "signature": "entities:seqeval-default|scale:100"}
        return figures

    def answers(self, things: list[Any], **options: Any) -> list[TaggedText]:
        """Each a text, which is split into words and marks, or a tuple of words."""
        for one in things:
            words = one if isinstance(one, (tuple, list)) else (one,)
            if not all(isinstance(word, str) for word in words):
                raise InputError(f"tag takes a text, a tuple of words, or a list of these; it was given {shown(one)}.")
        cut = [(one, word_spans(one)) if isinstance(one, str) else joined(list(one)) for one in things]
        rows: list[Row] = [{"tokens": [text[a:b] for a, b in spans]} for text, spans in cut if spans]
        tags = iter(self.predict(ListRows(rows)) if rows else [])
        return [self._tagged(text, spans, next(tags) if spans else []) for text, spans in cut]

    def _tagged(self, text: str, spans: list[Characters], found: list[tuple[str, float]]) -> TaggedText:
        tags, scores = [tag for tag, _ in found], [score for _, score in found]
        named = []
        for kind, first, last in entities(tags) if self.chunks else []:
            start, end = spans[first][0], spans[last][1]
            score = sum(scores[first : last + 1]) / (last + 1 - first)
            unsure = self.settings.unsure(score)
            named.append(Entity(text[start:end], kind, first, last + 1, score, (start, end), unsure))
        words = tuple(text[start:end] for start, end in spans)
        return TaggedText(words, tuple(tags), tuple(scores), tuple(named), text, tuple(spans))

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        epochs, lr = (20, 5e-4) if fresh else (5, 2e-4)
        return schedule_for(rows, epochs, size=32, lr=lr, schedule="linear", warm=10)


def chunked(tags: Any) -> bool:
    """Whether tags mark entities: B-PER, I-PER, O."""
    return all(tag == "O" or re.match(r"[BIES]-", tag) for tag in tags) and any(tag != "O" for tag in tags)


def words_of(row: Row) -> list[str]:
    words = row["tokens"].split() if isinstance(row["tokens"], str) else row["tokens"]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise InputError("tokens must be a list of words, or a text of words separated by spaces.")
    return words


def tags_of(row: Row) -> list[str]:
    """The tags, one a word; those of IOB1 in the form of IOB2."""
    tags = row["tags"].split() if isinstance(row["tags"], str) else [str(tag) for tag in row["tags"]]
    n = len(words_of(row))
    if len(tags) != n:
        raise InputError(f"there are {len(tags)} tags for {n} words; give one for each.")
    return iob2(tags)


def word_spans(text: str) -> list[Characters]:
    """The characters of words and marks by themselves, as annotated text has them.  "He's in Rome." -> He 's in Rome .

    The dot of initials and titles belongs to them: D.C., J. Smith, Prof. Hill."""
    return [found.span() for found in WORD.finditer(text)]


def joined(words: list[Any]) -> tuple[str, list[Characters]]:
    """A text of words, and the characters of each."""
    known = words_of({"tokens": words})
    ends = list(accumulate(len(word) + 1 for word in known))
    return " ".join(known), [(end - 1 - len(word), end - 1) for word, end in zip(known, ends, strict=True)]
