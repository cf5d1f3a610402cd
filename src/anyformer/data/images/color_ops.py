"""The color operations of RandAugment on batches [B, C, H, W] from 0 to 255, with a strength for each image. They equal
Pillow's ImageOps and ImageEnhance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Change = Callable[[Tensor, Tensor], Tensor]  # images, strengths [B] from -1 to 1


def apply_ops(pixels: Tensor, kind: Tensor, names: Sequence[str], strength: Tensor) -> Tensor:
    """Apply to each image the operation of `names` that `kind` [B] selects; an index beyond the names is the
    identity."""
    for i, name in enumerate(names):
        if name in CHANGES:
            pixels = apply_where(pixels, kind == i, CHANGES[name], strength)
    return pixels


def apply_where(pixels: Tensor, chosen: Tensor, change: Change, strength: Tensor) -> Tensor:
    """Apply an operation to the chosen images. On a GPU all images are processed, which avoids a host sync."""
    if pixels.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = chosen.nonzero().squeeze(1)
        return pixels if not len(rows) else pixels.index_copy(0, rows, change(pixels[rows], strength[rows]))
    return torch.where(chosen.view(-1, 1, 1, 1), change(pixels, strength), pixels)


def jitter(pixels: Tensor, most: float, draws: Sequence[Tensor]) -> Tensor:
    """Brightness, contrast and saturation, each changed by up to `most`."""
    for change, draw in zip((brightness, contrast, saturation), draws, strict=True):
        pixels = change(pixels, (2 * draw - 1) * most / ENHANCE)
    return pixels


ENHANCE = 0.9  # maximum difference from 1 of the factor of brightness, contrast, saturation and sharpness


def _factor(strength: Tensor) -> Tensor:
    return (1 + ENHANCE * strength).view(-1, 1, 1, 1)


def to_grayscale(pixels: Tensor) -> Tensor:
    """[B, 1, H, W], with the weights of ITU-R 601."""
    if pixels.shape[1] != 3:
        return pixels.mean(dim=1, keepdim=True)
    red, green, blue = pixels.unbind(dim=1)
    return (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)


def brightness(pixels: Tensor, strength: Tensor) -> Tensor:
    return (pixels * _factor(strength)).clamp(0, 255)


def contrast(pixels: Tensor, strength: Tensor) -> Tensor:
    middle = to_grayscale(pixels).mean(dim=(2, 3), keepdim=True)
    return (middle + _factor(strength) * (pixels - middle)).clamp(0, 255)


def saturation(pixels: Tensor, strength: Tensor) -> Tensor:
    plain = to_grayscale(pixels)
    return (plain + _factor(strength) * (pixels - plain)).clamp(0, 255)


def sharpness(pixels: Tensor, strength: Tensor) -> Tensor:
    """Interpolate between the image and a smoothed one, or extrapolate; border pixels are kept."""
    if min(pixels.shape[-2:]) < 3:
        return pixels
    inner = pixels[:, :, 1:-1, 1:-1]
    blurred = pixels.clone()
    blurred[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(pixels, 3, stride=1) + 4 * inner) / 13
    return (blurred + _factor(strength) * (pixels - blurred)).clamp(0, 255)


def solarize(pixels: Tensor, strength: Tensor) -> Tensor:
    """Invert pixels above a threshold."""
    limit = (255.99 * (1 - strength.abs())).view(-1, 1, 1, 1)
    return torch.where(pixels < limit, pixels, 255 - pixels)


def posterize(pixels: Tensor, strength: Tensor) -> Tensor:
    """Reduce to as few as 4 bits per channel."""
    step = 2 ** (4 * strength.abs()).round().view(-1, 1, 1, 1)
    return (pixels / step).floor() * step


def autocontrast(pixels: Tensor, strength: Tensor) -> Tensor:
    """Stretch each channel to the range 0 to 255."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    wide = high - low
    return torch.where(wide > 0, (pixels - low) * 255 / wide.clamp(min=1e-6), pixels)


def equalize(pixels: Tensor, strength: Tensor) -> Tensor:
    """Equalize the histogram of each channel."""
    levels = pixels.clamp(0, 255).long().flatten(2)  # [B, C, H·W]
    counts = torch.zeros(*levels.shape[:2], 256, device=pixels.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=counts.dtype))
    step = ((levels.shape[2] - counts.gather(2, levels.amax(dim=2, keepdim=True))) / 255).floor()
    before = counts.cumsum(dim=2) - counts
    table = ((before + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(0, 255)
    equal = table.gather(2, levels).view_as(pixels)
    return torch.where(step.unsqueeze(-1) > 0, equal, pixels)


CHANGES: dict[str, Change] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "solarize": solarize,
    "posterize": posterize,
    "saturation": saturation,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
}
