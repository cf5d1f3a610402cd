"""One image from a file, a member of a zip, a slice of an array, bytes or memory.

ImageFile.of("cat.jpg").open()        # a PIL image in RGB, upright by its EXIF orientation

Every error names the image. Memory is bounded: JPEGs that are too large are decoded at a half, a quarter or an eighth
of their size; other large images are refused.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from anyformer.data.files import env_bytes
from anyformer.data.unpack import LIMIT, read_member
from anyformer.errors import ConfigError, Error, UnreadableError
from anyformer.jsonfile import open_file

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # formats whose decoders run no other program
SUFFIXES = frozenset(".png .jpg .jpeg .jpe .jfif .webp .gif .bmp .tif .tiff .ppm .pgm .pbm".split())
NOTES = frozenset(
    ("exif", "xmp", "XML:com.adobe.xmp", "Raw profile type exif")
)  # metadata that may hold an orientation
LARGEST = 80_000_000  # maximum number of decoded pixels, unless ANYFORMER_MAX_UNPACKED is set

ROUNDING = 1e-3  # by which fractions and pixels may lie outside of their range
CLASSES = "classes"  # mode for masks: values as stored

Array = NDArray[np.uint8]


class ImageError(UnreadableError):
    """An image that cannot be opened: damaged, truncated, too large, or not an image."""


class ImageFile:
    """`name` identifies the image in messages; `load` returns its file as a stream, an array or a PIL image. `path` is
    None unless the image is a file of its own."""

    def __init__(self, name: str, load: Callable[[], Any], path: Path | None = None) -> None:
        self.name, self._load, self.path = name, load, path

    def __repr__(self) -> str:
        return f"Picture({self.name})"

    @classmethod
    def file(cls, path: str | PathLike[str]) -> ImageFile:
        if not os.fspath(path):
            raise ImageError("The path of the image is empty; give one such as cat.jpg.")
        return cls(str(path), lambda: open_file(Path(path)), Path(path))

    @classmethod
    def member(cls, archive: zipfile.ZipFile, name: str) -> ImageFile:
        where = str(archive.filename)
        return cls(f"{where}: {name}", lambda: io.BytesIO(read_member(archive, name, where, ImageError)))

    @classmethod
    def packed(cls, name: str, content: Callable[[], bytes]) -> ImageFile:
        """An encoded image in an array of bytes."""
        return cls(name, lambda: io.BytesIO(content()))

    @classmethod
    def of(cls, inputs: Any, name: str = "the image given") -> ImageFile:
        """An image from a path, bytes, an array [rows, columns(, channels)] or a PIL image."""
        if isinstance(inputs, ImageFile):
            return inputs
        if isinstance(inputs, (str, PathLike)):
            return cls.file(inputs)
        if isinstance(inputs, bytes):
            return cls.packed(name, lambda: inputs)
        return cls(name, lambda: inputs)

    def open(self, mode: str = "RGB", least: tuple[int, int] | None = None) -> Image:
        """Open in "RGB" or "L". A JPEG several times as large as `least` (rows, columns) may be decoded at a reduced
        size, which is faster; `original_size` returns its full size."""
        try:
            loaded = self._load()
        except FileNotFoundError:
            raise ImageError(f"{self.name} does not exist.") from None
        except ValueError as error:  # a null character or a lone surrogate
            raise ImageError(f"{self.name!r} is not a valid file name: {error}.") from None
        except OSError as error:
            raise ImageError(f"{self.name} cannot be read: {error.strerror or error}.") from None
        if isinstance(loaded, io.IOBase):
            with loaded:
                return _decode(loaded, self.name, mode, least)  # type: ignore[arg-type]  # IOBase that is a stream
        return _in_memory(loaded, self.name, mode)


def pillow() -> Any:
    try:
        import PIL.Image
        import PIL.ImageOps
        import PIL.TiffImagePlugin
        import PIL.WebPImagePlugin
    except ImportError:
        raise ConfigError("Images need Pillow: pip install 'anyformer[images]'.") from None
    PIL.Image.preinit()  # the other formats
    return PIL


def is_image(name: str | PathLike[str]) -> bool:
    """Whether the suffix is that of an image; False for macOS resource files."""
    path = Path(name)
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and "__MACOSX" not in path.parts


def original_size(image: Image) -> tuple[int, int]:
    """(rows, columns) of the stored image, upright."""
    width, height = image.info.get("original_size", image.size)
    return height, width


def _decode(stream: BinaryIO, name: str, mode: str, least: tuple[int, int] | None) -> Image:
    try:
        image = _identify(stream, name)
        before = image.size
        if image.format == "JPEG":
            _shrink(image, name, least)
        elif before[0] * before[1] > most_pixels():
            raise too_large(name, before)
        image.load()
        upright = _turn(image)
    except Error:
        raise
    except Exception as error:  # decoders fail in any way on damaged bytes
        raise ImageError(f"{name} is damaged or truncated: {error}.") from None
    if image.size != before:
        turned = upright.size != image.size and image.size == upright.size[::-1]
        upright.info["original_size"] = before[::-1] if turned else before
    return convert(upright, mode)


def _identify(stream: BinaryIO, name: str) -> Any:
    """Identify the format without decoding. Pillow's own open refuses large images before they can be reduced."""
    first = stream.read(16)
    if not first:
        raise ImageError(f"{name} is empty.")
    for factory, accept in (pillow().Image.OPEN[kind] for kind in FORMATS):
        if accept is None or accept(first) is True:
            stream.seek(0)
            return factory(stream, "")
    raise ImageError(f"{name} is not an image in a supported format; use PNG, JPEG or WebP.")


def _shrink(image: Any, name: str, least: tuple[int, int] | None) -> None:
    """Let the JPEG decoder reduce the image to a half, a quarter or an eighth if that is still larger than needed."""
    width, height = image.size
    scale = 1
    if least is not None:
        while scale < 8 and min(height / least[0], width / least[1]) >= 4 * scale:
            scale *= 2
    most = most_pixels()
    while scale < 8 and width * height / scale**2 > most:
        scale *= 2
    if width * height / scale**2 > most or (width * height > most and "progressive" in image.info):
        raise too_large(name, image.size)  # a progressive JPEG is decoded in full before it is reduced
    if scale > 1:
        image.draft(None, (-(-width // scale), -(-height // scale)))


def too_large(name: str, size: tuple[int, int]) -> ImageError:
    return ImageError(
        f"{name} has {size[0]:,} x {size[1]:,} pixels; the maximum is {most_pixels() // 10**6} million (64 times as"
        f" many in a baseline JPEG). Resize it, or set the environment variable {LIMIT}, such as 2GB."
    )


def most_pixels() -> int:
    return env_bytes(LIMIT, 3 * LARGEST) // 3


def _turn(image: Any) -> Any:
    """Rotate the image upright by its EXIF orientation; unreadable metadata is ignored."""
    if getattr(image, "format", None) != "TIFF" and not NOTES & image.info.keys():
        return image
    try:
        return pillow().ImageOps.exif_transpose(image)
    except Exception:
        return image


def convert(image: Any, mode: str) -> Any:
    """Convert to RGB or gray: 16 bits become 8, palettes colors; transparency is dropped, as in transformers."""
    if mode == CLASSES:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image)
        _check_values(values, "the image", 65_535)
        return pillow().Image.fromarray(_eight_bits(values)).convert(mode)
    if image.mode == mode:
        return image
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert(mode)


def _eight_bits(values: Any) -> Array:
    """Scale 16-bit values and fractions from 0 to 1 to 8 bits."""
    if values.dtype.kind == "f" and values.size and float(values.max()) <= 1.0 + ROUNDING:
        values = values * 255.0
    elif values.dtype == np.uint16 or (values.size and float(values.max()) > 255):
        values = np.asarray(values, dtype=np.float64) / 257.0
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def _check_values(values: Any, name: str, most: float) -> None:
    """Raise ImageError unless all values are finite and from 0 to `most`, up to the rounding errors of resizing."""
    low, high = float(values.min()), float(values.max())  # NaN if any value is
    if not (low >= -ROUNDING and high <= most + ROUNDING):
        raise ImageError(
            f"{name} has values from {low:g} to {high:g}; pixels are fractions from 0 to 1, or from 0 to {most:g}."
        )


def _in_memory(inputs: Any, name: str, mode: str) -> Any:
    PIL = pillow()  # noqa: N806
    if isinstance(inputs, PIL.Image.Image):
        return convert(_turn(inputs), mode)
    values = np.asarray(inputs)
    if values.ndim == 3 and values.shape[0] in (1, 3, 4) and values.shape[2] not in (1, 3, 4):
        values = values.transpose(1, 2, 0)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (3, 4)) or not values.size:
        raise ImageError(f"{name} has shape {list(values.shape)}; it must be [rows, columns] or [rows, columns, 3].")
    if values.dtype.kind not in "buif":
        raise ImageError(f"{name} has dtype {values.dtype}; pixels must be integers or floats.")
    if values.dtype.kind in "if":
        _check_values(values, name, 255 if values.dtype.kind == "f" else 65_535)
    return convert(PIL.Image.fromarray(values if values.dtype == np.uint8 else _eight_bits(values)), mode)
