"""Tasks on files: images, audio, clips and sets are decoded when a batch needs them, and not kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.data.examples import Example, Examples
from anyformer.data.files import Paths
from anyformer.data.images.loading import DecodedImages, take
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings, parse_pairs
from anyformer.data.tables.formats import Row
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    BatchPlan,
    Input,
    Metrics,
    Progress,
    Reply,
    Task,
    column_names,
    header_of,
)


class DecodedTask(Task[Input, Reply]):
    """`example` converts a row to the input of `collate`."""

    reads = "files"
    cached = False
    # Whether a row whose file cannot be read is replaced by another while training; in an evaluation it is skipped.
    lenient = False

    @classmethod
    def find_files(cls, paths: Paths, column: str | None, **asked: Any) -> Rows:
        """Rows whose first column holds opened files. `column` names them in a table, if it has an unusual name;
        `asked` is the format, the header, and names that it may hold."""
        raise NotImplementedError

    @classmethod
    def read(cls, paths: Paths, data: DataSettings = DEFAULT_SETUP.data) -> Rows:
        chosen = parse_pairs(data.columns, "data.columns")
        chosen.pop(cls.columns[0].name, None)
        return cls.fit(cls.open(paths, data), chosen)

    @classmethod
    def open(cls, paths: Paths, data: DataSettings) -> Rows:
        column = parse_pairs(data.columns, "data.columns").get(cls.columns[0].name)
        asked = {"format": data.format, "header": header_of(data), "names": column_names(cls.columns)}
        return cls.find_files(paths, column, **asked)

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
