"""What the engine is given to do: a model, rows in an order, a loss, a measure. Tasks are such; so is a test's toy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from anyformer.model import Model

Batch = dict[str, Tensor]
Metrics = dict[str, float | str]


class Sums(Protocol):
    """A loss that many devices and many batches can add up before it is divided."""

    @property
    def total(self) -> Tensor:
        """The sum over whatever counts."""

    @property
    def count(self) -> Tensor:
        """How many there were."""

    @property
    def parts(self) -> Mapping[str, Tensor]:
        """Sums of its parts over the same count, for whoever looks at them."""


class Work(Protocol):
    """`metric` names the figure of `evaluate` that says which weights are best."""

    metric: str
    larger_is_better: bool
    steady: bool  # whether batches are all of one shape, and the loss does the same whatever their values
    contrastive: bool  # whether rows of a batch are one another's negatives, on whatever device they are
    slow: bool  # whether making a batch is worth a thread even where the model runs on the same processor

    @property
    def model(self) -> Model:
        """What is trained, in place."""

    @property
    def fills(self) -> Mapping[str, int]:
        """What may be appended to rows of tokens [rows, tokens] and leave the loss as it is, by name; whole rows of it
        too, where everything in a batch has such a name."""

    @property
    def longest(self) -> int | None:
        """Tokens that a row may have; None: no more than it has."""

    @property
    def streams(self) -> int:
        """Rows of a batch, all devices together, each of which goes on where the same row of the batch before ended;
        batches then have "goes_on" [rows], False in the first of an epoch. 0: batches know nothing of one another."""

    def carry(self, rows: int) -> dict[str, Tensor]:
        """For so many of them, this device's: the tensors [rows, …] by which the loss goes on. It reads and writes them
        in place; they are part of a checkpoint."""

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        """The rows of every batch, all devices together: the same for the same epoch, whoever asks and when."""

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> Batch:
        """Rows as tensors on the CPU; whatever is drawn is drawn from `generator`."""

    def ready(self, batch: Batch, generator: torch.Generator | None) -> Batch:
        """What is left to do where the batch is now, on the model's device: images are augmented and normalized.
        Whatever is drawn is drawn from `generator`, which is of that device; None: nothing is, for evaluation."""

    def loss(self, batch: Batch) -> Sums: ...

    def evaluate(self) -> Metrics:
        """The field's own figures on rows that were not learned from; nothing where there are none."""

    def save(self, folder: Path) -> None:
        """Everything needed to run the model."""

    def where(self, row: int) -> str:
        """Where a row came from, for messages: "pairs.tsv, line 12"."""
