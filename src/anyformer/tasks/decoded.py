"""Tasks whose rows are opened when they are needed: pictures, sounds, clips and sets stay files until a batch wants
them, and nothing is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyformer.data.batches import BatchSettings, Index
from anyformer.data.examples import Example, Examples
from anyformer.data.formats import Row
from anyformer.data.read import Rows
from anyformer.pictures.decode import Decoded, take
from anyformer.tasks.base import Plan, Progress, Task


class DecodedTask(Task):
    """`example` makes of a row what a batch is put together from."""

    reads = "files"
    cached = False
    lenient = False  # whether a row that cannot be opened is skipped: pictures, while training

    def example(self, row: Row) -> Example:
        raise NotImplementedError

    def prepare(self, rows: Rows, cache: Path | None = None, progress: Progress | None = None) -> Examples:
        return Decoded(rows, self.example, lenient=self.lenient)

    def gather(self, examples: Examples, numbers: Sequence[int] | Index) -> list[Example]:
        return take(examples, numbers)

    def plan(self, examples: Examples, settings: BatchSettings, seed: int = 0) -> Plan:
        """Whole batches only, where there is more than one: a model compiled for a size stays with it."""
        return super().plan(examples, settings.replace(whole=settings.shuffle), seed)
