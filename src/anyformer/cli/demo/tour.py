"""Run every installed model on its example input and write the answers to a page."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyformer import pretrained
from anyformer.cli.demo import html
from anyformer.cli.demo.number_translation import make_folder
from anyformer.cli.demo.page import Panel, write_page
from anyformer.errors import Error, FolderError
from anyformer.pretrained import PretrainedModel
from anyformer.progress import progress_bar
from anyformer.tasks import TASKS, task

PAGE = "index.html"
# Order of tasks on the page; other tasks follow.
ORDER = "translate read caption classify-image detect pose reconstruct classify-audio generate".split()
CHAT_TOKENS, STORY_TOKENS = 40, 90  # maximum new tokens of a chat answer and of a continued text
LINE = 110  # characters of an answer in the terminal


def tour(out: str | Path = "demo-output") -> Path:
    """Run all installed models, write the page, and return its path."""
    known, here = _known(), available_models()
    if not here:
        raise FolderError(
            f"No models are installed. Install them with: {pretrained.GET}"
            f"{''.join(f', or {model.name} with: {model.get}' for model in known if model.path is None)}."
            " Alternatively, train a small model: anyformer demo --train"
        )
    page = make_folder(Path(out)) / PAGE
    started = time.perf_counter()
    panels = run(here, page.parent)
    seconds = time.perf_counter() - started
    noun = "model was" if len(panels) == 1 else "models were"
    summary = f"{len(panels)} {noun} run offline in {seconds:.0f} seconds."
    write_page(page, panels, [model.problem for model in known if model.problem is not None], summary)
    print(f"\n{summary}\nPage with images: {page}")
    return page


def available_models() -> list[PretrainedModel]:
    """The installed models with an example, in the order of the page."""
    return sorted((model for model in _known() if model.problem is None and model.example), key=_order)


def _known() -> list[PretrainedModel]:
    return [model for model in pretrained.models() if model.task in TASKS]


def run(models: Sequence[PretrainedModel], folder: Path) -> list[Panel]:
    """Run models on their examples and print their answers. Example files are copied to `folder`, for the commands."""
    panels = []
    with progress_bar("Models") as show:
        for done, model in enumerate(models):
            show(done, len(models), f"{model.name}: {model.description}")
            panels.append(panel(model, folder))
        show(len(models), len(models), "done")
    for one in panels:
        print(f"{one.task:>15}  {one.model:<11} {html.plain(one.answer)[:LINE]}")
    return panels


def panel(model: PretrainedModel, folder: Path) -> Panel:
    """The panel of a model; it shows an error if the model cannot be opened."""
    started = time.perf_counter()
    input_html = ""
    chosen: dict[str, Any] = {}
    try:
        example = model.input()
        # The context of a question is shown with the answer.
        input_html = html.input_html(example[0] if model.task == "answer" else example)
        work = task(model.task, model.open())
        chosen = options(model, work)
        answer = work(example, **chosen)
        answer_html = html.answer_html(model.task, example, answer)
        image = html.output_image(model.task, work, example, answer)
        input_html = "" if image and model.task in html.SHOWS_INPUT else input_html
    except Error as error:
        answer_html, image = html.text(str(error)), ""
    return Panel(
        model.task,
        model.name,
        model.description,
        input_html,
        answer_html,
        image,
        html.CAPTIONS.get(model.task, ""),
        command(model, chosen, folder),
        explore_command(model),
        model.score,
        model.known_failure,
        time.perf_counter() - started,
    )


def options(model: PretrainedModel, work: Any) -> dict[str, Any]:
    """Options for short and reproducible answers."""
    if model.task != "generate":
        return {}
    sampled = bool(work.model.origin.generation.get("do_sample"))
    return {"max_new_tokens": CHAT_TOKENS if model.chat else STORY_TOKENS, **({"seed": 1} if sampled else {})}


def command(model: PretrainedModel, options: Mapping[str, Any], folder: Path) -> str:
    """The same call as a shell command, for the current folder; an example file is copied to `folder`."""
    words = ["anyformer", "run", model.task, *([] if model.default else ["--model", model.name])]
    if isinstance(model.example, str):
        words.append(model.example)
    elif isinstance(model.example, Mapping):
        file = Path(model.path or "") / model.example["file"]
        copied = folder / f"{model.name}{file.suffix}"
        shutil.copyfile(file, copied)
        words.append(os.path.relpath(copied))
    else:
        words += model.example
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def explore_command(model: PretrainedModel) -> str:
    """The shell command that opens the model in the explorer."""
    return shlex.join(["anyformer", "explore", "--model", model.name])


def _order(model: PretrainedModel) -> tuple[int, bool]:
    return (ORDER.index(model.task) if model.task in ORDER else len(ORDER), not model.default)
