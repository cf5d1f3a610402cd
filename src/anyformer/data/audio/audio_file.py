"""Audio from files, bytes or arrays, decoded and resampled to a mono float32 waveform."""

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
LOWEST = 100  # Hz: a lower sampling rate in a header means that the file is damaged
CHANNELS = 8  # an array [n, m] with m up to this and n above it is [samples, channels]


@dataclass(frozen=True)
class Audio:
    """Audio that is read on demand. `fetch` returns the bytes of the file, or the sampling rate and the samples.
    `path` is None unless the audio is a file of its own."""

    name: str
    fetch: Callable[[], bytes | tuple[int, Tensor]]
    path: Path | None = None

    def read(self) -> tuple[int, Tensor]:
        """Return the sampling rate and the samples [channels, n]."""
        got = self.fetch()
        rate, samples = got if isinstance(got, tuple) else decode(got, self.name)
        if rate < LOWEST:
            raise UnreadableError(
                f"{self.name} has a sampling rate of {rate} Hz; it must be {LOWEST} or more. The file may be damaged."
            )
        if not samples.shape[-1]:
            raise UnreadableError(f"{self.name} has 0 samples; record or export the audio again.")
        if not bool(torch.isfinite(samples).all()):
            raise UnreadableError(f"{self.name} has samples that are NaN or infinite.")
        return rate, samples

    def open(self, rate: int) -> Tensor:
        """Return the waveform [n] at a sampling rate; several channels are averaged."""
        own, samples = self.read()
        return resample(samples.mean(dim=0), own, rate)

    def __repr__(self) -> str:  # part of the fingerprint of rows in memory
        return f"Audio({self.name!r})"


def decode(data: bytes, name: str) -> tuple[int, Tensor]:
    if data[:4] in (b"RIFF", b"RF64") or not data:
        return read_wav(data, name)
    try:
        import soundfile
    except ImportError:
        raise ConfigError(
            f"{name} is not a WAV file; other formats (FLAC, Ogg) need soundfile: pip install 'anyformer[audio]'."
        ) from None
    with reading(name, UnreadableError):
        try:
            with soundfile.SoundFile(io.BytesIO(data)) as file:
                blocks = [block.T.copy() for block in _blocks(file, len(data), name)]
                rate = int(file.samplerate)
        except soundfile.LibsndfileError as error:
            why = error.error_string.rstrip(".")  # without the name of the buffer
            raise UnreadableError(f"{name} cannot be decoded as audio: {why}.") from None
        return rate, torch.from_numpy(np.concatenate(blocks, axis=1) if blocks else np.zeros((1, 0), dtype=np.float32))


def _blocks(file: Any, packed: int, name: str) -> Iterator[Any]:
    """Yield blocks of samples [n, channels] until the file ends; the count in its header may be wrong."""
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
    """Convert a file name, bytes, (rate, samples) or {"array": …, "sampling_rate": …} to Audio."""
    if isinstance(inputs, Audio):
        return inputs
    if isinstance(inputs, (str, PathLike)):
        return audio_from_file(Path(inputs))
    if isinstance(inputs, (bytes, bytearray)):
        data = bytes(inputs)
        return Audio("the bytes given", lambda: data)
    if isinstance(inputs, Mapping) and {"array", "sampling_rate"} <= inputs.keys():
        inputs = (inputs["sampling_rate"], inputs["array"])
    if isinstance(inputs, tuple) and len(inputs) == 2:
        if not _is_number(inputs[0]) and _is_number(inputs[1]):
            raise InputError("Audio was given as (samples, rate); give (rate, samples).")
        if _is_number(inputs[0]):
            rate, samples = _rate(inputs[0]), _samples(inputs[1])
            return Audio("the samples given", lambda: (rate, samples))
    raise InputError(
        f"Audio was given as {type(inputs).__name__}; it must be a file name, bytes, (rate, samples), or a dict with"
        ' "array" and "sampling_rate".'
    )


def _is_number(inputs: Any) -> bool:
    if isinstance(inputs, (np.ndarray, Tensor)):
        return not inputs.ndim
    return type(inputs) is not bool and isinstance(inputs, Real)


def _rate(given: Any) -> int:
    value = float(given)
    if not value.is_integer():
        raise InputError(f"The sampling rate is {value:g}; it must be a whole number of Hz.")
    return int(value)


def _samples(given: Any) -> Tensor:
    """Samples [channels, n] between -1 and 1. Integers are divided by the range of their type, as in WAV files, and
    [n, channels], the layout of scipy and soundfile, is transposed."""
    if isinstance(given, Tensor):
        given = given.detach().cpu()
        given = given.float() if given.is_floating_point() else given  # numpy has no bfloat16
    try:
        array = np.asarray(given)
    except ValueError:
        raise InputError("The channels differ in length; samples must be [n] or [channels, n].") from None
    if array.dtype.kind not in "fiu":
        raise InputError(f"The samples are {array.dtype}; they must be integers or floats.")
    if array.ndim not in (1, 2):
        raise InputError(f"The samples have shape {list(array.shape)}; they must be [n] or [channels, n].")
    if not array.size:
        raise InputError(f"The samples have shape {list(array.shape)}, which is empty.")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 4:
        raise InputError(f"The samples are {array.dtype}, whose range is unknown; give int16, or floats up to 1.")
    if array.ndim == 2 and array.shape[1] <= CHANNELS < array.shape[0]:
        array = array.T
    full = 1.0 if array.dtype.kind == "f" else 2.0 ** (8 * array.dtype.itemsize - 1)
    middle = full if array.dtype.kind == "u" else 0.0  # unsigned integers are centered on half their range
    made: Any = array.astype(np.float64 if array.dtype.itemsize == 4 and middle else np.float32)
    made -= middle
    made /= full
    return torch.from_numpy(np.atleast_2d(np.ascontiguousarray(made, dtype=np.float32)))
