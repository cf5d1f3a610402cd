"""The formats that users have, each as the same rows; what is wrong with them is said with its place."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.data.images.read import read_images
from anyformer.errors import DataError
from tests.training import picture_files as files

DATA = Path(os.environ.get("ANYFORMER_DATA", "/none"))
real = pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))


def write(folder: Path, content: dict[str, bytes | str]) -> None:
    for name, inside in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(inside.encode() if isinstance(inside, str) else inside)


def pictures(n: int = 6) -> dict[str, bytes]:
    """red/0.png, green/1.png, …"""
    return {f"{label}/{i}.png": files.encode(pixels) for i, (label, pixels) in enumerate(files.labeled(n))}


def check(rows: Any, n: int = 6) -> None:
    """Each label with its own pixels, whatever the order."""
    assert len(rows) == n and rows.columns == ("image", "label")
    made = {label: [] for label in files.COLORS}  # type: dict[str, list[bytes]]
    for label, pixels in files.labeled(n):
        made[label].append(pixels.tobytes())
    for row in rows:
        made[row["label"]].remove(np.asarray(row["image"].open()).tobytes())
    assert not any(made.values())


def test_folders_and_zips_of_class_folders(tmp_path: Path) -> None:
    noise: dict[str, bytes | str] = {"red/notes.txt": "x", "red/.DS_Store": "x", ".hidden/a.png": "x"}
    write(tmp_path / "d", {**pictures(), **noise, "__MACOSX/a.png": "x"})
    write(
        tmp_path,
        {"a.zip": files.zipped(pictures()), "b.zip": files.zipped({f"top/{k}": v for k, v in pictures().items()})},
    )
    (tmp_path / "d" / "__MACOSX" / "a.png").unlink()
    (tmp_path / "d" / "__MACOSX").rmdir()
    for path in ("d", "a.zip", "b.zip"):
        rows = read_images(tmp_path / path)
        check(rows)
        assert rows.metadata["labels"] == ["blue", "green", "red"]
    assert "red/0.png" in read_images(tmp_path / "a.zip").location(4)


TABLES: dict[str, Any] = {
    "x.tsv": lambda rows: "file\tlabel\n" + "".join(f"{name}\t{label}\n" for name, label in rows),
    "x.csv": lambda rows: "label,file_name\n" + "".join(f"{label},{name}\n" for name, label in rows),
    "headless.tsv": lambda rows: "".join(f"{name}\t{label}\n" for name, label in rows),
    "x.jsonl": lambda rows: "".join(json.dumps({"image": name, "label": label}) + "\n" for name, label in rows),
    "x.json": lambda rows: json.dumps([{"path": name, "label": label} for name, label in rows]),
    "images.json": lambda rows: json.dumps({"images": [{"file": name, "label": label} for name, label in rows]}),
    "spaces.txt": lambda rows: "".join(f"{name} {label}\n" for name, label in rows),
    "tabs.txt": lambda rows: "\n".join(f"{name}\t{label}" for name, label in rows),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("where", ["beside", "in a zip beside", "in a zip given", "in a folder given", "in images"])
def test_lists_that_name_pictures(name: str, where: str, tmp_path: Path) -> None:
    listed = [(file, file.split("/")[0]) for file in pictures()]
    write(tmp_path, {name: TABLES[name](listed)})
    given = [tmp_path / name]
    if where == "beside":
        write(tmp_path, pictures())
    elif where == "in images":
        write(tmp_path / "images", pictures())
    elif where == "in a zip beside":
        write(tmp_path, {"other.zip": files.zipped({}), "x_images.zip": files.zipped(pictures())})
    elif where == "in a zip given":
        write(tmp_path / "far", {"p.zip": files.zipped(pictures())})
        given.append(tmp_path / "far" / "p.zip")
    else:
        write(tmp_path / "far", pictures())
        given.insert(0, tmp_path / "far")
    rows = read_images(",".join(map(str, given)))
    if rows.columns == ("image", "2"):
        rows = rows.rename({"image": "image", "label": "2"})
    check(rows)


def test_hugging_face_image_folder(tmp_path: Path) -> None:
    listed = [(file, file.split("/")[0]) for file in pictures()]
    write(tmp_path, {**pictures(), "metadata.csv": TABLES["x.csv"](listed)})
    check(read_images(tmp_path).rename({"image": "image", "label": "label"}))


def test_arrays(tmp_path: Path) -> None:
    write(tmp_path, {"x.npz": files.npz(6)})
    check(read_images(tmp_path / "x.npz"))
    assert read_images(tmp_path / "x.npz").metadata["labels"] == list(files.COLORS)
    packed = [files.encode(pixels) for _, pixels in files.labeled(6)]
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        jpeg=np.frombuffer(b"".join(packed), dtype=np.uint8),
        offsets=np.cumsum([0, *map(len, packed)]),
        labels=np.array([0, 1, 2] * 2, dtype=np.uint8),
        classes=np.array(list(files.COLORS)),
    )
    write(tmp_path, {"packed.npz": stream.getvalue()})
    check(read_images(tmp_path / "packed.npz"))


def test_pictures_alone(tmp_path: Path) -> None:
    write(tmp_path, {f"p/{i}.png": content for i, content in enumerate(pictures().values())})
    write(tmp_path, {"p.zip": files.zipped({f"{i}.png": content for i, content in enumerate(pictures().values())})})
    for path in ("p", "p.zip", "p/*.png", "p/0.png,p/1.png"):
        rows = read_images(",".join(str(tmp_path / part) for part in path.split(",")))
        assert rows.columns == ("image",) and rows[0]["image"].open().size == (32, 32)
    assert len(read_images([tmp_path / "p", tmp_path / "p.zip"])) == 12


def test_coco(tmp_path: Path) -> None:
    write(tmp_path, files.coco(6))
    rows = read_images(tmp_path / "x.json")
    assert len(rows) == 6 and rows.metadata["labels"] == list(files.COLORS)
    assert rows.metadata["bones"] == [(0, 1)] and rows.metadata["joints"][0] == "left_top"
    for i, row in enumerate(rows):
        left, top = files.corner(i)
        np.testing.assert_allclose(row["boxes"], [[left, top, left + 12, top + 12]])
        assert row["classes"] == [files.labeled(6)[i][0]] and row["keypoints"].shape == (1, 4, 3)
        np.testing.assert_array_equal(np.asarray(row["image"].open()), files.labeled(6)[i][1])
    objects = read_images(tmp_path / "x.json", objects=True)
    assert objects[2]["keypoints"].shape == (4, 3) and objects[2]["label"] == "blue"
    np.testing.assert_allclose(objects[2]["box"], rows[2]["boxes"][0])
    assert rows.fingerprint != objects.fingerprint


def test_a_picture_without_objects_has_empty_arrays(tmp_path: Path) -> None:
    content = files.coco(3)
    whole = json.loads(content["x.json"])
    whole["annotations"] = whole["annotations"][:2]
    write(tmp_path, {**content, "x.json": json.dumps(whole)})
    row = read_images(tmp_path / "x.json")[2]
    assert row["boxes"].shape == (0, 4) and row["keypoints"].shape == (0, 4, 3) and row["classes"] == []


def test_points_and_boxes_in_plain_json(tmp_path: Path) -> None:
    one = {"file": "a.png", "keypoints": [[1, 2], [3, 4]], "boxes": [[1, 2, 3, 4]], "mask": "m.png"}
    other = {"file": "a.png", "keypoints": [[1, 2], [3, 4]], "boxes": []}
    gray = files.encode(np.eye(8, dtype=np.uint8))
    write(tmp_path, {"x.json": json.dumps({"images": [one, other]}), "a.png": files.encode(files.square((1, 2, 3), 0))})
    write(tmp_path, {"m.png": gray})
    rows = read_images(tmp_path / "x.json")
    np.testing.assert_array_equal(rows[0]["keypoints"], [[1, 2, 2], [3, 4, 2]])
    assert rows[1]["boxes"].shape == (0, 4) and rows[1]["mask"] is None
    assert np.asarray(rows[0]["mask"].open("L")).sum() == 8


@real
@pytest.mark.parametrize(
    ("path", "n", "columns"),
    [
        ("cifar10/val.npz", 8000, {"image", "label"}),
        ("bccd/val.json", 87, {"image", "id", "boxes", "areas", "crowds", "classes"}),
        ("coco256/val.json", 64, {"image", "id", "mask", "boxes", "areas", "crowds", "classes"}),
        ("face_landmarks/val.json", 300, {"image", "keypoints"}),
        ("lsp_pose/val.json", 300, {"image", "id", "keypoints", "boxes", "areas", "crowds", "classes"}),
        ("flickr8k/val_captions.json", 1000, {"image", "captions", "orig_width", "orig_height"}),
        ("handwritten_words/val.tsv", 756, {"image", "width", "text", "generic_name"}),
        ("sroie/val.tsv", 720, {"image", "width", "text"}),
    ],
)
def test_real_files(path: str, n: int, columns: set[str]) -> None:
    rows = read_images(DATA / path)
    assert len(rows) == n and set(rows.columns) == columns
    for i in (0, n // 2, n - 1):
        rows[i]["image"].open()


# What is wrong is said.

MISTAKES: dict[str, tuple[dict[str, bytes | str], str, str]] = {
    "a name that is too long": ({}, "a" * 300, "does not exist"),
    "a long name in a list": ({"x.jsonl": json.dumps({"image": "a" * 300}) + "\n"}, "x.jsonl", "line 1, .*aaa"),
    "nothing there": ({}, "none", "does not exist"),
    "no match": ({}, "*.png", r"\*\.png"),
    "no images": ({"d/a.doc": "x"}, "d", r"/d .*images\.$"),
    "lists instead": ({"d/a.json": "x", "d/a.zip": "x"}, "d", r"/d .*a\.json"),
    "empty class": ({"d/red/a.png": b"x", "d/green/b.png": b"x", "d/blue/c.txt": b"x"}, "d", "class folder .*blue"),
    "splits": ({"d/train/red/a.png": b"x", "d/val/red/a.png": b"x"}, "d", "give one of them"),
    "missing file": ({"x.tsv": "file\tlabel\na.png\tred\n"}, "x.tsv", r'line 2, names the image "a\.png"'),
    "missing in txt": ({"x.txt": "a.png red\n"}, "x.txt", r'line 1, names the image "a\.png"'),
    "no column": ({"x.tsv": "word\tlabel\nhello\tred\n"}, "x.tsv", r'x\.tsv .*data\.columns="image=NAME"'),
    "bad json": ({"x.json": "{"}, "x.json", r"x\.json, line 1, .*column 2"),
    "bad zip": ({"x.zip": b"zip"}, "x.zip", r"x\.zip"),
    "bad npz": ({"x.npz": b"npz"}, "x.npz", r"x\.npz"),
    "odd file": ({"x.doc": b"x"}, "x.doc", r"x\.doc .*npz"),
    "odd name": ({"x.jsonl": '{"image": 3}\n'}, "x.jsonl", r"x\.jsonl, line 1, has 3 "),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str, tmp_path: Path) -> None:
    content, path, said = MISTAKES[case]
    write(tmp_path, content)
    with pytest.raises(DataError, match=said):
        read_images(str(tmp_path / path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"annotations": [{"image_id": 77, "category_id": 1, "bbox": [0, 0, 1, 1]}]},
            '^[^"]*annotation 1, has image_id 77',
        ),
        ({"annotations": [{"image_id": 0, "category_id": 9, "bbox": [0, 0, 1, 1]}]}, "annotation 1, has category_id 9"),
        ({"annotations": [{"image_id": 0, "category_id": 1, "bbox": [0, 0]}]}, "not four numbers"),
        ({"annotations": [{"image_id": 0, "category_id": 1, "keypoints": [0, 0]}]}, "keypoints"),
        ({"images": [{"id": 0, "file_name": "gone.png"}], "annotations": []}, r"image 1, names the image .gone\.png"),
        ({"images": [{"file_name": "0.png"}]}, 'image 1, .*"id"'),
        ({"images": [{"id": 0, "file_name": "0.png"}] * 2}, "image 2, has the id 0"),
        ({"categories": [{"id": 1}]}, 'category 1, has no "name"'),
        ({"categories": [{"name": "red"}]}, 'category 1, .*"id"'),
        ({"categories": [{"id": [1], "name": "red"}]}, 'category 1, .*"id"'),
        ({"categories": None}, "annotation 1, has category_id 1"),
        ({"categories": 3}, '"categories" .* list'),
        ({"categories": [3]}, "category 1, is 3"),
        ({"categories": [{"id": 1, "name": "red", "keypoints": 4}]}, "category 1, .*keypoints.* list"),
        ({"images": [{"id": 0}], "annotations": []}, "file_name"),
    ],
)
def test_mistakes_in_coco(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    content = files.coco(3)
    write(tmp_path, {**content, "x.json": json.dumps({**json.loads(content["x.json"]), **change})})
    with pytest.raises(DataError, match=said):
        read_images(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image_id": [1]}, r"annotation 3, has image_id \[1\]"),
        ({"image_id": None}, "annotation 3, has image_id None"),
        ({"category_id": [1]}, r"annotation 3, has category_id \[1\]"),
        ({"category_id": None}, 'annotation 3, .*"category_id"'),
        ({"bbox": None}, 'annotation 3, .*no "bbox"'),
        ({"bbox": [1, 2, 3, "a"]}, 'annotation 3, .*a "bbox" .*four'),
        ({"bbox": [1, 2, 3, 1e300]}, 'annotation 3, .*a "bbox" .*four'),
        ({"area": "big"}, 'annotation 3, .*"area"'),
        ({"keypoints": [1, 2, 3]}, 'annotation 3, .*"keypoints" .*4'),
    ],
)
def test_mistakes_in_an_annotation(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    content = files.coco(3)
    whole = json.loads(content["x.json"])
    whole["annotations"][2].update(change)
    write(tmp_path, {**content, "x.json": json.dumps(whole)})
    with pytest.raises(DataError, match=said):
        read_images(tmp_path / "x.json")


def test_a_number_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"images": [{"id": ' + "9" * 5000 + "}]}")
    with pytest.raises(DataError, match=r"x\.json .*digits"):
        read_images(tmp_path / "x.json")


@pytest.mark.parametrize("skeleton", [[["a", 1]], [[1]], [[1, 9]], 3])
def test_mistakes_in_a_skeleton(skeleton: Any, tmp_path: Path) -> None:
    content = files.coco(3)
    whole = json.loads(content["x.json"])
    whole["categories"][1]["skeleton"] = skeleton
    write(tmp_path, {**content, "x.json": json.dumps(whole)})
    with pytest.raises(DataError, match=r"category 2, .*skeleton.* 4 keypoints"):
        read_images(tmp_path / "x.json")


def test_joints_that_nobody_named(tmp_path: Path) -> None:
    """Files of boxes often say "keypoints": [] all the same."""
    content = files.coco(3)
    whole = json.loads(content["x.json"])
    for note in whole["annotations"]:
        note["keypoints"] = []
    for category in whole["categories"]:
        category.pop("keypoints", None)
    write(tmp_path, {**content, "x.json": json.dumps(whole)})
    rows = read_images(tmp_path / "x.json")
    assert len(rows) == 3 and rows[0]["keypoints"].shape[1:] == (0, 3)


def test_null_in_coco_counts_as_absent(tmp_path: Path) -> None:
    content = files.coco(3)
    whole = json.loads(content["x.json"])
    whole["annotations"][2].update(area=None, iscrowd=None, keypoints=None, segmentation=None)
    whole["categories"][2].update(keypoints=None, skeleton=None)
    whole["images"][2].update(file=None, mask=None)
    write(tmp_path, {**content, "x.json": json.dumps(whole)})
    row = read_images(tmp_path / "x.json")[2]
    assert row["areas"] == [0] and not row["keypoints"].any() and row["segments"] == [None]
    assert len(read_images(tmp_path / "x.json", objects=True)) == 2  # of the third no joint is seen


@pytest.mark.parametrize("nothing", [[], None])
def test_coco_without_annotations(nothing: Any, tmp_path: Path) -> None:
    """Images of nothing, which can stand beside others; where each object is a row, there is none."""
    content = files.coco(3)
    empty = json.dumps({**json.loads(content["x.json"]), "annotations": nothing})
    write(tmp_path, {**content, "empty.json": empty})
    rows = read_images(tmp_path / "empty.json")
    assert rows[0]["boxes"].shape == (0, 4) and rows[0]["classes"] == rows[0]["segments"] == []
    both = read_images([tmp_path / "x.json", tmp_path / "empty.json"])
    assert len(both) == 6 and {"boxes", "areas", "crowds", "classes", "segments"} <= set(both.columns)
    with pytest.raises(DataError, match=r"empty\.json .*keypoints"):
        read_images(tmp_path / "empty.json", objects=True)


def test_arrays_that_do_not_fit(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 8, 3), dtype=np.uint8)
    for held, said in (
        ({"x": pixels, "y": np.zeros(3)}, "4 images and 3 labels"),
        (
            {"x": pixels, "y": np.array([0, 1, 2, 5]), "classes": np.array(["a", "b"])},
            r"x\.npz has the label 2\b.* 2 classes",
        ),
        ({"z": pixels}, r"x\.npz .*\bz \[4, 8, 8, 3\]"),
    ):
        np.savez(tmp_path / "x.npz", **held)
        with pytest.raises(DataError, match=said):
            read_images(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"x\.npz: x\.npy .*object"):  # nothing is ever unpickled
        read_images(tmp_path / "x.npz")
