"""What can be said of the data: every `data.*` and `tokenizer.*` key."""

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
    max_length: int | None = None  # tokens of a text; None: what suits the task, and no more than the model can hold
    image_size: int | None = None  # pixels of a side that images are brought to; None: what the model was made for
    columns: str = ""  # which column is what: "text=4,label=2"; numbers count from 1 where there is no header
    labels: str = ""  # what the values of the label column mean: "0=negative,1=positive"
    header: bool | None = None  # whether a TSV or CSV begins with names; None: found out
    format: str | None = None  # text, tsv, csv, jsonl, json, parquet or conll; None: from the file's name
    fraction: float = 1.0  # of the rows to learn from, drawn at random; the others are left aside
    # The fraction of rows to evaluate on if no file is given for it; None: max(5%, min(50 rows, 20%)), at most 10,000
    # rows, but one of every class or more. Classes keep their fractions.
    validation_split: float | None = None
    cache: bool = True  # keep prepared rows for the next start

    def check(self) -> None:
        self.require(0 < self.fraction <= 1, f"fraction is {self.fraction}; it must be above 0 and at most 1.")
        held = self.validation_split
        self.require(held is None or 0 <= held < 1, f"validation_split is {held}; it must be from 0 to below 1.")
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
    """For a model that is built from a recipe; a folder brings its own tokenizer, unless there is a path."""

    kind: str | None = None  # bpe, wordpiece, unigram, word, char or byte; None: what suits the task
    vocab_size: int = 8000
    # A folder or file with a tokenizer that there is; a folder's model is given its words, and keeps those it had.
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
    """The name of the class that a row has in its label column; an error if it has none. NaN is a missing label,
    unless data.labels names the class that it means."""
    name = class_name(value) if isinstance(value, (str, int, float)) else ""
    missing = not name.strip() or (name.lower() == "nan" and name not in meaning)
    if missing:
        why = f': give the row a label, or data.labels="{name}=NAME" if it is a class' if name.strip() else ""
        raise DataError(f"{where}, has {shown(value)} as its label, which names no class{why}.")
    return name


def meanings(said: str) -> dict[str, str]:
    """What data.labels says that the values of the label column mean, by the names of the classes."""
    return {class_name(label): name for label, name in parse_pairs(said, "data.labels").items()}


def class_number(value: object, index: Mapping[str, int], meaning: Mapping[str, str]) -> int | None:
    """The number of a row's class; None if it is not among them."""
    texts = (class_name(value), str(value))  # a folder may have kept either
    return next((index[name] for name in (meaning.get(text, text) for text in texts) if name in index), None)


def rename_labels(labels: Sequence[str], said: str, path: str) -> tuple[str, ...]:
    """Labels of a file by the names that data.labels gives them; two with one name become one."""
    meaning, known = meanings(said), {class_name(label): label for label in labels}
    strange = [label for label in meaning if label not in known]
    if strange:
        some = f"{', '.join(labels[:20])}{' …' if len(labels) > 20 else ''}"
        raise ConfigError(f'data.labels renames "{strange[0]}", which is no label of {path}; those are: {some}.')
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
