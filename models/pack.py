"""Make a model that ships of a folder that `anyformer train` made: for those who look after the models.

    python models/pack.py RUN NAME [--weights int8] [--eval "TITLE=PATH" …]
    python models/pack.py runs/en-de en-de --eval "Multi30k test 2016=test.en,test.de" --eval "Tatoeba test=test.tsv"
    python models/pack.py runs/sst2 sentiment --eval "SST-2 dev=dev.tsv"
    python models/pack.py --cards       # rewrite what the notes say in the cards of packed models

Weights go to bfloat16 or to 8 bits; a model with a `base` in its notes keeps only what differs from that. What people
must know stands in notes/NAME.toml, written by hand, with the `settings` of the task that its folder is to have, and
`test`: the score on rows not used for training or checkpoint selection ("accuracy 0.9 on …"), true if the
rows of `--eval` are such rows, false if there are none. `half`: the score on a fixed half of the rows that selected it
(models/halves.py). Command, time, energy and figures come from the run itself;
`--eval` measures the original and the packed model, and both must agree.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from licensing import license_lines, write_licenses

from anyformer import pretrained
from anyformer.checkpoints.delta import compute_delta, own_tensors
from anyformer.checkpoints.files import write_tensors
from anyformer.checkpoints.folder import WORDS, load, own_config
from anyformer.checkpoints.low_precision import to_low_precision
from anyformer.errors import Error, FolderError
from anyformer.jsonfile import read_object
from anyformer.model import Model
from anyformer.tasks import task as open_task
from anyformer.tasks.evaluation import EvalResult, evaluate_task, show
from anyformer.training.report import read_metrics

HERE = Path(__file__).parent
HOME = HERE / "src" / pretrained.PACKAGE
NOTES = HERE / "notes"
LARGEST, ALL = 24_000_000, 140_000_000  # bytes: of a model, and of all
FORMS = {"bf16": "bfloat16", "int8": "8 bits a number, with a scale for each row", "float32": "float32"}
NEEDED = ("task", "description", "license", "use", "not_for", "data", "failures", "test", "selection")
SELECTED = " (used for checkpoint selection)"
UNTESTED = "none. All evaluated rows were used for training or checkpoint selection."
HALF = (
    "This checkpoint was selected on both halves, so this score is as optimistic as the one on all rows; a model that"
    " is trained again is selected on the other half (models/halves.py)."
)
TOY = "**A toy**: it shows how the method works; its answers are often wrong."
MADE = "How it was made"  # a heading
DROPPED = re.compile(
    r"README\.md|LICENSE|modules\.json|.*/.*|.*sentence_.*"
)  # of what a run began from: another model's
SHARE = 0.75  # of the probes at least that must be answered the same


@dataclass(frozen=True)
class Order:
    run: Path
    name: str
    weights: str = "bf16"
    evals: tuple[tuple[str, str], ...] = ()
    home: Path = HOME
    notes: Path = NOTES
    anyway: bool = False
    device: str = "cpu"  # where it is measured
    remark: str = ""  # on how the run was made


def read_notes(order: Order) -> dict[str, Any]:
    path = order.notes / f"{order.name}.toml"
    if not path.is_file():
        raise FolderError(f"There are no notes on this model: write {path}.")
    notes = tomllib.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in NEEDED if key not in notes]
    if missing:
        raise FolderError(f"{path} does not say: {', '.join(missing)}.")
    return notes


def pack(order: Order) -> Path:
    """Write the folder, check it, and enter it in the table."""
    notes = read_notes(order)
    model = load(order.run, dtype="float32")
    order.home.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{order.name}.", dir=order.home))
    try:
        write_weights(model, notes, order, draft)
        write_beside(model, notes, order, draft)
        check_answers(notes, order, draft)
        measured = check_figures(notes, order, draft)
        card = write_card(notes, order, measured, model, draft)
        (draft / pretrained.CARD).write_text(card, encoding="utf-8")
        check_sizes(order, draft)
        target = order.home / order.name
        shutil.rmtree(target, ignore_errors=True)
        for path in (draft, *draft.iterdir()):
            path.chmod(0o755 if path.is_dir() else 0o644)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    enter(order, notes, model, card, target)
    return target


# The files.


def write_weights(model: Model, notes: dict[str, Any], order: Order, folder: Path) -> None:
    if notes.get("base") is not None:
        base = load(notes["base"], dtype="float32")
        tensors = to_low_precision(compute_delta(model, base), "bf16")
    else:
        tensors = to_low_precision(own_tensors(model), order.weights)  # type: ignore[arg-type]
    write_tensors(folder, {name: tensor.contiguous().cpu().clone() for name, tensor in tensors.items()})
    config = {**own_config(model), "dtype": "float32", "base": notes.get("base")}
    config["task"] = {**config.get("task", {}), **notes.get("settings", {})}
    if isinstance(config.get("tokenizer"), dict):
        config["tokenizer"]["path"] = None  # a path of the machine it was made on
    if config["task"].get("texts"):
        config["task"]["texts"] = ""  # the same
    if config["base"] is None:
        del config["base"]
    (folder / "config.json").write_text(lines_of(config) + "\n", encoding="utf-8")


def write_beside(model: Model, notes: dict[str, Any], order: Order, folder: Path) -> None:
    """Tokenizer, processor, how it decodes, and the example."""
    base = notes.get("base")
    for name, content in model.origin.files.items():
        if not DROPPED.fullmatch(name) and (base is None or not WORDS.match(name)):  # a base has the tokenizer
            (folder / name).write_bytes(compact(content) if name == "tokenizer.json" else content)
    generation = {**model.origin.generation, **notes.get("generation", {})}
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n", encoding="utf-8")
    if "example_file" in notes:
        source = order.notes / "inputs" / notes["example_file"]
        shutil.copyfile(source, folder / f"example{source.suffix}")


def lines_of(values: dict[str, Any]) -> str:
    """JSON with a line for each value."""
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def compact(content: bytes) -> bytes:
    """The same JSON without the blanks, which are an eighth of a vocabulary's file."""
    return json.dumps(json.loads(content), ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def example(notes: dict[str, Any]) -> Any:
    if "example_file" in notes:
        return {"file": f"example{Path(notes['example_file']).suffix}"}
    return notes.get("example", "")


# Whether it is still the same model.


def check_answers(notes: dict[str, Any], order: Order, folder: Path) -> None:
    """The packed model must answer as the original did, up to rounding."""
    probes = [as_input(one, notes["task"]) for one in notes.get("probes", [])]
    if "example_file" in notes:
        probes.append(order.notes / "inputs" / notes["example_file"])
    elif "example" in notes:
        probes.append(as_input(notes["example"], notes["task"]))
    plain = {"max_new_tokens": 12, "do_sample": False} if notes["task"] == "generate" else {}
    said = [[str(one) for one in open_task(notes["task"], path)(probes, **plain)] for path in (order.run, folder)]
    other = [(a, b) for a, b in zip(*said, strict=True) if not alike(a, b)]
    for before, after in other:
        print(f"  the original says: {before}\n  the packed one:    {after}")
    print(f"{len(probes) - len(other)} of {len(probes)} probes are answered the same.")
    if len(probes) - len(other) < SHARE * len(probes) and not order.anyway:
        raise FolderError("The packed model answers too differently; try --weights bf16, or --anyway.")


def as_input(one: Any, task: str) -> Any:
    return tuple(one) if isinstance(one, list) and task in pretrained.PAIRS else one


def alike(a: str, b: str) -> bool:
    """The same words, and numbers within 3 %."""
    number = re.compile(r"\d+\.?\d*")
    if number.sub("#", a) != number.sub("#", b):
        return False
    pairs = zip(number.findall(a), number.findall(b), strict=True)
    return all(abs(float(x) - float(y)) <= max(0.03, 0.03 * abs(float(x))) for x, y in pairs)


def check_figures(notes: dict[str, Any], order: Order, folder: Path) -> list[tuple[str, EvalResult, EvalResult]]:
    """Figures of the original and of the packed model on the same rows: the one that counts may not move by more than
    1 % of it."""
    found = []
    for title, path in order.evals:
        before, after = (
            evaluate_task(notes["task"], place, path, device=order.device) for place in (order.run, folder)
        )
        old, new = (float(one.metrics[one.metric]) for one in (before, after))
        print(f"{title}: {before.metric} {old:.4f} before, {new:.4f} packed")
        if abs(old - new) > 0.01 * max(abs(old), 0.1) and not order.anyway:
            raise FolderError(f"Packing moved {before.metric} on {title} from {old:.4f} to {new:.4f}; see --anyway.")
        found.append((title, before, after))
    return found


def check_sizes(order: Order, draft: Path) -> None:
    size = size_of(draft)
    others = size_of(order.home) - size_of(order.home / order.name)  # which this one replaces
    if size > LARGEST:
        raise FolderError(f"{order.name} has {size:,} bytes, and {LARGEST:,} are allowed; try --weights int8.")
    if others > ALL:  # the draft stands among them
        raise FolderError(f"All models together have {others:,} bytes, and {ALL:,} are allowed.")


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")


# The card and the table.


def write_card(
    notes: dict[str, Any],
    order: Order,
    measured: list[tuple[str, EvalResult, EvalResult]],
    model: Model,
    folder: Path,
) -> str:
    base = notes.get("base")
    form = FORMS[order.weights] if base is None else f'what differs from "{base}"'
    facts = (
        f"Task `{notes['task']}`, family `{model.family}`, {count(model):,} parameters, stored as {form};"
        f" {size_of(folder) / 1e6:.1f} MB. It computes in float32."
    )
    lines = [
        *by_hand(order.name, notes, facts),
        *section(MADE, made(notes, order)),
        *section("Scores", [*judged(notes), *scores(order, measured)]),
    ]
    return "\n".join(lines) + "\n"


def by_hand(name: str, notes: dict[str, Any], facts: str) -> list[str]:
    """The part of a card that the notes determine, down to how the model was made."""
    example_from = [f"The example in this folder: {notes['example_from']}."] if "example_from" in notes else []
    return [
        f"# {name}: {notes['description']}",
        "",
        facts,
        *(["", TOY] if notes.get("toy") else []),
        *section("For", [notes["use"]]),
        *section("Not for", [notes["not_for"]]),
        *section("Known failures", [f"- {one}" for one in notes["failures"]]),
        *section("Data", [*(f"- {one}" for one in notes["data"]), *([""] if example_from else []), *example_from]),
        *section("License", license_lines(notes)),
    ]


def judged(notes: dict[str, Any]) -> list[str]:
    """The held-out score, how the checkpoint was selected, and more scores."""
    test = notes["test"]
    tested = f"{test}." if isinstance(test, str) else "the rows below." if test else UNTESTED
    half = [f"A fixed half of those rows: {notes['half']}. {HALF}", ""] if "half" in notes else []
    elsewhere = [f"- {one}" for one in notes.get("elsewhere", [])]
    return [f"Test: {tested}", "", notes["selection"], "", *half, *elsewhere, *([""] if elsewhere else [])]


def listed_score(notes: dict[str, Any], card: str) -> str:
    """The score that `anyformer models` shows: on held-out rows, else the first score of the card, marked."""
    if isinstance(notes["test"], str):
        return str(notes["test"])
    if "half" in notes:
        return f"{notes['half']}{SELECTED}"
    found = re.search(r"^(.*), [\d,]+ rows \((\w+) .*\n\n(?: .*\n)*? +\2 +(\S+)$", card, re.M)
    if found is None:
        return ""
    return f"{found[2]} {float(found[3]):.4g} on {found[1]}{'' if notes['test'] else SELECTED}"


def rewrite_cards(home: Path = HOME, notes: Path = NOTES) -> None:
    """Bring cards, task settings and listed scores of packed models up to date with the notes; what the runs said
    stays."""
    path = home / pretrained.TABLE
    rows = json.loads(path.read_text(encoding="utf-8"))["models"]
    for row in rows:
        card = home / row["name"] / pretrained.CARD
        said = read_notes(Order(Path(), row["name"], notes=notes))
        text = rewritten(card.read_text(encoding="utf-8"), row["name"], said)
        card.write_text(text, encoding="utf-8")
        apply_settings(home / row["name"] / "config.json", said)
        row["description"] = said["description"]
        row["score"] = listed_score(said, text)
        row["license"], row["example"] = said["license"], example(said)
        row["default"] = bool(said.get("default", False))
        row.pop("known_failure", None)
        if "known_failure" in said:
            row["known_failure"] = said["known_failure"]
        for file in (card, home / row["name"] / "config.json"):
            row["files"][file.name] = {"bytes": file.stat().st_size, "sha256": pretrained.digest(file)}
    write_table(path, rows)


def apply_settings(path: Path, notes: dict[str, Any]) -> None:
    """Put the notes' settings of the task into a packed model's config."""
    config = json.loads(path.read_text(encoding="utf-8"))
    changed = {**config, "task": {**config.get("task", {}), **notes.get("settings", {})}}
    if changed != config:
        path.write_text(lines_of(changed) + "\n", encoding="utf-8")


def rewritten(card: str, name: str, said: dict[str, Any]) -> str:
    """A card with the parts that the notes determine anew."""
    top, rest = card.split(f"\n## {MADE}\n", 1)
    run, measured = rest.split("\n## Scores\n\n", 1)
    first = re.search(r"^[^\n]*, [\d,]+ rows \(", measured, re.M)  # a score; what stands before it is from the notes
    figures = measured[first.start() :] if first else measured
    head = "\n".join(by_hand(name, said, top.split("\n")[2]))
    return f"{head}\n\n## {MADE}\n{run}\n## Scores\n\n" + "\n".join(judged(said)) + f"\n{figures}"


def section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines]


def made(notes: dict[str, Any], order: Order) -> list[str]:
    """The command, the versions, and what the run said of its time and energy."""
    record = read_object(order.run / "train.json")
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [*notes.get("first", []), tidy(record["command"])]  # what it was taken further from comes first
    remark = ["", order.remark] if order.remark else []
    return [*(f"    {line}" for line in lines), "", *summary(order.run), *remark, "", f"With {versions}."]


def tidy(command: str) -> str:
    """Paths of the machine it ran on say nothing to others: a shipped model is its name, the data's folder is $D."""
    for model in pretrained.models():
        if model.path is not None:
            command = command.replace(str(model.path), model.name)
    data = os.environ.get("ANYFORMER_DATA")
    if data:
        command = command.replace(data.rstrip("/"), "$D")
    return re.sub(r"(?<![\w$.])/(?:[\w.+-]+/)*([\w.+-]+)", r"\1", command)


def summary(run: Path) -> list[str]:
    """The lines of the run's report: best figure, steps and time, energy."""
    report = run / "report.html"
    found = re.search(r"<pre>(.*?)</pre>", report.read_text(encoding="utf-8"), re.S) if report.is_file() else None
    if found is None:
        raise FolderError(f"{run} has no report.html, so its time and energy are unknown.")
    lines = html.unescape(found[1]).splitlines()
    return [f"- {line.strip()}" for line in lines if line and not line.startswith((" ", "use it"))]


def scores(order: Order, measured: list[tuple[str, EvalResult, EvalResult]]) -> list[str]:
    rows = [row for row in read_metrics(order.run / "metrics.jsonl") if "split" in row]
    lines = []
    for title, before, after in measured:
        old = float(before.metrics[before.metric])
        shown = "\n".join(f"    {line}" for line in show(after).splitlines()[:-1])
        lines += [f"{title}, {after.rows:,} rows ({before.metric} {old:.4f} before packing):", "", shown, ""]
    if rows:
        figures = ", ".join(
            f"{key} {_short(value)}" for key, value in rows[-1].items() if key not in ("split", "seconds")
        )
        lines.append(f"The run's last evaluation on its validation rows, before packing: {figures}.")
    return lines


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def count(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def enter(order: Order, notes: dict[str, Any], model: Model, card: str, folder: Path) -> None:
    """The model's row of the table, anew."""
    path = order.home / pretrained.TABLE
    rows = json.loads(path.read_text(encoding="utf-8"))["models"] if path.is_file() else []
    row = {
        "name": order.name,
        "task": notes["task"],
        "description": notes["description"],
        "parameters": count(model),
        "score": listed_score(notes, card),
        "license": notes["license"],
        "default": bool(notes.get("default", False)),
        **({"base": notes["base"]} if notes.get("base") is not None else {}),
        "example": example(notes),
        **({"known_failure": notes["known_failure"]} if "known_failure" in notes else {}),
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": pretrained.digest(file)}
            for file in sorted(folder.iterdir())
        },
    }
    order_of = [file.stem for file in sorted(order.notes.glob("*.toml"))]
    rows = sorted(
        [*(one for one in rows if one["name"] != order.name), row], key=lambda one: order_of.index(one["name"])
    )
    write_table(path, rows)


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f'{{"models": [\n{lines}\n]}}\n', encoding="utf-8")


def read_order(arguments: list[str] | None = None) -> Order:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="a folder that anyformer train made")
    parser.add_argument("name", metavar="NAME", help="of the model; notes/NAME.toml must exist")
    parser.add_argument("--task", help="only to be checked against the notes")
    parser.add_argument("--weights", choices=("bf16", "int8", "float32"), default="bf16", help="how they are stored")
    parser.add_argument("--eval", action="append", default=[], metavar="TITLE=PATH", help="rows to measure it on")
    parser.add_argument("--home", type=Path, default=HOME, help="where the table and the folders are")
    parser.add_argument("--notes", type=Path, default=NOTES)
    parser.add_argument("--anyway", action="store_true", help="even where the packed model answers differently")
    parser.add_argument("--device", default="cpu", help="where --eval measures")
    parser.add_argument("--remark", default="", help="a sentence on how the run was made, for the card")
    given = parser.parse_args(arguments)
    evals = tuple((title, path) for title, _, path in (one.partition("=") for one in given.eval))
    order = Order(
        given.run, given.name, given.weights, evals, given.home, given.notes, given.anyway, given.device, given.remark
    )
    if given.task is not None and given.task != read_notes(order)["task"]:
        raise FolderError(f'The notes on {order.name} say "{read_notes(order)["task"]}", not "{given.task}".')
    return order


def main(arguments: list[str] | None = None) -> None:
    if (sys.argv[1:] if arguments is None else arguments) == ["--cards"]:
        rewrite_cards()
        return write_licenses()
    try:
        order = read_order(arguments)
        target = pack(order)
    except Error as error:
        sys.exit(f"pack.py: {error}")
    print(f"{target} holds {size_of(target) / 1e6:.1f} MB; {order.home / pretrained.TABLE} has it.")


if __name__ == "__main__":
    main()
