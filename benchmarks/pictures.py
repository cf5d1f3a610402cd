"""Images a second: opened, decoded and resized on one core, beside transformers' processor on the same files; fed to
a trainer from memory; and augmented on a device.

python benchmarks/pictures.py [--device cuda]

Images: CIFAR-10 and COCO-256 under ANYFORMER_DATA, or made-up ones of like sizes.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from anyformer.data.images.augment import Augmentation, augment
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.loading import DecodedImages
from anyformer.data.images.processor import ImageProcessor
from anyformer.data.rows import ListRows
from anyformer.tasks.classify_image import ClassifyImageOptions

ROUNDS = 5


def large(n: int = 64) -> tuple[list[bytes], str]:
    path = Path(os.environ.get("ANYFORMER_DATA", "nowhere")) / "coco256" / "train_images.zip"
    if path.exists():
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in archive.namelist()[:n]], "COCO-256, about 480 x 360"
    return [_jpeg(360, 480, i) for i in range(n)], "made up, 480 x 360"


def small(n: int = 2048) -> tuple[list[bytes], str]:
    path = Path(os.environ.get("ANYFORMER_DATA", "nowhere")) / "cifar10" / "val.npz"
    if path.exists():
        with np.load(path) as stored:
            jpeg, ends = stored["jpeg"], stored["offsets"]
        return [jpeg[ends[i] : ends[i + 1]].tobytes() for i in range(n)], "CIFAR-10, 32 x 32"
    return [_jpeg(32, 32, i) for i in range(n)], "made up, 32 x 32"


def _jpeg(height: int, width: int, seed: int) -> bytes:
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def rates(count: int, *works: Callable[[], object], device: str = "cpu") -> list[float]:
    """Images a second: the medians of a few rounds, taking turns."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS + 1):
        for work, spent in zip(works, seconds, strict=True):
            start = time.perf_counter()
            work()
            if device != "cpu":
                torch.cuda.synchronize()
            spent.append(time.perf_counter() - start)
    return [count / statistics.median(spent[1:]) for spent in seconds]


def decoding(files: list[bytes], size: int) -> list[float]:
    """Ours (open, place, normalize one by one) and transformers' with Pillow."""
    from PIL import Image
    from transformers import ViTImageProcessorPil

    ours = ImageProcessor(size=(size, size))
    theirs = ViTImageProcessorPil(size={"height": size, "width": size})
    pictures = [ImageFile.of(content) for content in files]

    def run() -> None:
        for picture in pictures:
            ours([picture.open()])

    def peer() -> None:
        for content in files:
            theirs(Image.open(io.BytesIO(content)).convert("RGB"), return_tensors="pt")

    return rates(len(files), run, peer)


def feeding(files: list[bytes], batch: int = 512) -> float:
    """Kept images as stacked batches."""
    processor = ImageProcessor(size=(32, 32))
    rows = ListRows([{"image": ImageFile.of(content)} for content in files])
    examples = DecodedImages(rows, lambda row: {"image": processor.resize(row["image"].open())[0]})

    def run() -> None:
        for start in range(0, len(files), batch):
            processor.stack([one["image"] for one in examples.take(range(start, start + batch))])

    return rates(len(files), run)[0]


def augmenting(device: str, batch: int, side: int, settings: Augmentation, compiled: bool) -> float:
    pixels = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
    given = {"pixels": pixels, "labels": torch.arange(batch, device=device) % 10}
    chance = torch.Generator(device).manual_seed(0)
    processor = ImageProcessor(size=(side, side))
    times = 10 if device != "cpu" else 1

    def run() -> None:
        for _ in range(times):
            processor.normalize(augment(given, settings, chance, compiled=compiled)["pixels"])

    return rates(times * batch, run, device=device)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for found, size in ((large(), 224), (small(), 32)):
        files, name = found
        ours, theirs = decoding(files, size)
        print(
            f"decode to {size} x {size}, one core ({name}): {ours:,.0f} images/s, transformers {theirs:,.0f},", end=""
        )
        print(f" ratio {ours / theirs:.2f}")
    print(f"feed kept 32 x 32 in batches of 512, one core: {feeding(small()[0]):,.0f} images/s")
    strong = ClassifyImageOptions().augment.replace(magnitude=0.9, random_erasing=0.25, mix_prob=1.0)  # as DeiT
    for side, batch in ((32, 512), (224, 64)):
        for compiled in (False, True) if options.device != "cpu" else (False,):
            found_rate = augmenting(options.device, batch, side, strong, compiled)
            how = "compiled" if compiled else "one by one"
            print(f"augment {side} x {side}, batch {batch}, {options.device}, {how}: {found_rate:,.0f} images/s")


if __name__ == "__main__":
    main()
