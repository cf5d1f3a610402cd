"""What a translator may not learn from: the everyday sentences, whatever is nearly one of them, and Tatoeba's rows to
validate and test on.

Two sentences are near each other where they have the same letters, or where one word makes the difference and they have
four words or more.
"""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from anyformer.errors import DataError

HERE = Path(__file__).parent
EVERYDAY = HERE / "everyday"
LANGUAGES = ("de", "fr")
WORD = re.compile(r"[^\W_]+")
FEW = 4  # words of a sentence that one more or less makes another one

Pair = tuple[str, str]


def data_folder() -> Path:
    """Where the data sets are."""
    said = os.environ.get("ANYFORMER_DATA", "")
    if not said or not Path(said).is_dir():
        raise DataError("Say where the data sets are: ANYFORMER_DATA must name their folder.")
    return Path(said)


def tatoeba(language: str, split: str) -> list[Pair]:
    path = data_folder() / f"tatoeba_en_{language}" / f"{split}.tsv.gz"
    return [(row[0], row[1]) for row in (line.split("\t") for line in lines(path))]


def multi30k(language: str, split: str = "train") -> list[Pair]:
    sides = (lines(data_folder() / "multi30k" / f"{split}.{one}.gz") for one in ("en", language))
    return list(zip(*sides, strict=True))


def lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [line.rstrip("\n") for line in stream]


def everyday(language: str) -> list[list[str]]:
    """Rows of kind, source, and one reference or more."""
    path = EVERYDAY / f"en-{language}.tsv"
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def words(text: str) -> tuple[str, ...]:
    return tuple(WORD.findall(text.casefold()))


def traces(text: str) -> Iterator[tuple[str, ...]]:
    """What sentences that are near each other have in common."""
    found = words(text)
    yield ("", *"".join(found))
    if len(found) >= FEW:
        yield found
        yield from (found[:i] + found[i + 1 :] for i in range(len(found)))


class HeldOut:
    """Of both languages, since English sentences of one are translated for the other."""

    def __init__(self, near: Iterable[str], same: Iterable[str]) -> None:
        self.near = {trace for text in near for trace in traces(text)}
        self.same = {words(text) for text in same}

    def has(self, *texts: str) -> bool:
        """Whether one of these sentences may not be learned from."""
        return any(words(text) in self.same or not self.near.isdisjoint(traces(text)) for text in texts)


def held_out(more: Iterable[str] = ()) -> HeldOut:
    """`more` are sentences that are kept out like the everyday ones."""
    near = [*more]
    near += [text for language in LANGUAGES for row in everyday(language) for text in row[1:]]
    splits = [tatoeba(language, split) for language in LANGUAGES for split in ("valid", "test")]
    return HeldOut(near, (text for rows in splits for pair in rows for text in pair))
