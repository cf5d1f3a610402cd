"""The settings of data.* and tokenizer.*."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from anyformer.config import Settings
from anyformer.errors import ConfigError, DataError
from anyformer.schema import shown


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    max_length: int | None = None  # tokens of a text; None: as suits the task, at most what the model allows
    image_size: int | None = None  # height and width in pixels after resizing; None: as the model expects
    columns: str = ""  # name or number of each column: "text=4,label=2"; numbers start at 1
    labels: str = ""  # names for the values of the label column: "0=negative,1=positive"
    header: bool | None = None  # whether a TSV or CSV begins with column names; None: detected automatically
    format: str | None = None  # text, tsv, csv, jsonl, json, parquet or conll; None: by the file's suffix
    fraction: float = 1.0  # fraction of the training rows to use, sampled at random
    # The fraction of rows to evaluate on if no file is given for it; None: max(5%, min(50 rows, 20%)), at most 10,000
    # rows, and at least one of every class. Stratified by class.
    validation_split: float | None = None
    cache: bool = True  # keep prepared rows on disk for the next start

    def check(self) -> None:
        self.require(0 < self.fraction <= 1, f"fraction is {self.fraction}; it must be above 0 and at most 1.")
        split = self.validation_split
        self.require(split is None or 0 <= split < 1, f"validation_split is {split}; it must be from 0 to below 1.")
        self.require(
            self.max_length is None or self.max_length > 1, f"max_length is {self.max_length}; it must be 2 or more."
        )
        self.require(
            self.image_size is None or self.image_size > 0, f"image_size is {self.image_size}; it must be 1 or more."
        )
        parse_pairs(self.columns, "data.columns")
        parse_pairs(self.labels, "data.labels")


@dataclass(frozen=True, kw_only=True)
class TokenizerSettings(Settings):
    """The tokenizer of a model built from a recipe. A folder has its own tokenizer, unless `path` is set."""

    kind: str | None = None  # bpe, wordpiece, unigram, word, char or byte; None: as suits the task
    vocab_size: int = 8000
    # Folder or file of an existing tokenizer. A fine-tuned model keeps the embeddings of tokens in both vocabularies.
    path: str | None = None

    def check(self) -> None:
        self.require(self.vocab_size > 0, f"vocab_size is {self.vocab_size}; it must be 1 or more.")


_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
DIGITS = 40  # of a whole number at most; a longer one is a text


def class_name(value: object) -> str:
    """The name of a class. A whole number names one class however it is written: 1, 1.0, "1.0" (a table with a missing
    label, written by pandas) and "1e0" are "1"."""
    text = str(value)
    if _FLOAT.fullmatch(text) is None:
        return text
    number = Decimal(text)
    return str(int(number)) if number.adjusted() < DIGITS and number == number.to_integral_value() else text


def label_of(value: object, where: str, meaning: Mapping[str, str]) -> str:
    """The class name in a row's label column; an error if it is missing. NaN is a missing label, unless data.labels
    names the class that it means."""
    name = class_name(value) if isinstance(value, (str, int, float)) else ""
    missing = not name.strip() or (name.lower() == "nan" and name not in meaning)
    if missing:
        why = f': label the row, or set data.labels="{name}=NAME" if it is a class' if name.strip() else ""
        raise DataError(f"{where}, has the label {shown(value)}, which is missing or not a class{why}.")
    return name


def meanings(pairs: str) -> dict[str, str]:
    """Value of the label column -> class name, from data.labels."""
    return {class_name(label): name for label, name in parse_pairs(pairs, "data.labels").items()}


def class_number(value: object, index: Mapping[str, int], meaning: Mapping[str, str]) -> int | None:
    """The index of a row's class; None if it is unknown."""
    texts = (class_name(value), str(value))  # saved labels may be in either form
    return next((index[name] for name in (meaning.get(text, text) for text in texts) if name in index), None)


def rename_labels(labels: Sequence[str], pairs: str, path: str) -> tuple[str, ...]:
    """Labels of a file under the names that data.labels gives them; labels with equal names are merged."""
    meaning, known = meanings(pairs), {class_name(label): label for label in labels}
    strange = [label for label in meaning if label not in known]
    if strange:
        some = f"{', '.join(labels[:20])}{' …' if len(labels) > 20 else ''}"
        raise ConfigError(
            f'data.labels renames "{strange[0]}", which is not a label of {path}. Its labels are: {some}.'
        )
    return tuple(dict.fromkeys(meaning.get(name, label) for name, label in known.items()))


def parse_pairs(text: str, key: str) -> dict[str, str]:
    """ "text=4,label=2" -> {"text": "4", "label": "2"}"""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, sign, value = (part.strip() for part in item.partition("="))
        if not sign or not name or not value:
            raise ConfigError(f'{key} is "{text}"; write it as NAME=VALUE,NAME=VALUE.')
        found[name] = value
    return found
