"""Every mistake of the caller's, each a subclass of Error with a message that says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Error(Exception):
    """A mistake of the caller's; the message says what was wrong and what to do about it."""


class ConfigError(Error):
    """A setting that does not exist, contradicts another, or is not supported."""


class FolderError(Error):
    """A model folder that cannot be read: no config, an unknown family, a missing or damaged file."""


class WeightsError(FolderError):
    """Tensors in the files that do not fit the model: missing, extra or of another shape."""


class StoppedError(Error):
    """No mistake: somebody asked for the work to stop, and what there was of it is saved."""


class DataError(Error):
    """A file of rows that cannot be read as it should: not there, empty, a column too few, another encoding."""


class InputError(Error):
    """A batch that the model cannot take: unknown names, wrong shapes, ids outside the vocabulary."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known.  nearest("n_layer", ["n_layers"]) -> ' Did you mean "n_layers"?'"""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{found[0]}"?' if found else ""
