"""What is drawn is where it should be, and small images become large enough to see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import anyformer as af
from anyformer.data.images import draw
from anyformer.data.images.attention_maps import class_attention, rollout
from anyformer.data.images.image_file import ImageFile
from tests.training.picture_files import encode


def gray(height: int = 300, width: int = 400) -> Image.Image:
    return Image.fromarray(np.full((height, width, 3), 120, dtype=np.uint8))


def changed(image: Image.Image, before: Image.Image) -> tuple[int, int, int, int]:
    """The box around everything that differs: left, top, right, bottom."""
    rows, columns = np.nonzero((np.asarray(image) != np.asarray(before)).any(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


def test_boxes_are_drawn_around_their_places() -> None:
    drawn = draw.boxes(gray(), [[50, 60, 150, 160]], [""])
    assert changed(drawn, gray()) == (50, 60, 150, 160)
    middle = np.asarray(drawn)[70:150, 60:140]
    assert (middle == 120).all()  # a frame, and nothing inside
    named = draw.boxes(gray(), [[50, 60, 150, 160], [200, 0, 250, 20]], ["cell 0.93", "cell"], [1, 1])
    assert changed(named, gray())[1] == 0 and (np.asarray(named)[155, 50] == draw.class_color(1)).all()


def test_a_small_picture_is_enlarged_and_its_boxes_with_it() -> None:
    small = gray(20, 32)
    drawn = draw.boxes(small, [[8, 5, 16, 10]], [""])
    assert drawn.size == (32 * 7, 20 * 7)
    left, top, right, bottom = changed(drawn, small.resize(drawn.size, resample=0))
    assert (left, top, right, bottom) == (56, 35, 112, 70)


def test_labels_are_whole_and_the_surest_on_top() -> None:
    """At the right edge, at the top, at the bottom, outside; above every frame, and the first above the others."""

    def tinted(image: Image.Image, kind: int) -> int:
        return int((np.asarray(image) == draw.class_color(kind)).all(axis=2).sum())

    inside = draw.boxes(gray(), [[100, 100, 100, 100]], ["cell 0.93"], [1])
    for left, top in ((395, 150), (395, 0), (-30, -30), (200, 299), (450, 350)):
        moved = draw.boxes(gray(), [[left, top, left, top]], ["cell 0.93"], [1])
        assert tinted(moved, 1) == pytest.approx(tinted(inside, 1), rel=0.05)
    places = [[100, 100, 200, 200], [102, 101, 202, 201], [90, 80, 210, 95]]  # the last one's frame crosses labels
    crowded = draw.boxes(gray(), places, ["cell 0.93", "cell 0.80", ""], [1, 2, 3])
    alone = draw.boxes(gray(), places[:1], ["cell 0.93"], [1])
    np.testing.assert_array_equal(np.asarray(crowded)[90:99, 100:146], np.asarray(alone)[90:99, 100:146])


def test_places_of_a_picture_that_was_opened_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too large to be decoded whole: boxes, keypoints and classes are of the whole, and are drawn where they belong."""
    monkeypatch.setattr("anyformer.data.images.image_file.LARGEST", 600 * 800 // 4)
    opened = ImageFile.of(encode(np.full((600, 800, 3), 120, dtype=np.uint8), "JPEG")).open()
    assert opened.size == (400, 300)
    assert changed(draw.boxes(opened, [[100, 120, 300, 320]], [""]), opened) == (50, 60, 150, 160)
    left, top, right, bottom = changed(draw.keypoints(opened, [[600, 400, 2]]), opened)
    assert left < 300 < right < 305 and top < 200 < bottom < 205
    classes = np.zeros((600, 800), dtype=np.int64)
    classes[400:, 600:] = 3
    drawn = np.asarray(draw.mask(opened, classes)) != np.asarray(opened)
    assert drawn[200:, 300:].any(axis=2).all() and not drawn[:200, 300:].any()


def test_joints_and_bones() -> None:
    points = [[100, 100, 2], [200, 100, 2], [300, 200, 0]]
    drawn = draw.keypoints(gray(), points, [(0, 1), (1, 2)])
    left, top, right, bottom = changed(drawn, gray())
    assert left < 100 < 200 < right < 210 and top < 100 < bottom < 110  # the third is not seen, nor its bone
    assert (np.asarray(drawn)[100, 150] != 120).any()
    two = draw.keypoints(gray(), [points, [[10, 280, 1], [20, 280, 1], [30, 280, 1]]])
    assert changed(two, gray())[3] > 270


def test_masks_tint_their_pixels_and_leave_the_rest() -> None:
    classes = np.zeros((300, 400), dtype=np.int64)
    classes[100:200, 150:250] = 3
    drawn = np.asarray(draw.mask(gray(), classes, ["nothing", "a", "b", "cat"]))
    wanted = 0.45 * 120 + 0.55 * np.array(draw.class_color(3))
    np.testing.assert_allclose(drawn[150, 200], wanted, atol=1)
    assert (drawn[250:, :] == 120).all() and (drawn[:20, :40] != 120).any()  # the legend stands in the corner


def test_heat_is_bright_where_the_weight_is() -> None:
    weights = np.zeros((3, 4))
    weights[1, 2] = 1.0
    lit = np.asarray(draw.heatmap(gray(), weights)).astype(int).sum(axis=2)
    assert lit[150, 250] > 2 * lit[20, 20]


def test_large_pictures_stand_small_beside_others() -> None:
    assert draw.shrink(gray(3000, 6000)).size == (1000, 500) and draw.shrink(gray(1, 6000)).size == (1000, 1)
    assert draw.shrink(gray()).size == (400, 300)


def test_pictures_side_by_side() -> None:
    sheet = draw.grid([[gray(), gray()], [gray(100, 400)]], ["one", "two"])
    assert sheet.width == 2 * 404 + 4 and sheet.height > 400
    assert draw.side_by_side([gray()]).size == (408, 308)


@pytest.mark.parametrize("n", [1, 6])
def test_titles_are_whole(n: int) -> None:
    """However many images stand beside each other, letters with tails end above them."""
    sheet = np.asarray(draw.side_by_side([Image.new("RGB", (32, 32), "red")] * n, ["gypsy"] * n)).astype(int)
    inked = (sheet.sum(axis=2) < 300).any(axis=1)  # neither paper nor red, nor much of either
    inked &= ~(sheet == (255, 0, 0)).all(axis=2).any(axis=1)
    first = int((sheet == (255, 0, 0)).all(axis=2).any(axis=1).argmax())
    assert inked[:first].any() and not inked[first - 2 : first].any()


def test_strips_are_dark_where_the_weights_are() -> None:
    """Four letters, each looked for in its own quarter of the line."""
    weights = np.kron(np.eye(4), np.full((1, 2), 0.25))
    sheet = draw.strips(gray(20, 120), weights, "abcd").convert("L")
    line = 20 * draw.LINE // 120
    assert sheet.size == (draw.LINE + draw.STRIP, line + 4 * draw.STRIP)
    for letter in range(4):
        row = line + letter * draw.STRIP + draw.STRIP // 2
        shades = [sheet.getpixel((draw.STRIP + draw.LINE * (2 * i + 1) // 8, row)) for i in range(4)]
        assert shades.index(min(shades)) == letter and sorted(shades)[1] > 250


def test_rollout_by_hand() -> None:
    """Two layers of one head: half the attention and half the token itself, then the product."""
    first, second = (torch.tensor([[[[0.2, 0.8], [1.0, 0.0]]]]), torch.tensor([[[[0.5, 0.5], [0.0, 1.0]]]]))
    steps = [0.5 * one[0, 0] + 0.5 * torch.eye(2) for one in (first, second)]
    torch.testing.assert_close(rollout([first, second])[0], steps[1] @ steps[0])
    both = torch.cat([first, 1 - first], dim=1)
    torch.testing.assert_close(rollout([both])[0], 0.5 * torch.full((2, 2), 0.5) + 0.5 * torch.eye(2))


@pytest.mark.parametrize("recipe", ["vit-tiny", "deit-tiny", "hybrid-tiny"])
def test_maps_have_the_shape_of_the_patches(recipe: str) -> None:
    model = af.build(recipe).eval()
    found = class_attention(model, {"pixel_values": torch.randn(2, 3, 32, 32)}, (32, 32))
    assert found is not None
    last, rolled = found
    assert last.shape == rolled.shape and last.shape[0] == 2 and last.shape[1] == last.shape[2]
    assert (last >= 0).all() and (last.sum(dim=(1, 2)) <= 1 + 1e-5).all()


def test_a_model_without_attention_has_no_map() -> None:
    assert (
        class_attention(af.build("resnet-tiny").eval(), {"pixel_values": torch.randn(1, 3, 32, 32)}, (32, 32)) is None
    )
