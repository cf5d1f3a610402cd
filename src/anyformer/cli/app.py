"""The application, shell completion and the options that several commands share. Imports no torch."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

EXAMPLES = """One library for every transformer, from text to images to anything.

\b
Start here:
  anyformer demo
      run every installed model once and write a page with the answers
  anyformer run translate "A man rides a bicycle."
      run a model on an input
  anyformer models
      list the models, installed or not
  anyformer recipes
      list the architectures and sizes that can be built
  anyformer tasks
      list what a model can be trained and used for
  anyformer train translate --recipe transformer-base --data pairs.tsv --out mine/
      train a model on your own files
  anyformer eval classify-text --model mine/ --data dev.tsv
      compute the metrics of a model on labeled rows
  anyformer explore --model mine/
      look inside a model in the browser
  anyformer convert gpt2/ mine/ --to anyformer
      convert a Hugging Face folder to an anyformer folder
  anyformer convert mine/ gpt2/ --to hf
      convert it back

\b
In Python:
  import anyformer as af
  model = af.build("gpt2-124m")
  model = af.load("folder")
"""

app = typer.Typer(help=EXAMPLES, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def show_version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        from anyformer.version import __version__

        print(f"anyformer {__version__}")
        raise typer.Exit


class Command(TyperCommand):
    """A command that hints at the option that an unknown one stands for, in the spelling of another library too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments; an unknown option is an InputError."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer and click have a class each
            name = getattr(error, "option_name", None)
            if name is None:
                raise
            known = [option for parameter in self.params for option in parameter.opts if option[:2] == "--"]
        raise unknown_option(str(self.name), name, known)


def unknown_option(command: str, option: str, known: list[str]) -> Exception:
    """The error for an option that a command does not have."""
    from anyformer.errors import ALIASES, OURS, InputError, nearest

    name = option.lstrip("-").replace("-", "_")
    names = {one.lstrip("-").replace("-", "_"): one for one in known}
    hint = nearest(name, names)
    setting = OURS.get(name.lower(), next((key for key in ALIASES if key.rpartition(".")[2] == name), ""))
    for ours, theirs in names.items():
        hint = hint.replace(f'"{ours}"', theirs)
    if "." in setting and setting.rpartition(".")[2] not in names and "--set" in known:
        hint = f" Did you mean --set {setting}=VALUE?"
    return InputError(f"anyformer {command} has no option {option}.{hint} See anyformer {command} --help.")


VERSION = typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)


@app.callback()
def root(version: Annotated[bool, VERSION] = False) -> None:
    """Global options."""


# Shell completion; does not import torch.


def task_names(incomplete: str) -> list[str]:
    """Names of tasks."""
    from anyformer.tasks import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """Names of models."""
    from anyformer import pretrained

    return [model.name for model in pretrained.models() if model.name.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    """Names of recipes, read from the source files, and of models that can be fine-tuned."""
    found = [name for path in (Path(__file__).parents[1] / "recipes").glob("*.py") for name in _names_in(path)]
    return [*(name for name in sorted(found) if name.startswith(incomplete)), *model_names(incomplete)]


def _names_in(path: Path) -> list[str]:
    """Keys of SIZES or RECIPES in a source file, and of tables in a call of `register`."""
    tables: list[ast.AST] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("SIZES", "RECIPES"):
            tables.append(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "register":
            tables += node.args[1:2]
    keys = [key for table in tables if isinstance(table, ast.Dict) for key in table.keys]
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


def load_plugins(names: list[str] | None) -> list[str] | None:
    """Import the modules of --plugin before anything else is read."""
    if names:
        from anyformer import plugins

        for name in names:
            plugins.load(name)
    return names


# Options that several commands have.
TaskName = Annotated[
    str, typer.Argument(metavar="TASK", help="Task name, listed by `anyformer tasks`", autocompletion=task_names)
]
Device = Annotated[str, typer.Option(help="Device: auto (cuda, mps or cpu), cpu, cuda, cuda:1, mps")]
Dtype = Annotated[str | None, typer.Option(help="Data type: float32, bfloat16, … (default: as saved)")]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        help="Module or .py file that registers families or tasks of your own; can be repeated",
        callback=load_plugins,
        is_eager=True,
    ),
]
