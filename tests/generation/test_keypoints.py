"""Keypoints one after another: remembered = anew, no joint sees a later one, and places so far must be given."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.core.cache import Cache
from anyformer.generation.keypoints import predict_keypoints
from tests.batches import build

PICTURES = torch.randn(3, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_remembered_is_anew() -> None:
    """Told the places that it found itself, a pass over all keypoints at once says them again."""
    model = build("keypoint-detr-tiny", autoregressive=True)
    with torch.no_grad():
        found = predict_keypoints(model, PICTURES).keypoints
        again = model(pixel_values=PICTURES, places=found).keypoints
    assert found.shape == (3, 5, 2)
    torch.testing.assert_close(found.double(), again, atol=1e-6, rtol=0)


def test_a_joint_is_told_of_those_before_it_and_not_of_later_ones() -> None:
    model = build("keypoint-detr-tiny", autoregressive=True)
    places = torch.rand(3, 5, 2, dtype=torch.float64)
    other = places.clone()
    other[:, 2] += 0.3
    with torch.no_grad():
        one, two = (model(pixel_values=PICTURES, places=given).keypoints for given in (places, other))
    assert torch.allclose(one[:, :3], two[:, :3], atol=1e-12)
    assert (one[:, 3] - two[:, 3]).abs().max() > 1e-6


def test_all_at_once_is_the_model_itself() -> None:
    model = build("keypoint-detr-tiny")
    with torch.no_grad():
        assert torch.equal(predict_keypoints(model, PICTURES).keypoints, model(pixel_values=PICTURES).keypoints)


def test_labels_teach_and_places_are_needed() -> None:
    model = af.build("keypoint-detr-tiny", autoregressive=True).eval()
    labels, pixels = torch.rand(3, 5, 3), PICTURES.float()
    with torch.no_grad():
        taught = model(pixel_values=pixels, labels=labels)
        told = model(pixel_values=pixels, places=labels[..., :2])
    assert torch.equal(taught.keypoints, told.keypoints) and taught.loss.isfinite()
    with pytest.raises(af.InputError, match=r"places has shape None; it must be \[3, 5, 2\]"):
        model(pixel_values=pixels)
    with pytest.raises(af.InputError, match=r"must be \[3, 0, 2\]"):
        model(pixel_values=pixels, places=labels[..., :2], past_key_values=Cache())
