"""What is printed before the first step: columns, classes, split, model, trained parameters, device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from anyformer.model import Model
from anyformer.tasks.base import listing, spell_columns, spell_header
from anyformer.tasks.job import Job
from anyformer.tasks.split import SMALL, Split
from anyformer.tasks.text import TextTask
from anyformer.training.distributed import Devices
from anyformer.training.settings import TrainSettings
from anyformer.training.step import choose_precision


@dataclass(frozen=True)
class Start:
    """Descriptions of the origin of the weights and of the tokenizer."""

    weights: str
    tokenizer: str


def facts(job: Job, split: Split, start: Start, settings: TrainSettings, devices: Devices) -> list[str]:
    """A line for each, "name: value", and a warning if too few rows are held out. Parameters are counted as the model
    has them now, adapters and frozen ones included."""
    model, found = job.model, job.task.inferred()
    if "tokenizer" in found:
        found["tokenizer"] += f", {start.tokenizer}"
    if "length" in found:
        found["length"] += long_rows(job)
    precision = choose_precision(settings.precision, devices.device)
    processes = f", {devices.world_size} processes" if devices.is_distributed else ""
    header = spell_header(split.train)
    table = {"columns": spell_columns(split.train), **({} if header is None else {"header": header})}
    found = {**table, **found, "rows": counts(split)}
    found |= {"weights": start.weights + new_parts(model), "parameters": trained(model, settings)}
    if settings.epochs is not None:
        found |= {"steps": f"{settings.steps:,} ({settings.epochs:g} epochs)"}
    found |= {"device": f"{devices.device}{processes}, {precision}"}
    width = max(map(len, found)) + 1
    return [*(f"{name + ':':<{width}} {value}" for name, value in found.items()), *warnings(split)]


def long_rows(job: Job) -> str:
    """The number of rows that reach the maximum length."""
    task = job.task
    if not isinstance(task, TextTask) or task.windows or not task.cached:
        return ""
    full = np.any([job.examples.sizes(name) >= task.max_length for name in task.sequences], axis=0)
    rows = len(np.unique(job.examples.rows[full]))
    return f"; {rows:,} row{'s are' if rows > 1 else ' is'} as long or longer" if rows else ""


def counts(split: Split) -> str:
    if split.valid is None:
        return f"{len(split.train):,} for training, none for validation, so nothing is evaluated (give --valid)"
    held = f"held out, {split.how}" if split.whole is not None else split.how
    return f"{len(split.train):,} for training, {len(split.valid):,} for validation ({held})"


def warnings(split: Split) -> list[str]:
    if split.valid is None and split.how:
        return [
            f"Warning: data.validation_split holds out no row ({split.how}), so nothing is evaluated and the last"
            " weights are saved. Raise it, give --valid, or set it to 0."
        ]
    if not split.few:
        return []
    return [
        f"Warning: the best weights are chosen by fewer than {SMALL} rows, so their score is unreliable. Give --valid,"
        " or more rows."
    ]


def new_parts(model: Model) -> str:
    """The newly initialized parts of a fine-tuned model."""
    parts = dict.fromkeys(name.partition(".")[0] for name in model.origin.new)
    return f"; new: {listing(list(parts))}" if parts else ""


def trained(model: nn.Module, settings: TrainSettings) -> str:
    """The number of trained parameters, and which are frozen."""
    sizes = {id(one): (one.numel(), one.requires_grad) for one in model.parameters()}
    total, free = sum(n for n, _ in sizes.values()), sum(n for n, learns in sizes.values() if learns)
    if settings.lora:
        adapters = f"LoRA adapters of rank {settings.lora} and new heads"
        return f"{free:,} of {total:,} trained ({adapters}); the others are frozen"
    if settings.freeze:
        return f"{free:,} of {total:,} trained; frozen: {', '.join(settings.freeze)}"
    return f"{total:,}, all trained" if free == total else f"{free:,} of {total:,} trained"
