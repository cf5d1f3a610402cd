"""TensorBoard's files: records with the right checksums, read back by hand and by TensorBoard where it is installed."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from anyformer.training.callbacks import CallbackList
from anyformer.training.report import MetricsFile
from anyformer.training.tensorboard import FOLDER, TensorBoard, checksum
from anyformer.training.trainer import train
from tests.training.toy import Toy, settings


def test_the_checksum_is_crc32c() -> None:
    """ "123456789" gives 0xE3069283 (RFC 3720, appendix B.4), before TensorFlow's mask is put on."""
    (masked,) = struct.unpack("<I", checksum(b"123456789"))
    turned = (masked - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == 0xE3069283


def run(folder: Path) -> Path:
    train(Toy(), settings(), folder=folder, callback=CallbackList([TensorBoard(folder), MetricsFile(folder)]))
    (path,) = (folder / FOLDER).iterdir()
    assert path.name.startswith("events.out.tfevents.")
    return path


def test_records_are_whole(tmp_path: Path) -> None:
    data, events, at = run(tmp_path).read_bytes(), [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert data[at + 8 : at + 12] == checksum(data[at : at + 8])
        events.append(data[at + 12 : at + 12 + size])
        assert data[at + 12 + size : at + 16 + size] == checksum(events[-1])
        at += 16 + size
    assert at == len(data) and b"brain.Event:2" in events[0]
    assert (
        sum(b"train/loss" in event for event in events) == 20 and sum(b"valid/loss" in event for event in events) == 3
    )
    row = next(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    first = next(event for event in events if b"train/loss" in event)
    after = first.index(b"train/loss") + len(b"train/loss")
    assert first[after] == 2 << 3 | 5 and struct.unpack_from("<f", first, after + 1)[0] == pytest.approx(row["loss"])


def test_tensorboard_reads_them(tmp_path: Path) -> None:
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(tmp_path)
    found = loader.EventAccumulator(str(tmp_path / FOLDER)).Reload()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"]) for row in rows if "split" not in row]
    seen = [(event.step, event.value) for event in found.Scalars("train/loss")]
    assert [step for step, _ in seen] == [step for step, _ in losses]
    assert [value for _, value in seen] == pytest.approx([value for _, value in losses])
