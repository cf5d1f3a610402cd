"""A plain loop, to see that a task can be learned: no engine, no schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from anyformer import registry
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.rows import ListRows, Rows
from anyformer.data.settings import DataSettings, TokenizerSettings
from anyformer.tasks import find
from anyformer.tasks.base import Task, TaskSetup
from anyformer.tasks.job import Job


def begin(name: str, source: str | Path, rows: Rows, options: dict[str, Any] | None = None, **setup: Any) -> Any:
    kind = find(name)
    chosen = kind.options_class(**(options or {}))
    data = DataSettings(**{key: value for key, value in setup.items() if key in DataSettings.field_names()})
    words = TokenizerSettings(**{key: value for key, value in setup.items() if key in TokenizerSettings.field_names()})
    torch.manual_seed(0)
    return kind.begin(source, rows, None, TaskSetup(setup.get("model"), data, words, chosen))


def learn(task: Task, rows: Rows, steps: int = 60, lr: float = 3e-3, batch: BatchConfig | None = None) -> list[float]:
    """The mean loss of every step."""
    job = Job(task, rows, batch=batch, data=DataSettings(cache=False))
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=lr)
    chance = torch.Generator().manual_seed(0)
    task.model.train()
    losses: list[float] = []
    epoch = 0
    while len(losses) < steps:
        for numbers in job.batches(epoch):
            loss = job.loss(job.ready(job.collate(numbers, chance), chance))
            optimizer.zero_grad()
            (loss.total / loss.count).backward()
            optimizer.step()
            losses.append(float(loss.total.detach() / loss.count))
        epoch += 1
    task.model.eval()
    return losses


def awake(task: Any) -> Any:
    """Without dropout, and with weights so large that words matter from the first step: tiny models learn soon then."""
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.mul_(5.0 if parameter.dim() > 1 else 1.0)
    return task


def quiet(recipe: str) -> Any:
    return registry.recipe(recipe).config.replace(dropout=0.0, attention_dropout=0.0)


def listed(*rows: dict[str, Any]) -> Rows:
    return ListRows(list(rows))
