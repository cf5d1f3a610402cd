"""A run does not go on with other images, audio or clips than it was begun with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer as af
from anyformer.data.images.read import read_images
from anyformer.training import datafiles
from anyformer.training.datafiles import FILES, check_files, digest, loose_files, write_files
from tests.training.clip_files import clip
from tests.training.picture_files import encode, square
from tests.training.sound_files import tone
from tests.training.test_command import _own_cache

__all__ = ["_own_cache"]  # a fixture
QUICK = {"steps": 2, "save_every": 1, "eval_every": 0, "device": "cpu"}
QUICK |= {"data.validation_split": 0.25, "train.batch_size": 4}


def images(home: Path) -> Path:
    for i in range(8):
        path = home / ("red" if i % 2 else "blue") / f"{i}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(square((200, 0, 0) if i % 2 else (0, 0, 200), i), "BMP"))
    return home


def listed(home: Path) -> Path:
    """A table that names the images, which lie beside it."""
    images(home)
    names = sorted(str(path.relative_to(home)) for path in home.rglob("*.bmp"))
    (home / "list.tsv").write_text(
        "\n".join(["image\tlabel", *(f"{name}\t{name.split('/')[0]}" for name in names)]) + "\n"
    )
    return home / "list.tsv"


def sounds(home: Path) -> Path:
    for i in range(8):
        path = home / ("high" if i % 2 else "low") / f"{i}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tone(880 + i if i % 2 else 220 + i, 0.1))
    return home


def frames(home: Path) -> Path:
    for i in range(8):
        way = "left" if i % 2 else "right"
        for n, frame in enumerate(clip(way, start=i)):
            path = home / way / f"{i}" / f"{n}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(frame, "BMP"))
    return home


CASES = [
    ("classify-image", "vit-tiny", images, {"data.image_size": 32}),
    ("classify-image", "vit-tiny", listed, {"data.image_size": 32}),
    ("classify-audio", "ast-tiny", sounds, {}),
    ("classify-video", "videomae-tiny", frames, {}),
]


def same_size(path: Path) -> None:
    """Other content of the same size, at the same time."""
    facts, content = path.stat(), bytearray(path.read_bytes())
    content[-8] ^= 255
    path.write_bytes(content)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize(("task", "recipe", "make", "more"), CASES)
def test_changed_files_are_refused(
    task: str, recipe: str, make: Callable[[Path], Path], more: dict[str, Any], tmp_path: Path
) -> None:
    data = make(tmp_path / "data")
    out = tmp_path / "mine"

    def train() -> None:
        af.train(task, recipe=recipe, data=data, out=out, resume=True, **{**QUICK, **more})

    train()
    victim = sorted(path for path in (tmp_path / "data").rglob("*.*") if path.suffix in (".bmp", ".wav"))[3]
    before = victim.read_bytes()
    os.utime(victim, (1, 1))
    with pytest.warns(UserWarning, match=rf"same content.*: {victim}\."):
        train()
    same_size(victim)
    with pytest.raises(af.ConfigError, match=rf"has changed .*: {victim}\."):
        train()
    victim.write_bytes(before)
    with pytest.warns(UserWarning, match="same content"):
        train()


def test_a_zip_of_clips_has_a_digest(tmp_path: Path) -> None:
    from anyformer.data.video.clips import read_clips

    found = []
    for bright in (200, 100):
        clips = np.stack([clip("left", bright=bright)] * 2)
        np.savez(tmp_path / "clips.npz", x=clips, y=np.array([0, 1]))
        found.append(read_clips(tmp_path / "clips.npz").fingerprint)
    assert found[0] != found[1]
    labels = []
    images(tmp_path / "frames")
    for label in ("up", "down"):
        (tmp_path / "list.tsv").write_text(f"clip\tlabel\nframes/red\t{label}\nframes/blue\tup\n")
        labels.append(read_clips(tmp_path / "list.tsv").fingerprint)
    assert labels[0] != labels[1], "the labels are part of the data"


@pytest.mark.parametrize(
    ("size", "place", "seen"),
    [(2**20, 2**19, True), (2**20 + 1, 0, True), (2**20 + 1, -1, True), (2**21, 65535, True), (2**21, 2**20, False)],
)
def test_small_files_are_read_whole_and_large_ones_at_their_ends(
    size: int, place: int, seen: bool, tmp_path: Path
) -> None:
    content = bytearray(size)
    path = tmp_path / "file.wav"
    path.write_bytes(content)
    before = digest(path)
    content[place] = 1
    path.write_bytes(content)
    assert (digest(path) != before) is seen
    path.write_bytes(bytes(size + 1))
    assert digest(path) != before


def test_what_was_not_touched_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But whatever changed so shortly before the digest that its time may be the same is."""
    files = sorted(images(tmp_path / "data").rglob("*.bmp"))
    read: list[str] = []
    monkeypatch.setattr(datafiles, "digest", lambda path: read.append(path.name) or digest(path))
    write_files(tmp_path, files)
    assert len(read) == 8
    check_files(tmp_path, files)
    assert len(read) == 16, "just written"
    lines = (tmp_path / FILES).read_text().splitlines()
    (tmp_path / FILES).write_text("\n".join([str(time.time_ns() + 10**10), *lines[1:]]) + "\n")
    check_files(tmp_path, files)
    assert len(read) == 16
    same_size(files[2])
    with pytest.raises(af.ConfigError, match=files[2].name):
        check_files(tmp_path, files)
    assert len(read) == 17


def test_a_damaged_list_of_files(tmp_path: Path) -> None:
    for text in ("", "x\n", "1\nnot\ta line\n", "1\na\tb\tc\td\te\t[\n"):
        (tmp_path / FILES).write_text(text)
        with pytest.raises(af.FolderError, match=r"data-files\.tsv is damaged"):
            check_files(tmp_path, [])


@pytest.mark.slow
def test_fifty_thousand_files(tmp_path: Path) -> None:
    """A few seconds to begin, and fewer to go on: the times say that nothing was touched."""
    for i in range(50_000):
        if i % 500 == 0:
            (tmp_path / "data" / f"{i}").mkdir(parents=True)
        (tmp_path / "data" / f"{i - i % 500}" / f"{i}.bmp").write_bytes(i.to_bytes(4) * 1000)
    rows = read_images(tmp_path / "data")
    time.sleep(2.5)
    seconds = []
    for act in (write_files, check_files):
        started = time.process_time()
        act(tmp_path, loose_files([rows]))
        seconds.append(time.process_time() - started)
    assert seconds[0] < 30 and seconds[1] < 10, seconds


def table(home: Path, words: str = "good bad") -> Path:
    home.mkdir(exist_ok=True)
    lines = [f"a {mood} film {i}\t{mood}" for i in range(12) for mood in words.split()]
    (home / "x.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return home / "x.tsv"


def test_a_table_that_was_touched_is_said_once(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    data, out = table(tmp_path / "data"), tmp_path / "mine"

    def train() -> list[str]:
        recwarn.clear()
        af.train("classify-text", recipe="bert-tiny", data=data, valid=data, out=out, resume=True, **QUICK)
        return [str(one.message) for one in recwarn if "same content" in str(one.message)]

    assert train() == [] == train()
    os.utime(data, (1, 1))
    assert len(found := train()) == 1
    assert found[0].count(str(data)) == 1
    table(tmp_path / "data", "good evil")
    with pytest.raises(af.ConfigError, match="has changed"):
        train()


def test_a_run_whose_list_lacks_its_table_goes_on(tmp_path: Path) -> None:
    """As runs were begun before tables were listed."""
    files = sorted(images(tmp_path / "data").rglob("*.bmp"))
    write_files(tmp_path, files)
    check_files(tmp_path, [*files, table(tmp_path)], unlisted=1)
    for wrong in (files[:-1], files[1:], [*files, files[0]]):
        with pytest.raises(af.ConfigError, match="has changed"):
            check_files(tmp_path, [*wrong, table(tmp_path)], unlisted=1)
