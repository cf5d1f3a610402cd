"""A task with its rows, as the trainer needs it."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor

from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.cache import cache_folder
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings
from anyformer.errors import ConfigError, DataError
from anyformer.model import Model
from anyformer.tasks.base import Batch, Loss, Metrics, Progress, Task
from anyformer.tasks.segment_memory import MemoryStreams


class Job:
    """Rows are prepared once; batches are a pure function of the seed and the epoch."""

    def __init__(
        self,
        task: Task,
        rows: Rows,
        valid: Rows | None = None,
        *,
        batch: BatchConfig | None = None,
        data: DataSettings | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self.task, self.rows, self.valid = task, rows, valid
        kept = data is None or data.cache
        self.examples = task.prepare(rows, cache_folder() if kept and task.cached else None, progress)
        self._check_negatives(batch or task.batch)
        self.plan = task.plan(self.examples, batch or task.batch, seed)
        if valid is not None:
            self._check(valid)
        self.slow, self.steady, self.contrastive = not task.cached, task.steady, task.contrastive
        self.fills, self.longest = task.fills, task.longest
        self.metric, self.larger_is_better = task.metric, task.larger_is_better

    def _check_negatives(self, batch: BatchConfig) -> None:
        """An error if no batch can have a row's negatives, so that the loss would be 0."""
        least, name = self.task.min_rows(self.examples), self.task.name
        if batch.tokens is None and batch.rows < least:
            raise ConfigError(
                f"train.batch_size is {batch.rows}; {name} compares the rows of a batch, so it must be {least} or more."
            )
        if len(self.examples) < least:
            raise DataError(
                f"{self.rows.path} has {len(self.examples)} row for training; {name} needs {least} or more."
            )

    def _check(self, valid: Rows) -> None:
        """A mistake in the rows to evaluate on shows now, and not at the first evaluation."""
        try:
            self.task.plan(self.task.prepared(valid), self.task.batch.replace(shuffle=False))
        except DataError as error:
            if valid.path in str(error):
                raise
            raise DataError(f"The {len(valid):,} rows for validation ({valid.path}): {error}") from None

    @property
    def streams(self) -> int:
        return self.plan.rows if isinstance(self.plan, MemoryStreams) else 0

    def carry(self, rows: int) -> dict[str, Tensor]:
        return self.task.carry(rows)

    @property
    def model(self) -> Model:
        return self.task.model

    @property
    def padding(self) -> float:
        """The share of all places in the batches of an epoch where nothing stands."""
        return self.plan.padding

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        """The rows of every batch, those of all devices together."""
        return self.plan.global_batches(epoch)  # type: ignore[return-value]  # arrays, which are sequences in all but name

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> Batch:
        return self.task.collate(self.task.gather(self.examples, rows), generator)

    def ready(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        return self.task.ready(batch, generator)

    def loss(self, batch: Batch) -> Loss:
        return self.task.loss(batch)

    def evaluate(self) -> Metrics:
        return {} if self.valid is None else self.task.evaluate(self.valid)

    def save(self, folder: str | PathLike[str]) -> None:
        self.task.save(Path(folder))

    def where(self, row: int) -> str:
        return self.rows.location(self.task.row_of(self.examples, row))
