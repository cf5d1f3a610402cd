"""Tasks: a model and its tokenizer as a function from inputs to predictions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Any

from anyformer import pretrained
from anyformer.errors import ConfigError, nearest

if TYPE_CHECKING:
    import torch

    from anyformer.tasks.base import Task

# Task -> its class, whose module loads when it is used.
TASKS = {
    "answer": ("anyformer.tasks.answer", "AnswerTask"),
    "ask-image": ("anyformer.tasks.ask_image", "AskImage"),
    "caption": ("anyformer.tasks.caption", "Caption"),
    "classify-audio": ("anyformer.tasks.classify_audio", "ClassifyAudio"),
    "classify-image": ("anyformer.tasks.classify_image", "ClassifyImage"),
    "classify-pair": ("anyformer.tasks.classify_pair", "ClassifyPair"),
    "classify-set": ("anyformer.tasks.classify_set", "ClassifySet"),
    "classify-text": ("anyformer.tasks.classify_text", "ClassifyText"),
    "classify-video": ("anyformer.tasks.classify_video", "ClassifyVideo"),
    "complete-image": ("anyformer.tasks.complete_image", "CompleteImage"),
    "detect": ("anyformer.tasks.detect", "Detect"),
    "electra": ("anyformer.tasks.electra", "Electra"),
    "embed": ("anyformer.tasks.embed", "Embed"),
    "fill-mask": ("anyformer.tasks.fill_mask", "FillMask"),
    "generate": ("anyformer.tasks.language", "GenerateTask"),
    "match": ("anyformer.tasks.match", "Match"),
    "pose": ("anyformer.tasks.pose", "PoseTask"),
    "read": ("anyformer.tasks.read", "Read"),
    "reconstruct": ("anyformer.tasks.reconstruct", "Reconstruct"),
    "segment": ("anyformer.tasks.segment", "Segment"),
    "summarize": ("anyformer.tasks.summarize", "Summarize"),
    "tag": ("anyformer.tasks.tag", "Tag"),
    "transcribe": ("anyformer.tasks.transcribe", "Transcribe"),
    "translate": ("anyformer.tasks.translate", "Translate"),
}
# Tasks whose answer is written token by token, so that they take the options of decoding.
WRITING = frozenset("ask-image caption complete-image generate read summarize transcribe translate".split())


def find(name: str) -> type[Task]:
    """The class of a task."""
    if name not in TASKS:
        raise ConfigError(f'There is no task "{name}".{nearest(name, TASKS)} There are: {", ".join(TASKS)}.')
    module, attribute = TASKS[name]
    found: type[Task] = getattr(importlib.import_module(module), attribute)
    return found


def task(
    name: str,
    path: str | PathLike[str] | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """A model folder, a .gguf file or a model that ships as a function: one thing in, one answer out; a list in, a list
    out.

    ask = task("generate", "folder", max_new_tokens=50)
    print(ask("What is the capital of France?"))
    translate = task("translate")           # the model for it that ships; task("translate", "en-fr") is another

    `device` is "auto" (cuda, mps or cpu, the first that there is), or a name. `weights="int8"` rounds the model's
    matrices to 8 bits, which a CPU runs several times faster. Other `options` hold for every call that does not say
    otherwise.
    """
    kind = find(name)
    found = pretrained.default(name).open() if path is None else pretrained.resolve_path(path)
    ready: Callable[..., Any] = kind.load(found, device=device, dtype=dtype, **options)
    return ready
