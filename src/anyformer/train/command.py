"""`anyformer train` and `af.train`: from a user's files to a model folder."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyformer import registry
from anyformer.data.batches import BatchSettings
from anyformer.data.files import Paths
from anyformer.data.read import Rows
from anyformer.data.settings import DataSettings, TokenizerSettings
from anyformer.errors import ConfigError, Error, FolderError
from anyformer.tasks import find
from anyformer.tasks.base import Setup, Task
from anyformer.tasks.build import is_folder, resettled, sketch
from anyformer.tasks.job import Job, hold_out, take_share
from anyformer.tasks.rounds import paced
from anyformer.tasks.text import TextTask
from anyformer.train.display import Display, progress_bar
from anyformer.train.distributed import Devices, open_devices
from anyformer.train.energy import Meter
from anyformer.train.engine import Engine
from anyformer.train.folder import START, begin_folder, check_folder, check_same, forget_folder, recorded_pace
from anyformer.train.keys import Sections, flatten, resolve, show, spelled
from anyformer.train.record import can_record
from anyformer.train.report import MetricsFile, summary, write_report
from anyformer.train.seeds import seed_everything
from anyformer.train.settings import TrainSettings
from anyformer.train.state import State
from anyformer.train.tensorboard import TensorBoard
from anyformer.train.watch import Progress, Watcher, Watchers
from anyformer.train.work import Metrics
from anyformer.weights.files import whole_folder

LONG = 5000  # steps
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # of a disk that takes no more
# What `anyformer run` takes, where it is more than one thing.
INPUTS = {
    "answer": "QUESTION TEXT",
    "ask-image": "PICTURE QUESTION",
    "classify-pair": "TEXT TEXT",
    "match": "PICTURE TEXT TEXT",
}
LORA_RATE = 10  # adapters start at nothing and are small: they learn at so many times the rate of whole matrices


@dataclass(frozen=True)
class Order:
    """What the user asks for. `given` are settings as dotted keys, in the order in which they count."""

    task: str
    recipe: str  # or a model folder, to take further
    data: Paths
    out: Path
    valid: Paths | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False


@dataclass(frozen=True)
class Plan:
    """The order with everything found out that it did not say."""

    order: Order
    kind: type[Task]
    rows: Rows
    valid: Rows | None
    sections: Sections
    whole: Rows | None = None  # where `valid` is a part of the same files

    @property
    def train(self) -> TrainSettings:
        settings = self.sections["train"]
        assert isinstance(settings, TrainSettings)
        return settings

    @property
    def data(self) -> DataSettings:
        settings = self.sections["data"]
        assert isinstance(settings, DataSettings)
        return settings

    @property
    def fingerprints(self) -> dict[str, str | None]:
        return {"rows": self.rows.fingerprint, "valid": None if self.valid is None else self.valid.fingerprint}


@dataclass(frozen=True)
class Trained:
    """What a run ended with; `str()` of it is the summary."""

    folder: Path
    state: State
    lines: Sequence[str]

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last evaluation."""
        return self.state.metrics

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan(order: Order) -> Plan:
    """Read the data, and settle every setting: the user's, else the recipe's, else the task's, else the usual."""
    kind = find(order.task)
    sections: Sections = {"task": kind.options_class(), "data": DataSettings(), "tokenizer": TokenizerSettings()}
    # A run that goes on has the pace that it had: steps and rows that differ now would suggest another.
    given = {**(recorded_pace(order.out) if order.resume else {}), **order.given}
    known = sketch(order.recipe, kind.fits) if is_folder(order.recipe) else None
    suits: dict[str, Any] = {}  # what the recipe says of training
    if known is None:
        found = registry.recipe(order.recipe)
        sections, suits = {"model": found.config, **sections}, dict(found.training)
    else:
        sections = {"model": known.config, **sections}
    blank: Sections = {**sections, "train": TrainSettings()}
    usual = resolve(blank, {**suits, **given})
    if known is not None:
        resettled(known, usual["model"])  # an error is one before the data is read
    check_words(order.recipe, known is not None, kind, usual, sections)
    data = usual["data"]
    assert isinstance(data, DataSettings)
    rows = kind.read(order.data, data)
    whole: Rows | None = None
    if order.valid is not None:
        valid: Rows | None = kind.read(order.valid, data)
    else:
        whole = rows
        rows, valid = hold_out(rows, data.held_out)
    rows = take_share(rows, data.share)
    pace = {key.removeprefix("train."): value for key, value in suits.items() if key.startswith("train.")}
    advice = {"steps": TrainSettings().steps, **kind.advice(known is None, len(rows)), **pace}
    asked = spelled(blank, given)
    if "train.steps" in asked:
        assert isinstance(usual["train"], TrainSettings)
        advice = paced(advice, usual["train"].steps)
    if "train.batch_size" in asked or "batch_size" in pace:
        advice.pop("batch_tokens", None)
    usual_train = TrainSettings(**advice)
    given = {**{key: value for key, value in suits.items() if not key.startswith("train.")}, **given}
    chosen = resolve({**sections, "train": usual_train}, given)
    if getattr(chosen["train"], "lora", 0) and "lr" in advice:
        usual_train = usual_train.replace(lr=LORA_RATE * usual_train.lr)
        chosen = resolve({**sections, "train": usual_train}, given)
    return Plan(order, kind, rows, valid, chosen, whole)


def check_words(recipe: str, folder: bool, kind: type[Task], chosen: Sections, before: Sections) -> None:
    """Settings of words and labels that would have no effect, because they follow from something else, are refused."""
    tokenizer, usual = chosen["tokenizer"].to_json(), TokenizerSettings().to_json()
    changed = [name for name in ("kind", "vocab_size") if tokenizer[name] != usual[name]]
    if folder and changed:
        raise ConfigError(
            f"{recipe} brings its own tokenizer: leave tokenizer.{changed[0]} out, or give tokenizer.path."
        )
    follows = {"vocab_size": "the tokenizer (tokenizer.vocab_size)", "n_labels": "the labels in the data"}
    for name, source in follows.items() if issubclass(kind, TextTask) else ():
        if name in before["model"].names() and getattr(chosen["model"], name) != getattr(before["model"], name):
            raise ConfigError(f"model.{name} follows from {source}; leave it out.")


def run(order: Order) -> Trained:
    check_folder(order.out, order.resume)
    chosen = plan(order)
    settings = flatten(chosen.sections)
    if order.resume:
        check_same(order.out, settings, chosen.fingerprints)
    with open_devices(chosen.train.device, chosen.train.parallel) as devices:
        with devices.first_one_first():
            job = prepare(chosen, devices)
            can_record(job, chosen.train, devices)  # an error is one before anything is written
            if devices.first and not order.resume:
                begin_folder(order.out, settings, chosen.fingerprints)
                keep_tokenizer(job.task, order.out)
        try:
            return train_job(job, chosen, devices)
        except Error:
            if devices.first and not order.resume:
                forget_folder(order.out)
            raise


def prepare(chosen: Plan, devices: Devices) -> Job:
    """The task with its model and its rows; the tokenizer is learned once, and found again by whoever comes later."""
    order, sections = chosen.order, chosen.sections
    tokenizer = sections["tokenizer"]
    assert isinstance(tokenizer, TokenizerSettings)
    if (order.out / START / "tokenizer.json").exists() and not is_folder(order.recipe):
        tokenizer = tokenizer.replace(path=str(order.out / START))
    seed_everything(chosen.train.seed)
    setup = Setup(sections.get("model"), chosen.data, tokenizer, sections["task"], chosen.whole)  # type: ignore[arg-type]
    task = chosen.kind.begin(order.recipe, chosen.rows, chosen.valid, setup)
    task.smoothing = chosen.train.label_smoothing
    # What is done to pictures before the step is hundreds of small kernels, which a long run soon gets back.
    long = devices.device.type == "cuda" and chosen.train.steps > LONG
    task.compiled = chosen.train.compile or long
    said = {name: settings.to_json() for name, settings in sections.items() if name not in ("model", "task")}
    task.model.origin.settings.update(said)
    batch = BatchSettings(rows=chosen.train.batch_size, tokens=chosen.train.batch_tokens)
    with progress_bar("Preparing") as bar:
        progress = bar if devices.first else None
        return Job(
            task, chosen.rows, chosen.valid, batch=batch, data=chosen.data, seed=chosen.train.seed, progress=progress
        )


def keep_tokenizer(task: Task, folder: Path) -> None:
    """The tokenizer as it was learned, until the model is there: learning it again might not give the same."""
    with whole_folder(folder / START) as draft:
        for name, content in task.model.origin.files.items():
            (draft / name).write_bytes(content)


def train_job(job: Job, chosen: Plan, devices: Devices) -> Trained:
    order, out = chosen.order, chosen.order.out
    meter = Meter(devices.device)
    use = f"anyformer run {order.task} --model {out} {INPUTS.get(order.task, 'INPUT')}"
    # Words and labels are the data's by now, and not the recipe's.
    page = Page(out, f"{order.task}: {order.recipe}", flatten({**chosen.sections, "model": job.model.config}))
    watchers: list[Watcher] = []
    if devices.first:
        display = Display(job.model, devices.device, job.metric, devices.ranks)
        watchers = [display, MetricsFile(out), TensorBoard(out), page]
        if job.valid is None:
            display.note("No row is held back, so the model is not evaluated; --valid takes rows for that.")
    engine = Engine(job, chosen.train, devices, out, Watchers(watchers), meter)
    try:
        state = engine.run(order.resume)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise FolderError(f"{out} cannot be written ({error.strerror}).{engine.how_to_go_on()}") from None
    finally:
        meter.stop()
    lines = summary(state, job.metric, engine.progress.unit, meter.how, use)
    if devices.first:
        page.write(lines)
        print("\n".join(["", *lines]), flush=True)
    return Trained(out, state, lines)


class Page(Watcher):
    """report.html, anew after every evaluation."""

    def __init__(self, folder: Path, title: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.folder, self.title, self.settings = folder, title, settings

    def evaluated(self, progress: Progress, metrics: Metrics) -> None:
        self.write([f"step {progress.step:,} of {progress.steps:,}"])

    def write(self, lines: Sequence[str]) -> None:
        write_report(self.folder, self.title, lines, self.settings)


def dry_run(order: Order) -> str:
    """Every setting, resolved, as lines of YAML."""
    if order.resume:
        check_folder(order.out, order.resume)
    chosen = plan(order)
    follows = "" if is_folder(order.recipe) else "; the model's words and labels will be theirs"
    rows = f"# {len(chosen.rows):,} rows to learn from"
    valid = "" if chosen.valid is None else f", {len(chosen.valid):,} to evaluate on"
    return f"{rows}{valid}{follows}\n{show(chosen.sections)}"
