"""The command line: parse, call, print. Heavy things load in the command that needs them."""

from __future__ import annotations

import ast
import os
import sys
import warnings
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

EXAMPLES = """One library for every transformer, from text to images to anything.

\b
Start here:
  anyformer demo
      every model that came with anyformer put to work once, on one page
  anyformer run translate "A man rides a bicycle."
      a model that ships, or with --model your own, put to work; "anyformer run --help" has more
  anyformer models
      the models that ship, and whether they are here
  anyformer recipes
      the models that can be built
  anyformer tasks
      what they can be trained and used for
  anyformer train translate --recipe transformer-base --data pairs.tsv --out mine/
      train a model on your own files; anyformer train --help says more
  anyformer eval classify-text --model mine/ --data dev.tsv
      how good a model is, by the field's own metric
  anyformer convert gpt2/ mine/ --to anyformer
      a Hugging Face folder as anyformer's own
  anyformer convert mine/ theirs/ --to hf
      and back, for transformers

\b
In Python:
  import anyformer as af
  model = af.build("gpt2-124m")
  model = af.load("folder")
"""

app = typer.Typer(help=EXAMPLES, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def show_version(asked: bool) -> None:
    if asked:
        from anyformer.version import __version__

        print(f"anyformer {__version__}")
        raise typer.Exit


VERSION = typer.Option("--version", help="Print the version and stop.", callback=show_version, is_eager=True)


@app.callback()
def begin(version: Annotated[bool, VERSION] = False) -> None:
    """What holds for every command."""


def note(text: str) -> None:
    """Something to know beside the answer, which alone stands on standard output."""
    print(text, file=sys.stderr, flush=True)


# What a shell may complete; none of it imports torch.


def task_names(incomplete: str) -> list[str]:
    from anyformer.tasks import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    from anyformer import pretrained

    return [model.name for model in pretrained.models() if model.name.startswith(incomplete)]


def recipe_names(incomplete: str) -> list[str]:
    """The names in every table of sizes, read from the source, and the models that may be taken further."""
    found = [name for path in (Path(__file__).parents[1] / "recipes").glob("*.py") for name in _names_in(path)]
    return [*(name for name in sorted(found) if name.startswith(incomplete)), *model_names(incomplete)]


def _names_in(path: Path) -> list[str]:
    """The keys of SIZES or RECIPES, and of tables that stand in a call of `register`."""
    tables: list[ast.AST] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("SIZES", "RECIPES"):
            tables.append(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "register":
            tables += node.args[1:2]
    keys = [key for table in tables if isinstance(table, ast.Dict) for key in table.keys]
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


class CheckpointFormat(StrEnum):
    hf = "hf"
    anyformer = "anyformer"


@app.command()
def recipes() -> None:
    """List the models that can be built: name, family, parameters, what it is.

    Example: anyformer recipes
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column, side in (("name", "left"), ("family", "left"), ("parameters", "right")):
        table.add_column(column, justify=side, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("what it is")
    for name, family, parameters, about in list_recipes():
        table.add_row(name, family, f"{parameters:,}", about)
    # Piped, a recipe is one line; in a terminal it fits the window.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def list_recipes() -> list[tuple[str, str, int, str]]:
    """Parameters are counted on the meta device: nothing is allocated, tied ones count once."""
    import torch

    from anyformer import registry

    rows = []
    for name in registry.recipes():
        recipe = registry.recipe(name)
        with torch.device("meta"):
            model = recipe.family.build(recipe.config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        rows.append((name, recipe.family.name, parameters, heading(recipe.family.description)))
    return rows


def heading(text: str) -> str:
    """BERT (Devlin et al. 2019): as the encoder of … -> BERT (Devlin et al. 2019)"""
    return " ".join(text.split()).partition(":")[0]


@app.command()
def train(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="What the model is to do: translate, classify-text, …", autocompletion=task_names
        ),
    ],
    recipe: Annotated[
        str, typer.Option(help="A recipe's name, or a model folder to take further.", autocompletion=recipe_names)
    ],
    data: Annotated[list[str], typer.Option(help="A file, a glob, or FILE,FILE side by side; may be repeated.")],
    out: Annotated[Path, typer.Option(help="The folder that the model goes to.")],
    valid: Annotated[list[str] | None, typer.Option(help="Files to evaluate on; else some rows are held back.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in a YAML or JSON file.")] = None,
    set: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting; may be repeated.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out; start it if the folder is empty.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every setting, resolved, and stop.")] = False,
) -> None:
    """Train a model on your own files, and leave a folder that runs.

    \b
    Examples:
      anyformer train translate --recipe transformer-base --data pairs.tsv --out mine/
      anyformer train translate --recipe transformer-base --data train.en,train.de --valid val.en,val.de --out mine/
      anyformer train classify-text --recipe minilm/ --data reviews.tsv --out mine/ --set train.lr=2e-5
      anyformer train generate --recipe gpt2-tiny --data story.txt --out mine/ --set tokenizer.kind=char --dry-run
      anyformer train classify-image --recipe patches --data pictures/ --out probe/ --set train.freeze=encoder.* \\
          --set train.lr=3e-3                                      a linear layer on what a model knows already
      anyformer train generate --recipe gpt2/ --data songs.txt --out mine/ --set tokenizer.path=words/
                                                                   another tokenizer; shared words keep their vectors
      anyformer train summarize --recipe transformer-small --data t.txt,t.txt --out first/ --set task.infilling=0.3
                                                                   the language first, from texts with gaps: then
                                                                   --recipe first/ learns from few rows
      anyformer train generate --recipe gpt2/ … --set train.lora=8   small adapters learn, the weights stay
      anyformer train generate … --resume                          the same command, where it was cut off
      torchrun --nproc-per-node 4 -m anyformer train …             on several GPUs
      torchrun --nproc-per-node 4 --max-restarts 3 -m anyformer train … --resume
                                                                   the same, restarted if a process dies

    \b
    Settings (--dry-run prints all): train.steps, train.batch_size, train.lr, train.warmup_steps, train.precision,
    train.eval_every, model.n_layers, data.max_length, tokenizer.vocab_size, … Of a model folder, those of model.* that
    change no weight, such as model.dropout.
    """
    from anyformer.training.command import TrainRequest, run
    from anyformer.training.command import dry_run as describe
    from anyformer.training.dotted_keys import parse_assignments, read_config

    given = {**(read_config(config) if config is not None else {}), **parse_assignments(set or [])}
    order = TrainRequest(task, recipe, data, out, valid or None, given, resume)
    if dry_run:
        print(describe(order))
    else:
        run(order)


@app.command()
def tasks() -> None:
    """List the tasks: name, what it is, the columns of a row, the figure that says which model is better.

    Example: anyformer tasks
    """
    from rich.console import Console
    from rich.table import Table

    from anyformer.tasks import TASKS, find

    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    table.add_column("columns", no_wrap=True)
    for name in TASKS:
        kind = find(name)
        table.add_row(name, kind.about, ", ".join(column.name for column in kind.columns))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the card of this model.", autocompletion=model_names)
    ] = None,
) -> None:
    """List the models that ship: name, task, parameters, size, score, whether it is here. With NAME: its card.

    \b
    Examples:
      anyformer models
      anyformer models en-de
    """
    from anyformer.cli.run import show_card, show_models

    if name is None:
        show_models()
    else:
        show_card(name)


@app.command(name="eval")
def evaluate(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="What the model does: see anyformer tasks.", autocompletion=task_names),
    ],
    data: Annotated[str, typer.Option(metavar="PATH", help="Rows with the right answers; globs, gz and xz too.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="A model folder, or the name of a model that ships; else the usual one.",
            autocompletion=model_names,
        ),
    ] = None,
    columns: Annotated[str, typer.Option(help="Which column is what: text=4,label=2.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 …; by default as the files have it.")] = None,
    set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting of the task, task.*; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="PICTURE", help="Draw where each query puts its boxes.")] = None,
) -> None:
    """Say how good a model is on rows that it has not learned from, by the field's own metric.

    \b
    Examples:
      anyformer eval classify-text --model mine/ --data dev.tsv
      anyformer eval translate --model mine/ --data test.en,test.de
      anyformer eval tag --model mine/ --data eng.testa.gz
      anyformer eval detect --model mine/ --data val.json --out slots.png
      anyformer eval read --data lines.tsv,lines.zip
          by the model for it that ships
      anyformer eval read --data lines.tsv,lines.zip --set task.lowercase=true --set task.overflow=cut
          errors of case do not count, and what is wider than the model's limit is cut off
    """
    from anyformer.tasks import find
    from anyformer.tasks.evaluate import evaluate_task, show
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


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A model folder, anyformer's or Hugging Face's.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    to: Annotated[CheckpointFormat, typer.Option(help="The form to write it in.")],
) -> None:
    """Write a model folder in another form; the numbers it gives stay the same.

    Example: anyformer convert gpt2/ mine/ --to anyformer
    """
    from anyformer.checkpoints.folder import load

    load(source).save(target, format=to.value)
    print(f"{target} holds the model of {source}, as {to.value} has it.")


# Options of `run` that go to the task, each under its own name; those of model.generate first.
DECODING = ("max_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "seed")
WORDING = ("stop", "system", "shots", "template")
FINDING = ("threshold",)
HEARING = ("language", "timestamps")


@app.command("run")
def run_task(
    context: typer.Context,
    task: Annotated[
        str, typer.Argument(metavar="TASK", help="What to do, such as generate or embed.", autocompletion=task_names)
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="A model folder, a .gguf file, or the name of a model that ships; else the usual one.",
            autocompletion=model_names,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT", help="A text, a file that holds one, a table of them, or - for lines of input."
        ),
    ] = None,
    columns: Annotated[str, typer.Option(help="Which column of a table is what: text=4.")] = "",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 …")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 …; by default as the files have it.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="The longest answer, in tokens.")] = None,
    num_beams: Annotated[int | None, typer.Option(help="Search with so many beams.")] = None,
    do_sample: Annotated[bool | None, typer.Option("--do-sample", help="Draw words by their probability.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling: below 1 is tamer, above wilder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sampling: among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sampling: among the likeliest that reach p together.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: the same seed draws the same.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends an answer; may be given again.")] = None,
    system: Annotated[str | None, typer.Option(help="What a chat model is told before the question.")] = None,
    shots: Annotated[str | None, typer.Option(help="A file of examples: question, tab, answer on each line.")] = None,
    template: Annotated[str | None, typer.Option(help=r"How an example is written: 'Q: {0}\nA: {1}\n\n'.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Finding things: as sure as this at least, 0 to 1.")] = None,
    language: Annotated[
        str | None, typer.Option(help="Speech: what is spoken; unsaid, the model listens for it.")
    ] = None,
    timestamps: Annotated[
        bool | None, typer.Option("--timestamps", help="Speech: add timestamps to the transcript.")
    ] = None,
    overflow: Annotated[
        str | None, typer.Option(help="Reading: squeeze, cut or refuse a line wider than the model's limit.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="PICTURE", help="Write the answer drawn on the picture.")] = None,
    chat: Annotated[
        bool | None,
        typer.Option("--chat/--no-chat", help="Hold a conversation; or continue the text without the chat template."),
    ] = None,
) -> None:
    """Put a model to work on texts, on files, or on the lines of standard input.

    \b
    Examples:
      anyformer run translate "A man rides a bicycle."
          by the model for it that ships; anyformer models lists them
      anyformer run translate --model en-fr "A man rides a bicycle."
          by another of them
      anyformer run generate --model gpt2/ "Once upon a time" --do-sample --temperature 0.8
          go on with a text; on a terminal it appears word by word
      anyformer run generate --chat
          talk with a chat model
      anyformer run answer "Who baked cookies?" "Amanda baked cookies."
          a question and the text, or the file, that has the answer; so classify-pair; or lines with a tab in between
      anyformer run classify-pair --model mine/ "It rained, so" "she took an umbrella" "she took the sun"
          the best of several choices, by a model that learned to choose
      anyformer run match --model clip/ beach.jpg "a dog" "two children"
          which of the texts fits the picture
      anyformer run ask-image --model mine/ beach.jpg "who is there?"
          a picture, and a question about it
      anyformer run generate --model gpt2/ --shots capitals.tsv Italy Spain
          examples first, then each case; an answer ends where the next example would begin
      anyformer run embed --model MiniLM/ - < sentences.txt
          a vector for each line
      anyformer run classify-text reviews.tsv
          an answer for each row of a table (.tsv, .csv, .jsonl, .parquet); --columns text=NAME says which column
      anyformer run classify-image --model mine/ cat.jpg --out seen.png
          a class for a picture, and the picture with what the model looked at
      anyformer run detect --model mine/ street.jpg --threshold 0.7 --out seen.png
          what is where, and the picture with boxes around it
      anyformer run transcribe --model whisper/ talk.wav --language de --timestamps
          what was said, and when
    """
    from anyformer.cli import run as console

    names = (*DECODING, *WORDING, *FINDING, *HEARING)
    given = {name: context.params[name] for name in names if context.params[name] not in (None, [], ())}
    for name in ("stop", "template"):  # typed in a shell, \n is two characters
        if name in given:
            given[name] = _unescape(given[name])
    where = {"device": device, "dtype": dtype, **({} if overflow is None else {"overflow": overflow})}
    console.run(task, model, inputs or [], given, chat=chat, out=out, columns=columns, **where)


def _unescape(text: Any) -> Any:
    if isinstance(text, str):
        return text.replace("\\n", "\n").replace("\\t", "\t")
    return [_unescape(item) for item in text]


@app.command()
def explore(
    model: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="A model folder or .gguf file; may be repeated.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port to listen at; by default the first free one.")] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of pictures, for the map of a detector's query slots.")
    ] = None,
) -> None:
    """Look inside a model in the browser, with your own input. Without --model: whatever models lie around.

    \b
    Examples:
      anyformer explore --model mine/
      anyformer explore --model transformer/ --model rnn/            two models, side by side
    """
    from anyformer.explorer.server import serve

    serve(model or [], port, browser=not no_open, images=images)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the page goes, or the model and the picture.")] = Path("demo-output"),
    train: Annotated[bool, typer.Option("--train", help="Train a small translator instead: a minute.")] = False,
    seed: Annotated[int, typer.Option(help="With --train: other numbers and other first weights.")] = 1,
) -> None:
    """Put every model that is here to work once, and gather the answers on a page.

    With --train, or where there is none: train a small Transformer to translate number words, English to German, and
    show what it attends to.

    \b
    Examples:
      anyformer demo
      anyformer demo --train --out demo-output
    """
    from anyformer.cli.demo.number_translation import DemoSettings, run
    from anyformer.cli.demo.tour import available_models, tour

    if not train and not available_models():
        print("No model is here to show (anyformer models says how to get some), so one is trained.", flush=True)
        train = True
    if train:
        run(out, DemoSettings(seed=seed))
    else:
        tour(out)


def main(arguments: Sequence[str] | None = None) -> None:
    """A mistake of the user's ends in one sentence and exit code 2 (3 if the other inputs were answered); a mistake of
    ours in a traceback."""
    from anyformer.errors import Error, SkippedError, StoppedError, presentable

    # Without lines of our code.
    warnings.formatwarning = lambda message, *where, **more: f"anyformer: {presentable(str(message))}\n"
    try:
        app(arguments, prog_name="anyformer")
    except Error as error:
        if os.environ.get("RANK", "0") == "0":  # of many processes that make the same mistake, one says so
            print(f"anyformer: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, StoppedError) else 3 if isinstance(error, SkippedError) else 2)


if __name__ == "__main__":
    main()
