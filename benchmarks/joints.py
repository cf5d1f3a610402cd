"""Keypoints decoded all at once beside one after another: milliseconds a batch, the same model but for the decoding.

    python benchmarks/joints.py                     # CPU, one image and 16
    python benchmarks/joints.py --device cuda       # bfloat16 autocast, one image and 64

Accuracy is what `anyformer train pose` (with --set model.autoregressive=true) and `anyformer eval` report.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import anyformer as af
from anyformer.generation.keypoints import predict_keypoints

ROUNDS = 15


def milliseconds(model: Any, pictures: torch.Tensor) -> float:
    times = []
    device = pictures.device.type
    for _ in range(ROUNDS):
        start = time.perf_counter()
        with torch.inference_mode(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            predict_keypoints(model, pictures).keypoints.sum().item()  # waits for the device
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[ROUNDS // 3 :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    for name in ("keypoint-detr-128", "keypoint-detr-96"):
        for rows in (1, 64 if device == "cuda" else 16):
            found = []
            for in_turn in (False, True):
                model = af.build(name, autoregressive=in_turn).eval().to(device)
                side, channels = model.config.image_size[0], model.config.n_channels  # type: ignore[attr-defined]
                found.append(milliseconds(model, torch.randn(rows, channels, side, side, device=device)))
            joints = model.config.n_keypoints  # type: ignore[attr-defined]
            once, turns = found
            print(
                f"{name:<11} {joints:>3} keypoints  batch {rows:<3} once {once:8.1f} ms  in turn {turns:8.1f} ms"
                f"  {turns / once:5.1f} x"
            )


if __name__ == "__main__":
    main()
