"""Random image augmentation of batches, on any device.

batch = augment({"pixels": pixels, "labels": labels}, Augmentation(flip=0.5, mixup=0.8), generator)

Geometric operations (crop, shift, flip, rotation, shear) are composed to one affine map per image, which is sampled
once and also applied to boxes, keypoints and masks. Then come color operations, random erasing, and mixing of two
images. All random numbers are drawn from the given generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.images.color_ops import apply_ops, jitter
from anyformer.errors import ConfigError
from anyformer.forward_context import IGNORED

Batch = dict[str, Tensor]

AFFINE_OPS = ("rotate", "shear_x", "shear_y", "move_x", "move_y")
COLOR_OPS = (
    "nothing",
    "autocontrast",
    "equalize",
    "solarize",
    "posterize",
    "saturation",
    "contrast",
    "brightness",
    "sharpness",
)
DRAWS = 64  # random numbers for each image, drawn in one kernel
ASPECT = 4 / 3  # maximum aspect ratio of a random crop
LEFT = 0.25  # fraction of a box that must stay inside for the box to be kept


@dataclass(frozen=True, kw_only=True)
class Augmentation(Settings):
    """0 or None disables an operation."""

    crop: tuple[float, ...] | None = (
        None  # range of the fraction of the area that is cropped and resized; above 1 the image shrinks
    )
    pad: float = 0.0  # maximum shift as a fraction of the sides; the border is gray
    flip: float = 0.0  # probability of a horizontal flip
    rotate: float = 0.0  # maximum rotation in degrees, in either direction
    randaugment_ops: int = 0  # operations drawn from RandAugment (Cubuk et al. 2020), each on half of the images
    magnitude: float = 0.9  # their strength, 0 to 1
    color_jitter: float = 0.0  # maximum relative change of brightness, contrast and saturation
    random_erasing: float = 0.0  # probability that a rectangle is replaced by noise (Zhong et al. 2020)
    mixup: float = 0.0  # alpha of the beta distribution for blending two images (Zhang et al. 2018); 0 disables it
    cutmix: float = 0.0  # alpha of the distribution of a pasted rectangle's area (Yun et al. 2019); 0 disables it
    mix_prob: float = 1.0  # probability that an image is mixed at all

    def check(self) -> None:
        for name in ("pad", "flip", "magnitude", "color_jitter", "random_erasing", "mix_prob"):
            value = getattr(self, name)
            self.require(0 <= value <= 1, f"{name} is {value}; it must be from 0 to 1.")
        self.require(0 <= self.rotate <= 180, f"rotate is {self.rotate}; it must be from 0 to 180.")
        for name in ("randaugment_ops", "mixup", "cutmix"):
            self.require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 or more.")
        good = self.crop is None or (len(self.crop) == 2 and 0 < self.crop[0] <= self.crop[1])
        self.require(
            good, f"crop is {self.crop}; it must be two fractions of the area in increasing order, such as 0.08, 1."
        )

    @property
    def is_geometric(self) -> bool:
        return self.crop is not None or self.pad > 0 or self.flip > 0 or self.rotate > 0 or self.randaugment_ops > 0


def augment(
    batch: Batch, settings: Augmentation, generator: Generator, swaps: Tensor | None = None, *, compiled: bool = False
) -> Batch:
    """`pixels` [B, C, H, W] from 0 to 255, with their targets: `boxes` [B, n, 4] with `classes` [B, n], `keypoints`
    [B, keypoints, 3], `mask` [B, H, W]. `sizes` [B, 2] are given if images are padded. `swaps` [keypoints] is the index
    of each keypoint's mirror image; without it, images with keypoints are not flipped.

    Mixing adds `other_labels` and `share`, the fraction of each image that is its own. `compiled` fuses the hundreds of
    small operations, which saves launch time on a GPU with small models.
    """
    drawn = sample_parameters(batch["pixels"], settings, generator)
    return (_compiled() if compiled else apply_augmentation)(batch, drawn, settings, swaps)


@cache
def _compiled() -> Any:
    return torch.compile(apply_augmentation, dynamic=False)


def sample_parameters(pixels: Tensor, settings: Augmentation, generator: Generator) -> Batch:
    """Draw all random numbers."""
    n, device = len(pixels), pixels.device
    drawn = {"numbers": torch.rand(DRAWS, n, generator=generator, device=device)}
    if settings.random_erasing:
        drawn["noise"] = torch.randn(pixels.shape, generator=generator, device=device)
    if settings.mixup:
        drawn["overlay"] = beta(settings.mixup, n, generator, device)
    if settings.cutmix:
        drawn["kept"] = beta(settings.cutmix, n, generator, device)
    return drawn


def apply_augmentation(batch: Batch, drawn: Batch, settings: Augmentation, swaps: Tensor | None) -> Batch:
    """Apply the operations for drawn numbers; deterministic."""
    pixels = batch["pixels"].float()
    draws = iter(drawn["numbers"].unbind())
    chosen = [_choose(next(draws), next(draws), settings) for _ in range(settings.randaugment_ops)]
    result = dict(batch)
    if settings.is_geometric:
        height, width = (torch.full_like(drawn["numbers"][0], side) for side in pixels.shape[-2:])
        sizes = batch["sizes"].float() if "sizes" in batch else torch.stack([height, width], dim=1)
        flips = next(draws) < settings.flip
        if "keypoints" in batch and swaps is None:
            flips = torch.zeros_like(flips)
        maps = compose(settings, sizes, flips, chosen, draws)
        pixels = warp(pixels, maps)
        result |= transform_targets(batch, maps, sizes, flips, swaps)
    for kind, strength in chosen:
        pixels = apply_ops(pixels, kind, COLOR_OPS, strength)
    if settings.color_jitter:
        pixels = jitter(pixels, settings.color_jitter, [next(draws) for _ in range(3)])
    if settings.random_erasing:
        pixels = erase(pixels, settings.random_erasing, draws, drawn["noise"])
    result["pixels"] = pixels
    return mix(result, settings, draws, drawn) if settings.mixup or settings.cutmix else result


def _choose(which: Tensor, how: Tensor, settings: Augmentation) -> tuple[Tensor, Tensor]:
    """The index of an operation (in COLOR_OPS and AFFINE_OPS) for half of the images, and its strength from -m to m."""
    kinds = len(COLOR_OPS) + len(AFFINE_OPS)
    kind = ((2 * which - 1).clamp(min=0) * kinds).long().clamp(max=kinds - 1)  # index 0: no operation
    return kind, (2 * how - 1).sign() * (0.5 + 0.5 * (2 * how - 1).abs()) * settings.magnitude


# Maps [B, 2, 3] from points (x, y, 1) of an image to points of the result; pixel i covers i to i + 1.


def compose(
    settings: Augmentation, sizes: Tensor, flips: Tensor, chosen: list[tuple[Tensor, Tensor]], draws: Iterator[Tensor]
) -> Tensor:
    height, width = sizes[:, 0], sizes[:, 1]
    maps = affine(torch.ones_like(height))
    if settings.crop is not None:
        maps = compose_affine(_crop(settings.crop, height, width, draws), maps)
    if settings.pad:
        across, down = ((2 * next(draws) - 1) * settings.pad * side for side in (width, height))
        maps = compose_affine(affine(torch.ones_like(height), x=across.round(), y=down.round()), maps)
    side = torch.where(flips, -1.0, 1.0)
    maps = compose_affine(affine(side, torch.ones_like(side), x=torch.where(flips, width, 0.0)), maps)
    if settings.rotate:
        angle = (2 * next(draws) - 1) * math.radians(settings.rotate)
        maps = compose_affine(_about(affine(angle.cos(), xy=-angle.sin(), yx=angle.sin()), height, width), maps)
    for kind, strength in chosen:
        maps = compose_affine(_move(kind - len(COLOR_OPS), strength, height, width), maps)
    return maps


def affine(
    xx: Tensor,
    yy: Tensor | None = None,
    *,
    xy: Tensor | None = None,
    yx: Tensor | None = None,
    x: Tensor | None = None,
    y: Tensor | None = None,
) -> Tensor:
    """Affine maps x' = xx·x + xy·y + x,  y' = yx·x + yy·y + y."""
    zero = torch.zeros_like(xx)
    rows = [xx, xy, x, yx, yy if yy is not None else xx, y]
    return torch.stack([zero if value is None else value for value in rows], dim=1).view(-1, 2, 3)


def compose_affine(second: Tensor, first: Tensor) -> Tensor:
    """Compose two maps, `first` first. No matrix product: it may have reduced precision on a GPU."""
    linear = (second[:, :, :2, None] * first[:, None, :, :]).sum(dim=2)
    shift = torch.cat([torch.zeros_like(second[:, :, :2]), second[:, :, 2:]], dim=2)
    return linear + shift


def inverse(maps: Tensor) -> Tensor:
    a, b, x, c, d, y = maps.flatten(1).unbind(dim=1)
    down = a * d - b * c
    back = affine(d / down, a / down, xy=-b / down, yx=-c / down)
    return compose_affine(back, affine(torch.ones_like(a), x=-x, y=-y))


def _crop(area: tuple[float, ...], height: Tensor, width: Tensor, draws: Iterator[Tensor]) -> Tensor:
    """A random crop, resized to the whole image."""
    share = area[0] + (area[1] - area[0]) * next(draws)
    aspect = torch.exp((2 * next(draws) - 1) * math.log(ASPECT))
    most = max(area[1], 1.0) ** 0.5
    wide, high = ((share * aspect).sqrt().clamp(max=most), (share / aspect).sqrt().clamp(max=most))
    left, top = next(draws) * (1 - wide) * width, next(draws) * (1 - high) * height
    return affine(1 / wide, 1 / high, x=-left / wide, y=-top / high)


def _move(kind: Tensor, strength: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """The operations AFFINE_OPS about the center; other kinds are the identity."""

    def only(name: str, value: Tensor) -> Tensor:
        return torch.where(kind == AFFINE_OPS.index(name), value, torch.zeros_like(value))

    angle = only("rotate", strength * math.radians(30))
    cos, sin = angle.cos(), angle.sin()
    lean_x, lean_y = only("shear_x", strength * 0.3), only("shear_y", strength * 0.3)
    x, y = only("move_x", strength * 0.45 * width), only("move_y", strength * 0.45 * height)
    return _about(affine(cos, cos, xy=-sin + lean_x, yx=sin + lean_y, x=x, y=y), height, width)


def _about(turned: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Conjugate a map with the translation to the center."""
    one = torch.ones_like(height)
    return compose_affine(
        affine(one, x=width / 2, y=height / 2), compose_affine(turned, affine(one, x=-width / 2, y=-height / 2))
    )


def sample_grid(maps: Tensor, height: int, width: int) -> Tensor:
    """Sampling grid [B, H, W, 2] for grid_sample."""
    a, b, x, c, d, y = (value.view(-1, 1, 1) for value in inverse(maps).flatten(1).unbind(dim=1))
    across = torch.arange(width, device=maps.device, dtype=maps.dtype) + 0.5
    down = (torch.arange(height, device=maps.device, dtype=maps.dtype) + 0.5).unsqueeze(1)
    return torch.stack([(a * across + b * down + x) * 2 / width - 1, (c * across + d * down + y) * 2 / height - 1], -1)


def warp(pixels: Tensor, maps: Tensor, fill: float = 127.5) -> Tensor:
    grid = sample_grid(maps, pixels.shape[-2], pixels.shape[-1])
    return F.grid_sample(pixels - fill, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + fill


def warp_mask(mask: Tensor, maps: Tensor, fill: int = IGNORED) -> Tensor:
    """Warp class masks [B, H, W] with nearest-neighbor sampling; `fill` outside the image."""
    grid = sample_grid(maps, mask.shape[-2], mask.shape[-1])
    shifted = (mask.float() - fill).unsqueeze(1)
    moved = F.grid_sample(shifted, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    return (moved.squeeze(1) + fill).round().to(mask.dtype)


def move_points(points: Tensor, maps: Tensor) -> Tensor:
    """Map points [B, n, 2]."""
    return (maps[:, None, :, :2] * points.unsqueeze(-2)).sum(dim=-1) + maps[:, None, :, 2]


def transform_targets(batch: Batch, maps: Tensor, sizes: Tensor, flips: Tensor, swaps: Tensor | None) -> Batch:
    """Apply the maps to boxes, keypoints and masks."""
    moved: Batch = {}
    edge = sizes.flip(1).unsqueeze(1).to(maps.dtype)  # [B, 1, (width, height)]
    if "boxes" in batch:
        moved["boxes"], keep = move_boxes(batch["boxes"], maps, edge)
        if "classes" in batch:
            moved["classes"] = batch["classes"].masked_fill(~keep, IGNORED)
    if "keypoints" in batch:
        moved["keypoints"] = move_joints(batch["keypoints"], maps, edge, flips, swaps)
    if "mask" in batch:
        moved["mask"] = warp_mask(batch["mask"], maps)
    return moved


def move_boxes(boxes: Tensor, maps: Tensor, edge: Tensor) -> tuple[Tensor, Tensor]:
    """The bounding boxes of mapped boxes, clipped to the image; and which are still visible enough."""
    left, top, right, bottom = boxes.unbind(dim=-1)
    corners = torch.stack([left, top, right, top, left, bottom, right, bottom], dim=-1)
    spread = move_points(corners.reshape(len(boxes), -1, 2), maps).view(len(boxes), -1, 4, 2)
    low, high = spread.amin(dim=2), spread.amax(dim=2)
    inside_low, inside_high = (torch.minimum(value.clamp(min=0), edge) for value in (low, high))
    whole = (high - low).clamp(min=1e-6).prod(dim=-1)
    kept = (inside_high - inside_low).clamp(min=0)
    keep = (kept.prod(dim=-1) >= LEFT * whole) & (kept.amin(dim=-1) >= 1)
    return torch.cat([inside_low, inside_high], dim=-1), keep


def move_joints(joints: Tensor, maps: Tensor, edge: Tensor, flips: Tensor, swaps: Tensor | None) -> Tensor:
    """Map keypoints [B, keypoints, 3]; those outside become invisible. Flips swap left and right."""
    points = move_points(joints[..., :2], maps)
    inside = ((points >= 0) & (points <= edge)).all(dim=-1)
    moved = torch.cat([points, (joints[..., 2] * inside).unsqueeze(-1)], dim=-1)
    if swaps is None:
        return moved
    return torch.where(flips.view(-1, 1, 1), moved[:, swaps.to(moved.device)], moved)


# Random erasing and mixing.


def rectangle(high: Tensor, wide: Tensor, middle_y: Tensor, middle_x: Tensor, height: int, width: int) -> Tensor:
    """[B, H, W]: True inside rectangles; sizes and centers in pixels."""
    down = torch.arange(height, device=high.device).view(1, -1, 1) + 0.5
    across = torch.arange(width, device=high.device).view(1, 1, -1) + 0.5
    high, wide, middle_y, middle_x = (value.view(-1, 1, 1) for value in (high, wide, middle_y, middle_x))
    return ((down - middle_y).abs() < high / 2) & ((across - middle_x).abs() < wide / 2)


def erase(pixels: Tensor, rng: float, draws: Iterator[Tensor], noise: Tensor) -> Tensor:
    """Replace a rectangle of 2% to 33% of the area by noise."""
    height, width = pixels.shape[-2:]
    hit = next(draws) < rng
    area = 0.02 + (1 / 3 - 0.02) * next(draws)
    aspect = torch.exp((2 * next(draws) - 1) * math.log(10 / 3))
    high, wide = ((area * aspect).sqrt().clamp(max=1) * height, (area / aspect).sqrt().clamp(max=1) * width)
    middle_y = high / 2 + next(draws) * (height - high)
    middle_x = wide / 2 + next(draws) * (width - wide)
    inside = rectangle(high, wide, middle_y, middle_x, height, width) & hit.view(-1, 1, 1)
    return torch.where(inside.unsqueeze(1), noise * 127.5 + 127.5, pixels)


def beta(alpha: float, n: int, generator: Generator, device: torch.device) -> Tensor:
    """[n] samples of Beta(alpha, alpha)."""
    both = torch._standard_gamma(torch.full((2, n), alpha, device=device), generator=generator)
    return both[0] / both.sum(dim=0).clamp(min=1e-12)


def mix(batch: Batch, settings: Augmentation, draws: Iterator[Tensor], drawn: Batch) -> Batch:
    """Mix each image with the one at the mirrored position in the batch."""
    if "labels" not in batch or batch["labels"].dim() != 1:
        raise ConfigError(
            "task.augment.mixup and task.augment.cutmix mix labels, but these images have none; set both to 0."
        )
    pixels = batch["pixels"]
    height, width = pixels.shape[-2], pixels.shape[-1]
    other = pixels.flip(0)
    whole = torch.ones_like(drawn["numbers"][0])
    overlay, kept = drawn.get("overlay", whole), drawn.get("kept", whole)
    cuts = next(draws) < (0.0 if not settings.cutmix else 0.5 if settings.mixup else 1.0)
    side = (1 - kept).sqrt()
    inside = rectangle(side * height, side * width, next(draws) * height, next(draws) * width, height, width)
    patched = torch.where(inside.unsqueeze(1), other, pixels)
    share = torch.where(cuts, 1 - inside.float().mean(dim=(1, 2)), overlay)
    weight = overlay.view(-1, 1, 1, 1)
    laid = weight * pixels + (1 - weight) * other
    mixed = torch.where(cuts.view(-1, 1, 1, 1), patched, laid)
    if settings.mix_prob < 1:
        alone = next(draws) >= settings.mix_prob
        mixed, share = torch.where(alone.view(-1, 1, 1, 1), pixels, mixed), share.masked_fill(alone, 1.0)
    return {**batch, "pixels": mixed, "other_labels": batch["labels"].flip(0), "share": share}
