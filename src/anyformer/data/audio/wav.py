"""WAV files: integers of 8 to 32 bits, floats of 32 and 64, any number of channels, any sampling rate."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import UnreadableError

WHOLE, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE  # format codes; EXTENSIBLE has the code in its extension
FORMAT_BYTES, EXTENSION_BYTES = 16, 26
MOST_RATE = 1_000_000  # Hz; more means a damaged header
STREAMED = 0xFFFFFFFF  # size in the header of a streamed file


@dataclass(frozen=True)
class WavFormat:
    coding: int
    channels: int
    rate: int
    bits: int

    @property
    def frame(self) -> int:
        """Bytes of one sample of all channels."""
        return self.channels * self.bits // 8


def read_wav(data: bytes, name: str) -> tuple[int, Tensor]:
    """Return the sampling rate and the samples [channels, n] between -1 and 1."""
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise UnreadableError(f"{name} is not a WAV file: its first bytes are not those of a RIFF header.")
    shape: WavFormat | None = None
    at = 12
    while at + 8 <= len(data):
        kind, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        body = data[at + 8 : at + 8 + size]
        if kind == b"fmt ":
            shape = _format(body, name)
        elif kind == b"data":
            return _samples(body, size, shape, name)
        at += 8 + size + size % 2
    raise UnreadableError(f"{name} ends before its samples; get the whole file.")


def _format(body: bytes, name: str) -> WavFormat:
    if len(body) < FORMAT_BYTES:
        raise UnreadableError(f"{name} ends within its header; get the whole file.")
    coding, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if coding == EXTENSIBLE and len(body) >= EXTENSION_BYTES:
        coding = struct.unpack_from("<H", body, FORMAT_BYTES + 8)[0]
    known = {WHOLE: (8, 16, 24, 32), FLOAT: (32, 64)}
    if coding not in known or bits not in known[coding]:
        raise UnreadableError(
            f"{name} has {bits}-bit samples in format {coding}; supported are integers of 8, 16, 24 and 32 bits"
            " (format 1) and floats of 32 and 64 bits (format 3). Save it as 16-bit PCM."
        )
    if not channels or not 0 < rate <= MOST_RATE:
        raise UnreadableError(
            f"{name} is damaged: its header has {channels} channels and a sampling rate of {rate} Hz."
        )
    return WavFormat(coding, channels, rate, bits)


def _samples(body: bytes, size: int, shape: WavFormat | None, name: str) -> tuple[int, Tensor]:
    if shape is None:
        raise UnreadableError(f"{name} is damaged: it has samples but no header.")
    if len(body) < size != STREAMED:
        raise UnreadableError(
            f"{name} has {len(body) // shape.frame:,} of the {size // shape.frame:,} samples in its header; get the"
            " whole file."
        )
    whole = len(body) // shape.frame * shape.frame
    flat = _numbers(body[:whole], shape)
    return shape.rate, torch.from_numpy(flat.reshape(-1, shape.channels).T.astype(np.float32))


def _numbers(body: bytes, shape: WavFormat) -> np.ndarray:
    if shape.coding == FLOAT:
        return np.frombuffer(body, dtype=f"<f{shape.bits // 8}")
    if shape.bits == 8:  # unsigned
        return (np.frombuffer(body, dtype=np.uint8).astype(np.float64) - 128) / 128
    if shape.bits == 24:  # the upper three bytes of four
        wide = np.zeros((len(body) // 3, 4), dtype=np.uint8)
        wide[:, 1:] = np.frombuffer(body, dtype=np.uint8).reshape(-1, 3)
        return wide.view("<i4").ravel() / 2.0**31
    return np.frombuffer(body, dtype=f"<i{shape.bits // 8}") / 2.0 ** (shape.bits - 1)


def write_wav(samples: Tensor, rate: int) -> bytes:
    """Samples [n] or [channels, n] between -1 and 1, as 16-bit PCM."""
    several = samples[None] if samples.dim() == 1 else samples
    whole = (several.T.reshape(-1) * 32768).round().clamp(-32768, 32767).to(torch.int16).numpy()
    body, channels = whole.astype("<i2").tobytes(), several.shape[0]
    head = struct.pack("<4sIHHIIHH", b"fmt ", 16, WHOLE, channels, rate, rate * channels * 2, channels * 2, 16)
    chunks = head + struct.pack("<4sI", b"data", len(body)) + body
    return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks
