"""COCO files: boxes, classes, keypoints, segmentations and captions for each image or for each object.

Every entry is validated first; a field that is null counts as missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np

from anyformer.data.archives import FileFinder
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError

NAMES = ("file_name", "file", "filename", "path", "image", "image_path")
MASKS = ("semantic_mask", "mask", "mask_file")
OBJECTS = frozenset(
    ("bbox", "category_id", "segmentation")
)  # fields of objects; in a file without objects they are absent

Entry = Mapping[str, Any]


def is_coco(whole: Any) -> bool:
    return isinstance(whole, dict) and isinstance(whole.get("images"), list) and "annotations" in whole


def read_coco(whole: Entry, path: Path, finder: FileFinder, objects: bool) -> tuple[list[Row], dict[str, Any]]:
    """A row for each image or object, and the metadata: names of classes and keypoints, bones."""
    images = _by_id(whole, "images", path)
    categories = _by_id(whole, "categories", path)
    about = describe(categories)
    notes = list(_entries(whole, "annotations", path))
    fields = {name for _, note in notes for name in note} if notes else OBJECTS
    by_image: dict[Any, list[Row]] = {number: [] for number in images}
    for where, note in notes:
        if not _among(note.get("image_id"), images):
            raise DataError(f'{where}, has image_id {note.get("image_id")!r}, which is not in "images".')
        row = _note(note, where, categories, fields, len(about.get("joints", ())))
        by_image[note["image_id"]].append(row)
    rows: list[Row] = []
    for number, (where, image) in images.items():
        row = _image(image, where, finder)
        some = by_image[number]
        if objects:
            rows += [{**row, **note} for note in some if "keypoints" not in note or note["keypoints"][:, 2].any()]
        else:
            rows.append({**row, **_together(some, fields, len(about.get("joints", ())))})
    if objects and not rows:
        raise DataError(f"{path} has no annotations with visible keypoints.")
    return rows, about


def describe(categories: Mapping[Any, tuple[str, Entry]]) -> dict[str, Any]:
    """Class names in the order of their ids, and the keypoints and bones if there are some."""
    numbers = sorted(categories, key=lambda number: (isinstance(number, str), number))
    about: dict[str, Any] = {"labels": [], "category_ids": numbers}
    for where, entry in (categories[number] for number in numbers):
        if not isinstance(entry.get("name"), (str, int, float)):
            raise DataError(f'{where}, has no "name".')
        about["labels"].append(str(entry["name"]))
        if entry.get("keypoints"):
            if not isinstance(entry["keypoints"], list):
                raise DataError(f'{where}, has "keypoints" that are not a list of names.')
            about["joints"] = [str(name) for name in entry["keypoints"]]
            about["bones"] = _bones(entry, where)
    return about


def _bones(entry: Entry, where: str) -> list[tuple[int, int]]:
    n = len(entry["keypoints"])
    try:
        bones = [(int(a), int(b)) for a, b in entry.get("skeleton", ())]
    except (TypeError, ValueError, OverflowError):
        bones = [(n + 1, n + 1)]
    first = 0 if any(0 in pair for pair in bones) else 1  # COCO numbers keypoints from 1, other files from 0
    if any(not first <= end < n + first for pair in bones for end in pair):
        raise DataError(f'{where}, has a "skeleton" that is not a list of pairs of its {n} keypoints.')
    return [(a - first, b - first) for a, b in bones]


def _entries(whole: Entry, key: str, path: Path) -> Iterator[tuple[str, Entry]]:
    """The location and content of each entry; null is skipped."""
    listed = whole.get(key)
    if not isinstance(listed, (list, NoneType)):
        raise DataError(f'{path} has "{key}" that is not a list.')
    kind = key.removesuffix("s") if key != "categories" else "category"
    for i, entry in enumerate(listed or ()):
        where = f"{path}, {kind} {i + 1}"
        if not isinstance(entry, dict):
            raise DataError(f"{where}, is {entry!r:.40}; it must be an object.")
        yield where, {name: value for name, value in entry.items() if value is not None}


def _by_id(whole: Entry, key: str, path: Path) -> dict[Any, tuple[str, Entry]]:
    found: dict[Any, tuple[str, Entry]] = {}
    for where, entry in _entries(whole, key, path):
        number = entry.get("id")
        if not isinstance(number, (int, float, str)):
            raise DataError(f'{where}, needs an "id" that is a number or a string.')
        if number in found:
            raise DataError(f"{where}, has the id {number!r}, which an earlier entry has too.")
        found[number] = (where, entry)
    return found


def _among(number: Any, known: Mapping[Any, Any]) -> bool:
    return isinstance(number, (int, float, str)) and number in known


def _image(image: Entry, where: str, finder: FileFinder) -> Row:
    name = next((image[name] for name in NAMES if name in image), None)
    if not isinstance(name, str):
        raise DataError(f'{where}, has no "file_name".')
    row: Row = {"image": finder.find(name, where), "id": image["id"]}
    for key in MASKS:
        if isinstance(image.get(key), str):
            row["mask"] = finder.find(image[key], where)
    return row


def _note(
    note: Entry, where: str, categories: Mapping[Any, tuple[str, Entry]], fields: Collection[str], joints: int
) -> Row:
    """The fields of one annotation; all annotations must have the same."""
    row: Row = {}
    for name in ("bbox", "category_id", "caption"):
        if name in fields and name not in note:
            raise DataError(f'{where}, has no "{name}", which other annotations have.')
    if "bbox" in fields:
        left, top, width, height = _numbers(note["bbox"], 4, f'{where}, has a "bbox" that is not four numbers.')
        row["box"] = np.array([left, top, left + width, top + height], dtype=np.float32)
        row["area"] = _numbers(note.get("area", 0.0), 1, f'{where}, has an "area" that is not a number.')[0]
        row["crowds"] = bool(note.get("iscrowd", 0))
    if "category_id" in fields:
        if not _among(note["category_id"], categories):
            raise DataError(f'{where}, has category_id {note["category_id"]!r}, which is not in "categories".')
        row["label"] = str(categories[note["category_id"]][1]["name"])
    if "keypoints" in fields:  # x, y, visibility (0: unknown)
        message = f'{where}, has "keypoints" that are not {joints} times x, y, seen.'
        row["keypoints"] = _numbers(note.get("keypoints", [0.0] * 3 * joints), 3 * joints, message).reshape(joints, 3)
    if "segmentation" in fields:
        row["segment"] = note.get("segmentation")
    if "caption" in fields:
        row["captions"] = [str(note["caption"])]
    return row


def _numbers(value: Any, n: int, message: str) -> Any:
    try:
        with np.errstate(over="ignore"):
            found = np.array(value, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        raise DataError(message) from None
    if len(found) != n or np.isinf(found).any():
        raise DataError(message)
    return found


def _together(notes: Sequence[Row], fields: Collection[str], joints: int) -> Row:
    """Merge the annotations of one image."""
    row: Row = {}
    if "bbox" in fields:
        row["boxes"] = np.array([note["box"] for note in notes], dtype=np.float32).reshape(-1, 4)
        row["areas"] = np.array([note["area"] for note in notes], dtype=np.float32)
        row["crowds"] = np.array([note["crowds"] for note in notes], dtype=bool)
    if "category_id" in fields:
        row["classes"] = [note["label"] for note in notes]
    if "keypoints" in fields:
        keypoints = [note["keypoints"] for note in notes]
        row["keypoints"] = np.array(keypoints, dtype=np.float32).reshape(len(notes), joints, 3)
    if "segmentation" in fields:
        row["segments"] = [note["segment"] for note in notes]
    if "caption" in fields:
        row["captions"] = [text for note in notes for text in note["captions"]]
    return row
