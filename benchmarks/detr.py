"""DETR's table: GFLOPs and parameters beside the paper's, and images a second beside transformers.

    python benchmarks/detr.py                       # counts only, a few seconds
    python benchmarks/detr.py --device cuda         # and speed: bfloat16, 800 x 1066, batches of 1 and 16
    python benchmarks/detr.py --data val.json       # counts at the sizes of the images of a COCO json

The paper counts multiply-adds (one product and one sum are one) of convolutions and matrix products, the mean over the
first 100 images of COCO val2017, each resized to a shorter side of 800 with the longer at most 1333. The same rule is
applied here to the sizes in the json given; by default to the COCO images under $ANYFORMER_DATA/coco256, which are of
that split; where there are none, to one of 800 x 1120.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import anyformer as af
from anyformer import registry

PAPER = {  # table 1 of Carion et al. 2020: GFLOPs, millions of parameters, images a second on a V100, AP
    "detr-r50": (86, 41, 28, 42.0),
    "detr-r50-dc5": (187, 41, 12, 43.3),
    "detr-r101": (152, 60, 20, 43.5),
    "detr-r101-dc5": (253, 60, 10, 44.9),
}
SHORTER, LONGER, FIRST = 800, 1333, 100
ALONE = (800, 1120)
SPEED = (800, 1066)


def resized(height: int, width: int) -> tuple[int, int]:
    short, long = min(height, width), max(height, width)
    scale = min(SHORTER / short, LONGER / long)
    return round(height * scale), round(width * scale)


def sizes(path: Path | None) -> Counter[tuple[int, int]]:
    """How many images there are of each size after resizing."""
    if path is None or not path.exists():
        return Counter({ALONE: 1})
    images = json.loads(path.read_text(encoding="utf-8"))["images"][:FIRST]
    return Counter(resized(image["height"], image["width"]) for image in images)


def count(name: str, pictures: Counter[tuple[int, int]]) -> tuple[float, float]:
    """Billions of multiply-adds for the mean image, and millions of parameters. Nothing is computed: meta tensors."""
    found = registry.recipe(name)
    with torch.device("meta"):
        model = found.family.build(found.config).eval()
    total = 0.0
    for size, times in pictures.items():
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(pixel_values=torch.empty(1, 3, *size, device="meta"))
        total += times * counter.get_total_flops() / 2
    return total / pictures.total() / 1e9, sum(parameter.numel() for parameter in model.parameters()) / 1e6


def rate(call: Callable[[], Any], rows: int, rounds: int) -> float:
    """Images a second: the median of several rounds."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 5)
    return rows / statistics.median(times)


def speeds(name: str, rows: int, rounds: int, compiles: bool) -> dict[str, float]:
    """Ours, ours compiled, and transformers' with the same weights, where it needs no timm for them."""
    pixels = torch.randn(rows, 3, *SPEED, device="cuda", dtype=torch.bfloat16)
    model = af.build(name).eval().to("cuda", torch.bfloat16)
    compiled = torch.compile(lambda x: model(pixel_values=x).logits)
    calls: dict[str, Callable[[], Any]] = {"anyformer": lambda: model(pixel_values=pixels).logits}
    if compiles:
        calls["compiled"] = lambda: compiled(pixels)
    peer = None if name.endswith("dc5") else transformers_model(model)
    if peer is not None:
        mask = torch.ones(rows, *SPEED, device="cuda", dtype=torch.long)
        calls["transformers"] = lambda: peer(pixel_values=pixels, pixel_mask=mask).logits
    with torch.inference_mode():
        return {who: rate(call, rows, rounds) for who, call in calls.items()}


def transformers_model(model: af.Model) -> Any:
    try:
        from transformers import DetrForObjectDetection
    except ImportError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder, format="hf")
        return DetrForObjectDetection.from_pretrained(folder).to("cuda", torch.bfloat16).eval()


def main() -> None:
    data = os.environ.get("ANYFORMER_DATA")
    usual = None if data is None else Path(data) / "coco256" / "val.json"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=usual, help="a COCO json, for the sizes of its images")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--as-is", action="store_true", help="nothing compiled, which takes half a minute a row")
    asked = parser.parse_args()
    pictures = sizes(asked.data)
    area: Tensor = torch.tensor([float(h * w * n) for (h, w), n in pictures.items()])
    mean = float(area.sum()) / pictures.total() / 1e6
    print(f"{pictures.total()} images, {len(pictures)} sizes, {mean:.2f} million pixels each\n")
    print("| model | GFLOPs | paper | parameters | paper | AP of the paper |\n|---|---|---|---|---|---|")
    for name, (flops, parameters, _, ap) in PAPER.items():
        ours, size = count(name, pictures)
        print(f"| {name} | {ours:.0f} | {flops} | {size:.1f}M | {parameters}M | {ap} |")
    if asked.device == "cpu":
        return
    print(f"\n{torch.cuda.get_device_name()}, bfloat16, {SPEED[0]} x {SPEED[1]}, images a second\n")
    print(
        "| model | batch | anyformer | compiled | transformers | ratio | paper, V100 |\n|---|---|---|---|---|---|---|"
    )
    for name, (_, _, theirs, _) in PAPER.items():
        for rows in (1, 16):
            found = speeds(name, rows, asked.rounds, not asked.as_is)
            peer, fused = found.get("transformers"), found.get("compiled")
            beside = "- | -" if peer is None else f"{peer:.0f} | {found['anyformer'] / peer:.2f}"
            compiled = "-" if fused is None else f"{fused:.0f}"
            print(f"| {name} | {rows} | {found['anyformer']:.0f} | {compiled} | {beside} | {theirs} |", flush=True)


if __name__ == "__main__":
    main()
