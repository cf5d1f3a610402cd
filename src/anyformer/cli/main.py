"""The command line. Each command imports what it needs, so that `anyformer --help` is fast."""

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


VERSION = typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)


@app.callback()
def root(version: Annotated[bool, VERSION] = False) -> None:
    """Global options."""


def note(text: str) -> None:
    """Print a message to standard error; standard output contains only answers."""
    print(text, file=sys.stderr, flush=True)


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


class CheckpointFormat(StrEnum):
    """Formats of model folders."""

    hf = "hf"
    anyformer = "anyformer"


@app.command(short_help="List architectures and their sizes.")
def recipes(
    family: Annotated[str | None, typer.Option(metavar="NAME", help="List the sizes of this family only")] = None,
    size: Annotated[
        str | None, typer.Option(metavar="RANGE", help="Parameters: 10M (at most), 100M- (at least), 10M-100M")
    ] = None,
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


TRAIN_HELP = """Train a model on your own files.

\b
Examples:
  anyformer train translate --recipe transformer-base --data pairs.tsv --out mine/
  anyformer train translate --recipe transformer-base --data train.en,train.de --valid val.en,val.de --out mine/
  anyformer train generate --recipe gpt2-tiny --data story.txt --out mine/ --set tokenizer.kind=char --dry-run
  anyformer train generate … --resume
      continue after an interruption: the same command with --resume

\b
Fine-tuning (--recipe is a model folder or the name of an installed model):
  anyformer train classify-text --recipe minilm/ --data reviews.tsv --out mine/ --set train.lr=2e-5
  anyformer train classify-image --recipe patches --data images/ --out probe/ --set train.freeze=encoder.* \\
      --set train.lr=3e-3
      freeze the encoder and train a linear classifier
  anyformer train generate --recipe gpt2/ --data songs.txt --out mine/ --set train.lora=8
      train LoRA adapters of rank 8
  anyformer train generate --recipe gpt2/ --data songs.txt --out mine/ --set tokenizer.path=words/
      replace the tokenizer; tokens in both vocabularies keep their embeddings
  anyformer train summarize --recipe transformer-small --data t.txt,t.txt --out first/ --set task.infilling=0.3
      pre-train on unlabeled text (30% of it masked), then fine-tune with --recipe first/

\b
Several GPUs:
  torchrun --nproc-per-node 4 -m anyformer train …
  torchrun --nproc-per-node 4 --max-restarts 3 -m anyformer train … --resume
      restart if a process dies

\b
Settings (all of them: --dry-run): train.steps, train.batch_size, train.lr, train.warmup_steps, train.precision,
train.eval_every, model.n_layers, data.max_length, tokenizer.vocab_size, …
When fine-tuning, settings of model.* must not change the shapes of weights: model.dropout can be set.
"""


@app.command(help=TRAIN_HELP, short_help="Train a model on your own files.")
def train(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="Task name, listed by `anyformer tasks`", autocompletion=task_names),
    ],
    recipe: Annotated[
        str,
        typer.Option(
            metavar="NAME|DIR", help="Recipe to train from scratch, or model to fine-tune", autocompletion=recipe_names
        ),
    ],
    data: Annotated[
        list[str], typer.Option(metavar="PATH", help="Training file, folder, glob or FILE,FILE; can be repeated")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder for the model and its checkpoints")],
    valid: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Validation files (default: split from --data)")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML or JSON file with settings")] = None,
    set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting, such as train.lr=1e-4; can be repeated")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out (or start it)")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print all resolved settings and exit")] = False,
) -> None:
    """Train a model with the given options."""
    from anyformer.training.command import TrainRequest, run
    from anyformer.training.command import dry_run as describe
    from anyformer.training.dotted_keys import parse_assignments, read_config

    given = {**(read_config(config) if config is not None else {}), **parse_assignments(set or [])}
    order = TrainRequest(task, recipe, data, out, valid or None, given, resume)
    if dry_run:
        print(describe(order))
    else:
        run(order)


@app.command(short_help="List tasks and the columns of their data.")
def tasks() -> None:
    """List the tasks with the columns of their data.

    Example: anyformer tasks
    """
    from anyformer.cli.listing import show_tasks

    show_tasks()


@app.command(short_help="List named models, or show a model's card.")
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


@app.command(name="eval", short_help="Evaluate a model on labeled data.")
def evaluate(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="Task name, listed by `anyformer tasks`", autocompletion=task_names),
    ],
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
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1, …")] = "cpu",
    dtype: Annotated[str | None, typer.Option(help="Data type: float32, bfloat16, … (default: as saved)")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Task setting, such as task.lowercase=true; can be repeated"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="detect: image file, plot of where queries predict boxes")
    ] = None,
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


@app.command(short_help="Convert to or from a Hugging Face folder.")
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Model folder, of anyformer or Hugging Face")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder")],
    to: Annotated[CheckpointFormat, typer.Option(help="Format of the output folder")],
) -> None:
    """Convert a model folder between the formats of anyformer and Hugging Face.

    The converted model gives the same outputs.

    Example: anyformer convert gpt2/ mine/ --to anyformer
    """
    from anyformer.checkpoints.folder import load

    load(source).save(target, format=to.value)
    print(f"Wrote {source} to {target} in the format {to.value}.")


# Options of `run` that are passed to the task by name; those of model.generate first.
DECODING = ("max_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "seed")
PROMPT = ("stop", "system", "shots", "template")
TASK_OPTIONS = (*DECODING, *PROMPT, "threshold", "language", "timestamps")

TaskName = Annotated[
    str, typer.Argument(metavar="TASK", help="Task name, listed by `anyformer tasks`", autocompletion=task_names)
]
ModelName = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Model folder, .gguf file or name (default: see `models`)", autocompletion=model_names
    ),
]
Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="INPUT", help="Text, file, table of inputs, or - for standard input")
]
Columns = Annotated[str, typer.Option(help="Names or numbers of columns, as in text=review")]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1, …")]
Dtype = Annotated[str | None, typer.Option(help="Data type: float32, bfloat16, … (default: as saved)")]
MaxNewTokens = Annotated[int | None, typer.Option(help="Text generation: maximum number of new tokens")]
NumBeams = Annotated[int | None, typer.Option(help="Text generation: number of beams (1: greedy search)")]
DoSample = Annotated[bool | None, typer.Option("--do-sample", help="Text generation: sample instead of greedy search")]
Temperature = Annotated[float | None, typer.Option(help="Sampling temperature; below 1 is more deterministic")]
TopK = Annotated[int | None, typer.Option(help="Sample from the k most probable tokens")]
TopP = Annotated[float | None, typer.Option(help="Sample from the most probable tokens of total probability p")]
Seed = Annotated[int | None, typer.Option(help="Random seed for sampling")]
Stop = Annotated[list[str] | None, typer.Option(help="Text generation: stop string; can be repeated")]
System = Annotated[str | None, typer.Option(help="generate: system prompt of a chat model")]
Shots = Annotated[str | None, typer.Option(help="generate: few-shot file with lines of question, tab, answer")]
Template = Annotated[str | None, typer.Option(help=r"generate: few-shot template, such as 'Q: {0}\nA: {1}\n\n'")]
Threshold = Annotated[float | None, typer.Option(help="detect: minimum score, from 0 to 1")]
Language = Annotated[str | None, typer.Option(help="transcribe: spoken language (default: detected automatically)")]
Timestamps = Annotated[bool | None, typer.Option("--timestamps", help="transcribe: add timestamps")]
Overflow = Annotated[str | None, typer.Option(help="read: squeeze, cut or refuse lines that are too wide")]
OutImage = Annotated[Path | None, typer.Option(metavar="IMAGE", help="Image tasks: draw the answer to this file")]
Chat = Annotated[
    bool | None, typer.Option("--chat/--no-chat", help="generate: chat / continue text without chat template")
]

RUN_HELP = """Run a model on texts, files, tables or the lines of standard input.

\b
Text:
  anyformer run translate "A man rides a bicycle."
  anyformer run translate --model en-fr "A man rides a bicycle."
  anyformer run generate --model gpt2/ "Once upon a time" --do-sample --temperature 0.8
  anyformer run generate --chat
      chat with a model
  anyformer run generate --model gpt2/ --shots capitals.tsv Italy Spain
      few-shot prompts: the examples, then each input
  anyformer run answer "Who baked cookies?" "Amanda baked cookies."
      a question and a context (or a file); likewise classify-pair
  anyformer run classify-pair --model mine/ "It rained, so" "she took an umbrella" "she took the sun"
      multiple choice
  anyformer run embed --model MiniLM/ - < sentences.txt
      one vector for each line of standard input
  anyformer run classify-text reviews.tsv --columns text=review
      one answer for each row of a table (.tsv, .csv, .jsonl, .parquet)

\b
Images and audio:
  anyformer run classify-image --model mine/ cat.jpg --out attention.png
  anyformer run detect --model mine/ street.jpg --threshold 0.7 --out boxes.png
  anyformer run match --model clip/ beach.jpg "a dog" "two children"
      rank texts by how well they match an image
  anyformer run ask-image --model mine/ beach.jpg "who is there?"
  anyformer run transcribe --model whisper/ talk.wav --language de --timestamps

\b
Options by task:
  all tasks: --model, --columns, --device, --dtype
  tasks that generate (ask-image, caption, complete-image, generate, read, summarize, transcribe, translate):
      --max-new-tokens, --num-beams, --do-sample, --temperature, --top-k, --top-p, --seed, --stop
  generate: --chat, --system, --shots, --template
  transcribe: --language, --timestamps
  read: --overflow
  detect: --threshold
  tasks on images, except match: --out
"""


@app.command("run", help=RUN_HELP, short_help="Run a model on texts, images or audio.")
def run_task(
    context: typer.Context,
    task: TaskName,
    model: ModelName = None,
    inputs: Inputs = None,
    columns: Columns = "",
    device: Device = "cpu",
    dtype: Dtype = None,
    max_new_tokens: MaxNewTokens = None,
    num_beams: NumBeams = None,
    do_sample: DoSample = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    stop: Stop = None,
    system: System = None,
    shots: Shots = None,
    template: Template = None,
    threshold: Threshold = None,
    language: Language = None,
    timestamps: Timestamps = None,
    overflow: Overflow = None,
    out: OutImage = None,
    chat: Chat = None,
) -> None:
    """Run a task with the options that were given."""
    from anyformer.cli import run as console

    given = {name: context.params[name] for name in TASK_OPTIONS if context.params[name] not in (None, [], ())}
    for name in ("stop", "template"):  # a shell passes \n as two characters
        if name in given:
            given[name] = _unescape(given[name])
    settings = {"device": device, "dtype": dtype, **({} if overflow is None else {"overflow": overflow})}
    console.run(task, model, inputs or [], given, chat=chat, out=out, columns=columns, **settings)


def _unescape(text: Any) -> Any:
    if isinstance(text, str):
        return text.replace("\\n", "\n").replace("\\t", "\t")
    return [_unescape(item) for item in text]


@app.command(short_help="Look inside models in the browser.")
def explore(
    model: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Model folder or .gguf file; can be repeated")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port (default: the first free one)")] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser")] = False,
    images: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Images for the view of query boxes of a detector")
    ] = None,
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

    serve(model or [], port, browser=not no_open, images=images)


@app.command(short_help="Run every installed model once.")
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
