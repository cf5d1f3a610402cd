"""The common part of text tasks: a tokenizer, trained on the rows or loaded, and padded batches of ids."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import Rows, map_rows
from anyformer.data.settings import TokenizerSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, InputError, nearest
from anyformer.forward_context import IGNORED
from anyformer.model import Model
from anyformer.schema import shown
from anyformer.tasks import build
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Input, Options, Reply, Source, Task, TaskSetup
from anyformer.tokenizers.padding import pad
from anyformer.tokenizers.tokenizer import Tokenizer

KINDS = ("bpe", "wordpiece", "unigram", "word", "char", "byte")
HALF = re.compile("[\ud800-\udfff]")  # what stands for a half of a character, and cannot be written as UTF-8


# What may be appended to a text, where the task says so.
TEXT_PAD_VALUES: Mapping[str, int] = MappingProxyType({"input_ids": 0, "attention_mask": 0, "token_type_ids": 0})


class TextTask(Task[Input, Reply]):
    """`framed`: special tokens of trained tokenizers: [CLS] … [SEP] ("bert"), … </s> ("end"), or none."""

    data_sizes = ("max_length",)
    framed: ClassVar[str] = "bert"
    kind: ClassVar[str] = "wordpiece"  # of a tokenizer that is trained here
    usual_length: ClassVar[int] = 128  # tokens, where nobody says how many
    text_columns: ClassVar[tuple[str, ...]] = ("text",)  # the columns that a vocabulary is learned from
    sequences: ClassVar[tuple[str, ...]] = ("input_ids",)  # what is padded, each by itself
    windows: ClassVar[bool] = False  # whether a text longer than max_length is read in parts, and not cut

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        options: Options | None = None,
        *,
        labels: Sequence[str] = (),
        max_length: int | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.settings = options if options is not None else self.options_class()
        self.labels = tuple(labels)
        held = build.max_positions(model)
        self.max_length = min(max_length or self.usual_length, held if held is not None else 2**31)

    @property
    def longest(self) -> int | None:
        return self.max_length

    # From a recipe or a folder to a model that can be trained.

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        options = setup.task if setup.task is not None else cls.options_class()
        labels = cls.find_labels(setup.all_of(rows), options, setup)
        chosen = setup.tokenizer
        if build.is_folder(source):
            model, tokenizer = build.load_for(source, cls.fits, cls.wanted, setup.model, chosen.path)
            model, labels = cls.take_further(model, labels, options)
        else:
            config = build.recipe_settings(str(source), setup.model, cls.fits, cls.wanted)
            tokenizer = Tokenizer.load(chosen.path) if chosen.path else cls.learn_tokenizer(rows, chosen)
            config = cls.shape(build.with_vocabulary(config, tokenizer), labels, options)
            model = build.build(str(source), config)
        if not build.is_folder(source) or chosen.path:
            build.name_ids(model, tokenizer)
        model.origin.files.update(tokenizer_files(tokenizer))
        cls.name_labels(model, labels)
        return cls(model, tokenizer, options, labels=labels, max_length=setup.data.max_length)

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        """The settings with the head that the task needs."""
        return config

    @classmethod
    def take_further(cls, model: Model, labels: tuple[str, ...], options: Any) -> tuple[Model, tuple[str, ...]]:
        """A loaded model with that head: its own where the labels are the same, else a fresh one."""
        config = cls.shape(model.config, labels, options)
        return build.with_head(model, True, **_changed(model.config, config)), labels

    @classmethod
    def find_labels(cls, rows: Rows, options: Any, setup: TaskSetup) -> tuple[str, ...]:
        return ()

    @staticmethod
    def name_labels(model: Model, labels: Sequence[str]) -> None:
        """So that a folder for transformers has them too."""
        if labels:
            model.origin.hf_config["id2label"] = {str(i): label for i, label in enumerate(labels)}

    @classmethod
    def texts(cls, rows: Rows) -> Iterator[str]:
        """Everything that a vocabulary is learned from."""
        names = [name for name in rows.columns if name in cls.text_columns]

        def all_texts(row: Row) -> list[str]:
            lists = {name: row[name] if isinstance(row[name], list) else [row[name]] for name in names}
            return [text_of(one, name) for name, some in lists.items() for one in some]

        for found in map_rows(rows, all_texts):
            yield from found

    @classmethod
    def learn_tokenizer(cls, rows: Rows, chosen: TokenizerSettings) -> Tokenizer:
        kind: Any = chosen.kind or cls.kind
        if kind not in KINDS:
            raise ConfigError(f'There is no tokenizer "{kind}".{nearest(kind, KINDS)} There are: {", ".join(KINDS)}.')
        end, bert = cls.framed == "end", cls.framed == "bert"
        return Tokenizer.train(
            cls.texts(rows), kind=kind, vocab_size=chosen.vocab_size, end=end, bert=bert, progress=False
        )

    @classmethod
    def around(cls, model: Model, path: Source, options: Mapping[str, Any]) -> Self:
        return cls.of(model, Tokenizer.load(path), path, options)

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, path: Source, options: Mapping[str, Any]) -> Self:
        """The task around a loaded model, with what the folder says of it."""
        cls.check(model, path)
        build.check_words(tokenizer, model.config)
        said, chosen = cls.chosen(model, options)
        labels = said.get("labels") or labels_of(model)
        return cls(model, tokenizer, chosen, labels=labels, max_length=said.get("max_length"))

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        """An error where the model in a folder has another head than this task reads."""

    def inferred(self) -> dict[str, str]:
        length = f"{'windows of' if self.windows else 'texts are cut at'} {self.max_length:,} tokens"
        return {**super().inferred(), "tokenizer": f"{len(self.tokenizer):,} tokens", "length": length}

    def describe(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "max_length": self.max_length}

    def key(self) -> str:
        return f"{super().key()}|{self.tokenizer.state()}|{self.model.names}|{self.takes_types}"

    # Ids in, tensors out.

    @property
    def framing(self) -> list[int]:
        """What stands around a text, and is no part of it."""
        tok = self.tokenizer
        return [i for i in (tok.pad_id, tok.start_id, tok.separator_id, tok.end_id) if i is not None]

    def encode(self, texts: list[str], pairs: list[str] | None = None) -> list[dict[str, Any]]:
        """input_ids of each text or pair, cut to fit, with token_type_ids where the model takes them."""
        rows = self.tokenizer.encodings(texts, pairs, max_length=self.max_length)
        if pairs is not None and self.takes_types:
            return [{"input_ids": row.ids, "token_type_ids": row.type_ids} for row in rows]
        return [{"input_ids": row.ids} for row in rows]

    @property
    def takes_types(self) -> bool:
        """Whether the model tells the second text of a pair by its token_type_ids; RoBERTa has one type for all."""
        return self.tokenizer.takes_type_ids and build.tells_types(self.model)

    def pad(self, examples: Sequence[Example]) -> Batch:
        types = "token_type_ids" in examples[0]
        more = {"token_type_ids": [example["token_type_ids"] for example in examples]} if types else {}
        return pad([example["input_ids"] for example in examples], self.tokenizer.pad_id or 0, "right", more)

    def lengths(self, examples: Examples) -> Any:
        return np.stack([examples.sizes(name) for name in self.sequences], axis=1)


class WritingTask(TextTask[Input, Reply]):
    """Tasks that call `model.generate` with the options `writing`."""

    writes = True
    writing: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, path: Source, options: Mapping[str, Any]) -> Self:
        own = {name: value for name, value in options.items() if name in cls.options_class.field_names()}
        task = super().of(model, tokenizer, path, own)
        task.writing = {name: value for name, value in options.items() if name not in own}
        return task


def pad_labels(rows: Sequence[Any]) -> Tensor:
    return pad(rows, IGNORED)["input_ids"]


def divergence(one: Tensor, other: Tensor, counts: Tensor | None = None) -> Tensor:
    """How far two answers are from each other, summed over rows, those that count: the mean of the Kullback-Leibler
    divergences of either from the other."""
    a, b = one.float().log_softmax(dim=-1), other.float().log_softmax(dim=-1)
    each = ((a.exp() - b.exp()) * (a - b)).sum(dim=-1) / 2
    return each.sum() if counts is None else each.masked_fill(~counts, 0.0).sum()


def softmax_scores(logits: Tensor) -> Tensor:
    """Scores as probabilities that add up to 1."""
    return F.log_softmax(logits.float(), dim=-1).exp()


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"the {name} is {'nothing' if value is None else type(value).__name__}; it must be a text.")
    if not value.isascii() and HALF.search(value):
        raise InputError(f"the {name} contains a lone surrogate, which is not valid Unicode.")
    return value


def texts_of(rows: Iterable[Row], name: str) -> list[str]:
    return [text_of(row[name], name) for row in rows]


def pair_of(inputs: Any, names: Sequence[str], task: str, most: int = 2) -> list[Any]:
    """Two texts, or up to `most`: a tuple, a mapping with the names of two, or a line with tabs between them."""
    if isinstance(inputs, Mapping) and all(name in inputs for name in names):
        return [inputs[name] for name in names]
    parts = inputs.split("\t") if isinstance(inputs, str) else inputs
    if not isinstance(parts, (list, tuple)) or not 2 <= len(parts) <= most:
        raise InputError(f"{task} takes a {names[0]} and a {names[1]}: two texts, or one line with a tab between them.")
    return list(parts)


def labels_of(model: Model) -> list[str]:
    """The names that a Hugging Face folder gives its labels."""
    named = model.origin.hf_config.get("id2label")
    settings = model.config.to_json()
    n = settings.get("n_labels", settings.get("n_keypoints", 0))
    if isinstance(named, Mapping) and len(named) == n:
        return [str(label) for _, label in sorted(named.items(), key=lambda item: int(item[0]))]
    return [f"LABEL_{i}" for i in range(n)]


def list_of_texts(given: Any, name: str) -> list[str]:
    """The texts of a call that takes one text or several; anything else is an error."""
    if isinstance(given, str):
        return [given]
    ordered = isinstance(given, Iterable) and not isinstance(given, (Mapping, Set, bytes))
    some: list[Any] = list(given) if ordered else [None]
    if not all(isinstance(text, str) for text in some):
        raise InputError(f"{name} takes a text or a list of texts; it was given {shown(given)}.")
    return some


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """What a folder holds of a tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _changed(before: Settings, after: Settings) -> dict[str, Any]:
    return {name: getattr(after, name) for name in after.field_names() if getattr(after, name) != getattr(before, name)}
