"""Tasks: a model and its tokenizer as a function from inputs to predictions."""

from __future__ import annotations

import importlib
import sys
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from anyformer import plugins, pretrained
from anyformer.errors import ConfigError, FolderError, nearest

if TYPE_CHECKING:
    import torch

    from anyformer.data.files import Paths
    from anyformer.tasks.answer import AnswerTask
    from anyformer.tasks.answers import Label
    from anyformer.tasks.ask_image import AskImage
    from anyformer.tasks.base import Metrics, Task
    from anyformer.tasks.caption import Caption
    from anyformer.tasks.classify_audio import ClassifyAudio
    from anyformer.tasks.classify_image import ClassifyImage
    from anyformer.tasks.classify_pair import ClassifyPair
    from anyformer.tasks.classify_set import ClassifySet
    from anyformer.tasks.classify_text import ClassifyText, RegressionValue
    from anyformer.tasks.classify_video import ClassifyVideo
    from anyformer.tasks.complete_image import CompleteImage
    from anyformer.tasks.detect import Detect
    from anyformer.tasks.electra import Electra
    from anyformer.tasks.embed import Embed
    from anyformer.tasks.fill_mask import FilledText, FillMask
    from anyformer.tasks.language import GenerateTask
    from anyformer.tasks.match import Match
    from anyformer.tasks.pose import PoseTask
    from anyformer.tasks.read import Read
    from anyformer.tasks.reconstruct import Reconstruct
    from anyformer.tasks.segment import Segment
    from anyformer.tasks.summarize import Summarize
    from anyformer.tasks.tag import Tag
    from anyformer.tasks.transcribe import Transcribe
    from anyformer.tasks.translate import Translate

Folder: TypeAlias = str | PathLike[str] | None

OWN: dict[str, type[Task]] = {}  # tasks that were registered from outside

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


def names() -> list[str]:
    """The names of all tasks, those of plugins too."""
    plugins.load_entry_points("tasks")
    return sorted(TASKS)


def find(name: str, folder: Folder = None) -> type[Task]:
    """The class of a task. `folder` is of a model that it should run with, and may name a plugin that is missing."""
    if name not in TASKS and name not in names():
        module = pretrained.plugin_of(folder, f"task {name}")
        if folder is not None and module is not None:
            raise FolderError(plugins.missing(Path(folder), module, f'the task "{name}"'))
        model = pretrained.find(name)
        if model is not None:
            raise ConfigError(
                f'"{name}" is a model, not a task; its task is {model.task}: anyformer run {model.task} --model {name}'
            )
        raise ConfigError(f'There is no task "{name}".{nearest(name, TASKS)} There are: {", ".join(TASKS)}.')
    if name in OWN:
        return OWN[name]
    module, attribute = TASKS[name]
    found: type[Task] = getattr(importlib.import_module(module), attribute)
    return found


TextClassifier: TypeAlias = "ClassifyText[str, Label | RegressionValue]"


@overload
def task(name: Literal["answer"], path: Folder = None, **options: object) -> AnswerTask: ...
@overload
def task(name: Literal["ask-image"], path: Folder = None, **options: object) -> AskImage: ...
@overload
def task(name: Literal["caption"], path: Folder = None, **options: object) -> Caption: ...
@overload
def task(name: Literal["classify-audio"], path: Folder = None, **options: object) -> ClassifyAudio: ...
@overload
def task(name: Literal["classify-image"], path: Folder = None, **options: object) -> ClassifyImage: ...
@overload
def task(name: Literal["classify-pair"], path: Folder = None, **options: object) -> ClassifyPair: ...
@overload
def task(name: Literal["classify-set"], path: Folder = None, **options: object) -> ClassifySet: ...
@overload
def task(
    name: Literal["classify-text"], path: Folder = None, **options: object
) -> ClassifyText[str, Label | RegressionValue]: ...
@overload
def task(name: Literal["classify-video"], path: Folder = None, **options: object) -> ClassifyVideo: ...
@overload
def task(name: Literal["complete-image"], path: Folder = None, **options: object) -> CompleteImage: ...
@overload
def task(name: Literal["detect"], path: Folder = None, **options: object) -> Detect: ...
@overload
def task(name: Literal["electra"], path: Folder = None, **options: object) -> Electra: ...
@overload
def task(name: Literal["embed"], path: Folder = None, **options: object) -> Embed: ...
@overload
def task(name: Literal["fill-mask"], path: Folder = None, **options: object) -> FillMask[FilledText]: ...
@overload
def task(name: Literal["generate"], path: Folder = None, **options: object) -> GenerateTask: ...
@overload
def task(name: Literal["match"], path: Folder = None, **options: object) -> Match: ...
@overload
def task(name: Literal["pose"], path: Folder = None, **options: object) -> PoseTask: ...
@overload
def task(name: Literal["read"], path: Folder = None, **options: object) -> Read: ...
@overload
def task(name: Literal["reconstruct"], path: Folder = None, **options: object) -> Reconstruct: ...
@overload
def task(name: Literal["segment"], path: Folder = None, **options: object) -> Segment: ...
@overload
def task(name: Literal["summarize"], path: Folder = None, **options: object) -> Summarize: ...
@overload
def task(name: Literal["tag"], path: Folder = None, **options: object) -> Tag: ...
@overload
def task(name: Literal["transcribe"], path: Folder = None, **options: object) -> Transcribe: ...
@overload
def task(name: Literal["translate"], path: Folder = None, **options: object) -> Translate: ...
@overload
def task(name: str, path: Folder = None, **options: object) -> Task: ...
def task(  # type: ignore[misc]  # the overloads leave device and dtype to their options
    name: str,
    path: Folder = None,
    *,
    device: str | torch.device = "auto",
    dtype: torch.dtype | str | None = None,
    **options: object,
) -> Task:
    """A task with its model as a function: an input in, an answer out; a list in, a list out. The model is a folder, a
    .gguf file or the name of a model that is installed; without one, the default model of the task.

    ask = task("generate", "folder", max_new_tokens=50)
    print(ask("What is the capital of France?"))
    translate = task("translate")           # the model for it that ships; task("translate", "en-fr") is another

    `device` is "auto" (cuda, mps or cpu, the first that there is), or a name. `weights="int8"` rounds the model's
    matrices to 8 bits, which a CPU runs several times faster. Other `options` hold for every call that does not say
    otherwise.
    """
    kind = find(name, path)
    usual = pretrained.default(name) if path is None else None
    found = usual.open() if usual is not None else pretrained.resolve_path(str(path))
    given: dict[str, Any] = options
    ready = kind.load(found, device=device, dtype=dtype, **given)
    if usual is not None:
        print(f"model: {usual.name} (the default of {name})", file=sys.stderr, flush=True)
    return ready


def evaluate(
    name: str,
    *,
    data: Paths,
    model: Folder = None,
    columns: str = "",
    device: str = "auto",
    dtype: str | None = None,
    **options: object,
) -> Metrics:
    """The metrics of a model on labeled rows, as a dict: the command `anyformer eval`.

    evaluate("classify-text", model="folder", data="dev.tsv")["accuracy"]

    Without `model`, the default model of the task. `columns` says which column is what ("text=4,label=stars"); other
    options are those of the task (task.*), where they differ from the folder's. What is inferred is printed to standard
    error.
    """
    from anyformer.tasks.evaluation import evaluate_task, note

    found = evaluate_task(name, model, data, columns=columns, options=options, device=device, dtype=dtype, say=note)
    return found.metrics
