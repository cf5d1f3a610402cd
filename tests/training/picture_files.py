"""Small data sets of images, made by formula: squares of a color that says the class."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np
from PIL import Image

COLORS = {"red": (200, 40, 40), "green": (40, 200, 40), "blue": (40, 40, 200)}
Files = dict[str, bytes]


def square(color: tuple[int, int, int], i: int, side: int = 32) -> Any:
    """A square of 12 pixels on gray noise; where it lies depends on `i`."""
    chance = np.random.default_rng(i)
    pixels = chance.integers(90, 130, (side, side, 3), dtype=np.uint8)
    left, top = corner(i, side)
    pixels[top : top + 12, left : left + 12] = color
    return pixels


def corner(i: int, side: int = 32) -> tuple[int, int]:
    return i * 7 % (side - 12), i * 5 % (side - 12)


def encode(pixels: Any, format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(stream, format, **options)
    return stream.getvalue()


def zipped(files: Files) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def labeled(n: int = 24) -> list[tuple[str, Any]]:
    names = list(COLORS)
    return [(names[i % 3], square(COLORS[names[i % 3]], i)) for i in range(n)]


def npz(n: int = 24) -> bytes:
    """Arrays x and y, with the names of the classes."""
    rows = labeled(n)
    stream = io.BytesIO()
    np.savez(
        stream,
        x=np.stack([pixels for _, pixels in rows]),
        y=np.array([list(COLORS).index(label) for label, _ in rows]),
        classes=np.array(list(COLORS)),
    )
    return stream.getvalue()


def coco(n: int = 24) -> Files:
    """COCO's json with a box, four keypoints (the corners) and an outline for each square, and its images in a zip."""
    names = list(COLORS)
    pictures = {f"{i}.png": encode(pixels) for i, (_, pixels) in enumerate(labeled(n))}
    images = [{"id": i, "file_name": f"{i}.png", "width": 32, "height": 32} for i in range(n)]
    notes = []
    for i in range(n):
        left, top = corner(i)
        right, bottom = left + 12, top + 12
        joints = [left, top, 2, right, top, 2, left, bottom, 2, right, bottom, 2]
        notes.append(
            {
                "id": i,
                "image_id": i,
                "category_id": names.index(labeled(n)[i][0]) + 1,
                "bbox": [left, top, 12, 12],
                "area": 144,
                "iscrowd": 0,
                "keypoints": joints,
                "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
            }
        )
    corners = ["left_top", "right_top", "left_bottom", "right_bottom"]
    kinds = [{"id": i + 1, "name": name, "keypoints": corners, "skeleton": [[1, 2]]} for i, name in enumerate(names)]
    whole = {"images": images, "annotations": notes, "categories": kinds}
    return {"x.json": json.dumps(whole).encode(), "x_images.zip": zipped(pictures)}


def captioned(n: int = 24) -> Files:
    """A list of images with two captions each, and the images in a zip."""
    rows = labeled(n)
    images = [
        {"file": f"{i}.png", "captions": [f"a {label} square on gray", f"something {label}"]}
        for i, (label, _) in enumerate(rows)
    ]
    pictures = {f"{i}.png": encode(pixels) for i, (_, pixels) in enumerate(rows)}
    return {"x.json": json.dumps({"images": images}).encode(), "x_images.zip": zipped(pictures)}


def lines(n: int = 24) -> Files:
    """Gray lines of text of uneven width, as bars whose heights spell letters, with a table of what they say."""
    table, pictures = ["file\ttext"], {}
    for i in range(n):
        text = "ABCD"[i % 4] * (1 + i % 3) + "BA"[i % 2]
        pixels = np.full((16, 8 * len(text)), 220, dtype=np.uint8)
        for place, letter in enumerate(text):
            pixels[16 - 4 * ("ABCD".index(letter) + 1) :, 8 * place + 2 : 8 * place + 6] = 30
        pictures[f"{i}.png"] = encode(pixels)
        table.append(f"{i}.png\t{text}")
    return {"x.tsv": "\n".join(table).encode() + b"\n", "x_lines.zip": zipped(pictures)}
