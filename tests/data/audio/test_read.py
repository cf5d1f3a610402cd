"""Sounds as users have them: class folders, tables with a zip beside them, sounds alone; and mistakes."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import anyformer as af
from anyformer.data.audio.read import read_audio
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
    assert rows[0]["sound"].read()[0] == 8000


def test_zip_of_class_folders(tmp_path: Path) -> None:
    """A zip as its tools make it: everything in one folder."""
    made = shutil.make_archive(str(tmp_path / "pets"), "zip", make_folders(tmp_path / "in" / "pets").parent)
    rows = read_audio(made)
    assert [row["label"] for row in rows] == ["cat", "cat", "dog", "dog"]
    assert len(rows[3]["sound"].open(8000)) == 2400


def test_table_beside_a_zip(tmp_path: Path) -> None:
    for name, content in spoken(4).items():
        (tmp_path / name).write_bytes(content)
    for given in (tmp_path / "x.tsv", f"{tmp_path / 'x.tsv'},{tmp_path / 'x.zip'}"):
        rows = read_audio(given)
        assert [row["label"] for row in rows] == ["low", "high", "low", "high"]
        assert rows[1]["sound"].name.endswith("x.zip: 1.wav") and len(rows[1]["sound"].open(16_000)) == 4800
    assert rows.location(1).endswith("x.tsv, line 3")


def test_sounds_alone(tmp_path: Path) -> None:
    make_folders(tmp_path / "pets")
    rows = read_audio(str(tmp_path / "pets" / "*" / "*.wav"))
    assert len(rows) == 4 and rows.columns == ("sound",)


def test_mistakes(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("file\tlabel\nhere.wav\ta\ngone.wav\tb\n")
    (tmp_path / "here.wav").write_bytes(tone(300.0))
    with pytest.raises(af.Error, match=r'x\.tsv, line 3, names the sound "gone\.wav", which is not in'):
        read_audio(tmp_path / "x.tsv")
    (tmp_path / "y.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(af.Error, match=r"no column that names sounds.*data\.columns"):
        read_audio(tmp_path / "y.tsv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(af.Error, match=r"empty has no sounds"):
        read_audio(tmp_path / "empty")
    (tmp_path / "odd.bin").write_bytes(b"1")
    with pytest.raises(af.Error, match=r"odd\.bin is neither a sound"):
        read_audio(tmp_path / "odd.bin")
    (tmp_path / "bad.zip").write_bytes(b"PK not really")
    with pytest.raises(af.Error, match=r"bad\.zip .*cannot be unpacked"):
        read_audio(tmp_path / "bad.zip")
    (tmp_path / "sets" / "train").mkdir(parents=True)
    (tmp_path / "sets" / "val").mkdir()
    with pytest.raises(af.Error, match="give one of them"):
        read_audio(tmp_path / "sets")
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    with pytest.raises(af.Error, match=r"none\.zip has no sounds"):
        read_audio(tmp_path / "none.zip")
