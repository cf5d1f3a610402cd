"""Packed files within bounds, and files that are made to do harm: one sentence that names the file, and no waiting."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer as af
from anyformer.data import unpack
from anyformer.data.arrays import read_arrays
from anyformer.data.audio.audio_file import as_audio
from anyformer.data.audio.read import read_audio
from anyformer.data.images.read import read_images
from anyformer.data.rows import read
from anyformer.data.video.clips import read_clips
from anyformer.tasks.classify_set import read_sets
from tests.fuzz import seeds
from tests.training import picture_files, sound_files

ZEROS = 3 * 2**20


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Bounds that are met in a moment; and whoever waits for a pipe is ended."""
    import signal

    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(unpack, "FREE", 2**20)
    signal.alarm(60)
    yield
    signal.alarm(0)


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def encrypted(content: bytes) -> bytes:
    """With the flag in the list of files that says so."""
    held = bytearray(content)
    held[content.index(b"PK\1\2") + 8] |= 1
    return bytes(held)


def flac(count: int) -> bytes:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(count, dtype=np.int16), 8000, format="FLAC")
    return stream.getvalue()


def every_row(rows: Any) -> None:
    for row in rows:
        for value in row.values():
            if hasattr(value, "open"):
                value.open(8000) if type(value).__name__ == "Audio" else value.open()
            elif hasattr(value, "take"):
                value.take(2)


def refusal(action: Callable[[], Any]) -> str:
    """What is said, if anything is."""
    try:
        action()
    except af.DataError as error:
        return str(error)
    return ""


BOMBS: dict[str, Callable[[], bytes]] = {
    "x.txt.gz": lambda: gzip.compress(b"a" * ZEROS),
    "x.txt.xz": lambda: lzma.compress(b"a" * ZEROS),
    "pictures.npz": lambda: zipped({"x.npy": np.lib.format.MAGIC_PREFIX + bytes(ZEROS)}),
    "pictures.zip": lambda: zipped({"a/1.png": bytes(ZEROS)}),
    "sounds.zip": lambda: zipped({"a/1.wav": bytes(ZEROS)}),
    "x.flac": lambda: flac(2**20),
}


def use(path: Path) -> None:
    reader = read_audio if path.name.startswith("sounds") or path.suffix == ".flac" else read_images
    every_row(read(path) if ".txt" in path.name else reader(path))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_the_bound_can_be_set(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(BOMBS[name]())
    with pytest.raises(af.DataError, match=rf"{name}.*1 MB.*ANYFORMER_MAX_UNPACKED"):
        use(tmp_path / name)
    monkeypatch.setenv("ANYFORMER_MAX_UNPACKED", "5MB")
    assert "unpacks" not in refusal(lambda: use(tmp_path / name))  # though zeros are no image


def test_what_is_large_packed_may_be_large_unpacked(tmp_path: Path) -> None:
    noise = os.urandom(2**21).hex().encode()
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(noise, 1))
    assert read(tmp_path / "x.txt.gz")[0]["text"] == noise.decode()


def test_a_picture_with_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.png").write_bytes(picture_files.encode(np.zeros((400, 400), dtype=np.uint8)))
    monkeypatch.setenv("ANYFORMER_MAX_UNPACKED", "100KB")
    with pytest.raises(af.DataError, match=r"x\.png has 400 x 400 pixels.*ANYFORMER_MAX_UNPACKED"):
        every_row(read_images(tmp_path / "x.png"))
    monkeypatch.setenv("ANYFORMER_MAX_UNPACKED", "0.5 MB")
    every_row(read_images(tmp_path / "x.png"))
    monkeypatch.setenv("ANYFORMER_MAX_UNPACKED", "much")
    with pytest.raises(af.ConfigError, match="20GB"):
        every_row(read_images(tmp_path / "x.png"))


def test_xz_of_several_streams_with_zeros_between(tmp_path: Path) -> None:
    one, two = lzma.compress(b"one\n"), lzma.compress(b"two\n" * 1000)
    (tmp_path / "x.txt.xz").write_bytes(one + two)
    with lzma.open(tmp_path / "x.txt.xz") as stream:
        assert b"".join(unpack.blocks(tmp_path / "x.txt.xz")) == stream.read()
    content = one + bytes(8) + two + bytes(4)
    (tmp_path / "x.txt.xz").write_bytes(content)
    assert b"".join(unpack.blocks(tmp_path / "x.txt.xz")) == b"one\n" + b"two\n" * 1000
    (tmp_path / "y.txt.xz").write_bytes(content[:-30])
    with pytest.raises(af.DataError, match=r"y\.txt\.xz "):
        read(tmp_path / "y.txt.xz")


def test_gz_of_several_parts_with_zeros_between(tmp_path: Path) -> None:
    one, two = gzip.compress(b"one\n"), gzip.compress(os.urandom(2**20).hex().encode() + bytes(9 * 2**20))
    content = one + bytes(300_000) + two + bytes(4)
    (tmp_path / "x.txt.gz").write_bytes(content)
    assert b"".join(unpack.blocks(tmp_path / "x.txt.gz")) == gzip.decompress(content)
    for damaged in (content[:-30], content[:20] + b"\1" + content[21:], content + b"more"):
        (tmp_path / "y.txt.gz").write_bytes(damaged)
        with pytest.raises(af.DataError, match=r"y\.txt\.gz "):
            list(unpack.blocks(tmp_path / "y.txt.gz"))


@pytest.mark.parametrize(("name", "compress"), [("x.gz", gzip.compress), ("x.xz", lzma.compress)])
def test_nobody_waits_for_gigabytes_of_zeros(name: str, compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    packed = compress(b"a\n")
    with (tmp_path / name).open("wb") as stream:
        stream.write(packed)
        stream.truncate(10 * 2**30)
    assert b"".join(unpack.blocks(tmp_path / name)) == b"a\n"


def test_xz_that_asks_for_much_memory(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1536 * 2**20, "mode": lzma.MODE_FAST, "nice_len": 2,
                "mf": lzma.MF_HC3, "depth": 1, "lc": 0, "lp": 0, "pb": 0}]  # fmt: skip
    small = lzma.compress(b"a\n", filters=[{**filters[0], "dict_size": 4096}])
    at = small.index(bytes([0x21, 0x01])) + 2  # the size of the dictionary, in the header of the block
    hungry = bytearray(small)
    hungry[at] = 37
    (tmp_path / "x.txt.xz").write_bytes(bytes(hungry))
    with pytest.raises(af.DataError, match=r"x\.txt\.xz "):
        read(tmp_path / "x.txt.xz")


@pytest.mark.parametrize("name", ["x.npz", "pictures.zip", "sounds.zip"])
def test_encrypted(name: str, tmp_path: Path) -> None:
    inside = {"a/1.png": picture_files.encode(seeds.PICTURE)} if name.startswith("pic") else {"a/1.wav": b"RIFF"}
    content = picture_files.npz(3) if name == "x.npz" else zipped(inside)
    (tmp_path / name).write_bytes(encrypted(content))
    with pytest.raises(af.DataError, match=rf"{name}.*encrypted"):
        use(tmp_path / name)


READERS: dict[str, Callable[[Path], Any]] = {
    **dict.fromkeys("x.txt x.tsv x.csv x.json x.jsonl x.parquet x.conll x.txt.gz x.tsv.xz".split(), read),
    **dict.fromkeys(("x.npz", "x.zip", "x.png", "y.json"), read_images),
    "c.npz": read_clips,
    "c.mp4": read_clips,
    "s.npz": read_sets,
    "s.wav": read_audio,
    "s.zip": read_audio,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "zeros"])
@pytest.mark.parametrize("name", READERS)
def test_nobody_waits_for_a_pipe_or_reads_a_device(name: str, kind: str, tmp_path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(af.DataError, match=name):
        every_row(READERS[name](tmp_path / name))


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    for name in ("red", "blue"):
        (tmp_path / "x" / name).mkdir(parents=True)
        (tmp_path / "x" / name / "1.png").write_bytes(picture_files.encode(seeds.PICTURE))
        for i in range(6):
            (tmp_path / "x" / name / f"up{i}").symlink_to("..")
    assert len(read_images(tmp_path / "x")) == 2


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


PIXELS = np.zeros((3, 4, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": PIXELS, "y": np.array(3)}, "3 images and 1 labels"),
        ({"x": PIXELS, "y": np.zeros((3, 2))}, "3 images and 6 labels"),
        ({"x": PIXELS, "y": np.array([0, 1, 5]), "classes": np.array(["a", "b"])}, "names 2 classes"),
        ({"x": PIXELS, "y": np.array([0, 1, -1]), "classes": np.array(["a", "b"])}, "names 2 classes"),
        ({"x": PIXELS, "y": np.array([0.0, 1.0, np.nan]), "classes": np.array(["a", "b"])}, "names 2 classes"),
        ({"x": PIXELS, "y": np.array([None, 1, 2])}, "y.npy"),
        ({"x": PIXELS, "y": np.array([1j, 2, 3])}, "complex128"),
        ({"x": PIXELS, "y": np.array([b"\xff", b"a", b"b"])}, "x.npz.*codec can't decode"),
        ({"x": PIXELS, "y": np.arange(3), "classes": np.array([b"\xff", b"a", b"b"])}, "x.npz.*codec can't decode"),
        ({"png": np.zeros(9, dtype=np.uint8), "offsets": np.array([0, 20])}, "offsets"),
        ({"png": np.zeros(9, dtype=np.uint8), "offsets": np.array([0.5, 2])}, "offsets"),
        ({"png": np.zeros((3, 3), dtype=np.uint8), "offsets": np.array([0, 2])}, "offsets"),
    ],
)
def test_odd_arrays(arrays: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(npz(**arrays))
    with pytest.raises(af.DataError, match=said):
        every_row(read_images(tmp_path / "x.npz"))


def test_labels_as_bytes_and_texts(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(npz(x=PIXELS, y=np.array([b"a", b"b", b"a"])))
    assert [row["label"] for row in read_images(tmp_path / "x.npz")] == ["a", "b", "a"]


def test_a_header_that_promises_more_than_there_is() -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"
    member = np.lib.format.MAGIC_PREFIX + b"\1\0" + bytes([len(header), 0]) + header
    with pytest.raises(af.DataError, match=r"x\.npz: x\.npy .*\[1000000000000\] .*float64"):
        read_arrays(zipped({"x.npy": member}), "x.npz")


def test_a_video_opens_no_other_file(tmp_path: Path) -> None:
    """What ffmpeg calls concat: a list of files, under the name of a video."""
    pytest.importorskip("av")
    (tmp_path / "a.mp4").write_bytes(seeds.video())
    (tmp_path / "b.mp4").write_text("ffconcat version 1.0\nfile 'a.mp4'\n")
    assert len(read_clips(tmp_path / "a.mp4")[0]["clip"].take(3)) == 3
    with pytest.raises(af.DataError, match=r"b\.mp4"):
        read_clips(tmp_path / "b.mp4")[0]["clip"].take(3)


def test_frames_are_those_of_the_whole_video(tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    (tmp_path / "a.mp4").write_bytes(seeds.video())
    with av.open(str(tmp_path / "a.mp4")) as container:
        every = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    some = read_clips(tmp_path / "a.mp4")[0]["clip"].take(3)
    assert [np.array_equal(np.asarray(one), every[i]) for one, i in zip(some, (1, 3, 5), strict=True)] == [True] * 3


def test_a_damaged_page_of_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    content = seeds.parquet([{"text": f"a text that is long enough {i}"} for i in range(50)])
    for at in range(20, len(content) - 200, 97):
        (tmp_path / "x.parquet").write_bytes(content[:at] + b"\xff\x80\xff" + content[at + 3 :])
        said = refusal(lambda: every_row(read(tmp_path / "x.parquet")))
        assert (not said or "x.parquet" in said) and len(said) <= 400


def test_samples_of_a_sound_come_as_before() -> None:
    """Block by block, as soundfile reads them at once."""
    soundfile = pytest.importorskip("soundfile")
    wave = np.sin(np.arange(300_000) / 7).astype(np.float32)
    stream = io.BytesIO()
    soundfile.write(stream, np.stack([wave, -wave], axis=1), 16_000, format="FLAC")
    rate, samples = as_audio(stream.getvalue()).read()
    whole, _ = soundfile.read(io.BytesIO(stream.getvalue()), dtype="float32", always_2d=True)
    assert rate == 16_000 and np.array_equal(samples.numpy(), whole.T)
    assert as_audio(sound_files.tone(300)).read()[1].shape[0] == 1
