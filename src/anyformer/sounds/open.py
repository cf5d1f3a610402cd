"""Where a sound lies, and how it becomes a wave: one channel of float32 at the rate that is wanted."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import ConfigError, DataError, InputError
from anyformer.sounds.resample import resample
from anyformer.sounds.wav import read_wav

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff")


@dataclass(frozen=True)
class Sound:
    """A sound that is read when it is asked for. `fetch` gives the bytes of its file, or the rate and the samples."""

    name: str
    fetch: Callable[[], bytes | tuple[int, Tensor]]

    def read(self) -> tuple[int, Tensor]:
        """The rate, and the samples [channels, n]."""
        got = self.fetch()
        rate, samples = got if isinstance(got, tuple) else decode(got, self.name)
        if not samples.shape[-1]:
            raise DataError(f"{self.name} holds no sound: it has no samples at all.")
        if not bool(torch.isfinite(samples).all()):
            raise DataError(f"{self.name} holds samples that are no numbers (NaN or infinite).")
        return rate, samples

    def open(self, rate: int) -> Tensor:
        """[n]: several channels as their mean, at this rate."""
        own, samples = self.read()
        return resample(samples.mean(dim=0), own, rate)

    def __repr__(self) -> str:  # rows are told apart by it
        return f"Sound({self.name!r})"


def decode(data: bytes, name: str) -> tuple[int, Tensor]:
    if data[:4] in (b"RIFF", b"RF64") or not data:
        return read_wav(data, name)
    try:
        import soundfile
    except ImportError:
        raise ConfigError(
            f"{name} is not a WAV file; other kinds (FLAC, Ogg) need soundfile: pip install 'anyformer[sound]'."
        ) from None
    try:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        why = error.error_string.rstrip(".")  # without the name of a buffer, which means nothing to anyone
        raise DataError(f"{name} is no sound that can be read, or it is damaged: {why}.") from None
    return int(rate), torch.from_numpy(samples.T.copy())


def file_sound(path: Path) -> Sound:
    return Sound(str(path), lambda: _bytes(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def as_sound(thing: Any) -> Sound:
    """What a caller may hand in: a file's name, its bytes, (rate, samples), or {"array": …, "sampling_rate": …}."""
    if isinstance(thing, Sound):
        return thing
    if isinstance(thing, (str, PathLike)):
        return file_sound(Path(thing))
    if isinstance(thing, (bytes, bytearray)):
        held = bytes(thing)
        return Sound("the bytes given", lambda: held)
    if isinstance(thing, Mapping) and {"array", "sampling_rate"} <= thing.keys():
        thing = (thing["sampling_rate"], thing["array"])
    if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], int):
        rate, samples = thing[0], torch.as_tensor(np.asarray(thing[1]), dtype=torch.float32)
        if samples.dim() not in (1, 2):
            raise InputError(f"Samples are [n] or [channels, n]; these have the shape {list(samples.shape)}.")
        return Sound("the samples given", lambda: (rate, samples.reshape(-1, samples.shape[-1])))
    raise InputError(
        f"A sound is a file's name, its bytes, or (rate, samples); a {type(thing).__name__} was given, which does not"
        " say its rate."
    )
