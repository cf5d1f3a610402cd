"""`anyformer train` and `af.train`: from a user's files to a model folder."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from anyformer import registry
from anyformer.checkpoints.hf import CARD, write_files
from anyformer.core import rewrites
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.files import Paths, check_paths, named_files
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings, TokenizerSettings
from anyformer.errors import ConfigError, Error, FolderError
from anyformer.model import Model
from anyformer.progress import progress_bar
from anyformer.saving import whole_folder
from anyformer.tasks import find
from anyformer.tasks.base import Task, TaskSetup
from anyformer.tasks.build import find_source, is_folder, load_meta_for, recipe_settings, with_config
from anyformer.tasks.job import Job
from anyformer.tasks.schedule_presets import scale_schedule
from anyformer.tasks.split import Split, hold_out, split_files, take_share
from anyformer.tasks.text import TextTask
from anyformer.training.adapters import narrow
from anyformer.training.callbacks import Callback, CallbackList, Progress
from anyformer.training.card import command_of, write_card
from anyformer.training.datafiles import check_files, loose_files
from anyformer.training.display import Display
from anyformer.training.distributed import Devices, open_devices
from anyformer.training.dotted_keys import Sections, expand_keys, flatten, resolve, show, upgrade_resumed
from anyformer.training.energy import EnergyMeter
from anyformer.training.facts import Start, facts
from anyformer.training.report import MetricsFile, summary, write_report
from anyformer.training.run_folder import (
    START,
    check_folder,
    check_same,
    hold_folder,
    is_first,
    remove_run_folder,
    saved_recipe,
    saved_schedule,
    saved_settings,
    start_run_folder,
)
from anyformer.training.seeds import seed_everything
from anyformer.training.settings import TrainSettings
from anyformer.training.state import TrainState
from anyformer.training.tensorboard import TensorBoard
from anyformer.training.trainer import Trainer
from anyformer.training.work import Metrics, Work

LONG = 5000  # steps
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # of a disk that takes no more
# What `anyformer run` takes, where it is more than one thing.
INPUTS = {
    "answer": "QUESTION TEXT",
    "ask-image": "PICTURE QUESTION",
    "classify-pair": "TEXT TEXT",
    "match": "PICTURE TEXT TEXT",
}
LORA_LR_FACTOR = 10  # adapters start at nothing and are small: they learn at so many times the rate of whole matrices


@dataclass(frozen=True)
class TrainRequest:
    """What the user asks for. `given` are settings as dotted keys, in the order in which they count."""

    task: str
    recipe: str  # its name, or a model folder or the name of a shipped model, to fine-tune
    data: Paths
    out: Path
    valid: Paths | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False


@dataclass(frozen=True)
class TrainPlan:
    """The order with everything found out that it did not say."""

    order: TrainRequest
    source: str  # the recipe's name, or the path of the folder that is fine-tuned
    kind: type[Task]
    split: Split
    sections: Sections
    asked: Mapping[str, Any] = field(default_factory=dict)  # the user's settings, and the recipe's
    presets: Mapping[str, Any] = field(default_factory=dict)  # the task's default train.* settings, by name

    @property
    def rows(self) -> Rows:
        return self.split.train

    @property
    def valid(self) -> Rows | None:
        return self.split.valid

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

    @property
    def loose(self) -> list[Path]:
        """The files that rows name: images, audio, clips."""
        return loose_files((self.rows, self.valid))

    @property
    def named(self) -> list[Path]:
        """The files that the user names: tables, zips, arrays."""
        several = (paths for paths in (self.order.data, self.order.valid) if paths is not None)
        return list(dict.fromkeys(file for paths in several for file in named_files(paths)))


@dataclass(frozen=True)
class Trained:
    """What a run ended with; `str()` of it is the summary."""

    folder: Path
    state: TrainState
    lines: Sequence[str]

    @property
    def metrics(self) -> dict[str, Any]:
        """Of the last evaluation."""
        return self.state.metrics

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan(order: TrainRequest) -> TrainPlan:
    """Read the data, and settle every setting: the user's, else the recipe's, else the task's, else the usual."""
    if order.resume:
        order = replace(order, recipe=saved_recipe(order.out, order.recipe))
    kind, source = find(order.task), find_source(order.recipe)
    check_paths("data", order.data)
    if order.valid is not None:
        check_paths("valid", order.valid)
    sections: Sections = {"task": kind.options_class(), "data": DataSettings(), "tokenizer": TokenizerSettings()}
    known = load_meta_for(source, kind.fits) if is_folder(source) else None
    suits: dict[str, Any] = {}  # what the recipe says of training
    if known is None:
        recipe_settings(source, None, kind.fits, kind.wanted)  # refuses before any data is read
        found = registry.recipe(source)
        sections, suits = {"model": found.config, **sections}, dict(found.train_presets)
    else:
        sections = {"model": known.config, **sections}
    blank: Sections = {**sections, "train": TrainSettings()}
    before: dict[str, Any] = {}
    if order.resume:
        order = replace(order, given=upgrade_resumed(blank, order.given, saved_settings(order.out)))
        # The run keeps its schedule: steps and rows that differ now would suggest another.
        before = saved_schedule(order.out)
    given = check_length(order, blank, before)
    usual = resolve(blank, {**suits, **given})
    if known is not None:
        with_config(known, usual["model"])  # an error is one before the data is read
    check_effect(order.recipe, known is not None, kind, usual, sections)
    data = usual["data"]
    assert isinstance(data, DataSettings)
    split = read_rows(order, kind, data, usual["task"])
    pace = {key.removeprefix("train."): value for key, value in suits.items() if key.startswith("train.")}
    advice = {"steps": TrainSettings().steps, **kind.advice(known is None, len(split.train)), **pace}
    if "train.batch_size" in expand_keys(blank, given) or "batch_size" in pace:
        advice.pop("batch_tokens", None)
    given = {**{key: value for key, value in suits.items() if not key.startswith("train.")}, **given}
    return TrainPlan(order, source, kind, split, settle(sections, given, advice), given, advice)


def settle(sections: Sections, given: Mapping[str, Any], presets: Mapping[str, Any]) -> Sections:
    """Every setting: those given, else those of `sections`, with the presets for train.* scaled to the given steps."""
    sections = {**sections, "train": TrainSettings(**presets)}
    chosen = resolve(sections, given)
    train = chosen["train"]
    assert isinstance(train, TrainSettings)
    if "train.steps" in expand_keys(sections, given):
        presets = scale_schedule(dict(presets), train.steps)
    if train.lora and "lr" in presets:
        presets = {**presets, "lr": LORA_LR_FACTOR * presets["lr"]}
    return resolve({**sections, "train": TrainSettings(**presets)}, given)


def check_length(order: TrainRequest, blank: Sections, before: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that is continued (`before`) and the user's: steps or epochs, whichever the user gives."""
    asked = expand_keys(blank, order.given)
    length = [key for key in ("train.steps", "train.epochs") if asked.get(key) is not None]
    if len(length) > 1:
        raise ConfigError("Steps and epochs both say how long to train; give one of them.")
    if length == ["train.steps"]:
        before = {**before, "train.epochs": None}
    return {**before, **order.given}


def with_epochs(chosen: TrainPlan, job: Job) -> TrainPlan:
    """The plan with the number of steps that its epochs are, now that the batches are known."""
    if chosen.train.epochs is None:
        return chosen
    batches = len(job.batches(0)) / chosen.train.gradient_accumulation
    steps = max(math.ceil(chosen.train.epochs * batches), 1)
    return replace(chosen, sections=settle(chosen.sections, {**chosen.asked, "train.steps": steps}, chosen.presets))


def read_rows(order: TrainRequest, kind: type[Task], data: DataSettings, options: Any) -> Split:
    rows = kind.read(order.data, data)
    if order.valid is not None:
        found = split_files(rows, kind.read(order.valid, data))
    else:
        found = hold_out(
            rows, data.validation_split, kind.row_classes(rows, options) if data.validation_split != 0 else None
        )
    return replace(found, train=take_share(found.train, data.fraction))


def check_effect(recipe: str, folder: bool, kind: type[Task], chosen: Sections, before: Sections) -> None:
    """Refuse settings of tokenizer, labels and sizes that have no effect, or follow from something else."""
    tokenizer, usual = chosen["tokenizer"].to_json(), TokenizerSettings().to_json()
    changed = [name for name in ("kind", "vocab_size") if tokenizer[name] != usual[name]]
    if folder and changed:
        raise ConfigError(f"{recipe} has its own tokenizer: leave tokenizer.{changed[0]} out, or set tokenizer.path.")
    follows = {"vocab_size": "the tokenizer (tokenizer.vocab_size)", "n_labels": "the labels in the data"}
    reads = {"max_length": "no text that is cut", "image_size": "no images"}
    for name, why in reads.items():
        if name not in kind.data_sizes and chosen["data"].to_json()[name] is not None:
            raise ConfigError(f"{kind.name} reads {why}; leave data.{name} (--{name.replace('_', '-')}) out.")
    for name, source in follows.items() if issubclass(kind, TextTask) else ():
        if name in before["model"].field_names() and getattr(chosen["model"], name) != getattr(before["model"], name):
            raise ConfigError(f"model.{name} follows from {source}; leave it out.")


def run(order: TrainRequest, callbacks: Sequence[Callback | Callable[[Progress], None]] = ()) -> Trained:
    """Train to the end. With `resume`, the run in the folder is continued, or started if the folder is empty. Callbacks
    run in the first process; an exception of theirs ends the run, which --resume continues."""
    hooks = [Callback.of(one) for one in callbacks]
    check_folder(order.out, order.resume)  # a refusal makes no folder
    with hold_folder(order.out):
        return _run(replace(order, resume=check_folder(order.out, order.resume)), hooks)


def _run(order: TrainRequest, hooks: Sequence[Callback]) -> Trained:
    chosen = plan(order)
    if order.resume:
        check_resumed(chosen)
    with open_devices(chosen.train.device, chosen.train.parallel) as devices:
        with devices.main_process_first():
            job, chosen = prepare(chosen, devices)
            settings = flatten(chosen.sections)
            check_capture(job, chosen.train, devices)  # an error is one before anything is written
            if devices.is_main and not order.resume:
                start_run_folder(order.out, settings, chosen.fingerprints, [*chosen.loose, *chosen.named])
            if devices.is_main and not (order.out / START).is_dir():  # a run may be killed before it is there
                keep_tokenizer(job.task, order.out)
        try:
            return train_job(job, chosen, devices, hooks)
        except Error:
            if devices.is_main and not order.resume:
                remove_run_folder(order.out)
            raise


def check_resumed(chosen: TrainPlan) -> None:
    """A run goes on with the settings and the data that it was begun with."""
    check_same(chosen.order.out, chosen.sections, chosen.fingerprints)
    if is_first():
        check_files(chosen.order.out, [*chosen.loose, *chosen.named], unlisted=len(chosen.named))


def prepare(chosen: TrainPlan, devices: Devices, quiet: bool = False) -> tuple[Job, TrainPlan]:
    """The task with its model and its rows, and the plan with the steps of its epochs; the tokenizer is learned once,
    and found again by whoever comes later. `quiet` leaves standard output to the answer."""
    order, sections = chosen.order, chosen.sections
    tokenizer = sections["tokenizer"]
    assert isinstance(tokenizer, TokenizerSettings)
    if (order.out / START / "tokenizer.json").exists() and not is_folder(chosen.source):
        tokenizer = tokenizer.replace(path=str(order.out / START))
    seed_everything(chosen.train.seed)
    setup = TaskSetup(sections.get("model"), chosen.data, tokenizer, sections["task"], chosen.split.whole)  # type: ignore[arg-type]
    task = chosen.kind.begin(chosen.source, chosen.rows, chosen.valid, setup)
    task.smoothing = chosen.train.label_smoothing
    task.model.origin.files.pop(CARD, None)  # of the model that is fine-tuned; this one gets its own
    batch = BatchConfig(rows=chosen.train.batch_size, tokens=chosen.train.batch_tokens)
    with progress_bar("Preparing", stderr=quiet) as bar:
        progress = bar if devices.is_main else None
        job = Job(
            task, chosen.rows, chosen.valid, batch=batch, data=chosen.data, seed=chosen.train.seed, progress=progress
        )
    chosen = with_epochs(chosen, job)
    # What is done to images before the step is hundreds of small kernels, which a long run soon gets back.
    task.compiled = chosen.train.compile or (devices.device.type == "cuda" and chosen.train.steps > LONG)
    saved = {name: one.to_json() for name, one in chosen.sections.items() if name not in ("model", "task")}
    task.model.origin.settings.update(saved)
    return job, chosen


def keep_tokenizer(task: Task, folder: Path) -> None:
    """The tokenizer as it was learned, until the model is there: learning it again might not give the same."""
    with whole_folder(folder / START) as draft:
        write_files(task.model.origin.files, draft)


def train_job(job: Job, chosen: TrainPlan, devices: Devices, hooks: Sequence[Callback] = ()) -> Trained:
    order, out = chosen.order, chosen.order.out
    meter = EnergyMeter(devices.device)
    use = f"anyformer run {order.task} --model {out} {INPUTS.get(order.task, 'INPUT')}"
    # Words and labels are the data's by now, and not the recipe's.
    page = ReportPage(out, f"{order.task}: {order.recipe}", flatten({**chosen.sections, "model": job.model.config}))
    watchers: list[Callback] = []
    if devices.is_main:
        display = Display(job.model, devices.device, job.metric, devices.world_size)
        watchers = [display, MetricsFile(out), TensorBoard(out), page, *hooks]
    engine = Trainer(job, chosen.train, devices, out, CallbackList(watchers), meter)
    if devices.is_main:
        for line in inferred(job, chosen, devices):
            display.on_message(line)
    try:
        state = engine.run(order.resume)
    except OSError as error:
        if not out.exists():
            raise FolderError(f"{out} was removed during the run; start it again.") from None
        if error.errno not in FULL:
            raise
        raise FolderError(f"{out} cannot be written ({error.strerror}).{engine.resume_hint()}") from None
    finally:
        meter.stop()
    lines = summary(state, job.metric, engine.progress.unit, meter.how, use)
    if devices.is_main:
        page.write(lines)
        order = chosen.order
        given = expand_keys(chosen.sections, order.given)
        write_card(
            out,
            task=order.task,
            about=chosen.kind.about,
            base=order.recipe if is_folder(chosen.source) else f"none; the recipe `{order.recipe}`, from scratch",
            command=command_of(order.task, order.recipe, order.data, order.valid, out, given),
            use=use,
            split=chosen.split,
            metric=job.metric,
            state=state,
        )
        print("\n".join(["", *lines]), flush=True)
    return Trained(out, state, lines)


def inferred(job: Job, chosen: TrainPlan, devices: Devices) -> list[str]:
    """What was found out and not said, to be read before the first step; the adapters are on the model by now."""
    named, folder = chosen.order.recipe, is_folder(chosen.source)
    where = named if not folder or named == chosen.source else f"{named} ({chosen.source})"
    weights = f"fine-tuned from {where}" if folder else f"from scratch, by the recipe {where}"
    said = chosen.sections["tokenizer"].to_json()
    kind = said["kind"] or getattr(job.task, "kind", "")
    learned = f"that of {named}" if folder else f"{kind}, learned from the rows for training"
    start = Start(weights, f"from {said['path']}" if said["path"] else learned)
    return facts(job, chosen.split, start, chosen.train, devices)


class ReportPage(Callback):
    """report.html, anew after every evaluation."""

    def __init__(self, folder: Path, title: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.folder, self.title, self.settings = folder, title, settings

    def on_evaluate(self, progress: Progress, metrics: Metrics) -> None:
        self.write([f"step {progress.step:,} of {progress.steps:,}"])

    def write(self, lines: Sequence[str]) -> None:
        write_report(self.folder, self.title, lines, self.settings)


def dry_run(order: TrainRequest) -> str:
    """What a run would find out, as comments, and every setting, resolved, as lines of YAML: everything is done that is
    done before the first step, but that nothing is written and a recipe's weights are not drawn."""
    order = replace(order, resume=check_folder(order.out, order.resume))
    chosen = plan(order)
    if order.resume:
        check_resumed(chosen)
    with open_devices(chosen.train.device, chosen.train.parallel) as devices:
        with nullcontext() if is_folder(chosen.source) else registry.without_weights():
            job, chosen = prepare(chosen, devices, quiet=True)
        check_capture(job, chosen.train, devices)
        narrow(job.model, chosen.train, devices)
        lines = inferred(job, chosen, devices)
    return "\n".join([*(f"# {line}" for line in lines), show(resolved(chosen, job.task), follows(chosen, job.model))])


def resolved(chosen: TrainPlan, task: Task) -> Sections:
    """The settings with what the task made of those that were left to it."""
    data, tokenizer = chosen.sections["data"], chosen.sections["tokenizer"]
    if isinstance(task, TextTask):
        data = data.replace(max_length=task.max_length)
    if not is_folder(chosen.source):
        tokenizer = tokenizer.replace(kind=tokenizer.to_json()["kind"] or getattr(task, "kind", None))
    return {**chosen.sections, "task": task.settings, "data": data, "tokenizer": tokenizer}


def follows(chosen: TrainPlan, model: Model) -> dict[str, Any]:
    """The settings that follow from the task, the data, the tokenizer and the epochs, and are not to be chosen."""
    given, found = flatten({"model": chosen.sections["model"]}), flatten({"model": model.config})
    steps = {} if chosen.train.epochs is None else {"train.steps": chosen.train.steps}
    return {key: value for key, value in found.items() if given.get(key, ...) != value} | steps


def check_capture(job: Work, settings: TrainSettings, devices: Devices) -> None:
    """Raise ConfigError if steps are to be captured as CUDA graphs and cannot be."""
    graphs = rewrites.apply("train_graph")
    if graphs:
        graphs.can_capture_steps(job, settings, devices)
