"""The feed: batches made ahead are those that would have been made when they were needed, finished on the device with
chance that depends on their place alone; and the time that the trainer waits is counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.training.callbacks import Progress
from anyformer.training.distributed import Devices
from anyformer.training.loader import AHEAD, BatchLoader, DataPosition
from anyformer.training.state import TrainState
from tests.training.toy import Toy

CPU = Devices(torch.device("cpu"))


class Slow(Toy):
    """Batches that take a while, with numbers drawn where they are made and where they are finished."""

    slow = True

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds
        self.makers: list[int] = []

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        self.makers.append(threading.get_ident())
        time.sleep(self.seconds)
        return {**super().collate(rows, generator), "made": torch.rand(3, generator=generator)}

    def ready(self, batch: dict[str, Tensor], generator: torch.Generator | None) -> dict[str, Tensor]:
        assert generator is not None
        return {**batch, "finished": torch.rand(3, generator=generator)}


def run(work: Toy, start: DataPosition, steps: int, n: int = 2) -> list[dict[str, Tensor]]:
    feed = BatchLoader(work, 7, CPU)
    found, place = [], start
    for _ in range(steps):
        taken, place = feed.next_batches(place, n)
        found += [fed.batch for fed in taken]
    feed.close()
    return found


def test_what_is_made_ahead_is_the_same() -> None:
    """From the start, or from the middle as a resumed run begins: the same batches with the same draws."""
    whole = run(Slow(), DataPosition(0, 0), 6)
    late = run(Slow(), DataPosition(0, 4), 4)
    assert len(whole) == 12 and len(late) == 8
    for a, b in zip(whole[4:], late, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    draws = [tuple(batch[name].tolist()) for batch in whole for name in ("made", "finished")]
    assert len(set(draws)) == len(draws)


def test_another_process_draws_for_itself() -> None:
    mine, other = (
        BatchLoader(Slow(), 7, Devices(torch.device("cpu"), rank, 2)).next_batches(DataPosition(0, 0), 1)[0][0]
        for rank in (0, 1)
    )
    assert not torch.equal(mine.batch["finished"], other.batch["finished"])


def test_the_trainer_works_while_batches_are_made() -> None:
    """While the trainer is busy, the next ones are made by another thread: it finds them done."""
    work = Slow(seconds=0.01)
    feed = BatchLoader(work, 7, CPU)
    _, place = feed.next_batches(DataPosition(0, 0), 1)
    first = feed.waited
    while not all(future.done() for future in feed._ahead.values()):
        time.sleep(0.001)
    assert first >= 0.01 and len(work.makers) == 1 + AHEAD
    feed.next_batches(place, 1)
    assert threading.get_ident() not in work.makers[1:]
    feed.close()


def test_the_share_of_waiting() -> None:
    progress = Progress(10, TrainState())
    progress.waited = progress.seconds * 0.25
    assert 0 < progress.waiting <= 0.25
