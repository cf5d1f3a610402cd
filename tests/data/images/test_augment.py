"""Augmentation does what it says to pixels, and to what lies on them; draws come from the generator alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from anyformer.data.images import color_ops
from anyformer.data.images.augment import (
    Augmentation,
    affine,
    augment,
    beta,
    compose_affine,
    inverse,
    move_points,
    transform_targets,
    warp,
    warp_mask,
)
from anyformer.errors import ConfigError
from anyformer.forward_context import IGNORED

STRONG = Augmentation(
    crop=(0.3, 1.0), flip=0.5, randaugment_ops=2, color_jitter=0.3, random_erasing=0.5, mixup=0.8, cutmix=1.0
)


def chance(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photo(seed: int = 0, side: int = 24) -> Tensor:
    """Smooth, so that sampling between pixels changes little."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(small).resize((side, side), resample=3))
    return torch.from_numpy(large.transpose(2, 0, 1).copy())


def batch(n: int = 8, side: int = 24) -> dict[str, Tensor]:
    return {"pixels": torch.stack([photo(i, side) for i in range(n)]), "labels": torch.arange(n)}


def test_nothing_asked_for_nothing_done() -> None:
    given = batch()
    made = augment(given, Augmentation(), chance())
    assert made.keys() == given.keys() and torch.equal(made["pixels"], given["pixels"].float())


def test_the_same_generator_draws_the_same() -> None:
    first, second, other = (augment(batch(), STRONG, chance(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["pixels"], other["pixels"])


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    augment(batch(), STRONG, chance())
    assert torch.equal(torch.rand(3), wanted)


def test_a_flip_is_a_flip() -> None:
    given = batch()
    made = augment(given, Augmentation(flip=1.0), chance())
    torch.testing.assert_close(made["pixels"], given["pixels"].float().flip(-1), rtol=0, atol=1e-3)


def test_a_padded_crop_moves_whole_pixels() -> None:
    """Every result is the image moved by whole pixels, at most 4 of 32, with gray beyond its edge."""
    given = batch(side=32)
    made = augment(given, Augmentation(pad=0.125), chance())["pixels"]
    padded = torch.nn.functional.pad(given["pixels"].float(), (4, 4, 4, 4), value=127.5)
    seen = set()
    for one, frame in zip(made, padded, strict=True):
        moves = [
            (y, x) for y in range(9) for x in range(9) if (frame[:, y : y + 32, x : x + 32] - one).abs().max() < 1e-2
        ]
        assert len(moves) == 1
        seen.add(moves[0])
    assert len(seen) > 4


def test_maps_undo_each_other() -> None:
    values = torch.randn(6, 5, generator=chance())
    maps = affine(
        1.5 + values[0].abs(), 1.2 + values[1].abs(), xy=values[2] * 0.2, yx=values[3] * 0.2, x=values[4], y=values[5]
    )
    same = compose_affine(inverse(maps), maps)
    torch.testing.assert_close(same, affine(torch.ones(5)), rtol=1e-5, atol=1e-5)
    points = torch.randn(5, 7, 2, generator=chance())
    torch.testing.assert_close(move_points(move_points(points, maps), inverse(maps)), points, rtol=1e-4, atol=1e-4)


def test_rotation_and_shear_are_pillows() -> None:
    """Away from the edge, as Image.transform samples."""
    picture = photo(3, 48)
    center = 24.0
    angle = torch.tensor([0.3])
    cos, sin = angle.cos(), angle.sin()
    about = affine(torch.ones(1), x=torch.tensor([-center]), y=torch.tensor([-center]))
    back = affine(torch.ones(1), x=torch.tensor([center]), y=torch.tensor([center]))
    maps = compose_affine(back, compose_affine(affine(cos, cos, xy=-sin + 0.2, yx=sin), about))
    ours = warp(picture[None].float(), maps)[0]
    numbers = inverse(maps)[0].flatten().tolist()
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    theirs = np.asarray(image.transform(image.size, Image.Transform.AFFINE, numbers, resample=2)).astype(np.float32)
    inside = np.s_[:, 16:32, 16:32]
    assert np.abs(ours.numpy()[inside] - theirs.transpose(2, 0, 1)[inside]).max() < 2.5


@pytest.mark.parametrize("seed", range(4))
def test_boxes_joints_and_masks_follow_the_pixels(seed: int) -> None:
    """A white square on black: its box, its corners and its mask are where the white went."""
    n, side = 12, 64
    pixels = torch.zeros(n, 3, side, side)
    pixels[:, :, 24:40, 20:44] = 255
    mask = (pixels[:, 0] > 0).long()
    box = torch.tensor([20.0, 24, 44, 40]).expand(n, 1, 4).clone()
    joints = torch.tensor([[20.0, 24, 2], [44, 24, 2], [20, 40, 2], [44, 40, 2]]).expand(n, 4, 3).clone()
    given = {
        "pixels": pixels,
        "boxes": box,
        "classes": torch.ones(n, 1, dtype=torch.long),
        "mask": mask,
        "keypoints": joints,
    }
    swaps = torch.tensor([1, 0, 3, 2])
    made = augment(given, Augmentation(crop=(0.4, 1.2), flip=0.5, pad=0.2), chance(seed), swaps)
    assert (made["keypoints"][:, 0, 0] < made["keypoints"][:, 1, 0])[made["keypoints"][:, :2, 2].amin(1) > 0].all()
    for i in range(n):
        white = made["pixels"][i, 0] > 250
        if made["classes"][i, 0] == IGNORED:
            assert white.sum() <= 0.45 * 16 * 24 * 2.5
            continue
        rows, columns = white.any(1).nonzero().flatten(), white.any(0).nonzero().flatten()
        found = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        np.testing.assert_allclose(made["boxes"][i, 0], found, atol=1.6)
        inside = made["mask"][i] == 1
        assert (inside != (made["pixels"][i, 0] > 150)).float().mean() < 0.03
        for x, y, seen in made["keypoints"][i].tolist():
            if seen:
                assert (
                    min(abs(x - found[0]), abs(x - found[2])) < 1.7 and min(abs(y - found[1]), abs(y - found[3])) < 1.7
                )


def test_boxes_that_leave_are_no_targets_any_more() -> None:
    maps = affine(torch.ones(1), x=torch.tensor([14.0]))
    given = {
        "boxes": torch.tensor([[[0.0, 0, 8, 8], [2, 2, 6, 6], [4, 4, 20, 20], [0, 0, 0, 0]]]),
        "classes": torch.tensor([[3, 4, 5, IGNORED]]),
        "keypoints": torch.tensor([[[1.0, 1, 2], [12, 3, 2]]]),
    }
    moved = transform_targets(given, maps, torch.tensor([[16, 20]]), torch.tensor([False]), None)
    assert moved["classes"].tolist() == [[3, 4, IGNORED, IGNORED]]
    torch.testing.assert_close(moved["boxes"][0, :3], torch.tensor([[14.0, 0, 20, 8], [16, 2, 20, 6], [18, 4, 20, 16]]))
    assert moved["keypoints"][0, :, 2].tolist() == [2, 0]


def test_padded_pictures_are_flipped_within_their_own_frame() -> None:
    pixels = torch.zeros(2, 3, 16, 24)
    sizes = torch.tensor([[16, 10], [8, 24]])
    pixels[0, :, :16, :10], pixels[1, :, :8, :24] = photo(0, 32)[:, :16, :10], photo(1, 32)[:, :8, :24]
    given = {"pixels": pixels, "sizes": sizes, "boxes": torch.tensor([[[1.0, 2, 5, 6]], [[1, 2, 5, 6]]])}
    made = augment(given, Augmentation(flip=1.0), chance())
    for i, (height, width) in enumerate(sizes.tolist()):
        wanted = pixels[i, :, :height, :width].flip(-1)
        torch.testing.assert_close(made["pixels"][i, :, :height, :width], wanted, rtol=0, atol=1e-2)
        torch.testing.assert_close(made["boxes"][i, 0], torch.tensor([width - 5.0, 2, width - 1, 6]))


def test_joints_without_names_of_sides_are_not_flipped() -> None:
    given = {**batch(), "keypoints": torch.tensor([[[3.0, 4, 2]]]).expand(8, 1, 3)}
    made = augment(given, Augmentation(flip=1.0), chance())
    torch.testing.assert_close(made["keypoints"], given["keypoints"])
    torch.testing.assert_close(made["pixels"], given["pixels"].float(), rtol=0, atol=1e-3)


def test_masks_keep_their_classes() -> None:
    mask = torch.arange(24 * 24).view(1, 24, 24) % 7
    moved = warp_mask(mask, affine(torch.tensor([1.3]), x=torch.tensor([-2.0]), y=torch.tensor([5.0])))
    assert set(moved.flatten().tolist()) <= {IGNORED, *range(7)} and IGNORED in moved


# Colors: Pillow's own.


def pillows(pixels: Tensor, change: object) -> Tensor:
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    changed = np.asarray(change(image))  # type: ignore[operator]
    return torch.from_numpy(changed.transpose(2, 0, 1).copy()).float()


@pytest.mark.parametrize("strength", [-0.8, 0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("name", "theirs", "near"),
    [
        ("brightness", lambda s: lambda image: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s), 1.0),
        ("contrast", lambda s: lambda image: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s), 1.6),
        ("saturation", lambda s: lambda image: ImageEnhance.Color(image).enhance(1 + 0.9 * s), 2.0),
        ("sharpness", lambda s: lambda image: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s), 2.0),
        ("solarize", lambda s: lambda image: ImageOps.solarize(image, 255.99 * (1 - abs(s))), 0.0),
        ("posterize", lambda s: lambda image: ImageOps.posterize(image, 8 - round(4 * abs(s))), 0.0),
        ("autocontrast", lambda s: ImageOps.autocontrast, 1.0),
        ("equalize", lambda s: ImageOps.equalize, 0.0),
    ],
)
def test_colors_are_pillows(name: str, theirs: object, near: float, strength: float) -> None:
    given = torch.stack([photo(i, 40) for i in range(3)])
    ours = color_ops.CHANGES[name](given.float(), torch.full((3,), strength))
    wanted = torch.stack([pillows(one, theirs(strength)) for one in given])  # type: ignore[operator]
    assert float((ours - wanted).abs().max()) <= near


def test_each_picture_has_its_own_operation() -> None:
    """Chosen one by one, or all changed and then picked, as a GPU does: the same."""
    given = torch.stack([photo(i) for i in range(9)]).float()
    names = ("nothing", *color_ops.CHANGES)
    kinds, strength = torch.arange(9), torch.linspace(-0.9, 0.9, 9)
    made = color_ops.apply_ops(given, kinds, names, strength)
    for i, name in enumerate(names):
        alone = given[i : i + 1]
        wanted = alone if name == "nothing" else color_ops.CHANGES[name](alone, strength[i : i + 1])
        torch.testing.assert_close(made[i : i + 1], wanted)


def test_what_a_gpu_does_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """All images changed and the right ones picked, as it is compiled too, or only the right ones changed."""
    one_by_one = augment(batch(), STRONG, chance(3))
    monkeypatch.setattr("torch.compiler.is_compiling", lambda: True)
    together = augment(batch(), STRONG, chance(3))
    for name in one_by_one:
        torch.testing.assert_close(together[name], one_by_one[name], rtol=0, atol=1e-3)


def test_a_flat_picture_stays() -> None:
    flat = torch.full((1, 3, 5, 5), 70.0)
    for change in (color_ops.autocontrast, color_ops.equalize):
        assert torch.equal(change(flat, torch.ones(1)), flat)


# Rectangles and mixtures.


def test_erasing_hits_so_many_and_so_much() -> None:
    given = {"pixels": torch.full((400, 3, 32, 32), -9.0)}
    made = augment(given, Augmentation(random_erasing=0.25), chance())["pixels"]
    hit = (made != -9).any(dim=1)
    share = hit.float().mean(dim=(1, 2))
    assert 0.18 < (share > 0).float().mean() < 0.32
    assert share[share > 0].min() > 0.01 and share.max() < 0.36
    for one in hit[share > 0][:20]:
        rows, columns = one.any(1).nonzero().flatten(), one.any(0).nonzero().flatten()
        assert one[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()


@pytest.mark.parametrize(("mixup", "cutmix", "cut"), [(0.8, 0.0, 0.0), (0.0, 1.0, 1.0), (0.8, 1.0, 0.5)])
def test_mixtures_are_as_large_as_their_shares_say(mixup: float, cutmix: float, cut: float) -> None:
    """Images of one level each: the mean tells the share, and cut ones have no level in between."""
    given = {"pixels": torch.arange(64.0).view(-1, 1, 1, 1).expand(64, 3, 16, 16), "labels": torch.arange(64)}
    made = augment(given, Augmentation(mixup=mixup, cutmix=cutmix), chance())
    own, other, share = made["labels"].float(), made["other_labels"].float(), made["share"]
    assert torch.equal(other, own.flip(0)) and (share >= 0).all() and (share <= 1).all()
    wanted = share * own + (1 - share) * other
    torch.testing.assert_close(made["pixels"].mean(dim=(1, 2, 3)), wanted, rtol=1e-4, atol=1e-3)
    whole = (made["pixels"] == own.view(-1, 1, 1, 1)) | (made["pixels"] == other.view(-1, 1, 1, 1))
    assert float(whole.flatten(1).all(1).float().mean()) == pytest.approx(cut, abs=0.2 if cut == 0.5 else 0.05)


def test_a_share_of_pictures_is_mixed() -> None:
    given = {"pixels": torch.arange(400.0).view(-1, 1, 1, 1).expand(400, 3, 8, 8), "labels": torch.arange(400)}
    made = augment(given, Augmentation(mixup=0.8, cutmix=1.0, mix_prob=0.3), chance())
    alone = made["share"] == 1
    assert 0.6 < float(alone.float().mean()) < 0.85
    assert torch.equal(made["pixels"][alone], given["pixels"][alone])
    assert not (made["pixels"][~alone] == given["pixels"][~alone]).flatten(1).all(dim=1).any()


def test_mixing_what_has_no_label_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"task\.augment\.mixup .*task\.augment\.cutmix"):
        augment({"pixels": torch.zeros(2, 3, 8, 8)}, Augmentation(mixup=0.8), chance())


def test_beta_has_its_mean_and_variance() -> None:
    drawn = beta(0.8, 20_000, chance(), torch.device("cpu"))
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.003)


@pytest.mark.parametrize(
    "change", [{"flip": 2.0}, {"crop": (0.5,)}, {"mixup": -1.0}, {"crop": (0.9, 0.2)}, {"rotate": 181.0}]
)
def test_settings_that_cannot_be(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Augmentation(**change)  # type: ignore[arg-type]
