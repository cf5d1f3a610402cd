"""Tasks: a model and its tokenizer as a function on real things."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from os import PathLike
from typing import Any

import torch

from anyformer.errors import ConfigError, nearest

# Task -> the module that has it, which loads when it is used; its `load` makes the function.
TASKS = {"embed": "anyformer.tasks.embed", "generate": "anyformer.tasks.generate"}
# Tasks whose answer is a text that is written token by token, so that they take the options of decoding.
WRITING = frozenset({"generate"})


def task(
    name: str,
    path: str | PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """A model folder or a .gguf file as a function: one thing in, one answer out; a list in, a list out.

    ask = task("generate", "folder", max_new_tokens=50)
    print(ask("What is the capital of France?"))

    `weights="int8"` rounds the model's matrices to 8 bits, which a CPU runs several times faster. Other `options` hold
    for every call that does not say otherwise.
    """
    if name not in TASKS:
        raise ConfigError(f'There is no task "{name}".{nearest(name, TASKS)} There are: {", ".join(TASKS)}.')
    load: Callable[..., Callable[..., Any]] = importlib.import_module(TASKS[name]).load
    return load(path, device=device, dtype=dtype, **options)
