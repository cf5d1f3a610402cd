"""What the benchmarks of training steps share: work for the engine, peers that take turns, and the command line."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer.heads.cross_entropy import token_loss
from anyformer.tasks.base import Loss
from anyformer.tasks.translate import Translate

Batch = dict[str, Tensor]


class Given:
    """Work for the engine: batches that are there already, again and again."""

    metric, larger_is_better, slow, streams = "loss", False, False, 0
    contrastive = False
    longest = 256
    fills = MappingProxyType({**Translate.fills, "decoder_input_ids": 0})

    def __init__(self, model: af.Model, batches: Sequence[Batch]) -> None:
        self.model, self.given = model, batches
        self.steady = len({tuple(value.shape for value in batch.values()) for batch in batches}) == 1

    def carry(self, rows: int) -> Batch:
        return {}

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return [[i] for i in range(len(self.given))]

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> Batch:
        return self.given[rows[0]]

    def ready(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        return batch

    def loss(self, batch: Batch) -> Loss:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return Loss(*token_loss(self.model(**inputs).logits, batch["labels"]))

    def evaluate(self) -> dict[str, float | str]:
        return {}

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def where(self, row: int) -> str:
        return f"batch {row}"


def speed(step: Callable[[], float], n: int, device: str) -> float:
    """What n steps say that they did, a second."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    done = sum(step() for _ in range(n))
    if device == "cuda":
        torch.cuda.synchronize()
    return done / (time.perf_counter() - start)


def take_turns(
    steps: Mapping[str, Callable[[], float]], device: str, rounds: int, n: int, warm: int, best: bool = False
) -> dict[str, float]:
    """The median speed of each, or the best, all of them taking their turn in every round; and how many times faster
    ours is."""
    for step in steps.values():
        speed(step, warm, device)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            speeds[name].append(speed(step, n, device))
    middle = {name: (max if best else statistics.median)(values) for name, values in speeds.items()}
    over = {f"over {name}": middle["anyformer"] / value for name, value in middle.items() if name != "anyformer"}
    return {**middle, **over}


def read_options(about: str | None, steps: int, steps_help: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=steps, help=steps_help)
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--best", action="store_true", help="the best round instead of the median: on a busy machine")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--json", help="write the rows to this file as well")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    else:
        torch.set_float32_matmul_precision("high")
    return options


def measure(options: argparse.Namespace, workloads: Sequence[Any], run: Callable[[Any], dict[str, Any]]) -> None:
    """A row for each workload, printed as it comes."""
    rows = []
    for load in workloads:
        if options.only.lower() in load.name.lower():
            rows.append(run(load))
            said = {name: f"{value:,}" if isinstance(value, int) else value for name, value in rows[-1].items()}
            print("  ".join(f"{name}: {value}" for name, value in said.items()), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n")
