"""Perceiver on raw pixels: waves by their formula, any size of image, and learning where something stands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer import registry
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.inputs.raw_pixels import RawPixelInput, fourier_features
from tests.tasks.learn import begin, learn, listed


def test_waves_by_hand() -> None:
    """Pixel (2, 1) of 3 x 5, two bands up to 8 / 2: its place is (1, -0.5)."""
    found = fourier_features(3, 5, 2, 8)[2 * 5 + 1]
    angles = [math.pi * place * rate for place in (1.0, -0.5) for rate in (1.0, 4.0)]
    expected = [1.0, -0.5, *(math.sin(angle) for angle in angles), *(math.cos(angle) for angle in angles)]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-5, rtol=0)


def test_pixels_stand_beside_their_waves() -> None:
    model = af.build("perceiver-cifar", n_layers=1).eval()
    inputs: Any = model.stages["inputs"].inputs
    assert isinstance(inputs, RawPixelInput) and inputs.width == 133
    pictures = torch.randn(2, 3, 4, 6)
    with af.look(model, "inputs.output") as seen:
        assert model(pixel_values=pictures).logits.shape == (2, 10)
    tokens = seen["inputs.output"]
    assert torch.equal(tokens[:, 9, :3], pictures[:, :, 1, 3])
    assert torch.equal(tokens[0, :, 3:], fourier_features(4, 6, 32, 32))
    with pytest.raises(af.InputError, match="pixel_values"):
        model(pixel_values=torch.randn(2, 1, 4, 6))


def spot(i: int) -> dict[str, Any]:
    """A bright square of 8 pixels on noise, in one of four corners, which is its label."""
    picture = np.random.default_rng(i).integers(0, 90, (32, 32, 3), dtype=np.uint8)
    corner = i % 4
    row, column = 4 + 16 * (corner // 2), 4 + 16 * (corner % 2)
    picture[row : row + 8, column : column + 8] = 220
    return {"image": picture, "label": f"corner {corner}"}


def test_learns_where_something_is() -> None:
    """All pixels are alike but for their waves, so that only who reads those can tell the corners apart."""
    pytest.importorskip("PIL")
    rows = listed(*({**spot(i), "image": ImageFile.of(spot(i)["image"])} for i in range(24)))
    config = registry.recipe("perceiver-cifar").config.replace(
        n_latents=8, d_latents=32, n_layers=2, n_heads=4, bands=4, attention_dropout=0.0
    )
    task = begin("classify-image", "perceiver-cifar", rows, {"augment": Augmentation()}, model=config)
    learn(task, rows, 60, lr=3e-3, batch=BatchConfig(rows=24))
    assert task.evaluate(rows)["accuracy"] == 1.0
    assert task(ImageFile.of(spot(102)["image"])).label == "corner 2"
