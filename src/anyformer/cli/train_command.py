"""`anyformer train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anyformer.cli.app import Command, Plugins, TaskName, app, recipe_names

TRAIN_HELP = """Train a model on your own files.

\b
Examples:
  anyformer train translate --recipe transformer-base --data pairs.tsv --out mine/
  anyformer train translate --recipe transformer-base --data train.en,train.de --valid val.en,val.de --out mine/
  anyformer train generate --recipe gpt2-tiny --data story.txt --out mine/ --set tokenizer.kind=char --dry-run
  anyformer train classify-text --recipe bert-tiny --data reviews.tsv --out mine/ --epochs 3 --lr 5e-4 --batch-size 64
  anyformer train classify-image --recipe vit-tiny --data images/ --out mine/ --image-size 64 --device cpu
  anyformer train generate … --resume
      continue after an interruption: the same command with --resume

\b
Fine-tuning (--recipe is a model folder or the name of an installed model):
  anyformer train classify-text --recipe minilm/ --data reviews.tsv --out mine/ --lr 2e-5
  anyformer train classify-image --recipe patches --data images/ --out probe/ --lr 3e-3 \\
      --set train.freeze=encoder.*
      freeze the encoder and train a linear classifier
  anyformer train generate --recipe gpt2/ --data songs.txt --out mine/ --lora 8
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
Settings: --lr 1e-4 is short for --set train.lr=1e-4, and so on for --epochs, --steps, --batch-size, --seed, --device,
--precision, --max-length (data.max_length), --image-size (data.image_size) and --lora. All others are given by --set:
model.n_layers, model.dropout, train.warmup_steps, train.eval_every, tokenizer.vocab_size, … --dry-run prints every
setting with its value.
When fine-tuning, settings of model.* must not change the shapes of weights: model.dropout can be set.
"""


# Shortcuts are read as settings are, so that 20_000 and 1e5 are numbers of steps.
Number = str | None


@app.command(cls=Command, help=TRAIN_HELP, short_help="Train a model on your own files.")
def train(
    context: typer.Context,
    task: TaskName,
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
    epochs: Annotated[Number, typer.Option(metavar="N", help="Passes over the training rows, instead of steps")] = None,
    steps: Annotated[
        Number, typer.Option(metavar="N", help="Optimizer steps (default: as suits task and rows)")
    ] = None,
    lr: Annotated[Number, typer.Option(metavar="RATE", help="Learning rate after warmup, such as 1e-4")] = None,
    batch_size: Annotated[Number, typer.Option(metavar="N", help="Rows per batch, over all devices")] = None,
    seed: Annotated[Number, typer.Option(metavar="N", help="Random seed")] = None,
    device: Annotated[
        str | None, typer.Option(help="Device: auto (cuda, mps or cpu; default), cpu, cuda, cuda:1, mps")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Precision: auto (default), float32, bf16, fp16")] = None,
    max_length: Annotated[Number, typer.Option(metavar="N", help="Maximum length of a text in tokens")] = None,
    image_size: Annotated[Number, typer.Option(metavar="N", help="Height and width of images in pixels")] = None,
    lora: Annotated[Number, typer.Option(metavar="RANK", help="Train LoRA adapters of this rank only")] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML or JSON file with settings")] = None,
    set: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting, such as train.lr=1e-4; can be repeated")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out (or start it)")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print all resolved settings and exit")] = False,
    plugin: Plugins = None,
) -> None:
    """Train a model with the given options."""
    from anyformer.training.command import TrainRequest, run
    from anyformer.training.command import dry_run as describe
    from anyformer.training.dotted_keys import SHORTCUTS, parse_assignments, read_config, with_shortcuts

    shortcuts = {name: context.params[name] for name in SHORTCUTS}
    assigned = with_shortcuts(parse_assignments(set or []), shortcuts)
    given = {**(read_config(config) if config is not None else {}), **assigned}
    order = TrainRequest(task, recipe, data, out, valid or None, given, resume)
    if dry_run:
        print(describe(order))
    else:
        run(order)
