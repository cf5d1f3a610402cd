"""Rows in order, as batches on the device: the next ones are made while the model works on the last."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.core.host import remember_host_copy, widest
from anyformer.errors import InputError
from anyformer.forward_context import IGNORED
from anyformer.tasks.negatives import REPEATED
from anyformer.tasks.segment_memory import CONTINUES
from anyformer.training.distributed import Devices
from anyformer.training.seeds import generator
from anyformer.training.work import Batch, Work

AHEAD = 3  # batches that are made before they are asked for


class DataPosition(NamedTuple):
    """A position in the data: the batch, numbered within its epoch."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class DeviceBatch:
    rows: Sequence[int]  # of all devices together
    batch: dict[str, Tensor]  # this device's share
    counts: bool  # False: there were fewer rows than devices, and this one repeats a row for nothing
    tokens: int  # real ones, this device's
    slots: int  # the padded ones too
    device_counts: Tensor | None = None  # both on the device, for a step that was recorded before they were known

    def read(self, device: torch.device) -> Tensor:
        """[tokens, slots]"""
        if self.device_counts is not None:
            return self.device_counts
        return torch.stack([torch.full((), n, dtype=widest(device), device=device) for n in (self.tokens, self.slots)])

    @property
    def unit(self) -> str:
        """What `tokens` counts."""
        if any(name.endswith(("input_ids", "attention_mask")) for name in self.batch):
            return "tokens"
        return "images" if "pixel_values" in self.batch else "rows"

    def shape(self) -> str:
        """8 rows, input_ids [8, 128]"""
        largest = max(self.batch.items(), key=lambda item: item[1].numel())
        return f"{len(self.rows)} rows, {largest[0]} {list(largest[1].shape)}"


class BatchLoader:
    def __init__(self, work: Work, seed: int, devices: Devices) -> None:
        self.work, self.seed, self.devices = work, seed, devices
        self._epochs: dict[int, Sequence[Sequence[int]]] = {}
        self.waited = 0.0  # seconds that the trainer stood still for want of data
        self._pinned = devices.device.type == "cuda"
        self._worker = ThreadPoolExecutor(1) if self._pinned or work.slow else None
        self._ahead: dict[DataPosition, Future[DeviceBatch]] = {}

    def epoch(self, number: int) -> Sequence[Sequence[int]]:
        if number not in self._epochs:
            self._epochs = {n: kept for n, kept in self._epochs.items() if n >= number - 1}
            self._epochs[number] = self.work.batches(number)
            if len(self._epochs[number]) == 0:
                raise InputError("There are no rows for training.")
        return self._epochs[number]

    def next_position(self, place: DataPosition) -> DataPosition:
        epoch, batch = place
        return DataPosition(epoch, batch + 1) if batch + 1 < len(self.epoch(epoch)) else DataPosition(epoch + 1, 0)

    def next_batches(self, place: DataPosition, n: int) -> tuple[list[DeviceBatch], DataPosition]:
        """The next `n` batches, and the place after them."""
        started = time.perf_counter()
        taken = []
        for _ in range(n):
            taken.append((place, self._get(place)))
            place = self.next_position(place)
        self.waited += time.perf_counter() - started
        self._look_ahead(place, max(n, AHEAD))
        return [self._move(*one) for one in taken], place

    def _get(self, place: DataPosition) -> DeviceBatch:
        ahead = self._ahead.pop(place, None)
        return self._make(place, self.epoch(place.epoch)[place.batch]) if ahead is None else ahead.result()

    def _look_ahead(self, place: DataPosition, n: int) -> None:
        if self._worker is not None:
            for _ in range(n):
                if place not in self._ahead:
                    rows = self.epoch(place.epoch)[place.batch]
                    self._ahead[place] = self._worker.submit(self._make, place, rows)
                place = self.next_position(place)

    def _make(self, place: DataPosition, rows: Sequence[int]) -> DeviceBatch:
        rank, ranks = self.devices.rank, self.devices.world_size
        mine = rows[rank::ranks]
        rng = generator(self.seed, *place, rank)
        batch = dict(self.work.collate(mine if len(mine) else rows[:1], rng))
        if self.work.contrastive and not len(mine):
            batch[REPEATED] = torch.ones(1)
        if self.work.streams:
            batch[CONTINUES] = torch.full((max(len(mine), 1),), place.batch > 0)
        if self._pinned:
            batch = {name: value.pin_memory() for name, value in batch.items()}
        tokens, slots = count_tokens(batch) if len(mine) else (0, 0)
        return DeviceBatch(rows, batch, len(mine) > 0, tokens, slots)

    def _move(self, place: DataPosition, batch: DeviceBatch) -> DeviceBatch:
        device = self.devices.device
        moved = {
            name: remember_host_copy(value.to(device, non_blocking=True), value) for name, value in batch.batch.items()
        }
        rng = generator(self.seed, *place, self.devices.rank, 1, device=device)
        return DeviceBatch(batch.rows, self.work.ready(moved, rng), batch.counts, batch.tokens, batch.slots)

    def wait_idle(self) -> None:
        """Wait until nothing is being made: what another thread asks of a GPU would disturb a recording."""
        wait(self._ahead.values())

    def close(self) -> None:
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)


def count_tokens(batch: Batch) -> tuple[int, int]:
    """Real tokens and slots of everything that the model reads; images and sounds count as one each."""
    found = list(_read(batch))
    if not found:
        rows = len(next(iter(batch.values())))
        return rows, rows
    return sum(real for real, _ in found), sum(slots for _, slots in found)


def _read(batch: Batch) -> Iterator[tuple[int, int]]:
    for prefix in ("", "decoder_"):
        ids, mask = batch.get(f"{prefix}input_ids"), batch.get(f"{prefix}attention_mask")
        labels = batch.get("labels")
        if mask is not None:
            yield int(mask.sum()), mask.numel()
        elif ids is not None and prefix and labels is not None and labels.shape == ids.shape:
            yield int((labels != IGNORED).sum()), ids.numel()
        elif ids is not None:
            yield ids.numel(), ids.numel()
        elif prefix and labels is not None and labels.dim() == 2 and _shape(batch, "input_ids") != labels.shape:
            yield int((labels != IGNORED).sum()), labels.numel()  # a decoder reads its labels, shifted


def _shape(batch: Batch, name: str) -> tuple[int, ...] | None:
    return tuple(batch[name].shape) if name in batch else None
