"""The tour: every model that is here answers its example, and the answers are gathered on a page."""

from __future__ import annotations

import shlex
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
# The order of the page; other tasks come after these.
ORDER = "translate read caption classify-image detect pose reconstruct classify-audio generate".split()
TALK, STORY = 40, 90  # tokens of an answer in a chat, and of a text that is gone on with
LINE = 110  # letters of an answer that the terminal shows


def tour(out: str | Path = "demo-output") -> Path:
    """Run it, print what happens, and say where the page is."""
    known, here = _known(), available_models()
    if not here:
        raise FolderError(
            f"No model is here to show: get anyformer's own with {pretrained.GET}"
            f"{''.join(f', or {model.name} with {model.get}' for model in known if model.path is None)}."
            " anyformer demo --train trains one from nothing instead."
        )
    page = make_folder(Path(out)) / PAGE
    started = time.perf_counter()
    panels = run(here)
    took = time.perf_counter() - started
    what = "model was" if len(panels) == 1 else "models were"
    summary = f"{len(panels)} {what} put to work on this machine, offline, in {took:.0f} seconds."
    write_page(page, panels, [model.problem for model in known if model.problem is not None], summary)
    print(f"\n{summary}\nThe page, with the images: {page}")
    return page


def available_models() -> list[PretrainedModel]:
    """The models that can be shown, in the order of the page."""
    return sorted((model for model in _known() if model.problem is None and model.example), key=_place)


def _known() -> list[PretrainedModel]:
    return [model for model in pretrained.models() if model.task in TASKS]


def run(models: Sequence[PretrainedModel]) -> list[Panel]:
    panels = []
    with progress_bar("Models") as show:
        for done, model in enumerate(models):
            show(done, len(models), f"{model.name}: {model.about}")
            panels.append(panel(model))
        show(len(models), len(models), "done")
    for one in panels:
        print(f"{one.task:>15}  {one.model:<11} {html.plain(one.said)[:LINE]}")
    return panels


def panel(model: PretrainedModel) -> Panel:
    """A model's example and its answer; a model that cannot be opened says why."""
    started = time.perf_counter()
    given = ""
    chosen: dict[str, Any] = {}
    try:
        thing = model.input()
        given = html.input_html(
            thing[0] if model.task == "answer" else thing
        )  # the text is shown with the answer in it
        work = task(model.task, model.open())
        chosen = options(model, work)
        answer = work(thing, **chosen)
        said, drawn = html.answer_html(model.task, thing, answer), html.picture(model.task, work, thing, answer)
        given = "" if drawn and model.task in html.SHOWS else given
    except Error as error:
        said, drawn = html.text(str(error)), ""
    return Panel(
        model.task,
        model.name,
        model.about,
        given,
        said,
        drawn,
        html.CAPTIONS.get(model.task, ""),
        command(model, chosen),
        model.score,
        time.perf_counter() - started,
    )


def options(model: PretrainedModel, work: Any) -> dict[str, Any]:
    """Answers that are short, and the same every time."""
    if model.task != "generate":
        return {}
    sampled = bool(work.model.origin.generation.get("do_sample"))
    return {"max_new_tokens": TALK if model.chat else STORY, **({"seed": 1} if sampled else {})}


def command(model: PretrainedModel, options: Mapping[str, Any]) -> str:
    """What to type, anywhere on this machine, for the same at the command line."""
    words = ["anyformer", "run", model.task, *([] if model.default else ["--model", model.name])]
    if isinstance(model.example, str):
        words.append(model.example)
    elif isinstance(model.example, Mapping):
        words.append(str(Path(model.path or "").absolute() / model.example["file"]))
    else:
        words += model.example
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _place(model: PretrainedModel) -> tuple[int, bool]:
    return (ORDER.index(model.task) if model.task in ORDER else len(ORDER), not model.default)
