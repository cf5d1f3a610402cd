"""An image opens the same way wherever it lies and however it was stored; what cannot be opened is named."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anyformer.data.images.image_file import LARGEST, ImageError, ImageFile, is_image, original_size
from tests.training.picture_files import encode, square

RED = square((200, 40, 40), 3)


def pixels(thing: Any, mode: str = "RGB") -> Any:
    return np.asarray(ImageFile.of(thing).open(mode))


def test_every_place_gives_the_same_pixels(tmp_path: Path) -> None:
    content = encode(RED)
    (tmp_path / "a.png").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/a.png", content)
    member = ImageFile.member(zipfile.ZipFile(tmp_path / "a.zip"), "in/a.png")
    for thing in (tmp_path / "a.png", str(tmp_path / "a.png"), content, RED, Image.fromarray(RED), member):
        np.testing.assert_array_equal(pixels(thing), RED)
    np.testing.assert_array_equal(pixels(RED.transpose(2, 0, 1)), RED)  # channels first
    np.testing.assert_array_equal(pixels(RED.astype(np.float32) / 255), RED)  # fractions
    assert "in/a.png" in repr(member)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "TIFF", "GIF"])
def test_formats_without_loss(format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    flat = np.full((9, 7, 3), (200, 40, 40), dtype=np.uint8)
    np.testing.assert_array_equal(pixels(encode(flat, format, **options)), flat)


def test_jpeg_is_near() -> None:
    flat = np.full((16, 16, 3), (200, 40, 40), dtype=np.uint8)
    assert np.abs(pixels(encode(flat, "JPEG", quality=95)).astype(int) - flat).max() <= 3


def test_gray_palette_alpha_and_one_bit() -> None:
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    np.testing.assert_array_equal(pixels(encode(gray)), np.stack([gray] * 3, axis=2))
    np.testing.assert_array_equal(pixels(encode(gray), "L"), gray)
    palette = Image.fromarray(np.arange(4, dtype=np.uint8).reshape(2, 2), "P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 1, 2, 3])
    wanted = [[[10, 20, 30], [40, 50, 60]], [[70, 80, 90], [1, 2, 3]]]
    np.testing.assert_array_equal(pixels(encode(palette)), wanted)
    np.testing.assert_array_equal(pixels(encode(palette, transparency=b"\x00\x80\xff\xff")), wanted)
    alpha = np.dstack([RED, np.arange(32 * 32, dtype=np.uint8).reshape(32, 32)])
    np.testing.assert_array_equal(pixels(encode(alpha)), RED)  # transparency is dropped, as convert("RGB") does
    bits = Image.fromarray(np.eye(8, dtype=bool))
    np.testing.assert_array_equal(pixels(encode(bits), "L"), np.eye(8, dtype=np.uint8) * 255)
    cmyk = Image.fromarray(RED).convert("CMYK")
    assert np.abs(pixels(encode(cmyk, "TIFF")).astype(int) - RED).max() <= 1


def test_sixteen_bits_become_eight() -> None:
    """65535 is white, and the whole range in between is kept."""
    deep = np.array([[0, 257, 128 * 257], [65535, 300, 40000]], dtype=np.uint16)
    wanted = np.rint(deep / 257.0).astype(np.uint8)
    np.testing.assert_array_equal(pixels(encode(Image.fromarray(deep)), "L"), wanted)
    np.testing.assert_array_equal(pixels(encode(Image.fromarray(deep), "TIFF"), "L"), wanted)
    np.testing.assert_array_equal(pixels(deep, "L"), wanted)


def test_pictures_are_turned_as_the_camera_says() -> None:
    """All eight orientations of EXIF, against Pillow's own turning."""
    wide = RED[:20]
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        content = encode(wide, "JPEG", exif=exif)
        with Image.open(io.BytesIO(content)) as plain:
            stored = np.asarray(plain.convert("RGB"))
        opened = ImageFile.of(content).open()
        turns = {1: stored, 2: stored[:, ::-1], 3: stored[::-1, ::-1], 4: stored[::-1]}
        turns |= {5: stored.transpose(1, 0, 2), 6: np.rot90(stored, -1), 7: np.rot90(stored.transpose(1, 0, 2), 2)}
        turns |= {8: np.rot90(stored)}
        np.testing.assert_array_equal(np.asarray(opened), turns[orientation])
        assert original_size(opened) == turns[orientation].shape[:2]


def test_one_pixel_is_a_picture() -> None:
    np.testing.assert_array_equal(pixels(encode(np.array([[[1, 2, 3]]], dtype=np.uint8))), [[[1, 2, 3]]])


def test_what_is_damaged_is_named(tmp_path: Path) -> None:
    whole = encode(square((40, 200, 40), 1, 64), "JPEG")
    png = encode(RED)
    cases = {
        "cut.jpg": whole[: len(whole) // 2],
        "cut.png": png[: len(png) // 2],
        "broken.png": png[:60] + b"\0\0\0\0" + png[64:],
        "text.jpg": b"these are words",
        "head.jpg": b"\xff\xd8\xff",
        "empty.png": b"",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=name):
            ImageFile.file(tmp_path / name).open()
    with pytest.raises(ImageError, match=r"none\.jpg"):
        ImageFile.file(tmp_path / "none.jpg").open()
    with pytest.raises(ImageError, match="cannot be read"):
        ImageFile.file(tmp_path).open()
    for odd, said in (("", "path .* empty"), ("a\0b.png", "b.png"), ("\ud800.png", "ud800")):
        with pytest.raises(ImageError, match=said):
            ImageFile.of(odd).open()
    for odd in (np.zeros((2, 2, 5)), np.zeros((3,)), np.zeros((0, 4)), np.array([["a"]])):
        with pytest.raises(ImageError, match="the image given"):
            ImageFile.of(odd).open()


def png_of_zeros(width: int, height: int) -> bytes:
    """A PNG that says it is as large as this and holds next to nothing: a bomb."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [10_000, 12_000, 20_000, 60_000])
def test_a_bomb_is_refused_before_it_is_unpacked(side: int) -> None:
    with pytest.raises(ImageError, match=f"the image given has {side:,} x {side:,} pixels"):
        ImageFile.of(png_of_zeros(side, side)).open()


def jpeg_of(width: int, height: int) -> bytes:
    """A gray JPEG of this size in little time: the header of a small one with other numbers, its data repeated."""
    small = bytearray(encode(np.zeros((8, 8), dtype=np.uint8), "JPEG"))
    frame = small.index(b"\xff\xc0")
    small[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(small)


def test_a_huge_jpeg_is_decoded_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """More pixels than are decoded: it comes at a half, a quarter or an eighth, and remembers its size."""
    monkeypatch.setattr("anyformer.data.images.image_file.LARGEST", 300 * 200 // 4)
    content = encode(np.full((200, 300, 3), 90, dtype=np.uint8), "JPEG")
    opened = ImageFile.of(content).open()
    assert opened.size == (150, 100) and original_size(opened) == (200, 300)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = ImageFile.of(encode(np.full((200, 300, 3), 90, dtype=np.uint8), "JPEG", exif=exif)).open()
    assert turned.size == (100, 150) and original_size(turned) == (300, 200)
    with pytest.raises(ImageError, match="300 x 200"):  # a progressive one is held whole while it is decoded
        ImageFile.of(encode(np.full((200, 300, 3), 90, dtype=np.uint8), "JPEG", progressive=True)).open()
    monkeypatch.setattr("anyformer.data.images.image_file.LARGEST", 300 * 200 // 100)
    with pytest.raises(ImageError, match="300 x 200"):
        ImageFile.of(content).open()


def test_twenty_thousand_squared_takes_bounded_memory() -> None:
    """400 million pixels come as 25 million."""
    assert LARGEST < 20_000 * 20_000
    opened = ImageFile.of(jpeg_of(20_000, 20_000)).open()
    assert opened.size == (5000, 5000) and original_size(opened) == (20_000, 20_000)


def test_photos_for_small_models_come_small() -> None:
    """Four times and more: a half of the size asked for is left over on each side, so that resizing is still good."""
    photo = encode(np.full((800, 1200, 3), 90, dtype=np.uint8), "JPEG")
    assert ImageFile.of(photo).open().size == (1200, 800)
    assert ImageFile.of(photo).open(least=(200, 200)).size == (600, 400)
    assert ImageFile.of(photo).open(least=(201, 201)).size == (1200, 800)
    assert ImageFile.of(encode(RED)).open(least=(1, 1)).size == (32, 32)  # only JPEGs can


def test_names_of_pictures() -> None:
    assert is_image("a/b.JPG") and is_image("x.webp")
    assert not any(is_image(name) for name in ("a.txt", "a/.b.jpg", "__MACOSX/a/b.jpg", "jpg"))


def test_a_member_of_a_zip_that_is_no_picture_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zip may hide gigabytes in little: the size that it says is asked first."""
    monkeypatch.setattr("anyformer.data.unpack.FREE", 2**20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", bytes(2**21))
    with pytest.raises(ImageError, match=r"a\.zip: a\.png .* 1 MB"):
        ImageFile.member(zipfile.ZipFile(tmp_path / "a.zip"), "a.png").open()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 300.0, -5.0, -70_000, 70_000])
def test_values_that_are_no_pixels(value: float) -> None:
    """Also if one value of many is wrong."""
    values = np.full((32, 32, 3), 0.5 if isinstance(value, float) else 5)
    for wrong in (np.full_like(values, value), np.where(np.arange(3) == 1, value, values)):
        with pytest.raises(ImageError, match="values from"):
            ImageFile.of(wrong).open()


def test_rounding_errors_are_pixels() -> None:
    values = np.full((4, 4, 3), 1.0 + 1e-6)
    values[0] = -1e-6
    opened = np.asarray(ImageFile.of(values).open())
    assert opened.max() == 255 and opened.min() == 0


def test_a_float_image_that_holds_nan() -> None:
    with pytest.raises(ImageError, match="values from"):
        ImageFile.of(Image.fromarray(np.full((8, 8), np.nan, dtype=np.float32))).open()
