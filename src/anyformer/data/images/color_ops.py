"""Changes of color on a batch of images [B, C, H, W] from 0 to 255, each with a strength of its own: those of
Pillow's ImageOps and ImageEnhance, which RandAugment draws from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Change = Callable[[Tensor, Tensor], Tensor]  # images, strengths [B] from -1 to 1


def apply_ops(pixels: Tensor, kind: Tensor, names: Sequence[str], strength: Tensor) -> Tensor:
    """Each image changed as the name that `kind` [B] points to says; a kind beyond the names leaves it."""
    for i, name in enumerate(names):
        if name in CHANGES:
            pixels = apply_where(pixels, kind == i, CHANGES[name], strength)
    return pixels


def apply_where(pixels: Tensor, chosen: Tensor, change: Change, strength: Tensor) -> Tensor:
    """The chosen images changed. A GPU changes all and picks, which is quicker than asking it how many there are."""
    if pixels.device.type == "cpu" and not torch.compiler.is_compiling():
        rows = chosen.nonzero().squeeze(1)
        return pixels if not len(rows) else pixels.index_copy(0, rows, change(pixels[rows], strength[rows]))
    return torch.where(chosen.view(-1, 1, 1, 1), change(pixels, strength), pixels)


def jitter(pixels: Tensor, most: float, draws: Sequence[Tensor]) -> Tensor:
    """Brightness, contrast and saturation, each by up to `most`."""
    for change, draw in zip((brightness, contrast, saturation), draws, strict=True):
        pixels = change(pixels, (2 * draw - 1) * most / ENHANCE)
    return pixels


ENHANCE = 0.9  # how far from 1 the factor of the strongest brightness, contrast, saturation and sharpness is


def _factor(strength: Tensor) -> Tensor:
    return (1 + ENHANCE * strength).view(-1, 1, 1, 1)


def to_grayscale(pixels: Tensor) -> Tensor:
    """[B, 1, H, W], by the weights of ITU-R 601."""
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
    """Away from a blurred image, or towards it; the outermost pixels stay."""
    if min(pixels.shape[-2:]) < 3:
        return pixels
    inner = pixels[:, :, 1:-1, 1:-1]
    blurred = pixels.clone()
    blurred[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(pixels, 3, stride=1) + 4 * inner) / 13
    return (blurred + _factor(strength) * (pixels - blurred)).clamp(0, 255)


def solarize(pixels: Tensor, strength: Tensor) -> Tensor:
    """What is brighter than a limit turns to its negative."""
    limit = (255.99 * (1 - strength.abs())).view(-1, 1, 1, 1)
    return torch.where(pixels < limit, pixels, 255 - pixels)


def posterize(pixels: Tensor, strength: Tensor) -> Tensor:
    """Down to 4 bits a channel."""
    step = 2 ** (4 * strength.abs()).round().view(-1, 1, 1, 1)
    return (pixels / step).floor() * step


def autocontrast(pixels: Tensor, strength: Tensor) -> Tensor:
    """Each channel from its darkest and brightest to 0 and 255 (autocontrast)."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    wide = high - low
    return torch.where(wide > 0, (pixels - low) * 255 / wide.clamp(min=1e-6), pixels)


def equalize(pixels: Tensor, strength: Tensor) -> Tensor:
    """Each channel's levels as often as each other, as far as can be."""
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
