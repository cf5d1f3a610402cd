"""What is kept on disk: by version, under a ceiling, and cleaned."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path

import pytest

import anyformer as af
from anyformer.data import cache
from anyformer.data.examples import prepare
from anyformer.data.rows import ListRows, read
from anyformer.version import __version__

DAY = 86400.0
SIZE = 100_000


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "IN_MEMORY", 1000)
    return tmp_path / "cache"


def unpacked(tmp_path: Path, name: str, days: float = 0.0) -> Path:
    """A file that was unpacked into the cache some days ago."""
    before = set(kept(cache.cache_folder()))
    (tmp_path / f"{name}.txt.gz").write_bytes(gzip.compress(f"{name}\n".encode() * (SIZE // (len(name) + 1))))
    read(tmp_path / f"{name}.txt.gz")
    (made,) = set(kept(cache.cache_folder())) - before
    age(made, days)
    return made


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY,) * 2)


def test_a_folder_for_each_version(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unpacked(tmp_path, "a").parent == home / __version__
    monkeypatch.setattr(cache, "__version__", "9.9.9")
    assert unpacked(tmp_path, "b").parent == home / "9.9.9"


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [unpacked(tmp_path, name, days) for name, days in (("aa", 3), ("bb", 9), ("cc", 6))]
    read(tmp_path / "bb.txt.gz")  # used now
    monkeypatch.setenv("ANYFORMER_CACHE_SIZE", "350KB")
    new = unpacked(tmp_path, "dd")
    assert kept(cache.cache_folder()) == sorted([files[0], files[1], new])


def test_what_is_in_use_stays_though_it_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE_SIZE", "1KB")
    files = [unpacked(tmp_path, name) for name in ("aa", "bb")]
    assert kept(cache.cache_folder()) == sorted(files)


def test_nothing_stays_a_month_unused_and_drafts_go_too(tmp_path: Path, home: Path) -> None:
    old = unpacked(tmp_path, "aa", 31)
    draft = old.with_name(f".{old.name}.x7_abc")
    draft.write_bytes(b"half")
    age(draft, 31)
    other = home / "0.0.1" / old.name
    other.parent.mkdir()
    other.write_bytes(b"of another version")
    age(other, 31)
    flat = home / old.name  # as it was before there was a folder for each version
    flat.write_bytes(b"old")
    age(flat, 31)
    new = unpacked(tmp_path, "bb")
    assert kept(cache.cache_folder()) == [new] and not other.exists() and not flat.exists()


def test_what_others_put_there_stays(tmp_path: Path, home: Path) -> None:
    home.mkdir()
    for name in ("thesis.tex", "0.0.1/photo.jpg"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(b"precious")
        age(home / name, 400)
    unpacked(tmp_path, "aa")
    assert (home / "thesis.tex").exists() and (home / "0.0.1/photo.jpg").exists()


def test_prepared_rows_are_kept_and_cleaned_too(home: Path) -> None:
    def prepared(words: str) -> Path:
        rows = ListRows([{"text": words}])
        prepare(rows, lambda some: [{"ids": [1, 2]} for _ in some], cache=cache.cache_folder())
        return max(cache.cache_folder().glob("*.examples"), key=lambda path: path.stat().st_mtime_ns)

    old = prepared("a")
    age(old, 40)
    new = prepared("b")
    assert old != new and kept(cache.cache_folder()) == [new]


def test_a_ceiling_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE_SIZE", "lots")
    with pytest.raises(af.ConfigError, match="ANYFORMER_CACHE_SIZE is 'lots'"):
        unpacked(tmp_path, "a")
