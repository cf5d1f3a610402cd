"""People cut out of images as transformers' processor does it; keypoints' names, mirrors and bones."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from anyformer.data.images.person_crop import crop_person
from anyformer.data.images.processor import ImageProcessor
from anyformer.data.images.skeleton import Skeleton, face, other_side


def photo(width: int, height: int) -> Image.Image:
    small = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), resample=3)


BOXES = [(10, 5, 60, 90), (0, 0, 80, 100), (-20, 30, 40, 130), (30.5, 20.25, 70.75, 33.0)]


@pytest.mark.parametrize("box", BOXES, ids=str)
def test_what_the_model_sees_is_what_the_processor_shows(box: tuple[float, ...]) -> None:
    """Boxes inside, whole, and over the edge: the same pixel_values."""
    from transformers.models.vitpose.image_processing_pil_vitpose import VitPoseImageProcessorPil

    image = photo(80, 100)
    theirs = VitPoseImageProcessorPil(size={"height": 64, "width": 48})
    left, top, right, bottom = box
    expected = theirs([image], boxes=[[[left, top, right - left, bottom - top]]], return_tensors="np")["pixel_values"]
    pixels, _ = crop_person(image, box, (64, 48))
    ours = ImageProcessor.read(theirs.to_json_string().encode(), "x").normalize(_tensor(pixels))["pixel_values"]
    # One step of 256 where a value lies halfway between two.
    np.testing.assert_allclose(ours.numpy(), expected, atol=1 / 255 / 0.224 + 1e-5)
    assert np.mean(np.abs(ours.numpy() - expected) > 1e-4) < 0.002


def _tensor(pixels: np.ndarray) -> object:
    import torch

    return torch.from_numpy(pixels)[None]


def test_points_go_along_and_come_back() -> None:
    _, placement = crop_person(photo(80, 100), (10, 20, 50, 80), (64, 48))
    points = np.array([[10.0, 20.0], [50.0, 80.0], [30.0, 50.0]], dtype=np.float32)
    moved = placement.points(points)
    np.testing.assert_allclose(placement.points_back(moved), points, atol=1e-4)
    np.testing.assert_allclose(moved[2], [24.0, 32.0], atol=1e-4)  # the middle stays in the middle
    height = (80 - 20) * 1.25
    np.testing.assert_allclose(moved[1, 1] - moved[0, 1], 60 / height * 63, atol=1e-3)


def test_names_say_what_a_mirror_does() -> None:
    pairs = {
        "left_ankle": "right_ankle",
        "Right Hip": "Left Hip",
        "l_wrist": "r_wrist",
        "REye": "LEye",
        "neck": "neck",
        "shoulder-L": "shoulder-R",
        "elbow": "elbow",
    }
    assert {name: other_side(name) for name in pairs} == pairs
    assert Skeleton(("left_eye", "nose", "right_eye")).flip_indices == [2, 1, 0]
    assert Skeleton(("a", "b")).flip_indices is None


def test_the_usual_face() -> None:
    """A mirror twice is no mirror; the published pairs of 68 points; brows, eyes and lips on either side."""
    swaps = face().flip_indices
    assert swaps is not None and [swaps[i] for i in swaps] == list(range(68))
    for a, b in ((0, 16), (7, 9), (8, 8), (17, 26), (27, 27), (31, 35), (36, 45), (39, 42), (40, 47), (41, 46)):
        assert swaps[a] == b and swaps[b] == a
    for a, b in ((48, 54), (50, 52), (51, 51), (55, 59), (57, 57), (60, 64), (61, 63), (65, 67), (66, 66)):
        assert swaps[a] == b and swaps[b] == a
    assert len(set(face().names)) == 68 and all(0 <= end < 68 for bone in face().bones for end in bone)


def test_a_skeleton_from_the_files_or_from_numbers() -> None:
    said = Skeleton.of({"joints": ["head", "foot"], "bones": [(0, 1)]}, 2)
    assert said.names == ("head", "foot") and said.bones == ((0, 1),)
    assert Skeleton.of({}, 68) == face()
    assert Skeleton.of({}, 3).names == ("point_1", "point_2", "point_3")
    assert Skeleton(("Left Shoulder", "RHip")).find("leftshoulder") == 0
    assert Skeleton(("Left Shoulder", "RHip")).find("righthip", "rhip") == 1
