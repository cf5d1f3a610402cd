"""Images through anyformer beside its peers: same sizes, weights and precision, one run, alternating.

    python benchmarks/images.py                    # 2 CPU cores: ViT-B/16, 8 images, float32
    python benchmarks/images.py --device cuda      # ViT-B/16 and DETR-R50 running, ViT-B/16 training, bfloat16

Ours runs as a user gets it: `af.load(folder, …).optimize()`, on a GPU also `.compile(mode="reduce-overhead")`, which
records what it compiled and replays it. A training step is everything (forward, backward, clipping, AdamW), ours by
`Engine.step`, the loop of `anyformer train`. transformers and timm are the packages; where one is not installed its
column is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import Tensor
from turns import Batch, Given, measure, read_options, take_turns

import anyformer as af
from anyformer.core import rewrites
from anyformer.training.distributed import Devices
from anyformer.training.settings import TrainSettings
from anyformer.training.trainer import Trainer

Step = Callable[[], Any]


@dataclass(frozen=True)
class Workload:
    name: str
    pictures: int  # a step
    make: Callable[[], dict[str, Step]]


# Running


def running(theirs: Any, pixels: Tensor, device: str, rows: int) -> dict[str, Step]:
    """The same weights in both; logits are compared before anything is timed."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = af.load(folder, device=device).optimize(rows)
    theirs = theirs.to(device).eval()
    pixels = pixels.to(device, ours.dtype)
    with torch.inference_mode():
        a, b = ours(pixel_values=pixels).logits.float(), theirs(pixel_values=pixels).logits.float()
    print(f"  logits differ by {float((a - b).abs().max() / b.abs().max()):.1e} of the largest", flush=True)
    steps = {"transformers": lambda: theirs(pixel_values=pixels)}
    if device == "cuda":
        ours.compile(mode="reduce-overhead")
        compiled = torch.compile(theirs)
        steps["transformers compiled"] = lambda: compiled(pixel_values=pixels)
    return {"anyformer": lambda: ours(pixel_values=pixels), **steps}


def vit(device: str, rows: int, dtype: torch.dtype) -> dict[str, Step]:
    from transformers import ViTConfig, ViTForImageClassification

    theirs = ViTForImageClassification(ViTConfig(num_labels=1000)).to(dtype).eval()
    return running(theirs, torch.randn(rows, 3, 224, 224), device, rows * 197)


def detr(device: str, rows: int, dtype: torch.dtype, size: tuple[int, int]) -> dict[str, Step]:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(out_features=["stage4"])
    config = DetrConfig(use_timm_backbone=False, backbone_config=backbone)
    theirs = DetrForObjectDetection(config).to(dtype).eval()
    return running(theirs, torch.randn(rows, 3, *size), device, rows * (size[0] // 32) * (size[1] // 32))


# Training


def ours(model: af.Model, batches: Sequence[Batch], device: str) -> Step:
    settings = TrainSettings(
        steps=10**6, lr=1e-4, weight_decay=0.1, compile=True, precision="bf16", device=device, log_every=100
    )
    engine = Trainer(Given(model, batches), settings, Devices(torch.device(device)))
    model.train()
    rewrites.applied("training", model, True).__enter__()  # as in Trainer.run, until the process ends
    return engine.step


def theirs(model: torch.nn.Module, logits: Callable[[Any, Tensor], Tensor], batches: Sequence[Batch]) -> Step:
    """timm's train.py in essence: autocast, compiled, AdamW (fused), gradients clipped."""
    model = model.to("cuda").train()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    at = [0]

    def step() -> None:
        batch = {name: value.to("cuda", non_blocking=True) for name, value in batches[at[0] % len(batches)].items()}
        at[0] += 1
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(logits(compiled, batch["pixel_values"]), batch["labels"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def training(rows: int) -> dict[str, Step]:
    batches = [
        {"pixel_values": torch.randn(rows, 3, 224, 224).pin_memory(), "labels": torch.randint(0, 1000, (rows,))}
        for _ in range(4)
    ]
    steps = {"anyformer": ours(af.build("vit-b16").eval(), batches, "cuda")}
    if importlib.util.find_spec("timm"):
        timm = importlib.import_module("timm")
        steps["timm"] = theirs(timm.create_model("vit_base_patch16_224"), lambda model, x: model(x), batches)
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000))
    steps["transformers"] = theirs(model, lambda model, x: model(pixel_values=x).logits, batches)
    return steps


def workloads(device: str) -> list[Workload]:
    if device == "cpu":
        return [Workload("ViT-B/16 running, 8 images", 8, lambda: vit("cpu", 8, torch.float32))]
    half = torch.bfloat16
    return [
        Workload("ViT-B/16 running, 128 images", 128, lambda: vit("cuda", 128, half)),
        Workload("DETR-R50 running, 16 images of 800 x 1066", 16, lambda: detr("cuda", 16, half, (800, 1066))),
        Workload("ViT-B/16 training, 128 images", 128, lambda: training(128)),
    ]


def run(load: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Images a second."""
    torch.manual_seed(0)
    steps = {name: counted(step, load.pictures) for name, step in load.make().items()}
    cpu = options.device == "cpu"
    with torch.inference_mode("training" not in load.name):
        n, warm = options.steps or (1 if cpu else 20), 1 if cpu else 10
        found = take_turns(steps, options.device, options.rounds, n, warm, options.best)
    return {
        "workload": load.name,
        **{name: round(value, 2 if name.startswith("over") else 1) for name, value in found.items()},
    }


def counted(step: Step, pictures: int) -> Callable[[], float]:
    def run() -> float:
        step()
        return pictures

    return run


if __name__ == "__main__":
    options = read_options(__doc__, 0, "steps a round; 0: 1 on a CPU, 20 on a GPU")
    measure(options, workloads(options.device), lambda load: run(load, options))
