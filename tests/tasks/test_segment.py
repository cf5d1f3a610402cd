"""Classes of pixels: learned, measured and drawn; masks of every kind; a BEiT folder as transformers runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import anyformer as af
from anyformer.data.images.augment import Augmentation
from anyformer.data.rows import ListRows
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.segment import SegmentOptions
from tests.checkpoints.oracles import make_oracle
from tests.training import picture_files as pictures

Segment = find("segment")
CLASSES = {"0": "unlabeled", "1": "ground", "4": "red", "7": "green", "9": "blue"}
NUMBERS = {"red": 4, "green": 7, "blue": 9}


def mask_of(i: int, label: str) -> Any:
    mask = np.ones((32, 32), dtype=np.uint8)
    left, top = pictures.corner(i)
    mask[top : top + 12, left : left + 12] = NUMBERS[label]
    mask[:2] = 0
    return mask


def with_masks(folder: Path, n: int = 12, encode: Any = pictures.encode) -> Path:
    """A COCO json whose images have masks, but for the last; the classes named beside it."""
    rows = pictures.labeled(n)
    pixels = {f"{i}.png": pictures.encode(picture) for i, (_, picture) in enumerate(rows)}
    masks = {f"{i}_mask.png": encode(mask_of(i, label)) for i, (label, _) in enumerate(rows)}
    images = [{"id": i, "file_name": f"{i}.png", "semantic_mask": f"{i}_mask.png"} for i in range(n)]
    del images[-1]["semantic_mask"]
    (folder / "train_images.zip").write_bytes(pictures.zipped(pixels))
    (folder / "train_masks.zip").write_bytes(pictures.zipped(masks))
    (folder / "classes.json").write_text(json.dumps(CLASSES))
    (folder / "train.json").write_text(json.dumps({"images": images, "annotations": [], "categories": []}))
    return folder / "train.json"


def begin(data: Path, recipe: str = "segmenter-tiny", labels: str = "", **options: Any) -> Any:
    torch.manual_seed(0)
    setup = TaskSetup(None, DataSettings(labels=labels), task=SegmentOptions(**options))
    return Segment.begin(recipe, Segment.read(data), None, setup)


def test_masks_and_their_classes(tmp_path: Path) -> None:
    """Ids become places among the names; unlabeled pixels do not count; an image without a mask is left out."""
    data = with_masks(tmp_path)
    task, rows = begin(data), Segment.read(data)
    assert len(rows) == 11
    assert task.labels == ("ground", "red", "green", "blue") and task.ids == (1, 4, 7, 9)
    assert task.model.config.n_labels == 4
    made = task.example(rows[1])["mask"]
    assert (made[:2] == 255).all() and set(np.unique(made)) == {0, 2, 255}
    left, top = pictures.corner(1)
    assert (made[max(top, 2) : top + 12, left : left + 12] == 2).all()


def test_a_class_that_is_held_back_is_known(tmp_path: Path) -> None:
    """Where nobody names the classes, those of all masks count."""
    data = with_masks(tmp_path)
    (tmp_path / "classes.json").unlink()
    rows = Segment.read(data)
    without = rows.select([i for i in range(len(rows)) if 9 not in np.unique(np.asarray(rows[i]["mask"].open()))])
    task = Segment.begin("segmenter-tiny", without, None, TaskSetup(whole=rows))
    assert len(without) < len(rows) and 9 in task.ids


def palette(mask: Any) -> bytes:
    """Numbers behind a palette of colors, as PASCAL VOC has them."""
    image = Image.fromarray(mask, mode="P")
    image.putpalette([int(x) for x in np.random.default_rng(0).integers(0, 256, 768)])
    return pictures.encode(image)


def sixteen(mask: Any) -> bytes:
    return pictures.encode(Image.fromarray(mask.astype(np.uint16)))


@pytest.mark.parametrize("encode", [palette, sixteen])
def test_masks_with_palettes_and_16_bits(encode: Any, tmp_path: Path) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    plain.mkdir()
    other.mkdir()
    expected, found = (
        begin(data).example(Segment.read(data)[2])["mask"]
        for data in (with_masks(plain), with_masks(other, 12, encode))
    )
    assert np.array_equal(expected, found)


@pytest.mark.parametrize("recipe", ["segmenter-tiny", pytest.param("beit-tiny", marks=pytest.mark.slow)])
def test_it_learns_from_outlines(recipe: str, tmp_path: Path) -> None:
    """Squares of three colors on a background, by heart; and back from the folder."""
    for name, content in pictures.coco(12).items():
        (tmp_path / name).write_bytes(content)
    data = tmp_path / "x.json"
    still = {"task.augment.crop": None, "task.augment.color_jitter": 0.0, "task.augment.flip": 0.0}
    af.train(
        "segment",
        recipe=recipe,
        data=data,
        valid=data,
        out=tmp_path / "out",
        steps=80,
        batch_size=12,
        lr=3e-3,
        device="cpu",
        eval_every=80,
        save_every=80,
        **still,
    )
    segment = af.task("segment", tmp_path / "out")
    assert segment.labels == ("background", "red", "green", "blue")
    figures = segment.evaluate(Segment.read(data))
    assert figures["mean_iou"] > 0.5 and figures["pixel_accuracy"] > 0.85
    answer = segment(pictures.square(pictures.COLORS["green"], 1))
    assert answer.classes.shape == (32, 32) and "green" in str(answer) and str(answer).startswith("background")
    assert sum(answer.shares.values()) == pytest.approx(1.0)
    assert answer.draw().size == (224, 224)


def test_figures_at_the_masks_own_size(tmp_path: Path) -> None:
    """A model that says "ground" everywhere, measured by hand: on the masks as they are, not as the model sees them."""
    data = with_masks(tmp_path)
    task, rows = begin(data), Segment.read(data)
    with torch.no_grad():
        task.model.heads["mask"].norm.weight.zero_()
        task.model.heads["mask"].norm.bias.copy_(torch.tensor([5.0, 0, 0, 0]))
    figures = task.evaluate(rows)
    whole = np.stack([mask_of(i, label) for i, (label, _) in enumerate(pictures.labeled(12)[:11])])
    share = (whole == 1).sum() / (whole != 0).sum()
    assert figures["pixel_accuracy"] == pytest.approx(share) and figures["mean_iou"] == pytest.approx(share / 4)


def test_augmented_masks_follow_their_pictures(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    task = begin(data, augment=Augmentation(flip=1.0, pad=0.25))
    batch = task.collate([task.example(Segment.read(data)[i]) for i in range(4)], torch.Generator())
    made = task.ready(dict(batch), torch.Generator().manual_seed(0))
    red = (made["pixel_values"][0] - torch.tensor([0.57, -0.69, -0.69]).view(3, 1, 1)).abs().amax(dim=0) < 0.05
    inside = made["labels"][0] == 1
    assert bool(red.any()) and float((red & inside).sum() / (red | inside).sum()) > 0.9
    assert bool((made["labels"] == 255).any()) and int(made["labels"].min()) >= 0


def test_a_beit_folder_answers_as_transformers_does(tmp_path: Path) -> None:
    """Resized, cropped, normalized, run, enlarged, and the best class of each pixel."""
    from transformers.models.beit.image_processing_pil_beit import BeitImageProcessorPil

    from tests.data.images.test_person_crop import photo

    oracle = make_oracle("BeitForSemanticSegmentation", id2label={0: "road", 1: "sky", 2: "car"})
    oracle.save_pretrained(tmp_path)
    processor = BeitImageProcessorPil(size={"height": 24, "width": 24}, do_reduce_labels=True)
    processor.save_pretrained(tmp_path)
    image = photo(50, 37)
    with torch.no_grad():
        out = oracle(**processor([image], return_tensors="pt"))
    expected = processor.post_process_semantic_segmentation(out, target_sizes=[(37, 50)])[0]
    segment = af.task("segment", tmp_path)
    answer = segment(image)
    assert answer.names == ("road", "sky", "car")
    assert float((torch.from_numpy(answer.classes) == expected).float().mean()) > 0.999
    # do_reduce_labels: 0 in a mask is nothing, 1 the first class.
    mask = np.array([[0, 1], [3, 255]], dtype=np.int64)
    theirs = processor([image], segmentation_maps=[mask.astype(np.uint8)], do_resize=False, return_tensors="pt")
    assert np.array_equal(segment.numbers(mask, "x"), theirs["labels"][0].numpy())


def test_bad_masks_are_named(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    rows = Segment.read(data)
    task = begin(data)
    for mask, words in (
        (np.zeros((16, 32), dtype=np.uint8), r"mask\.png .*32 x 16 .*32 x 32"),
        (np.full((32, 32), 200, dtype=np.uint8), r"mask\.png .*\b200\b.*classes\.json"),
        (np.zeros((32, 32, 3), dtype=np.uint8), r"mask\.png .*channel"),
    ):
        row = {**rows[0], "mask": af_picture(mask)}
        with pytest.raises(af.InputError, match=words):
            task.example(row)
    for number in (2**31 - 1, -5):
        with pytest.raises(af.InputError, match=rf"mask\.tif .* {number}[ ,]"):
            task.numbers(np.full((2, 2), number), "mask.tif")


def test_figures_need_masks(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    task = begin(data)
    bare = ListRows([{"image": row["image"]} for row in Segment.read(data)], "bare")
    with pytest.raises(af.DataError, match=r"bare has .*masks"):
        task.evaluate(bare)


def af_picture(mask: Any) -> Any:
    from anyformer.data.images.image_file import ImageFile

    return ImageFile.of(pictures.encode(mask), "mask.png")


def test_names_by_settings_and_by_number(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    assert begin(data, labels="1=soil,4=r,7=g,9=b").labels == ("soil", "r", "g", "b")
    (tmp_path / "classes.json").unlink()
    assert begin(data).labels == ("0", "1", "4", "7", "9")
    (tmp_path / "classes.json").write_text('{"one": 1}')
    with pytest.raises(af.DataError, match=r'classes\.json .*"1"'):
        begin(data)


def test_what_fits(tmp_path: Path) -> None:
    data = with_masks(tmp_path)
    with pytest.raises(af.ConfigError, match=r'"vit-tiny" .*segmenter-mini'):
        begin(data, "vit-tiny")
    af.build("beit-tiny").save(tmp_path / "own")
    with pytest.raises(af.FolderError, match=r'head "classify".*anyformer train segment'):
        af.task("segment", tmp_path / "own")
    assert begin(data, tmp_path / "own").model.config.head == "segment"  # type: ignore[arg-type]


def test_outlines_that_are_wrong_or_not_there(tmp_path: Path) -> None:
    for name, content in pictures.coco(3).items():
        (tmp_path / name).write_bytes(content)
    whole = json.loads((tmp_path / "x.json").read_text())
    whole["annotations"][2]["segmentation"] = {"counts": "ooo", "size": [32, 32]}
    (tmp_path / "x.json").write_text(json.dumps(whole))
    with pytest.raises(af.DataError, match=r"x\.json, image 3: object 1: .*counts"):
        begin(tmp_path / "x.json").evaluate(Segment.read(tmp_path / "x.json"))
    (tmp_path / "x.json").write_text(json.dumps({**whole, "annotations": [], "categories": []}))
    with pytest.raises(af.DataError, match=r"x\.json .*masks"):
        begin(tmp_path / "x.json")


def test_ids_that_are_not_those_of_the_labels(tmp_path: Path) -> None:
    task = begin(with_masks(tmp_path))
    task.recall(task.describe())
    with pytest.raises(af.ConfigError, match=r'1 "ids" .*\d "labels"'):
        task.recall({"ids": [1]})
