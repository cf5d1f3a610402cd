"""Heat maps and keypoints: peaks as transformers' processor finds them, targets and losses by formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.checkpoints.key_table import named_tensors
from anyformer.core.tokens import Tokens
from anyformer.heads.heatmap_peaks import find_peaks
from anyformer.heads.keypoints import flip_heatmaps_back, gaussian_heatmaps


def smooth_maps(seed: int = 0, size: tuple[int, int] = (16, 12)) -> torch.Tensor:
    """Bells somewhere, and a little noise."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(3, 5, 2, generator=generator) * 0.9 + 0.05
    return gaussian_heatmaps(places, size, 1.5) * 0.8 + torch.rand(3, 5, *size, generator=generator) * 0.02 + 0.01


@pytest.mark.parametrize("kernel", [11, 3])
def test_peaks_are_those_of_the_processor(kernel: int) -> None:
    """DARK, as the published post-processing does it, to a thousandth of a cell."""
    from transformers.models.vitpose.image_processing_pil_vitpose import VitPoseImageProcessorPil

    maps = smooth_maps()
    boxes = [[[0.0, 0.0, 96.0, 128.0]] for _ in maps]

    class Said:
        heatmaps = maps

    found = VitPoseImageProcessorPil(size={"height": 64, "width": 48}).post_process_pose_estimation(
        Said(), boxes, kernel_size=kernel
    )
    cells, scores = find_peaks(maps, kernel)
    # Their box is widened by a quarter around its middle, and the last cell is its edge.
    share = cells / torch.tensor([11, 15])
    pixels = share * torch.tensor([96 * 1.25, 128 * 1.25]) + torch.tensor([48 - 60, 64 - 80])
    for row, (mine, score) in enumerate(zip(pixels, scores, strict=True)):
        torch.testing.assert_close(mine, found[row][0]["keypoints"], atol=1e-2, rtol=0)
        torch.testing.assert_close(score, found[row][0]["scores"])


def test_peaks_find_the_middle_of_a_bell() -> None:
    places = torch.tensor([[[0.31, 0.62], [0.5, 0.5]]])
    cells, scores = find_peaks(gaussian_heatmaps(places, (33, 33), 2.0))
    torch.testing.assert_close(cells / 32, places, atol=2e-3, rtol=0)
    assert float(scores.min()) > 0.9


def test_a_flat_map_gives_a_finite_place() -> None:
    cells, _ = find_peaks(torch.zeros(1, 2, 8, 8))
    assert bool(torch.isfinite(cells).all())


def test_bells_are_one_at_the_joint() -> None:
    made = gaussian_heatmaps(torch.tensor([[[0.0, 1.0]]]), (5, 9), 2.0)
    assert float(made[0, 0, 4, 0]) == 1.0
    assert float(made[0, 0, 4, 2]) == pytest.approx(2.718281828 ** (-4 / 8))
    assert float(made[0, 0, 1, 0]) == pytest.approx(2.718281828 ** (-9 / 8))


def test_mirror_is_flip_back() -> None:
    from transformers.models.vitpose.modeling_vitpose import flip_back

    maps, pairs = torch.randn(2, 5, 4, 6), torch.tensor([[0, 1], [2, 4]])
    assert torch.equal(flip_heatmaps_back(maps, pairs), flip_back(maps, pairs))


def test_the_loss_of_heat_maps_is_the_energy_missed() -> None:
    """Nothing at all misses everything; the target itself nothing; a keypoint of weight 0 does not count."""
    head = af.build("vitpose-tiny").heads["pose"]
    labels = torch.tensor([[[0.5, 0.5, 1.0], [0.2, 0.7, 1.0], [0.1, 0.1, 0.0]]])
    target = gaussian_heatmaps(labels[..., :2], (16, 16), 2.0)
    assert float(head.loss(torch.zeros_like(target), labels)) == pytest.approx(1.0)
    assert float(head.loss(target, labels)) == 0.0
    wrong = target.clone()
    wrong[:, 2] += 9.0
    assert float(head.loss(wrong, labels)) == 0.0


def test_joints_learn_in_every_layer() -> None:
    """The loss is the mean distance along the axes, added over the layers; a keypoint of weight 0 does not count."""
    torch.manual_seed(0)
    model = af.build("keypoint-detr-tiny", dropout=0.0).eval()
    labels = torch.rand(2, 5, 3)
    labels[..., 2] = torch.tensor([[1.0, 1, 1, 0, 1], [1, 1, 0, 0, 1]])
    pixels = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        out = model(pixel_values=pixels, labels=labels, output_hidden_states=True)
    count = labels[..., 2].bool()
    cells = Tokens(out.encoder_last_hidden_state, grid=(4, 4))
    layers = [model.heads["pose"].point(x, cells) for x in out.decoder_hidden_states[1:]]
    each = [(found - labels[..., :2]).abs()[count].mean() for found in layers]
    assert len(each) == 2
    torch.testing.assert_close(out.loss, sum(each))
    torch.testing.assert_close(out.layer_losses, torch.stack(each))
    torch.testing.assert_close(out.keypoints, layers[-1])


def test_a_joint_points_at_the_mean_of_the_cells_that_fit() -> None:
    """Scaled dot products with the cells, as weights of the cells' middles; the step is nothing at first."""
    torch.manual_seed(0)
    head, x, cells = af.build("keypoint-detr-tiny").heads["pose"], torch.randn(1, 5, 32), torch.randn(1, 6, 32)
    p = named_tensors(head)
    query = F.layer_norm(x, (32,)) @ p["query.weight"].T + p["query.bias"]
    weights = (query @ (cells @ p["key.weight"].T + p["key.bias"]).transpose(1, 2) / 32**0.5).softmax(-1)
    middles = torch.tensor([[x, y] for y in (0.25, 0.75) for x in (1 / 6, 3 / 6, 5 / 6)])
    with torch.no_grad():
        torch.testing.assert_close(head.point(x, Tokens(cells, grid=(2, 3))), weights @ middles)


@pytest.mark.parametrize("name", ["keypoint-detr-tiny", "vitpose-tiny"])
def test_labels_of_another_shape(name: str) -> None:
    size = 64 if name == "vitpose-tiny" else 32
    with pytest.raises(af.InputError, match=r"labels has shape \[1, 4, 3\]; it must be \[1, 5, 3\]"):
        af.build(name)(pixel_values=torch.randn(1, 3, size, size), labels=torch.rand(1, 4, 3))


@pytest.mark.parametrize("name", ["vitpose-mini", "vitpose-tiny"])
def test_the_first_guess_is_nothing(name: str) -> None:
    """Fresh maps cost about as much as empty ones (1), where they would cost twenty times that with larger filters: a
    gradient of hundreds at the first steps."""
    torch.manual_seed(0)
    model = af.build(name).train()
    config: Any = model.config
    places = torch.rand(4, config.n_keypoints, 3).clamp(min=0.1)
    loss = model(pixel_values=torch.randn(4, 3, *config.image_size), labels=places).loss
    assert 0.8 < float(loss.detach()) < 1.5


@pytest.mark.parametrize("scale", [0, -1, 10**9])
def test_maps_that_fit_nowhere(scale: int) -> None:
    with pytest.raises(af.ConfigError, match=f"scale is {scale}"):
        af.build("vitpose-tiny", scale=scale)
