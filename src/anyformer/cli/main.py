"""The command line. Each command imports what it needs, so that `anyformer --help` is fast."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from anyformer.cli import run_command, train_command  # noqa: F401 - they add their commands
from anyformer.cli.app import Command, Device, Dtype, Plugins, TaskName, app, model_names


class CheckpointFormat(StrEnum):
    """Formats of model folders."""

    hf = "hf"
    anyformer = "anyformer"


@app.command(cls=Command, short_help="List architectures and their sizes.")
def recipes(
    family: Annotated[str | None, typer.Option(metavar="NAME", help="List the sizes of this family only")] = None,
    size: Annotated[
        str | None, typer.Option(metavar="RANGE", help="Parameters: 10M (at most), 100M- (at least), 10M-100M")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """List the architectures and their sizes.

    \b
    Examples:
      anyformer recipes
      anyformer recipes --family bert
      anyformer recipes --size 5M-20M
    """
    from anyformer.cli.listing import show_recipes

    show_recipes(list_recipes(family), family, size)


def list_recipes(family: str | None = None) -> list[tuple[str, str, int, str]]:
    """Name, family, number of parameters and description of every recipe (of one family).

    Parameters are counted on the meta device: no memory is allocated, and tied parameters count once.
    """
    import torch

    from anyformer import registry

    if family is not None:
        registry.family(family)
    rows = []
    for name in registry.recipes():
        recipe = registry.recipe(name)
        if family not in (None, recipe.family.name):
            continue
        with torch.device("meta"):
            model = recipe.family.build(recipe.config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        rows.append((name, recipe.family.name, parameters, heading(recipe.family.description)))
    return rows


def heading(text: str) -> str:
    """BERT (Devlin et al. 2019): as the encoder of … -> BERT (Devlin et al. 2019)"""
    return " ".join(text.split()).partition(":")[0]


@app.command(cls=Command, short_help="List tasks and the columns of their data.")
def tasks(plugin: Plugins = None) -> None:
    """List the tasks with the columns of their data.

    Example: anyformer tasks
    """
    from anyformer.cli.listing import show_tasks

    show_tasks()


@app.command(cls=Command, short_help="List named models, or show a model's card.")
def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the card of this model", autocompletion=model_names)
    ] = None,
) -> None:
    """List the models that anyformer knows by name, or show the card of one.

    \b
    Examples:
      anyformer models
      anyformer models en-de
    """
    from anyformer.cli.listing import show_card, show_models

    if name is None:
        show_models()
    else:
        show_card(name)


@app.command(cls=Command, name="eval", short_help="Evaluate a model on labeled data.")
def evaluate(
    task: TaskName,
    data: Annotated[str, typer.Option(metavar="PATH", help="Labeled rows: file, folder, glob or FILE,FILE")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Model folder or name (default: see `models`)",
            autocompletion=model_names,
        ),
    ] = None,
    columns: Annotated[str, typer.Option(help="Names or numbers of columns, as in text=4,label=stars")] = "",
    device: Device = "auto",
    dtype: Dtype = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Task setting, such as task.lowercase=true; can be repeated"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="detect: image file, plot of where queries predict boxes")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Evaluate a model on labeled data.

    \b
    Examples:
      anyformer eval classify-text --model mine/ --data dev.tsv
      anyformer eval translate --model mine/ --data test.en,test.de
      anyformer eval tag --model mine/ --data eng.testa.gz
      anyformer eval detect --model mine/ --data val.json --out queries.png
      anyformer eval read --data lines.tsv,lines.zip
          evaluate the default model of the task (marked * by anyformer models)
      anyformer eval read --data lines.tsv,lines.zip --set task.lowercase=true --set task.overflow=cut
          ignore case, and crop lines that are wider than the model allows
    """
    from anyformer.tasks import find
    from anyformer.tasks.evaluation import evaluate_task, note, show
    from anyformer.training.dotted_keys import parse_assignments, task_options

    chosen = task_options(find(task).options_class, parse_assignments(set or []))
    draw = out is not None
    found = evaluate_task(
        task, model, data, columns=columns, options=chosen, device=device, dtype=dtype, draw=draw, say=note
    )
    print(show(found))
    if out is not None:
        from anyformer.explorer.plot_queries import query_boxes

        query_boxes(found.query_boxes, out)
    found.check()


@app.command(cls=Command, short_help="Convert to or from a Hugging Face folder.")
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Model folder, of anyformer or Hugging Face")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder")],
    to: Annotated[CheckpointFormat, typer.Option(help="Format of the output folder")],
    plugin: Plugins = None,
) -> None:
    """Convert a model folder between the formats of anyformer and Hugging Face.

    The converted model gives the same outputs.

    Example: anyformer convert gpt2/ mine/ --to anyformer
    """
    from anyformer.checkpoints.folder import load

    load(source, device="cpu").save(target, format=to.value)
    print(f"Wrote {source} to {target} in the format {to.value}.")


@app.command(cls=Command, short_help="Look inside models in the browser.")
def explore(
    model: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Model folder or .gguf file; can be repeated")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port (default: the first free one)")] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser")] = False,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Images for the view of query boxes of a detector")
    ] = None,
    device: Device = "auto",
    plugin: Plugins = None,
) -> None:
    """Look inside models in the browser, with your own inputs.

    Without --model, the page lists the models in the current folder and those that are installed.

    \b
    Examples:
      anyformer explore --model mine/
      anyformer explore --model transformer/ --model rnn/
          compare two models side by side
    """
    from anyformer.explorer.server import serve

    serve(model or [], port, browser=not no_open, images=images, device=device)


@app.command(cls=Command, short_help="Run every installed model once.")
def demo(
    out: Annotated[Path, typer.Option(help="Output folder for the page and its images")] = Path("demo-output"),
    train: Annotated[bool, typer.Option("--train", help="Train a small translator instead (one minute)")] = False,
    seed: Annotated[int, typer.Option(help="Random seed of --train")] = 1,
) -> None:
    """Run every installed model once and write a page with inputs, answers and images.

    With --train, or if no model is installed, train a small Transformer that translates number words from English to
    German, and plot its cross-attention.

    \b
    Examples:
      anyformer demo
      anyformer demo --train --out demo-output
    """
    from anyformer.cli.demo.number_translation import DemoSettings, run
    from anyformer.cli.demo.tour import available_models, tour

    if not train and not available_models():
        print("No model is installed (`anyformer models` lists how to get some): training one instead.", flush=True)
        train = True
    if train:
        run(out, DemoSettings(seed=seed))
    else:
        tour(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line. An `af.Error` is printed as one sentence with exit code 2 (3 if some inputs were answered);
    any other exception is a bug and shows a traceback."""
    from anyformer.errors import Error, SkippedError, StoppedError, presentable

    # Warnings without source lines.
    warnings.formatwarning = lambda message, *where, **more: f"anyformer: {presentable(str(message))}\n"
    try:
        app(arguments, prog_name="anyformer")
    except Error as error:
        if os.environ.get("RANK", "0") == "0":  # under torchrun, only the first process prints the error
            print(f"anyformer: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, StoppedError) else 3 if isinstance(error, SkippedError) else 2)


if __name__ == "__main__":
    main()
