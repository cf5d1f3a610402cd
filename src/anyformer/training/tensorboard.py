"""TensorBoard's event files, written by hand: they are records of a few fields, and need no library.

A record is its length, a checksum of that, the event and a checksum of it; an event is a protocol buffer.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from anyformer.training.callbacks import Callback, Progress
from anyformer.training.step_metrics import StepMetrics
from anyformer.training.work import Metrics

FOLDER = "tensorboard"


class TensorBoard(Callback):
    """A file for every start of a run; a run that went back to a step says so, and what came after it is forgotten."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder / FOLDER
        self.path: Path | None = None

    def on_train_begin(self, progress: Progress) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self.path = self.folder / name
        self._write(_text(3, "brain.Event:2"), 0)
        if progress.step:
            self._write(_message(7, _number(1, 1)), progress.step + 1)  # a session begins: purge from here

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        self._scalars("train", {"loss": metrics.loss, "lr": metrics.lr, **metrics.parts}, metrics.step)

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        self._scalars("valid", numbers, progress.step)

    def _scalars(self, split: str, values: Mapping[str, float], step: int) -> None:
        pairs = [_text(1, f"{split}/{name}") + _key(2, 5) + struct.pack("<f", value) for name, value in values.items()]
        self._write(_message(5, b"".join(_message(1, pair) for pair in pairs)), step)

    def _write(self, what: bytes, step: int) -> None:
        assert self.path is not None
        event = _key(1, 1) + struct.pack("<d", time.time()) + _number(2, step) + what
        size = struct.pack("<Q", len(event))
        with self.path.open("ab") as file:
            file.write(size + checksum(size) + event + checksum(event))


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _key(field, 2) + _varint(len(content)) + content


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def checksum(data: bytes) -> bytes:
    """CRC-32C, masked as TensorFlow's records have it."""
    value, table = 0xFFFFFFFF, _table()
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table
