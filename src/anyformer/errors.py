"""Every mistake of the caller's, each a subclass of Error with a message that says what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable

LIMIT = 400  # characters of a message
ENTRIES = (32, 24, 16, 12, 8, 5, 3)  # of a list that is too long: the most that fit
SEE_ALL = " Shortened; set ANYFORMER_ERRORS=full to see all."


class Error(Exception):
    """A mistake of the caller's; the message says what was wrong and what to do about it.

    Messages repeat what files and callers say, so they are made safe here: no control characters, LIMIT characters.
    """

    def __init__(self, message: object = "", *more: object) -> None:
        super().__init__(presentable(str(message)), *more)


class ConfigError(Error):
    """A setting that does not exist, contradicts another, or is not supported."""


class FolderError(Error):
    """A model folder that cannot be read: no config, an unknown family, a missing or damaged file."""


class WeightsError(FolderError):
    """Tensors in the files that do not fit the model: missing, extra or of another shape."""


class StoppedError(Error):
    """No mistake: somebody asked for the work to stop, and what there was of it is saved."""


class SkippedError(Error):
    """Finished, but some inputs could not be used: each is named, the others were answered. Exit code 3."""


class DataError(Error):
    """A file of rows that cannot be read as it should: not there, empty, a column too few, another encoding."""


class UnreadableError(DataError):
    """The file of a row (an image, a sound, a clip) that is missing, damaged, or of another kind."""


class InputError(Error):
    """A batch that the model cannot take: unknown names, wrong shapes, ids outside the vocabulary."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known.  nearest("n_layer", ["n_layers"]) -> ' Did you mean "n_layers"?'"""
    found = difflib.get_close_matches(name[:100], list(known), n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""


def presentable(text: str) -> str:
    """A message that is safe to print: on one line, without control characters, at most LIMIT characters long."""
    text = "".join(letter if letter.isprintable() else _visible(letter) for letter in text)
    if len(text) <= LIMIT or os.environ.get("ANYFORMER_ERRORS") == "full":
        return text
    text, room = text.replace(SEE_ALL, ""), LIMIT - len(SEE_ALL)
    few = next((cut for n in ENTRIES if len(cut := _cut_lists(text, n)) <= room), _cut_lists(text, ENTRIES[-1]))
    if len(few) > room:  # what was wrong stands at the beginning, what to do at the end
        few = f"{few[: room * 2 // 3]} … {few[-(room // 3 - 3) :]}"
    return few + SEE_ALL


def _visible(letter: str) -> str:
    return " " if letter.isspace() else letter.encode("unicode_escape").decode()


def _cut_lists(text: str, entries: int) -> str:
    """Long words are cut in the middle; of a list with commas the first entries stay, and the last."""
    text = re.sub(r"\S{101,}", lambda word: f"{word[0][:60]}…{word[0][-30:]}", text)
    entry = r"[^,;]{1,100}[,;] "
    return re.sub(rf"((?:{entry}){{{entries}}})((?:{entry}){{2,}})", _few, text)


def _few(found: re.Match[str]) -> str:
    return f"{found[1]}… {len(re.findall('[,;] ', found[2])):,} more …, "
