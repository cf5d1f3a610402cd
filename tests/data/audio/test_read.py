"""Audio from class folders, tables with a zip, and files alone; columns named as before; mistakes."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest

import anyformer as af
from anyformer.data.audio.read import read_audio
from anyformer.data.rows import ListRows
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.tables import find_rows
from tests.training.sound_files import spoken, tone


def make_folders(path: Path) -> Path:
    for label in ("cat", "dog"):
        (path / label).mkdir(parents=True)
        for i in range(2):
            (path / label / f"{i}.wav").write_bytes(tone(300.0 + i))
    return path


def test_class_folders(tmp_path: Path) -> None:
    rows = read_audio(make_folders(tmp_path / "pets"))
    assert [row["label"] for row in rows] == ["cat", "cat", "dog", "dog"]
    assert rows.metadata["labels"] == ["cat", "dog"]
    assert rows[0]["audio"].read()[0] == 8000


def test_zip_of_class_folders(tmp_path: Path) -> None:
    """A zip as its tools make it: everything in one folder."""
    made = shutil.make_archive(str(tmp_path / "pets"), "zip", make_folders(tmp_path / "in" / "pets").parent)
    rows = read_audio(made)
    assert [row["label"] for row in rows] == ["cat", "cat", "dog", "dog"]
    assert len(rows[3]["audio"].open(8000)) == 2400


def test_table_beside_a_zip(tmp_path: Path) -> None:
    for name, content in spoken(4).items():
        (tmp_path / name).write_bytes(content)
    for given in (tmp_path / "x.tsv", f"{tmp_path / 'x.tsv'},{tmp_path / 'x.zip'}"):
        rows = read_audio(given)
        assert [row["label"] for row in rows] == ["low", "high", "low", "high"]
        assert rows[1]["audio"].name.endswith("x.zip: 1.wav") and len(rows[1]["audio"].open(16_000)) == 4800
    assert rows.location(1).endswith("x.tsv, line 3")


def test_sounds_alone(tmp_path: Path) -> None:
    make_folders(tmp_path / "pets")
    rows = read_audio(str(tmp_path / "pets" / "*" / "*.wav"))
    assert len(rows) == 4 and rows.columns == ("audio",)


def test_the_column_named_as_before(tmp_path: Path) -> None:
    """A table may name its column "sound". data.columns must use the name of today, unless a folder saved it."""
    (tmp_path / "x.tsv").write_text("sound\tlabel\nhere.wav\ta\nhere.wav\tb\n")
    (tmp_path / "here.wav").write_bytes(tone(300.0))
    kind = find("classify-audio")
    rows = kind.read(tmp_path / "x.tsv")
    assert rows.columns == ("audio", "label")
    assert kind.read(tmp_path / "x.tsv", DataSettings(columns="audio=sound,label=label"))[1]["label"] == "b"
    with pytest.raises(af.DataError, match=r'data\.columns .*"sound" .*"audio"'):
        kind.read(tmp_path / "x.tsv", DataSettings(columns="sound=sound"))
    saved = {"columns": "sound=sound, label=label"}
    assert DataSettings.from_json(saved).columns == "audio=sound, label=label"
    assert find_rows(kind, str(tmp_path / "x.tsv"), "", saved).columns == ("audio",)


def test_the_fingerprint_is_that_of_saved_runs() -> None:
    """A run that was begun when the column was called "sound" has the data that it was begun with."""
    rows = ListRows([{"clip": "a", "digit": 1}])
    old = sorted({"sound": "clip", "label": "digit"}.items())
    digest = hashlib.blake2b(digest_size=16)
    for one in (rows.fingerprint, repr(old)):
        digest.update(one.encode() + b"\0")
    assert rows.rename({"audio": "clip", "label": "digit"}).fingerprint == digest.hexdigest()


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("file\tlabel\nhere.wav\ta\ngone.wav\tb\n")
    (tmp_path / "here.wav").write_bytes(tone(300.0))
    with pytest.raises(af.Error, match=r'x\.tsv, line 3.*"gone\.wav"'):
        read_audio(tmp_path / "x.tsv")
    (tmp_path / "y.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(af.Error, match=r"y\.tsv.* a, b\. .*data\.columns"):
        read_audio(tmp_path / "y.tsv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(af.Error, match=r"empty .*\.wav"):
        read_audio(tmp_path / "empty")
    (tmp_path / "odd.bin").write_bytes(b"1")
    with pytest.raises(af.Error, match=r"odd\.bin .*\.wav"):
        read_audio(tmp_path / "odd.bin")
    (tmp_path / "bad.zip").write_bytes(b"PK not really")
    with pytest.raises(af.Error, match=r"bad\.zip"):
        read_audio(tmp_path / "bad.zip")
    (tmp_path / "sets" / "train").mkdir(parents=True)
    (tmp_path / "sets" / "val").mkdir()
    with pytest.raises(af.Error, match=r"sets.* train, val"):
        read_audio(tmp_path / "sets")
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    with pytest.raises(af.Error, match=r"none\.zip .*\.wav"):
        read_audio(tmp_path / "none.zip")
