"""What is kept of a commit: outputs of tiny recipes, generated ids, answers of shipped models, training losses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from tests.checkpoints.compare import flat
from tests.goldens import folders
from tests.recipes.batches import training_batch
from tests.training.test_every_task import CASES

Found = Iterator[tuple[str, Tensor | str]]
STEPS = 3  # the loss of the third step depends on two updates
PROMPT = torch.tensor([[5, 6, 7], [9, 8, 5]])


def tensors(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside an output, by its path."""
    if isinstance(value, Tensor):
        yield path, value.detach()
    elif isinstance(value, Mapping):
        for name, inner in flat(value).items():
            yield from tensors(inner, f"{path}/{name}")
    elif isinstance(value, (tuple, list)):
        for i, inner in enumerate(value):
            yield from tensors(inner, f"{path}/{i}")


def outputs(name: str, home: Path) -> Iterator[tuple[str, Tensor]]:
    """Outputs of one recipe for its training batch, in evaluation mode."""
    model = af.load(folders.write(name, home / name), optimize=False).eval()
    with torch.no_grad():
        yield from tensors(model(**training_batch(folders.recipe(name))), name)


def generated(name: str, home: Path) -> Iterator[tuple[str, Tensor]]:
    """Ids by greedy search, four beams and sampling; nothing for a model that does not generate from these inputs."""
    folder = home / name
    model = af.load(folder if folder.exists() else folders.write(name, folder)).eval()
    batch = training_batch(folders.recipe(name))
    images = {key: x for key, x in batch.items() if key in ("pixel_values", "input_features")}
    given: dict[str, Any] = images or {"input_ids": PROMPT}
    ways: dict[str, dict[str, Any]] = {"greedy": {}, "beams": {"num_beams": 4}, "sampled": {"do_sample": True}}
    for way, options in ways.items():
        torch.manual_seed(0)
        try:
            ids = model.generate(**given, max_new_tokens=8, **options)
        except (af.Error, AttributeError):
            continue
        yield from tensors(ids, f"{name}/{way}")


def recipes(home: Path) -> Found:
    for name in folders.table():
        yield from outputs(name, home)


def ids(home: Path) -> Found:
    for name in folders.table():
        yield from generated(name, home)


def shipped(home: Path) -> Found:
    """Answers of the models that come along, to the example of each."""
    from anyformer import pretrained as models
    from anyformer.tasks import TASKS

    for model in models.models():
        if model.problem is None and model.example and model.task in TASKS:
            options = {"max_new_tokens": 12, "do_sample": False} if model.task == "generate" else {}
            answer = af.task(model.task, model.open())(model.input(), **options)
            yield model.name, str(answer)


def training(home: Path) -> Found:
    """Losses of the first steps of every task."""
    os.environ["ANYFORMER_CACHE"] = str(home / "cache")
    for task, (recipe, name, content, _, settings) in CASES.items():
        folder = home / "training" / task
        folder.mkdir(parents=True)
        for file, inside in ({name: content.encode()} if isinstance(content, str) else content).items():
            (folder / file).write_bytes(inside)
        data = folder / name
        pace = {"steps": STEPS, "eval_every": 0, "log_every": 1, "batch_size": 4, "device": "cpu"}
        af.train(task, recipe=recipe, data=data, valid=data, out=folder / "out", **{**pace, **settings})
        rows = map(json.loads, (folder / "out" / "metrics.jsonl").read_text().splitlines())
        losses = [row["loss"] for row in rows if "split" not in row]
        yield task, torch.tensor(losses, dtype=torch.float64)


SECTIONS: dict[str, Callable[[Path], Found]] = {
    "recipes": recipes,
    "ids": ids,
    "shipped": shipped,
    "training": training,
}
