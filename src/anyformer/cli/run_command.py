"""`anyformer run`: its options. What it does is in run.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from anyformer.cli.app import Command, Device, Dtype, Plugins, TaskName, app, model_names

# Options of `run` that are passed to the task by name; those of model.generate first.
DECODING = ("max_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "seed")
PROMPT = ("stop", "system", "shots", "template")
TASK_OPTIONS = (*DECODING, *PROMPT, "threshold", "language", "timestamps")

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
  all tasks: --model, --columns, --device, --dtype, --plugin
  tasks that generate (ask-image, caption, complete-image, generate, read, summarize, transcribe, translate):
      --max-new-tokens, --num-beams, --do-sample, --temperature, --top-k, --top-p, --seed, --stop
  generate: --chat, --system, --shots, --template
  transcribe: --language, --timestamps
  read: --overflow
  detect: --threshold
  tasks on images, except match: --out
"""


@app.command("run", cls=Command, help=RUN_HELP, short_help="Run a model on texts, images or audio.")
def run_task(
    context: typer.Context,
    task: TaskName,
    model: ModelName = None,
    inputs: Inputs = None,
    columns: Columns = "",
    device: Device = "auto",
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
    plugin: Plugins = None,
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
