"""Drawings of predictions on images: boxes with labels, keypoints, masks, attention; and grids of images.

Functions take and return PIL images in RGB. Coordinates are those of the stored image and are scaled if the image is
enlarged or was opened at a reduced size.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyformer.data.images.image_file import original_size, pillow

SMALLEST = 224  # minimum length in pixels of the longer side of a drawing
TILE = 1000  # maximum length in a grid
PAPER, INK = (255, 255, 255), (27, 42, 65)
LINE, STRIP = 900, 26  # pixels: width of a text line, height of a character's strip below it


def class_color(i: int) -> tuple[int, int, int]:
    """A color for each class, easily distinguished: steps of the golden angle."""
    red, green, blue = colorsys.hsv_to_rgb(i * 0.618034 % 1.0, 0.85, 0.95)
    return int(red * 255), int(green * 255), int(blue * 255)


def enlarge(image: Any) -> tuple[Any, Any]:
    """Enlarge a small image with nearest-neighbor sampling; returns it and the scale of x and y."""
    scale = max(math.ceil(SMALLEST / max(image.size)), 1)
    size = (image.width * scale, image.height * scale)
    larger = image.convert("RGB").resize(size, resample=0) if scale > 1 else image.convert("RGB").copy()
    return larger, np.array(size) / original_size(image)[::-1]


def shrink(image: Any) -> Any:
    """Shrink a large image for a grid."""
    scale = max(image.size) / TILE
    return image if scale <= 1 else image.resize([max(round(side / scale), 1) for side in image.size])


def pen(image: Any, letters: int = 0) -> tuple[Any, Any, int]:
    """A drawing context, a font (of size `letters`) and a line width that fit the image."""
    from PIL import ImageDraw, ImageFont

    side = max(image.size)
    return ImageDraw.Draw(image), ImageFont.load_default(letters or max(side // 45, 11)), max(side // 250, 1)


def boxes(image: Any, coordinates: Any, names: Sequence[str], kinds: Sequence[int] | None = None) -> Any:
    """Draw boxes [n, 4] (left, top, right, bottom) with labels; the most confident one is drawn last. `kinds` select
    the colors. Labels lie above all boxes."""
    image, scale = enlarge(image)
    draw, font, width = pen(image)
    tints = [class_color(kind) for kind in (kinds if kinds is not None else range(len(names)))]
    corners = (np.asarray(coordinates, dtype=np.float64).reshape(-1, 2, 2) * scale).reshape(-1, 4).tolist()
    every = list(zip(corners, names, tints, strict=True))[::-1]
    for (left, top, right, bottom), _, tint in every:
        draw.rectangle((left, top, max(right, left), max(bottom, top)), outline=tint, width=width + 1)
    for (left, top, _, _), name, tint in every:
        label(draw, font, name, left, top, tint)
    return image


def label(draw: Any, font: Any, text: str, left: float, top: float, tint: tuple[int, int, int]) -> None:
    """A label on a colored background above a position, or below it at the upper edge; shifted into the image."""
    if not text:
        return
    across, down = draw.textbbox((0, 0), text, font=font)[2:]
    left = max(min(left, draw.im.size[0] - across - 5), 0)
    top = max(min(top - down - 2 if top >= down + 2 else top, draw.im.size[1] - down - 2), 0)
    frame = draw.textbbox((left + 2, top), text, font=font)
    draw.rectangle((frame[0] - 2, frame[1] - 1, frame[2] + 2, frame[3] + 1), fill=tint)
    draw.text((left + 2, top), text, fill=INK if sum(tint) > 380 else PAPER, font=font)


def keypoints(image: Any, points: Any, bones: Sequence[tuple[int, int]] = (), least: float = 0.0) -> Any:
    """Draw dots at [n, keypoints, 3] or [keypoints, 3] and the bones between them, if they score more than `least`."""
    image, scale = enlarge(image)
    draw, _, width = pen(image)
    every = np.asarray(points, dtype=np.float64)
    for i, person in enumerate(every[None] if every.ndim == 2 else every):
        seen = person[:, 2] > least if person.shape[1] > 2 else np.ones(len(person), dtype=bool)
        coordinates = person[:, :2] * scale
        for a, b in bones:
            if seen[a] and seen[b]:
                draw.line(
                    [*map(float, coordinates[a]), *map(float, coordinates[b])], fill=class_color(i + a), width=width + 1
                )
        for x, y in coordinates[seen]:
            draw.ellipse(
                (x - width - 1, y - width - 1, x + width + 1, y + width + 1), fill=class_color(i), outline=PAPER
            )
    return image


def mask(
    image: Any, classes: Any, names: Sequence[str] = (), nothing: Sequence[int] = (0, 255), share: float = 0.55
) -> Any:
    """Overlay a class mask [rows, columns] in colors, with a legend of its classes. An image that was opened at a
    reduced size shows fewer pixels of it."""
    classes, image = np.asarray(classes), image.convert("RGB")
    if classes.shape != image.size[::-1]:
        rows, columns = (np.arange(n) * of // n for n, of in zip(image.size[::-1], classes.shape, strict=True))
        classes = classes[rows[:, None], columns]
    tints = np.zeros((*classes.shape, 3), dtype=np.float32)
    present = [int(kind) for kind in np.unique(classes) if int(kind) not in nothing]
    for kind in present:
        tints[classes == kind] = class_color(kind)
    shown = np.isin(classes, present)[..., None]
    whole = np.asarray(image, dtype=np.float32)
    mixed = np.where(shown, (1 - share) * whole + share * tints, whole)
    result, _ = enlarge(pillow().Image.fromarray(mixed.astype(np.uint8)))
    draw, font, _ = pen(result)
    top = 2.0
    for kind in present:
        name = names[kind] if kind < len(names) else str(kind)
        label(draw, font, name, 2, top, class_color(kind))
        top += draw.textbbox((0, 0), name, font=font)[3] + 4
    return result


def heatmap(image: Any, weights: Any) -> Any:
    """Overlay weights [rows, columns] on an image: bright for large weights."""
    image, _ = enlarge(image)
    weights = np.asarray(weights, dtype=np.float32)
    low, high = float(weights.min()), float(weights.max())
    levels = ((weights - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    smooth = pillow().Image.fromarray(levels).resize(image.size, resample=3)
    shine = np.asarray(smooth, dtype=np.float32)[..., None] / 255
    warm = np.array([255, 170, 40], dtype=np.float32) * shine
    lit = np.asarray(image, dtype=np.float32) * (0.25 + 0.6 * shine) + 0.35 * warm
    return pillow().Image.fromarray(lit.clip(0, 255).astype(np.uint8))


def side_by_side(images: Sequence[Any], titles: Sequence[str] = ()) -> Any:
    """Images in a row, with a title above each."""
    return grid([list(images)], titles)


def grid(rows: Sequence[Sequence[Any]], titles: Sequence[str] = (), gap: int = 4) -> Any:
    """Rows of images with `titles` above the columns."""
    rows = [[enlarge(image)[0] for image in row] for row in rows]
    wide = max(image.width for row in rows for image in row)
    highs = [max(image.height for image in row) for row in rows]
    columns = max(len(row) for row in rows)
    head = max(wide // 12, 11) if titles else 0  # font size
    high = sum(high + gap for high in highs) + gap + (head + gap if titles else 0)
    sheet = pillow().Image.new("RGB", (columns * (wide + gap) + gap, high), PAPER)
    draw, font, _ = pen(sheet, head)
    for i, title in enumerate(titles):
        draw.text((gap + i * (wide + gap), 1), title, fill=INK, font=font)
    top = 2 * gap + head if titles else gap
    for row, high in zip(rows, highs, strict=True):
        for i, image in enumerate(row):
            sheet.paste(image, (gap + i * (wide + gap), top))
        top += high + gap
    return sheet


def strips(line: Any, weights: Any, names: Sequence[str]) -> Any:
    """A line of text with a strip below it for each name, dark for large weights [n, columns]."""
    line = line.convert("RGB").resize((LINE, max(line.height * LINE // line.width, 1)))
    sheet = pillow().Image.new("RGB", (LINE + STRIP, line.height + STRIP * len(names)), PAPER)
    sheet.paste(line, (STRIP, 0))
    draw, font, _ = pen(sheet, STRIP - 4)
    shares = np.asarray(weights) / np.maximum(np.max(weights, axis=1, keepdims=True), 1e-9)
    for row, (one, name) in enumerate(zip(shares, names, strict=True)):
        top = line.height + row * STRIP
        shades = pillow().Image.fromarray((255 - 200 * one).astype(np.uint8)[None])
        sheet.paste(shades.resize((LINE, STRIP - 2), resample=2), (STRIP, top))
        draw.text((3, top), name, fill=INK, font=font)
    return sheet
