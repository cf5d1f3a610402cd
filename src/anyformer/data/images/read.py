"""Rows of images from folders, zips, tables, COCO files and arrays: `image` is an ImageFile.

read_images("pets/")                          # a folder (or zip) of class folders: image, label
read_images("words.zip,words.tsv")            # images and a table (TSV, CSV, JSON, JSON lines) that names them
read_images("train.json")                     # a COCO file; its images are in the same folder or in a zip
read_images("list.txt")                       # an image in each line, optionally with its label
read_images("cifar.npz")                      # arrays x and y, or packed JPEGs
read_images("photos/*.jpg")                   # images without labels

`rows.metadata` holds what is common to all rows: `labels` in their order, `joints` and `bones` of skeletons.
"""

from __future__ import annotations

import glob
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data import arrays, unpack
from anyformer.data.archives import SPLITS, Archive, FileFinder
from anyformer.data.cache import cache_folder
from anyformer.data.files import Paths, data_suffix, read_file
from anyformer.data.images.coco import MASKS, NAMES, is_coco, read_coco
from anyformer.data.images.image_file import ImageFile, is_image
from anyformer.data.rows import Rows, read
from anyformer.data.tables.formats import SUFFIXES as TABLES
from anyformer.data.tables.formats import Row, parse_json, text_of
from anyformer.errors import DataError

METADATA = ("metadata.jsonl", "metadata.csv")  # a table inside a folder, as in Hugging Face's image folders
IMAGE_COLUMNS = ("image", *NAMES, "file_path", "img", "picture", "photo", "image_file")


class ImageRows(Rows):
    """`make(i)` returns a row, `at(i)` its location for messages."""

    has_files = True

    def __init__(
        self,
        path: str,
        n: int,
        make: Callable[[int], Row],
        at: Callable[[int], str],
        fingerprint: str,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if n == 0:
            raise DataError(f"{path} has no images.")
        self.path, self._n, self._make, self._at = path, n, make, at
        self.fingerprint = hashlib.blake2b(fingerprint.encode(), digest_size=16).hexdigest()
        self.metadata = dict(about or {})
        self.columns = tuple(make(0))

    def __len__(self) -> int:
        return self._n

    def row(self, i: int) -> Row:
        return self._make(i)

    def location(self, i: int) -> str:
        return self._at(i)


def listed(path: Path, rows: Sequence[Row], unit: str, fingerprint: str, about: Mapping[str, Any]) -> ImageRows:
    """Rows in memory; fields that only some rows have are None in the others."""
    columns = dict.fromkeys(name for row in rows for name in row)
    empty = dict.fromkeys(columns)
    return ImageRows(
        str(path), len(rows), lambda i: {**empty, **rows[i]}, lambda i: f"{path}, {unit} {i + 1}", fingerprint, about
    )


class JoinedImageRows(Rows):
    """Several sources of images, one after another."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.parts = parts
        self.ends = list(accumulate(len(part) for part in parts))
        self.columns = tuple(name for name in parts[0].columns if all(name in part.columns for part in parts))
        self.path = f"{parts[0].path} and {len(parts) - 1} more"
        self.fingerprint = hashlib.blake2b("".join(p.fingerprint for p in parts).encode(), digest_size=16).hexdigest()
        self.metadata = {name: value for part in reversed(parts) for name, value in part.metadata.items()}
        self.has_files = any(part.has_files for part in parts)
        labels = [label for part in parts for label in part.metadata.get("labels", ())]
        if labels:
            self.metadata["labels"] = list(dict.fromkeys(labels))

    def __len__(self) -> int:
        return self.ends[-1]

    def _find(self, i: int) -> tuple[Rows, int]:
        n = bisect_right(self.ends, i)
        return self.parts[n], i - (self.ends[n - 1] if n else 0)

    def row(self, i: int) -> Row:
        part, place = self._find(i)
        return part.row(place)

    def location(self, i: int) -> str:
        part, place = self._find(i)
        return part.location(place)


def read_images(
    paths: Paths,
    *,
    format: str | None = None,
    header: bool | None = None,
    names: Iterable[str] = (),
    image: str | None = None,
    objects: bool = False,
) -> Rows:
    """Return the rows of files, folders, zips or tables. Folders and zips given with a table are searched for its
    images; given alone, their folders are the classes. `image` is the column of a table that names the images (default:
    detected automatically). `objects`: one row for each COCO annotation instead of each image."""
    found = expand(paths)
    lists = [path for path in found if _is_list(path)]
    sources = [path for path in found if path.is_dir() or path.suffix.lower() == ".zip"]
    if not lists:
        lists = [folder / name for folder in sources for name in METADATA if (folder / name).is_file()]
    if lists:
        asked: dict[str, Any] = {"format": format, "header": header, "names": names, "image": image, "objects": objects}
        parts: list[Rows] = [read_list(path, sources, **asked) for path in lists]
    else:
        parts = [read_place(Archive(path)) for path in sources]
    parts += [read_arrays(path) for path in found if path.suffix.lower() == ".npz"]
    alone = [path for path in found if path.is_file() and is_image(path)]
    if alone:
        parts.append(_files(alone))
    left = [path for path in found if path.is_file() and not (_is_list(path) or is_image(path))]
    odd = [path for path in left if path.suffix.lower() not in (".zip", ".npz")]
    if odd:
        raise DataError(f"{odd[0]} is neither an image nor a table, zip or npz of images.")
    if not parts:
        raise DataError(f"{found[0]} is neither an image nor a table, folder, zip or npz of images.")
    return parts[0] if len(parts) == 1 else JoinedImageRows(parts)


def expand(paths: Paths) -> list[Path]:
    items = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[Path] = []
    for item in (os.fspath(one) for one in items):
        for text in [item] if os.path.exists(item) else [part.strip() for part in item.split(",") if part.strip()]:
            path = Path(text).expanduser()
            there = os.path.exists(path)  # False for an invalid path
            matching = [path] if there else [Path(name) for name in sorted(glob.glob(text, recursive=True))]
            if not matching:
                raise DataError(f"{text} does not exist." if not glob.has_magic(text) else f"No file matches {text}.")
            found += matching
    if not found:
        raise DataError("data is empty; give a folder of class folders, a table of images, a zip or an npz.")
    return found


def _is_list(path: Path) -> bool:
    return path.is_file() and data_suffix(path) in TABLES


# A folder or a zip of class folders; image files.


def read_place(place: Archive) -> Rows:
    names = place.names
    if place.folders and place.folders <= SPLITS:
        some = sorted(place.folders)
        raise DataError(
            f"{place.path} holds {', '.join(some)}; give one of them as data, such as {place.path / some[0]}, and"
            " another as valid."
        )
    if not names:
        lists = [name for name in sorted(place.files) if data_suffix(Path(name)) in TABLES and place.archive is None]
        hint = f" It has {', '.join(lists[:5])}; give one of them, such as {place.path / lists[0]}." if lists else ""
        raise DataError(f"{place.path} has no images.{hint}")
    classes = sorted({name.split("/")[0] for name in names if "/" in name})
    if not classes:
        return _plain(place)
    empty = sorted(place.folders - set(classes))
    if empty:
        raise DataError(f"The class folder {place.path / empty[0]} has no images; add some or remove it.")
    if len(classes) == 1:  # a zip of one folder with the classes, or of images in one folder
        inner = sorted({name.split("/")[1] for name in names if name.count("/") > 1})
        depth = 1 if inner else None
        classes = inner
    else:
        depth = 0
        names = [name for name in names if "/" in name]
    if depth is None:
        return _plain(place)

    def make(i: int) -> Row:
        return {"image": place.image(names[i]), "label": names[i].split("/")[depth]}

    at = _naming(place, names)
    return ImageRows(str(place.path), len(names), make, at, place.digest, {"labels": classes})


def _plain(place: Archive) -> Rows:
    names = place.names
    at = _naming(place, names)
    return ImageRows(str(place.path), len(names), lambda i: {"image": place.image(names[i])}, at, place.digest)


def _naming(place: Archive, names: Sequence[str]) -> Callable[[int], str]:
    return lambda i: f"{place.path}, {names[i]}"


def _files(paths: Sequence[Path]) -> Rows:
    facts = "\n".join(f"{path.name}|{path.stat().st_size}" for path in paths)
    name = str(paths[0]) if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return ImageRows(name, len(paths), lambda i: {"image": ImageFile.file(paths[i])}, lambda i: str(paths[i]), facts)


# Tables.


def read_list(
    path: Path,
    sources: Sequence[Path] = (),
    *,
    format: str | None = None,
    header: bool | None = None,
    names: Iterable[str] = (),
    image: str | None = None,
    objects: bool = False,
) -> Rows:
    finder = FileFinder(path, sources)
    kind = data_suffix(path)
    if kind == ".json":
        whole = _json(path)
        if is_coco(whole):
            rows, about = read_coco(whole, path, finder, objects)
            return listed(path, rows, "image", _digest(path, finder) + str(objects), about)
        if isinstance(whole, dict) and isinstance(whole.get("images"), list):
            return _named(_objects(path, whole["images"], finder), finder, path, image)
    if kind in (".txt", ".text"):
        return _lines(path, finder)
    known = [*names, *IMAGE_COLUMNS]
    return _named(read(path, format=format, header=header, names=known), finder, path, image)


def _digest(path: Path, finder: FileFinder) -> str:
    return hashlib.blake2b(read_file(path), digest_size=16).hexdigest() + finder.digest


def _json(path: Path) -> Any:
    return parse_json(_text(path), path)


def _objects(path: Path, images: Sequence[Any], finder: FileFinder) -> Rows:
    if not all(isinstance(one, dict) for one in images):
        raise DataError(f'{path} is not a COCO file: "images" must be a list of objects.')
    return listed(path, list(images), "image", _digest(path, finder), {})


def _named(rows: Rows, finder: FileFinder, path: Path, image: str | None) -> Rows:
    """Rows of a table, with ImageFile in place of file names. An image that is missing is an error."""
    column = image if image is not None else _image_column(rows)
    rows.require_column(column)
    masks = [name for name in rows.columns if name.lower() in MASKS]

    def make(i: int) -> Row:
        row = dict(rows.row(i))
        where = rows.location(i)
        named = row.pop(column)
        if not isinstance(named, str):
            raise DataError(f"{where}, has {named!r} in the column of images; it must be a file name.")
        row = {"image": finder.find(named, where), **row}
        for name in masks:
            row["mask"] = None if not row.get(name) else finder.find(str(row.pop(name)), where)
        return _arrays(row)

    for i in range(len(rows)):
        make(i)
    return ImageRows(rows.path, len(rows), make, rows.location, rows.fingerprint + finder.digest, rows.metadata)


def _arrays(row: Row) -> Row:
    """Convert lists of coordinates to arrays."""
    if isinstance(row.get("boxes"), list):
        row["boxes"] = np.array(row["boxes"], dtype=np.float32).reshape(-1, 4)
    if isinstance(row.get("keypoints"), list):
        points = np.array(row["keypoints"], dtype=np.float32)
        points = points.reshape(-1, 3) if points.ndim == 1 else points
        seen = np.full((len(points), 1), 2, dtype=np.float32)
        row["keypoints"] = points if points.shape[1] == 3 else np.concatenate([points, seen], axis=1)
    return row


def _image_column(rows: Rows) -> str:
    lower = {name.lower(): name for name in rows.columns}
    named = [lower[name] for name in IMAGE_COLUMNS if name in lower]
    if named:
        return named[0]
    first = rows[0]
    looks = [name for name, value in first.items() if isinstance(value, str) and is_image(value)]
    if looks:
        return looks[0]
    raise DataError(
        f"{rows.path} has no column of images (looked for {', '.join(IMAGE_COLUMNS)}); it has:"
        f' {", ".join(rows.columns)}. Name it: data.columns="image=NAME".'
    )


def _lines(path: Path, finder: FileFinder) -> Rows:
    """An image in each line; the text after the last space is its label."""
    lines = [(i, line) for i, line in enumerate(_text(path).splitlines()) if line.strip()]
    cut = [(line.strip(), None) if is_image(line.strip()) else _cut(line) for _, line in lines]
    labeled = bool(cut) and all(label is not None for _, label in cut)

    def make(i: int) -> Row:
        name, label = cut[i]
        image = {"image": finder.find(name, at(i))}
        return {**image, "label": label} if labeled else image

    def at(i: int) -> str:
        return f"{path}, line {lines[i][0] + 1}"

    for i in range(len(cut)):
        make(i)
    return ImageRows(str(path), len(cut), make, at, _digest(path, finder))


def _cut(line: str) -> tuple[str, str | None]:
    name, _, label = line.strip().rpartition("\t" if "\t" in line else " ")
    return (name.strip(), label.strip()) if name else (line.strip(), None)


def _text(path: Path) -> str:
    return text_of(unpack.content(path, cache_folder()), path)


# Arrays.


def read_arrays(path: Path) -> Rows:
    """An npz with `x` (or images, data) [n, rows, columns(, channels)] and `y` (or labels), or with encoded files as
    `jpeg` (or png, bytes) and `offsets`; `classes` names the labels."""
    values = arrays.read_arrays(path)
    packed = next((values[name] for name in ("jpeg", "png", "webp", "bytes") if name in values), None)
    if packed is not None and "offsets" in values:
        ends = arrays.ends_of(values["offsets"], len(packed) if packed.ndim == 1 else -1, path)
        n, image_at = len(ends) - 1, _packed(path, packed, ends)
    else:
        pixels = next((values[name] for name in ("x", "images", "image", "data", "pixels") if name in values), None)
        if pixels is None or pixels.ndim not in (3, 4):
            has = ", ".join(f"{name} {list(value.shape)}" for name, value in values.items())
            raise DataError(f"{path} has no images: it needs x [n, rows, columns(, channels)]; it has {has}.")
        n, image_at = len(pixels), _sliced(path, pixels)
    return _of_arrays(path, n, image_at, arrays.labels_of(values, n, "images", path), arrays.classes_of(values, path))


def _of_arrays(
    path: Path, n: int, image: Callable[[int], ImageFile], labels: list[str] | None, classes: list[str] | None
) -> Rows:
    about: dict[str, Any] = {} if classes is None else {"labels": classes}

    def make(i: int) -> Row:
        return {"image": image(i)} if labels is None else {"image": image(i), "label": labels[i]}

    digest = "|".join((Archive(path).digest, str(n)))
    return ImageRows(str(path), n, make, lambda i: f"{path}, image {i + 1}", digest, about)


def _packed(path: Path, packed: Any, ends: Sequence[int]) -> Callable[[int], ImageFile]:
    def image_at(i: int) -> ImageFile:
        return ImageFile.packed(f"{path}, image {i + 1}", lambda: packed[ends[i] : ends[i + 1]].tobytes())

    return image_at


def _sliced(path: Path, pixels: Any) -> Callable[[int], ImageFile]:
    return lambda i: ImageFile.of(pixels[i], f"{path}, image {i + 1}")
