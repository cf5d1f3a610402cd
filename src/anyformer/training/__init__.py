"""Training. The function is `af.train`; it loads what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyformer.data.files import Paths
    from anyformer.training.callbacks import Callback, Progress
    from anyformer.training.command import Trained


def train(
    task: str,
    *,
    recipe: str | PathLike[str],
    data: Paths,
    out: str | PathLike[str],
    valid: Paths | None = None,
    resume: bool = False,
    config: str | PathLike[str] | None = None,
    callbacks: Sequence[Callback | Callable[[Progress], None]] = (),
    **settings: object,
) -> Trained:
    """Train a task's model on files and leave a folder that runs: the command `anyformer train`.

    train("translate", recipe="transformer-base", data="pairs.tsv", out="folder", steps=20_000, n_layers=2)

    Settings are given by their keys, whole (**{"data.max_length": 64}) or without their section where that is clear.
    `callbacks` are objects of af.Callback, or functions that are called with the progress after every step.
    """
    from pathlib import Path

    from anyformer.training.command import TrainRequest, run
    from anyformer.training.dotted_keys import read_config

    given = {**(read_config(config) if config is not None else {}), **settings}
    return run(TrainRequest(task, str(recipe), data, Path(out), valid, given, resume), callbacks)
