"""Train the models of stages.toml in stages of a few minutes, on a GPU that is not there for long.

    python models/stages.py list
    python models/stages.py prepare DATA [NAME …]                   # on any machine: the rows, at most 60 MB
    python models/stages.py run en-de 1 DATA OUT --minutes 7.5      # on the GPU: the first stage
    python models/stages.py run en-de 2 DATA OUT2 --minutes 7.5 --after OUT
    python models/stages.py unpack OUT2 runs/en-de                  # a folder for anyformer and pack.py

A stage starts in seconds: rows and tokenizers are ready. It leaves its model in bfloat16, with the records of the run,
as parts of a tar file of at most 15 MB each (NAME-1.tar.00, …), which are easy to carry. The next stage begins with
those weights and a fresh optimizer. `--set KEY=VALUE` changes any setting, for example to try a stage on a CPU.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import masked_texts
import pack
import translate_data
import yaml
from halves import in_half
from held_out import data_folder, lines

import anyformer as af
from anyformer.checkpoints.folder import load
from anyformer.errors import ConfigError, Error, FolderError

HERE = Path(__file__).parent
PART, PREPARED = 15_000_000, 60_000_000  # bytes: of a part, and of all prepared data
RECORDS = ("train.json", "metrics.jsonl", "report.html")
EVERY = 2  # one question of so many is asked again of another paragraph


def plans() -> dict[str, dict[str, Any]]:
    """The trainings of stages.toml; one that is like another has its stages, with its own name in the paths."""
    found: dict[str, dict[str, Any]] = tomllib.loads((HERE / "stages.toml").read_text(encoding="utf-8"))
    for name, plan in found.items():
        if other := plan.get("like"):
            found[name] = json.loads(json.dumps(found[other]).replace(f"/{other}/", f"/{name}/"))
    return found


# Data.


def write_samsum(out: Path) -> None:
    """SAMSum's training rows, and its validation rows in two halves by a hash: to choose by, and to score."""
    shutil.copyfile(data_folder() / "samsum" / "train.jsonl.gz", out / "train.jsonl.gz")
    rows = [(json.loads(line), line) for line in lines(data_folder() / "samsum" / "validation.jsonl.gz") if line]
    for half, name in enumerate(("choose", "score")):
        some = [line for row, line in rows if int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % 2 == half]
        (out / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in some).encode(), mtime=0))


def write_squad(out: Path) -> None:
    """SQuAD's questions, some of them also asked of paragraphs that do not answer them: the next one, or any. The rows
    to choose by and those to score are halves of its development rows (`halves.in_half`)."""
    for name, source, half in (
        ("train", "train_subset", None),
        ("choose", "dev_half", False),
        ("score", "dev_half", True),
    ):
        with gzip.open(data_folder() / "squad11" / f"{source}.json.gz", "rt", encoding="utf-8") as stream:
            content = json.load(stream)
        with_negatives(content, half)
        (out / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def with_negatives(content: dict[str, Any], half: bool | None) -> None:
    """Keep one half of the questions, or all, and add every so many-th to a paragraph that is not its own."""
    parts = [part for article in content["data"] for part in article["paragraphs"]]
    number, moved = 0, []
    for i, part in enumerate(parts):
        kept = []
        for question in part["qas"]:
            if half is None or in_half("questions", number) == half:
                kept.append(question)
                if number % EVERY == 0:
                    step = 1 if number % (2 * EVERY) == 0 else 1 + 7 * number % (len(parts) - 1)
                    moved.append(((i + step) % len(parts), question))
            number += 1
        part["qas"] = kept
    for i, question in moved:
        parts[i]["qas"].append({**question, "id": f"{question['id']}-none", "answers": []})


PREPARE: dict[str, Callable[[Path], None]] = {
    "pairs": translate_data.write,
    "samsum": write_samsum,
    "squad": write_squad,
    "masks": masked_texts.write,
}


def prepare(out: Path, names: list[str]) -> None:
    for kind in sorted({plan["prepare"] for name, plan in plans().items() if not names or name in names}):
        (out / kind).mkdir(parents=True, exist_ok=True)
        PREPARE[kind](out / kind)
    size = pack.size_of(out)
    print(f"{out}: {size / 1e6:.1f} MB")
    if size > PREPARED:
        raise FolderError(f"{out} has {size:,} bytes, and {PREPARED:,} are allowed; prepare fewer trainings at a time.")


# A stage.


def run(given: argparse.Namespace) -> None:
    """Train a stage and leave its model in parts."""
    plan = plans()[given.name]
    if not 1 <= given.stage <= len(plan["stages"]):
        raise ConfigError(f"{given.name} has stages 1 to {len(plan['stages'])}, not {given.stage}.")
    if (given.stage > 1) != (given.after is not None):
        raise ConfigError("Stage 1 begins from a recipe; later stages need --after with the parts of the one before.")
    stage = plan["stages"][given.stage - 1]
    with tempfile.TemporaryDirectory() as work:
        recipe = stage.get("recipe") or str(unpack(given.after, Path(work) / "before"))
        if "tokenizer" in stage:  # the same tokens, other settings
            shutil.copyfile(filled(stage["tokenizer"], given) + "/tokenizer.json", Path(recipe) / "tokenizer.json")
        changed = {key: yaml.safe_load(value) for key, value in (one.split("=", 1) for one in given.set)}
        settings = {**plan.get("settings", {}), **stage["settings"], "train.max_minutes": given.minutes, **changed}
        af.train(
            plan["task"],
            recipe=recipe,
            data=[filled(path, given) for path in stage["data"]],
            valid=filled(plan["valid"], given),
            out=Path(work) / "run",
            **{key: filled(value, given) for key, value in settings.items()},
        )
        leave(Path(work) / "run", given.out, f"{given.name}-{given.stage}")


def filled(value: Any, given: argparse.Namespace) -> Any:
    return value.replace("{D}", str(given.data)) if isinstance(value, str) else value


def leave(folder: Path, out: Path, name: str) -> None:
    """Write the run's model in bfloat16, its tokenizer and its records as parts of a tar file."""
    with tempfile.TemporaryDirectory() as place:
        slim = Path(place)
        model = load(folder, dtype="float32")
        order = pack.Order(folder, name)
        pack.write_weights(model, {}, order, slim)
        pack.write_beside(model, {}, order, slim)
        for record in RECORDS:
            shutil.copyfile(folder / record, slim / record)
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for file in sorted(slim.iterdir()):
                archive.add(file, file.name)
    content = stream.getvalue()
    out.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(content), PART)):
        (out / f"{name}.tar.{number:02}").write_bytes(content[start : start + PART])
    print(f"{out}: {name} in {-(-len(content) // PART)} parts, {len(content) / 1e6:.1f} MB")


def unpack(parts: Path, folder: Path) -> Path:
    """Join the parts of one model and write its folder."""
    files = sorted(parts.glob("*.tar.[0-9][0-9]"))
    names = {file.name.rpartition(".")[0] for file in files}
    if len(names) != 1:
        raise FolderError(f"{parts} must hold the parts of one model; it holds those of {len(names)}.")
    with tarfile.open(fileobj=io.BytesIO(b"".join(file.read_bytes() for file in files))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def show_plans() -> None:
    for name, plan in plans().items():
        recipe = plan["stages"][0]["recipe"]
        print(f"{name:>12}  {plan['task']}, {recipe}, {len(plan['stages'])} stages; data: {plan['prepare']}")


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    one = commands.add_parser("prepare")
    one.add_argument("out", type=Path, metavar="DATA")
    one.add_argument("names", nargs="*", metavar="NAME")
    one = commands.add_parser("run")
    one.add_argument("name", choices=sorted(plans()))
    one.add_argument("stage", type=int)
    one.add_argument("data", type=Path, metavar="DATA")
    one.add_argument("out", type=Path, metavar="OUT")
    one.add_argument("--minutes", type=float, default=7.5)
    one.add_argument("--after", type=Path, metavar="DIR", help="parts of the stage before")
    one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    one = commands.add_parser("unpack")
    one.add_argument("parts", type=Path)
    one.add_argument("folder", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    given = read_arguments(arguments)
    if given.command == "list":
        show_plans()
    elif given.command == "prepare":
        prepare(given.out, given.names)
    elif given.command == "unpack":
        unpack(given.parts, given.folder)
    else:
        run(given)


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(f"stages.py: {error}")
