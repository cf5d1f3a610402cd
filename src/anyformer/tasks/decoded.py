"""Tasks whose rows are opened when they are needed: images, sounds, clips and sets stay files until a batch wants
them, and nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.data.examples import Example, Examples
from anyformer.data.images.loading import DecodedImages, take
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.tasks.base import BatchPlan, Metrics, Progress, Task


class DecodedTask(Task):
    """`example` makes of a row what a batch is put together from."""

    reads = "files"
    cached = False
    # Whether a row whose file cannot be read is replaced by another while training; in an evaluation it is skipped.
    lenient = False

    def example(self, row: Row) -> Example:
        raise NotImplementedError

    def prepare(self, rows: Rows, cache: Path | None = None, progress: Progress | None = None) -> Examples:
        return DecodedImages(rows, self.example, unreadable="replace" if self.lenient else "raise")

    def prepare_to_evaluate(self, rows: Rows) -> Examples:
        return DecodedImages(rows, self.example, unreadable="skip")

    def origins(self, examples: Sequence[Example], numbers: Index) -> Index:
        return np.array([one["row"] for one in examples], dtype=np.int64)

    def skipped(self) -> Metrics:
        """How many of the rows evaluated last have a file that cannot be read, if some have."""
        examples = None if self._last is None else self._last[1]
        broken = len(examples.broken) if isinstance(examples, DecodedImages) else 0
        return {"skipped": float(broken)} if broken else {}

    def gather(self, examples: Examples, numbers: Sequence[int] | Index) -> list[Example]:
        return take(examples, numbers)

    def plan(self, examples: Examples, settings: BatchConfig, seed: int = 0) -> BatchPlan:
        """Whole batches only, where there is more than one: a model compiled for a size stays with it."""
        return super().plan(examples, settings.replace(drop_last=settings.shuffle), seed)
