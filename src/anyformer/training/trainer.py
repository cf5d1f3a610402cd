"""The training loop: batches, steps, evaluations, checkpoints, and resumption.

Results depend on the settings, the data and the step alone, not on when the process was started: random numbers are
seeded by the step, the order of the rows by the epoch, and the rest is in the checkpoint. A run that is killed and
resumed gives, on a CPU, bit-identical results.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from anyformer.core import rewrites
from anyformer.core.host import widest
from anyformer.core.stack import Stack
from anyformer.errors import Error, FolderError, StoppedError
from anyformer.training.adapters import merge_adapters, narrow
from anyformer.training.callbacks import Callback, Progress
from anyformer.training.checkpoint import CHECKPOINTS, Checkpoint, CheckpointStore
from anyformer.training.distributed import Devices, open_devices
from anyformer.training.energy import EnergyMeter
from anyformer.training.loader import BatchLoader, DeviceBatch
from anyformer.training.optim import EMA, learning_rate, make_optimizer
from anyformer.training.run_folder import run_id
from anyformer.training.seeds import seed_everything
from anyformer.training.settings import TrainSettings
from anyformer.training.state import TrainState
from anyformer.training.step import Stepper, out_of_memory
from anyformer.training.step_metrics import MetricsReader, StepMetrics
from anyformer.training.time_budget import TimeBudget
from anyformer.training.work import Metrics, Work
from anyformer.upgrades import tensor_name

NAMED = 8  # rows that a message names


class DivergedError(Error):
    """A loss or gradient that is NaN, infinite or far too large; the message names the rows."""


class Trainer:
    """One run. Without a folder nothing is saved."""

    def __init__(
        self,
        work: Work,
        settings: TrainSettings,
        devices: Devices,
        folder: Path | None = None,
        callback: Callback | None = None,
        meter: EnergyMeter | None = None,
    ) -> None:
        self.work, self.settings, self.devices, self.folder = work, settings, devices, folder
        self.callback = callback if callback is not None else Callback()
        self.meter, self.energy_before = meter, 0.0
        if devices.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        narrow(work.model, settings, devices)
        for module in work.model.modules():
            if isinstance(module, Stack):
                module.gradient_checkpointing = settings.gradient_checkpointing
        devices.to_device(work.model)
        self.optimizer = make_optimizer(work.model, settings)
        self.stepper = Stepper(work, settings, devices, self.optimizer)
        if work.streams:
            self.stepper.carried = work.carry(max(devices.n_local_rows(work.streams), 1))
        statistics = [buffer for buffer in work.model.buffers() if buffer.is_floating_point()]
        self.average = EMA(self.stepper.parameters, settings.ema_decay, statistics) if settings.ema_decay else None
        self.loader = BatchLoader(work, settings.seed, devices)
        self.metrics_reader = MetricsReader(devices.device)
        keep = max(settings.keep_checkpoints, settings.average_checkpoints)
        self.store: CheckpointStore | None = None
        if folder is not None:
            self.store = CheckpointStore(folder / CHECKPOINTS, devices, keep, settings.save_every, run_id(folder))
        self.state = TrainState()
        self.recorder = self._make_recorder()
        self.progress = Progress(settings.steps, self.state, settings.max_minutes, model=work.model)
        self.saved: tuple[int, int] | None = None  # the last checkpoint: its step, and the step of its last evaluation
        self.asked_to_stop: float | None = None  # when
        self.clock = 0.0  # seconds of work, as the first process counts them
        self.pace = TimeBudget(settings, self.state)

    # The loop

    def run(self, resume: bool = False) -> TrainState:
        """Train to the end and leave the model ready for use (dropout off), with the weights that were best."""
        if self.store is not None:
            self.store.begin()
        if resume:
            self._resume()
        self.progress.begin()
        try:
            self.callback.on_train_begin(self.progress)
            graphs = rewrites.apply("train_graph")
            if graphs and (why := graphs.why_not_captured(self.work, self.settings, self.devices)) is not None:
                self.callback.on_message(why)
            self.work.model.train()
            with self._signals(), rewrites.applied("training", self.work.model, self.settings.compile):
                self._loop()
                self._finish()
                self._read_meter()
        finally:
            self.loader.close()
            self.recorder = None  # and the memory of what it recorded
            self.work.model.eval()
            self.callback.on_train_end()
        return self.state

    def _loop(self) -> None:
        state = self.state
        if state.step and self._due(self.settings.eval_every) and state.evaluated != state.step:
            self.evaluate()  # the run was cut off between the step and its evaluation
        ended = False
        while not (ended or state.step >= self.settings.steps or self._out_of_patience() or self._time_is_up()):
            self.step()
            if self._due(self.settings.eval_every):
                self.evaluate()
            if self._due(self.settings.save_every):
                self.save()
            if self._stop_requested():
                self._interrupt()
            self._read_clock()
            ended = self._ended_by_callback()
        self._read(everything=True)
        if self.recorder is not None:
            self.recorder.end()
        if self._out_of_patience():
            stale = f"{state.evals_without_improvement} evaluations without a better {self.work.metric}"
            why = f"{stale} than {state.best:.4g} (train.patience)"
            self.callback.on_message(f"Stopped early, after step {state.step:,}: {why}.")
        if ended:
            self.callback.on_message(f"Stopped by a callback, after step {state.step:,}.")
        if self._time_is_up():
            self.callback.on_message(
                f"Stopped after step {state.step:,}: train.max_minutes={self.settings.max_minutes:g} have passed."
            )

    def _ended_by_callback(self) -> bool:
        """Whether a callback of the first process has set `progress.stop`; processes talk about it now and then."""
        if self.devices.is_distributed:
            return self._due(self.settings.log_every) and bool(self.devices.broadcast(float(self.progress.stop)))
        return self.progress.stop

    def _due(self, every: int) -> bool:
        return every > 0 and self.state.step % every == 0

    def _out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.state.evals_without_improvement

    def _time_is_up(self) -> bool:
        """By the clock of the first process; what was spent before a kill counts."""
        return 0 < 60 * self.settings.max_minutes <= self.clock

    def _read_clock(self) -> None:
        """All processes have one, or their rates would differ; they talk about it now and then only."""
        often = not self.devices.is_distributed or self.pace.settling
        if self.settings.max_minutes and (often or self._due(self.settings.log_every)):
            self.clock = self.devices.broadcast(self.state.seconds)

    def step(self) -> None:
        started = time.perf_counter()
        state, number = self.state, self.state.step + 1
        self._seed()
        batches, place = self.loader.next_batches(state.position, self.settings.gradient_accumulation)
        self.progress.waited = self.loader.waited
        self.progress.unit = batches[0].unit
        try:
            self._train_step(number, batches)
        except (RuntimeError, MemoryError) as error:
            said = out_of_memory(error, batches, self.settings, self.work.contrastive)
            if said is None:
                raise
            raise said from None
        state.advance(place)
        state.seconds += time.perf_counter() - started
        self.callback.on_step_end(self.progress)

    def _train_step(self, number: int, batches: Sequence[DeviceBatch]) -> None:
        lr = learning_rate(self.pace.place(number, self.clock), self.settings)
        self.stepper.set_lr(lr)
        rows = [row for fed in batches for row in fed.rows]
        taken = self.recorder.step(batches[0]) if self.recorder is not None else None
        figures, parts = taken if taken is not None else self.stepper.clipped_gradients(batches)
        self.metrics_reader.push(number, rows, lr, figures, parts)
        self._read()
        if taken is None:
            self._optimizer_step()

    def _optimizer_step(self) -> None:
        self.stepper.apply()
        if self.average is not None:
            self.average.update()

    def _whole(self, batch: DeviceBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """A step that nobody looks into, as it can be recorded."""
        taken = self.stepper.clipped_gradients([batch])
        self._optimizer_step()
        return taken

    def _make_recorder(self) -> Any:
        """A `StepCapturer`, or None if steps run as they are."""
        graphs = rewrites.apply("train_graph")
        if not graphs or not graphs.can_capture_steps(self.work, self.settings, self.devices):
            return None
        self.stepper.lr_to_device()
        return graphs.StepCapturer(
            self._whole,
            self.devices.device,
            compiled=self.settings.compile,
            filling=graphs.PaddingPlan(self.work.fills, self.work.longest),
            hold=self.loader.wait_idle,
            reseed=self._seed,
            say=self.callback.on_message,
        )

    def _seed(self) -> None:
        """Whatever the next step draws, it draws from here."""
        seed_everything(self.settings.seed, self.state.step + 1, self.devices.rank)

    def _read(self, everything: bool = False) -> None:
        """Look at the figures that are there. On a CPU that is before the weights move."""
        for figures in self.metrics_reader.ready(everything):
            self._check_loss(figures)
            self.state.update(figures.loss, figures.tokens, figures.slots)
            self.progress.update(figures)
            if figures.step % self.settings.log_every == 0 or figures.step == self.settings.steps:
                self.callback.on_log(figures, self.progress)

    def _check_loss(self, metrics: StepMetrics) -> None:
        first = self.state.first_loss
        limit = self.settings.divergence_factor * max(first if first is not None else math.inf, 1.0)
        if math.isfinite(metrics.loss) and not (self.settings.divergence_factor and metrics.loss > limit):
            if math.isfinite(metrics.norm) or self.stepper.precision == "fp16":  # whose scaler skips such a step
                return
            what = f"The gradient of step {metrics.step} is {metrics.norm}"
        else:
            what = f"The loss of step {metrics.step} is {metrics.loss:.4g}"
            what += f", after {first:.4g} at the start" if first is not None and math.isfinite(metrics.loss) else ""
        rows = [self.work.where(row) for row in metrics.rows[:NAMED]]
        more = f" and {len(metrics.rows) - NAMED} more" if len(metrics.rows) > NAMED else ""
        raise DivergedError(
            f"{what}. Its rows: {'; '.join(rows)}{more}. Check them, or lower train.lr ({self.settings.lr:g})."
            f"{self.resume_hint()}"
        )

    # Evaluation

    def evaluate(self) -> Metrics:
        """Measure the model on rows that it did not learn from, and keep the weights where they are the best yet."""
        self._read(everything=True)
        started = time.perf_counter()
        state = self.state
        metrics = self._measure()
        state.evaluated, state.metrics = state.step, metrics
        value = metrics.get(self.work.metric)
        if isinstance(value, (int, float)):
            sound = self._sound(metrics)
            better = sound and self._better(float(value))
            state.evals_without_improvement = 0 if better else state.evals_without_improvement + 1
            if better or (sound and self._tied(float(value), metrics)):
                self._keep_best(float(value), metrics)
        state.seconds += time.perf_counter() - started
        self.callback.on_evaluate(self.progress, metrics)
        return metrics

    def _measure(self) -> Metrics:
        model = self.work.model
        seed_everything(self.settings.seed, self.state.step)
        model.eval()
        try:
            with self._averaged(), self.devices.full_params(model), torch.no_grad(), self.stepper.autocast():
                found = self.work.evaluate() if self.devices.is_main or self.devices.sharded else {}
        finally:
            model.train()
        plain = {name: value if isinstance(value, str) else float(value) for name, value in found.items()}
        metrics: Metrics = self.devices.broadcast(plain)
        return metrics

    def _sound(self, metrics: Metrics) -> bool:
        """Whether the metric and the loss are numbers; weights that give NaN are never the best."""
        for name in (self.work.metric, "loss"):
            value = metrics.get(name, 0.0)
            if isinstance(value, float) and not math.isfinite(value):
                step = f"{self.state.step:,}"
                self.callback.on_message(
                    f"The evaluation of step {step} gave {name} = {value}; its weights are not saved as the best."
                )
                return False
        return True

    def _better(self, value: float) -> bool:
        if math.isnan(value):
            return False
        best = self.state.best
        return best is None or (value > best if self.work.larger_is_better else value < best)

    def _tied(self, value: float, metrics: Metrics) -> bool:
        """Whether an evaluation as good as the best one replaces it: its loss is lower, or equal, since it is later."""
        loss, best = metrics.get("loss"), self.state.best_loss
        worse = isinstance(loss, (int, float)) and best is not None and loss > best
        return value == self.state.best and not worse

    def _keep_best(self, value: float, metrics: Metrics) -> None:
        state, loss = self.state, metrics.get("loss")
        state.best, state.best_step = value, state.step
        state.best_loss = float(loss) if isinstance(loss, (int, float)) else None
        if self.store is not None:
            with self._averaged():
                self.store.write("best", state.step, self._weights(), {"step": state.step, "metrics": metrics})

    def _averaged(self) -> Any:
        return nullcontext() if self.average is None else self.average.averaged_weights()

    # Checkpoints

    def save(self) -> None:
        if self.store is None or self.saved == (self.state.step, self.state.evaluated):
            return
        self._read(everything=True)
        self._read_meter()
        self.state.scaler = self.stepper.scaler.state_dict()
        path = self.store.write("step", self.state.step, self._tensors(), self.state.to_json())
        self.saved = (self.state.step, self.state.evaluated)
        self.store.tidy()
        self.callback.on_save(self.progress, path)

    def _read_meter(self) -> None:
        if self.meter is not None:
            self.state.energy = self.energy_before + self.meter.read()

    def _weights(self) -> dict[str, Tensor]:
        model = self.work.model
        return {f"model/{name}": value for name, value in (*model.named_parameters(), *model.named_buffers())}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self._weights()
        named = {id(value): name.removeprefix("model/") for name, value in tensors.items()}
        for parameter, entries in self.optimizer.state.items():
            tensors |= {f"optimizer/{named[id(parameter)]}/{key}": value for key, value in entries.items()}
        if self.average is not None:
            pairs = zip(self.average.parameters, self.average.values, strict=True)
            tensors |= {f"average/{named[id(parameter)]}": value for parameter, value in pairs}
        everyone = {name: self.devices.gather_rows(value, self.work.streams) for name, value in self._carried()}
        return {**tensors, **everyone}

    def _carried(self) -> Iterator[tuple[str, Tensor]]:
        """What this process's streams have read, with its name in a checkpoint."""
        return ((f"carried/{name}", value) for name, value in self.stepper.carried.items())

    def _resume(self) -> None:
        assert self.store is not None, "a run without a folder cannot continue"
        checkpoint, passed = self.store.newest()
        for sentence in passed:
            self.callback.on_message(sentence)
        if checkpoint is None:
            if passed:
                raise FolderError(
                    f"No checkpoint in {self.store.folder} can be used. Remove that folder; then the same command with"
                    " --resume starts from the first step. Or choose another --out."
                )
            return  # cut off before the first one
        self._make_room(checkpoint)
        tensors = self._tensors()
        stored = {tensor_name(name): shape for name, shape in checkpoint.info["tensors"].items()}
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        odd = sorted(name for name in {*shapes, *stored} if shapes.get(name) != stored.get(name))
        if odd:
            raise FolderError(f"{checkpoint.folder} is for another model or optimizer: {', '.join(odd[:5])} differ.")
        self.store.read(checkpoint, tensors)
        for name, value in self._carried():
            value.copy_(self.devices.local_rows(tensors[name]))
        self._restore(TrainState.from_json(checkpoint.info["state"]))
        self.callback.on_message(f"Continuing from step {self.state.step:,}.")

    def _make_room(self, checkpoint: Checkpoint) -> None:
        """An optimizer that has not stepped has no state yet: give it the entries that the checkpoint will fill."""
        named = dict(self.work.model.named_parameters())
        for name in map(tensor_name, checkpoint.info["tensors"]):
            kind, _, rest = name.partition("/")
            if kind == "optimizer":
                parameter = named.get(rest.rpartition("/")[0])
                if parameter is not None:
                    empty = _empty_like(parameter, rest.rpartition("/")[2])
                    self.optimizer.state[parameter][rest.rpartition("/")[2]] = empty

    def _restore(self, state: TrainState) -> None:
        vars(self.state).update(vars(state))
        self.saved = (state.step, state.evaluated)
        self.clock, self.energy_before = state.seconds, state.energy
        self.stepper.scaler.load_state_dict(state.scaler)

    # The end

    def _finish(self) -> None:
        if self.state.evaluated != self.state.step:
            self.evaluate()
        self.save()
        if self.store is None or self.folder is None:
            return
        self._choose_weights(self.store)
        with self.devices.full_params(self.work.model):
            if self.devices.is_main:
                self.work.model.eval()
                if self.settings.lora:
                    merge_adapters(self.work.model, self.folder)
                self.work.save(self.folder)
        self.devices.barrier()

    def _choose_weights(self, store: CheckpointStore) -> None:
        """The mean of the last checkpoints where that was asked for and is no worse, else the best, else the last."""
        if self.settings.average_checkpoints:
            self._mean(
                store, self._whole_ones(store, store.regular(self.state.step))[: self.settings.average_checkpoints]
            )
            self.average = None
            metrics = self._measure()
            self.callback.on_evaluate(
                self.progress, {"weights": f"mean of {self.settings.average_checkpoints}", **metrics}
            )
            value = metrics.get(self.work.metric)
            worse = isinstance(value, (int, float)) and (self._worse(float(value)) or not self._sound(metrics))
            if self.settings.average_checkpoints > 1 and worse and self.state.best is not None:
                step = f"{self.state.best_step:,}"
                self.callback.on_message(f"The averaged weights are worse than those of step {step}, which are saved.")
                self._take_best(store)
        elif (self.state.best is None or not self._take_best(store)) and self.average is not None:
            self.average.put()

    def _worse(self, value: float) -> bool:
        """Than the best evaluation of the run."""
        return self.state.best is not None and value != self.state.best and not self._better(value)

    def _take_best(self, store: CheckpointStore) -> bool:
        """Whether they are there; where the disk lost them, the weights stay what they are, and that is said."""
        best = self._whole_ones(store, [one for one in store.found("best") if one.step == self.state.best_step])
        if best:
            store.read(best[0], self._weights())
        else:
            step = f"{self.state.best_step:,}"
            self.callback.on_message(
                f"The best weights, those of step {step}, are missing in {store.folder}; the last are saved."
            )
        return bool(best)

    def _whole_ones(self, store: CheckpointStore, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Without those that the disk has damaged, which are named."""
        whole, damaged = store.whole(checkpoints)
        for sentence in damaged:
            self.callback.on_message(sentence)
        return whole

    def _mean(self, store: CheckpointStore, checkpoints: Sequence[Checkpoint]) -> None:
        if not checkpoints:
            return
        weights = self._weights()
        sums = {name: torch.zeros_like(value, dtype=widest(value.device)) for name, value in weights.items()}
        for checkpoint in checkpoints:
            store.read(checkpoint, weights)
            for name, value in weights.items():
                sums[name] += value.detach()
        with torch.no_grad():
            for name, value in weights.items():
                value.copy_(sums[name] / len(checkpoints))

    # Being told to stop

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, or a machine that is about to go, ends the run after the step; a second Ctrl-C at once."""
        try:
            before = {kind: signal.signal(kind, self._request_stop) for kind in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals are somebody else's
            before = {}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)

    def _request_stop(self, kind: int, frame: FrameType | None) -> None:
        now = time.perf_counter()
        if self.asked_to_stop is not None:
            if kind == signal.SIGINT and now - self.asked_to_stop > 2:  # torchrun passes on what the terminal sent too
                raise KeyboardInterrupt
            return
        self.asked_to_stop = now
        self.callback.on_message("Stopping after this step …" if self.store is None else "Saving after this step …")

    def _stop_requested(self) -> bool:
        """All processes stop where one was asked to; they talk about it now and then only."""
        if not self.devices.is_distributed:
            return self.asked_to_stop is not None
        if not self._due(self.settings.log_every):
            return False
        asked = torch.tensor(float(self.asked_to_stop is not None), device=self.devices.device)
        return bool(self.devices.all_reduce(asked) > 0)

    def _interrupt(self) -> None:
        self.save()
        raise StoppedError(f"Stopped after step {self.state.step:,}.{self.resume_hint()}")

    def resume_hint(self) -> str:
        whole = [] if self.store is None else self.store.found("step")
        return f" The same command with --resume continues from step {whole[0].step:,}." if whole else ""


def _empty_like(parameter: Tensor, key: str) -> Tensor:
    if key == "step":
        return torch.zeros((), dtype=torch.float32, device=parameter.device)
    return torch.zeros_like(parameter, memory_format=torch.preserve_format)


def train(
    work: Work,
    settings: TrainSettings,
    *,
    folder: Path | None = None,
    resume: bool = False,
    callback: Callback | None = None,
    on_step: Callable[[Progress], None] | None = None,
) -> TrainState:
    """Train the work's model in place, on the devices that torchrun gives or on one."""
    with open_devices(settings.device, settings.parallel) as devices:
        return Trainer(work, settings, devices, folder, callback if callback is not None else Callback(on_step)).run(
            resume
        )
