"""Resizing, cropping and normalizing give the numbers of transformers' own processors, on real images."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from anyformer.data.images.processor import BICUBIC, ImageProcessor
from anyformer.errors import ConfigError, InputError
from tests.training.picture_files import square

DATA = Path(os.environ.get("ANYFORMER_DATA", "/none"))


def photographs() -> list[Any]:
    """Of several sizes and shapes; real ones where there are some."""
    found = [Image.fromarray(square((200, 40, 40), 3, 96)).resize((140, 100)), Image.fromarray(square((1, 2, 3), 4))]
    for name in ("coco256/train_images.zip", "bccd/train_images.zip", "flickr8k/val_images.zip"):
        if (DATA / name).exists():
            with zipfile.ZipFile(DATA / name) as archive:
                files = archive.namelist()[:3]
                found += [Image.open(io.BytesIO(archive.read(file))).convert("RGB") for file in files]
    return found


def saved(theirs: Any, folder: Path) -> ImageProcessor:
    """What they write, as we read it."""
    theirs.save_pretrained(folder)
    return ImageProcessor.read((folder / "preprocessor_config.json").read_bytes(), str(folder))


CASES: dict[str, Any] = {
    "vit": (transformers.ViTImageProcessorPil, {}),
    "vit-384-bicubic": (transformers.ViTImageProcessorPil, {"size": {"height": 384, "width": 300}, "resample": 3}),
    "vit-plain": (transformers.ViTImageProcessorPil, {"do_resize": True, "do_normalize": False}),
    "vit-255": (transformers.ViTImageProcessorPil, {"do_rescale": False, "do_normalize": False}),
    "deit": (transformers.DeiTImageProcessorPil, {}),
    "deit-larger-crop": (transformers.DeiTImageProcessorPil, {"size": {"height": 200, "width": 201}}),
    "clip": (transformers.CLIPImageProcessorPil, {}),
    "beit": (transformers.BeitImageProcessorPil, {}),
    "convnext": (transformers.ConvNextImageProcessorPil, {"size": {"shortest_edge": 224}}),
    "convnext-384": (transformers.ConvNextImageProcessorPil, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_pixel_values_are_theirs(case: str, tmp_path: Path) -> None:
    kind, options = CASES[case]
    theirs = kind(**options)
    ours = saved(theirs, tmp_path)
    again = ImageProcessor.read(ours.write(), "what we write")
    for image in photographs():
        wanted = theirs(image, return_tensors="pt")["pixel_values"].float()
        for processor in (ours, again):
            torch.testing.assert_close(processor([image])["pixel_values"], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [None, {"shortest_edge": 200, "longest_edge": 240}, {"height": 96, "width": 128}])
def test_detr_pads_to_the_largest_with_a_mask(size: Any, tmp_path: Path) -> None:
    theirs = transformers.DetrImageProcessorPil(**({} if size is None else {"size": size}))
    ours = saved(theirs, tmp_path)
    images = photographs()[:5]
    wanted = theirs(images, return_tensors="pt")
    for processor in (ours, ImageProcessor.read(ours.write(), "what we write")):
        made = processor(images)
        torch.testing.assert_close(made["pixel_values"], wanted["pixel_values"].float(), rtol=0, atol=1e-5)
        torch.testing.assert_close(made["pixel_mask"], wanted["pixel_mask"])


def test_what_we_write_their_classes_load(tmp_path: Path) -> None:
    """Auto finds a class for it that gives our numbers."""
    image = photographs()[0]
    for ours in (
        ImageProcessor(size=(40, 50)),
        ImageProcessor(size=(64, 64), crop=(56, 48), resample=BICUBIC),
        ImageProcessor(shortest_edge=60, crop=(48, 48)),
        ImageProcessor(shortest_edge=64, longest_edge=80, pad=True),
        ImageProcessor(size=(28, 28), mean=None, std=None),
    ):
        (tmp_path / "preprocessor_config.json").write_bytes(ours.write())
        theirs = transformers.AutoImageProcessor.from_pretrained(tmp_path)
        wanted = theirs(image, return_tensors="pt")["pixel_values"].float()
        torch.testing.assert_close(ours([image])["pixel_values"], wanted, rtol=0, atol=1e-5)


def test_older_files_are_read() -> None:
    """As hub folders of 2021 have them: sizes as numbers, feature extractors."""
    old = b'{"feature_extractor_type": "ViTFeatureExtractor", "size": 224, "resample": 2, "do_resize": true}'
    assert ImageProcessor.read(old, "x").size == (224, 224)
    detr = b'{"feature_extractor_type": "DetrFeatureExtractor", "size": 800, "max_size": 1333}'
    found = ImageProcessor.read(detr, "x")
    assert (found.shortest_edge, found.longest_edge, found.pad) == (800, 1333, True)
    clip = b'{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224, "do_center_crop": true}'
    assert (ImageProcessor.read(clip, "x").shortest_edge, ImageProcessor.read(clip, "x").crop) == (224, (224, 224))


@pytest.mark.parametrize(
    "content",
    [b'{"image_processor_type": "MarsImageProcessor"}', b'{"size": {"area": 3}}', b"[", b'{"size_divisor": 8}'],
)
def test_what_is_not_supported_is_an_error_that_names_the_file(content: bytes) -> None:
    with pytest.raises(ConfigError, match="here"):
        ImageProcessor.read(content, "here")


@pytest.mark.parametrize(
    "processor",
    [ImageProcessor(size=(40, 60)), ImageProcessor(shortest_edge=50, crop=(40, 44)), ImageProcessor(max_size=(30, 90))],
)
def test_places_follow_the_pixels_and_come_back(processor: ImageProcessor) -> None:
    """A white square's edges are where its box went, and the box comes back to where it was."""
    pixels = np.zeros((80, 120, 3), dtype=np.uint8)
    pixels[24:48, 40:72] = 255
    box = np.array([[40.0, 24.0, 72.0, 48.0]])
    placed, placement = processor.resize(Image.fromarray(pixels))
    left, top, right, bottom = placement.boxes(box)[0]
    rows, columns = (placed[0] > 127).any(axis=1).nonzero()[0], (placed[0] > 127).any(axis=0).nonzero()[0]
    found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    np.testing.assert_allclose([left, top, right, bottom], found, atol=0.75)
    np.testing.assert_allclose(placement.boxes_back(placement.boxes(box)), box, atol=1e-4)
    np.testing.assert_allclose(placement.points([[40, 24, 2]])[0], [left, top, 2], atol=1e-5)
    mask = processor.resize_mask((pixels[..., 0] > 0).astype(np.uint8))
    assert mask.shape == placement.size and (mask != (placed[0] > 127)).mean() < 0.05


def test_a_crop_larger_than_the_picture_is_filled() -> None:
    placed, placement = ImageProcessor(crop=(40, 50)).resize(Image.fromarray(square((1, 2, 3), 0)))
    assert placed.shape == (3, 40, 50) and placement.offset == (-4, -9)
    np.testing.assert_array_equal(placed[:, 4:36, 9:41], square((1, 2, 3), 0).transpose(2, 0, 1))
    assert placed[:, :4].max() == 0 == placed[:, :, :9].max()


def test_values_come_back_as_pixels() -> None:
    image = Image.fromarray(square((1, 2, 3), 0))
    processor = ImageProcessor(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    back = processor.denormalize(processor([image])["pixel_values"])
    np.testing.assert_array_equal(back[0].permute(1, 2, 0).numpy(), np.asarray(image))


def test_the_edge_at_its_limit_gets_it_to_the_pixel() -> None:
    """Of every height; 49 rows times 32/49 are 31.999 … in floating point."""
    processor = ImageProcessor(max_size=(32, 640))
    for height in range(1, 301):
        for width in (1, height, 7 * height + 3, 20 * height, 20 * height + 1, 90 * height):
            rows, columns = processor.target((height, width))
            assert rows == 32 if width <= 20 * height else columns == 640
            assert 1 <= rows <= 32 and 1 <= columns <= 640


def test_a_picture_of_one_row_keeps_one() -> None:
    processor = ImageProcessor(shortest_edge=800, longest_edge=1333)
    assert processor.target((1, 3000)) == (1, 1333) and processor.target((3000, 1)) == (1333, 1)
    assert processor.resize(Image.new("RGB", (3000, 1)))[0].shape == (3, 1, 1333)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_mean": [0.5, 0.5]}, '"image_mean" has 2 .*1 or 3'),
        ({"image_mean": [], "image_std": []}, '"image_mean" has 0 numbers'),
        ({"image_std": [0.5, 0.5]}, "std has 2 .*must have 3"),
        ({"image_std": [0.5, 0.0, 0.5]}, "std"),
        ({"resample": 1000}, "resample"),
        ({"resample": 1e400}, "infinity"),
        ({"size": {"height": 10**6, "width": 10**6}}, "size"),
        ({"size": {"shortest_edge": 10**7}}, "shortest"),
    ],
)
def test_numbers_that_make_no_sense(changes: dict[str, Any], said: str) -> None:
    config = {**json.loads(ImageProcessor(size=(32, 32)).write()), **changes}
    with pytest.raises(ConfigError, match=said):
        ImageProcessor.read(json.dumps(config).encode(), "preprocessor_config.json")


def test_a_narrow_picture_does_not_become_a_huge_one() -> None:
    with pytest.raises(InputError, match=r"20000 x 2 .*2240000 x 224"):
        ImageProcessor(shortest_edge=224).resize(Image.new("RGB", (20_000, 2)))
