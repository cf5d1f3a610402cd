"""Where a sound lies, and how it becomes a wave: one channel of float32 at the rate that is wanted."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.audio.resample import resample
from anyformer.data.audio.wav import read_wav
from anyformer.data.files import reading
from anyformer.data.unpack import check_unpacked
from anyformer.errors import ConfigError, InputError, UnreadableError
from anyformer.jsonfile import open_file

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff")
SAMPLES = 2**18  # decoded at once
LOWEST = 100  # samples a second: nothing that is heard has fewer, and a header that says so is damaged
CHANNELS = 8  # at most, where they are told from samples by their number


@dataclass(frozen=True)
class Audio:
    """A sound that is read when it is asked for. `fetch` gives the bytes of its file, or the rate and the samples.
    `path` is set where it is a file by itself."""

    name: str
    fetch: Callable[[], bytes | tuple[int, Tensor]]
    path: Path | None = None

    def read(self) -> tuple[int, Tensor]:
        """The rate, and the samples [channels, n]."""
        got = self.fetch()
        rate, samples = got if isinstance(got, tuple) else decode(got, self.name)
        if rate < LOWEST:
            raise UnreadableError(
                f"{self.name} says that it has {rate} samples a second; a sound has {LOWEST} or more."
            )
        if not samples.shape[-1]:
            raise UnreadableError(f"{self.name} holds no sound: it has no samples at all.")
        if not bool(torch.isfinite(samples).all()):
            raise UnreadableError(f"{self.name} holds samples that are no numbers (NaN or infinite).")
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
    with reading(name, UnreadableError):
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                blocks = [block.T.copy() for block in _blocks(file, len(data), name)]
                rate = int(file.samplerate)
        except soundfile.LibsndfileError as error:
            why = error.error_string.rstrip(".")  # without the name of a buffer, which means nothing to anyone
            raise UnreadableError(f"{name} is no sound that can be read, or it is damaged: {why}.") from None
        return rate, torch.from_numpy(np.concatenate(blocks, axis=1) if blocks else np.zeros((1, 0), dtype=np.float32))


def _blocks(file: Any, packed: int, name: str) -> Iterator[Any]:
    """Samples [n, channels] as they come: the number that a header promises is not to be relied on."""
    done = 0
    while len(block := file.read(SAMPLES, dtype="float32", always_2d=True)):
        done += block.nbytes
        check_unpacked(name, packed, done, UnreadableError)
        yield block


def audio_from_file(path: Path) -> Audio:
    return Audio(str(path), lambda: _bytes(path), path)


def _bytes(path: Path) -> bytes:
    if not os.path.lexists(path):
        raise UnreadableError(f"{path} does not exist.")
    with reading(path, UnreadableError), open_file(path) as stream:
        return stream.read()


def as_audio(inputs: Any) -> Audio:
    """What a caller may hand in: a file's name, its bytes, (rate, samples), or {"array": …, "sampling_rate": …}."""
    if isinstance(inputs, Audio):
        return inputs
    if isinstance(inputs, (str, PathLike)):
        return audio_from_file(Path(inputs))
    if isinstance(inputs, (bytes, bytearray)):
        held = bytes(inputs)
        return Audio("the bytes given", lambda: held)
    if isinstance(inputs, Mapping) and {"array", "sampling_rate"} <= inputs.keys():
        inputs = (inputs["sampling_rate"], inputs["array"])
    if isinstance(inputs, tuple) and len(inputs) == 2:
        if not _is_number(inputs[0]) and _is_number(inputs[1]):
            raise InputError("Samples are given as (rate, samples), in this order; here the rate comes last.")
        if _is_number(inputs[0]):
            rate, samples = _rate(inputs[0]), _samples(inputs[1])
            return Audio("the samples given", lambda: (rate, samples))
    raise InputError(
        f"A sound is a file's name, its bytes, or (rate, samples); a {type(inputs).__name__} was given, which does not"
        " say its rate."
    )


def _is_number(inputs: Any) -> bool:
    if isinstance(inputs, (np.ndarray, Tensor)):
        return not inputs.ndim
    return type(inputs) is not bool and isinstance(inputs, Real)


def _rate(given: Any) -> int:
    value = float(given)
    if not value.is_integer():
        raise InputError(f"A rate is a whole number of samples a second; {value:g} was given.")
    return int(value)


def _samples(given: Any) -> Tensor:
    """[channels, n] between -1 and 1: whole numbers by the range of their type, as in WAV files; [n, channels], as
    scipy and soundfile have it, turned."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.float() if given.is_floating_point() else given  # numpy has no bfloat16
    try:
        array = np.asarray(given)
    except ValueError:
        raise InputError("Samples are [n] or [channels, n]; these channels differ in length.") from None
    if array.dtype.kind not in "fiu":
        raise InputError(f"Samples are real numbers; these are of the type {array.dtype}.")
    if array.ndim not in (1, 2):
        raise InputError(f"Samples are [n] or [channels, n]; these have the shape {list(array.shape)}.")
    if not array.size:
        raise InputError(f"There is no sound in samples of the shape {list(array.shape)}.")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 4:
        raise InputError(f"Samples of the type {array.dtype} do not say their range; give int16, or floats up to 1.")
    if array.ndim == 2 and array.shape[1] <= CHANNELS < array.shape[0]:
        array = array.T
    full = 1.0 if array.dtype.kind == "f" else 2.0 ** (8 * array.dtype.itemsize - 1)
    middle = full if array.dtype.kind == "u" else 0.0  # of numbers without a sign
    made: Any = array.astype(np.float64 if array.dtype.itemsize == 4 and middle else np.float32)
    made -= middle
    made /= full
    return torch.from_numpy(np.atleast_2d(np.ascontiguousarray(made, dtype=np.float32)))
