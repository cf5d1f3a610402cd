"""Train embed and match on one, two and three processes, in float64.

python -m tests.training.pairs FOLDER       prints a JSON object: name of a run -> its losses and its weights
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from anyformer import registry
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.data.rows import ListRows
from anyformer.data.settings import DataSettings, TokenizerSettings
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.embed import Embed
from anyformer.tasks.job import Job
from anyformer.tasks.match import Match, MatchOptions
from anyformer.training.callbacks import Callback, Progress
from anyformer.training.step_metrics import StepMetrics
from anyformer.training.trainer import train
from tests.training.picture_files import square
from tests.training.ranks import launch
from tests.training.toy import settings

BATCH, STEPS = 4, 5  # of 13 rows: the fourth batch has one row, so other processes have none
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
DROPS = ("dropout", "attention_dropout", "head_dropout")


class Losses(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        self.losses.append(metrics.loss)


def texts(negatives: bool) -> ListRows:
    rows = [{"first": f"{word} cats", "second": f"there are {word}"} for word in NUMBERS]
    more = [{"negative": f"there are {word}"} for word in (*NUMBERS[5:], *NUMBERS[:5])]
    return ListRows([{**row, **other} for row, other in zip(rows, more, strict=True)] if negatives else rows)


def pictures() -> ListRows:
    return ListRows(
        [
            {"image": ImageFile.of(square((20 * i, 255 - 20 * i, 0), i)), "captions": [f"{word} steps"]}
            for i, word in enumerate(NUMBERS)
        ]
    )


def make(name: str) -> Job:
    torch.manual_seed(0)
    rows = pictures() if name == "match" else texts(name == "negatives")
    options: Any = None
    if name == "match":
        options = MatchOptions(augment=Augmentation())
    data = DataSettings(image_size=32) if name == "match" else DataSettings()
    kind, recipe = (Match, "clip-tiny") if name == "match" else (Embed, "bert-tiny")
    model = registry.recipe(recipe).config
    model = model.replace(**{name: 0.0 for name in DROPS if name in model.field_names()})
    task: Any = kind.begin(recipe, rows, None, TaskSetup(model, data, TokenizerSettings(kind="char"), options))
    task.model.double()
    return Job(task, rows, batch=BatchConfig(rows=BATCH), data=DataSettings(cache=False))


def run(out: Path, name: str, **changes: Any) -> None:
    job, watcher, rank = make(name), Losses(), os.environ["RANK"]
    chosen = settings(steps=STEPS, eval_every=0, save_every=0, max_grad_norm=0.5, lr=1e-3, batch_size=BATCH, **changes)
    train(job, chosen, callback=watcher)
    named = "-".join([name, *(str(value) for value in changes.values()), os.environ["WORLD_SIZE"]])
    (out / f"{named}.{rank}.json").write_text(json.dumps(watcher.losses))
    if changes.get("parallel") != "fsdp":
        save_file(
            {key: value.contiguous() for key, value in job.model.state_dict().items()}, out / f"{named}.{rank}.st"
        )


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    names = ("plain", "negatives", "match")
    jobs: list[dict[str, Any]] = [{"name": name} for name in names]
    jobs += [{"name": "negatives", "gradient_accumulation": 2}]
    for ranks in (1, 2, 3):
        more = [{"name": name, "parallel": "fsdp"} for name in ("plain", "negatives")] if ranks == 2 else []
        launch(ranks, out, [*jobs, *more], run)
    print(json.dumps({path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}))


if __name__ == "__main__":
    main()
