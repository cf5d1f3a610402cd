"""COCO's json: boxes, classes, joints, outlines and captions of each picture; or of each object by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.formats import Row
from anyformer.errors import DataError
from anyformer.pictures.places import Finder

NAMES = ("file_name", "file", "filename", "path", "image", "image_path")
MASKS = ("semantic_mask", "mask", "mask_file")


def is_coco(whole: Any) -> bool:
    return isinstance(whole, dict) and isinstance(whole.get("images"), list) and "annotations" in whole


def read_coco(whole: Mapping[str, Any], path: Path, finder: Finder, objects: bool) -> tuple[list[Row], dict[str, Any]]:
    """A row for each picture, or for each object; and what holds for all: names of classes, of joints, bones."""
    about = describe(whole, path)
    names = {entry["id"]: str(entry["name"]) for entry in whole.get("categories", ())}
    by_image: dict[Any, list[Mapping[str, Any]]] = {_id(image, path, i): [] for i, image in enumerate(whole["images"])}
    for i, note in enumerate(whole["annotations"]):
        where = f"{path}, annotation {i + 1}"
        if not isinstance(note, dict) or note.get("image_id") not in by_image:
            image = note.get("image_id") if isinstance(note, dict) else None
            raise DataError(f'{where}, is of a picture {image!r} that "images" does not have.')
        if "category_id" in note and note["category_id"] not in names:
            raise DataError(f'{where}, has category {note["category_id"]!r}, which "categories" does not have.')
        by_image[note["image_id"]].append(note)
    rows: list[Row] = []
    joints = len(about.get("joints", ()))
    fields = _fields(whole["annotations"])
    for i, image in enumerate(whole["images"]):
        row = _image(image, f"{path}, image {i + 1}", finder)
        notes = by_image[image["id"]]
        if objects:
            rows += [{**row, **_object(note, names, fields, joints, path)} for note in notes if _seen(note)]
        else:
            rows.append({**row, **_together(notes, names, fields, joints, path)})
    return rows, about


def describe(whole: Mapping[str, Any], path: Path) -> dict[str, Any]:
    kinds = sorted(whole.get("categories", ()), key=lambda entry: entry["id"])
    about: dict[str, Any] = {"labels": [str(entry["name"]) for entry in kinds]}
    about["category_ids"] = [entry["id"] for entry in kinds]
    for entry in kinds:
        if "keypoints" in entry:
            about["joints"] = [str(name) for name in entry["keypoints"]]
            bones = [tuple(pair) for pair in entry.get("skeleton", ())]
            first = 0 if any(0 in pair for pair in bones) else 1  # COCO counts joints from 1, others from 0
            about["bones"] = [(a - first, b - first) for a, b in bones]
    return about


def _id(image: Any, path: Path, i: int) -> Any:
    if not isinstance(image, dict) or "id" not in image:
        raise DataError(f'{path}, image {i + 1}, has no "id".')
    return image["id"]


def _image(image: Mapping[str, Any], where: str, finder: Finder) -> Row:
    name = next((image[name] for name in NAMES if name in image), None)
    if not isinstance(name, str):
        raise DataError(f'{where}, has no "file_name".')
    row: Row = {"image": finder.find(name, where)}
    if "id" in image:
        row["id"] = image["id"]
    for key in MASKS:
        if isinstance(image.get(key), str):
            row["mask"] = finder.find(image[key], where)
    return row


def _fields(notes: Sequence[Mapping[str, Any]]) -> set[str]:
    some: set[str] = set()
    for note in notes:
        some |= note.keys()
    return some


def _seen(note: Mapping[str, Any]) -> bool:
    return "keypoints" not in note or any(note["keypoints"][2::3])


def _object(note: Mapping[str, Any], names: Mapping[Any, str], fields: set[str], joints: int, path: Path) -> Row:
    several = _together([note], names, fields, joints, path)
    singular = {"boxes": "box", "classes": "label", "areas": "area", "segments": "segment"}
    return {singular.get(key, key): value if key == "captions" else value[0] for key, value in several.items()}


def _together(
    notes: Sequence[Mapping[str, Any]], names: Mapping[Any, str], fields: set[str], joints: int, path: Path
) -> Row:
    row: Row = {}
    if "bbox" in fields:
        row["boxes"] = _boxes(notes, path)
        row["areas"] = np.array([note.get("area", 0.0) for note in notes], dtype=np.float32)
        row["crowds"] = np.array([bool(note.get("iscrowd", 0)) for note in notes])
    if "category_id" in fields:
        row["classes"] = [names[note["category_id"]] for note in notes]
    if "keypoints" in fields:
        row["keypoints"] = np.stack([_joints(note, joints, path) for note in notes]) if notes else _nobody(joints)
    if "segmentation" in fields:
        row["segments"] = [note.get("segmentation") for note in notes]
    if "caption" in fields:
        row["captions"] = [str(note["caption"]) for note in notes]
    return row


def _nobody(joints: int) -> Any:
    return np.zeros((0, joints, 3), dtype=np.float32)


def _boxes(notes: Sequence[Mapping[str, Any]], path: Path) -> Any:
    """[n, 4]: left, top, right, bottom; COCO writes left, top, width, height."""
    try:
        boxes = np.array([note["bbox"] for note in notes], dtype=np.float32).reshape(-1, 4)
    except (KeyError, TypeError, ValueError):
        raise DataError(f'{path} has an annotation whose "bbox" is not four numbers.') from None
    boxes[:, 2:] += boxes[:, :2]
    return boxes


def _joints(note: Mapping[str, Any], joints: int, path: Path) -> Any:
    """[joints, 3]: x, y, and 0 where it is not known."""
    try:
        return np.array(note.get("keypoints", [0.0] * 3 * joints), dtype=np.float32).reshape(joints, 3)
    except (TypeError, ValueError):
        raise DataError(f'{path} has an annotation whose "keypoints" are not {joints} times x, y, seen.') from None
