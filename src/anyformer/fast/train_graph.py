"""A whole step recorded on the GPU and replayed: forward, loss, backward, clipping, optimizer and moving average as one
launch. A small model's step is a thousand kernels, which Python cannot ask for as fast as they run.

The first steps over batches of a shape run as usual, on the stream that will record, the last of them watched for looks
at values (looks.py); the next one is recorded and replayed. A shape that cannot be recorded goes on as usual.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anyformer.core.host import no_host_sync
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError
from anyformer.fast.host_sync import detect_host_syncs
from anyformer.training.distributed import Devices
from anyformer.training.loader import DeviceBatch
from anyformer.training.settings import TrainSettings
from anyformer.training.step import choose_precision
from anyformer.training.work import Work

KEPT = 96  # shapes that are recorded
ROWS, TOKENS = 32, 8  # texts are filled up to multiples of these, so that there are few shapes
SMALL = 40_000_000  # parameters: larger models keep a GPU busy by themselves, and lose by what is filled up
WARM = 3  # steps over a shape before it is, as libraries set themselves up in the first ones
ROOM = 0.25  # of the device's memory: what steps may take, as a recording takes as much again beside them

StepResult = tuple[Tensor, dict[str, Tensor]]  # what a step gives: its figures, and the parts of its loss
Whole = Callable[[DeviceBatch], StepResult]  # a step over one batch, from nothing to moved weights


def can_capture_steps(work: Work, settings: TrainSettings, devices: Devices) -> bool:
    """Whether steps are to be recorded; an error where that was asked for and cannot be."""
    if settings.cuda_graphs is False:
        return False
    why = capture_obstacle(work, settings, devices)
    if why is not None and settings.cuda_graphs is True:
        raise ConfigError(f"train.cuda_graphs: steps cannot be recorded {why}.")
    return why is None and (settings.cuda_graphs is True or why_only_on_request(work, settings) is None)


def why_not_captured(work: Work, settings: TrainSettings, devices: Devices) -> str | None:
    """What is said where steps are not recorded though nobody forbade it; without a GPU nobody expects it."""
    if settings.cuda_graphs is False or devices.device.type != "cuda":
        return None
    why = capture_obstacle(work, settings, devices)
    if why is None and settings.cuda_graphs == "auto":
        why = why_only_on_request(work, settings)
    return None if why is None else f"Steps are not recorded {why}."


def why_only_on_request(work: Work, settings: TrainSettings) -> str | None:
    """Why steps that could be recorded are only where that is asked for."""
    small = sum(parameter.numel() for parameter in work.model.parameters()) < SMALL
    if not work.steady and work.fills and not small:
        return "if texts differ in length and the model is large (packing gains more); train.cuda_graphs=true tries"
    if not work.steady and not work.fills:
        return "if batches differ in shape or the host reads values; train.cuda_graphs=true tries"
    if settings.compile:
        return "where they are compiled (train.compile); train.cuda_graphs=true does both"
    return None


def capture_obstacle(work: Work, settings: TrainSettings, devices: Devices) -> str | None:
    """What stands against it, before any batch was seen."""
    if devices.device.type != "cuda":
        return "without a GPU"
    if devices.is_distributed:
        return "on several devices"
    if settings.gradient_accumulation > 1:
        return "where gradients of several batches are added up (train.gradient_accumulation)"
    if choose_precision(settings.precision, devices.device) == "fp16":
        return "in fp16, whose scale the host decides; take bf16"
    if settings.gradient_checkpointing:
        return "with train.gradient_checkpointing, which looks at the state of chance"
    if any(module.layer_drop for module in work.model.modules() if isinstance(module, Stack)):
        return "where layers are left out by chance (layer_drop)"
    return None


@dataclass(frozen=True)
class PaddingPlan:
    """How texts are brought to few shapes: what rows of tokens are filled up with, by name, and how long one may be."""

    pad_values: Mapping[str, int] = field(default_factory=dict)
    longest: int | None = None

    def sizes(self, batch: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Tokens go up to a multiple; rows too, where everything can be filled up."""
        whole = self.pad_values.keys() >= batch.keys()
        return {name: self._size(tuple(value.shape), name in self.pad_values, whole) for name, value in batch.items()}

    def _size(self, shape: tuple[int, ...], filled: bool, whole: bool) -> tuple[int, ...]:
        if not filled or len(shape) != 2:
            return shape
        rows, tokens = shape
        most = tokens if self.longest is None else self.longest
        return _up(rows, ROWS) if whole else rows, max(min(_up(tokens, TOKENS), most), tokens)

    def room(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As much as batches of its shape need."""
        sizes = self.sizes(batch)
        return {
            name: value.new_empty(sizes[name]) if name in self.pad_values else torch.empty_like(value)
            for name, value in batch.items()
        }


EXACT = PaddingPlan()


class CapturedStep:
    """A step over batches of one shape: its inputs at fixed addresses, and what it gives at fixed addresses."""

    def __init__(self, batch: DeviceBatch, device: torch.device, filling: PaddingPlan = EXACT) -> None:
        self.fills = filling.pad_values
        counts = torch.zeros(2, dtype=torch.float64, device=device)
        self.inputs = replace(batch, rows=(), batch=filling.room(batch.batch), device_counts=counts)
        self.graph: Any = None
        self.taken: StepResult | None = None

    def load(self, batch: DeviceBatch) -> None:
        for name, value in batch.batch.items():
            room = self.inputs.batch[name]
            if room.shape != value.shape:
                room.fill_(self.fills[name])
            room[tuple(slice(n) for n in value.shape)].copy_(value)
        assert self.inputs.device_counts is not None
        for place, n in zip(self.inputs.device_counts, (batch.tokens, batch.slots), strict=True):
            place.fill_(n)


class StepCapturer:
    """Steps over the batches it is given, as usual or from a recording. `filling` brings rows of tokens to few shapes.
    `hold` is asked to keep other threads still, `reseed` to bring the generators back to the start of the step."""

    def __init__(
        self,
        whole: Whole,
        device: torch.device,
        *,
        compiled: bool = False,
        filling: PaddingPlan = EXACT,
        hold: Callable[[], None] = lambda: None,
        reseed: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.whole, self.device, self.compiled, self.filling = whole, device, compiled, filling
        self.hold, self.reseed, self.say = hold, reseed, say
        self.seen: Counter[Any] = Counter()
        self.captured: dict[Any, CapturedStep | None] = {}  # None: this shape is not recorded
        self.open = True  # closed where recording failed: everything goes on as usual
        self.explained: set[str] = set()  # what was said of steps that are not recorded, once each
        cuda = device.type == "cuda"
        self.side = torch.cuda.Stream(device) if cuda else None
        self.pool = torch.cuda.graph_pool_handle() if cuda else None  # all recordings share their memory

    def step(self, batch: DeviceBatch) -> StepResult | None:
        """The step; None where it has not been done, and is the caller's."""
        key = graph_key(batch, self.filling)
        if not self.open:
            return None
        if key not in self.captured and len(self.captured) >= KEPT:
            self._explain(f"batches come in more than {KEPT} shapes")
            return None
        self.seen[key] += 1
        if self.seen[key] < WARM:
            return self._warm_up(batch)
        if self.seen[key] == WARM:
            return self._try(key, batch)
        step = self.captured.get(key)
        if step is None:
            return None
        step.load(batch)
        if step.graph is None and self.side is not None and not self._capture(step, self.side):
            return None
        return self._replay(step)

    def _warm_up(self, batch: DeviceBatch) -> StepResult:
        """On the stream that will record, so that what PyTorch sets up in the first steps belongs to it."""
        if self.side is None:
            return self.whole(batch)
        here = torch.cuda.current_stream(self.device)
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            made = self.whole(batch)
        here.wait_stream(self.side)
        return made

    def _try(self, key: Any, batch: DeviceBatch) -> StepResult:
        """A step from the fixed addresses, watched: one that looks at values counts, and is not recorded."""
        step = CapturedStep(batch, self.device, self.filling)
        step.load(batch)
        with detect_host_syncs(self.device, inside=not self.compiled) as found, no_host_sync():
            made = self._warm_up(step.inputs)
        why = f"they look at values ({', '.join(dict.fromkeys(found))})" if found else self._crowds()
        if why is not None:
            self._explain(why)
        self.captured[key] = step if why is None else None
        return made

    def _explain(self, why: str) -> None:
        """Nobody should have to find out by the speed."""
        if why not in self.explained:
            self.explained.add(why)
            whose = "Some steps" if any(step is not None for step in self.captured.values()) else "Steps"
            self.say(f"{whose} are not recorded: {why}.")

    def end(self) -> None:
        """The run is over; where no shape came often enough, that is said too."""
        if self.seen and not self.explained and max(self.seen.values()) <= WARM:
            self.say(f"No step was recorded: no shape of batches came more than {WARM} times.")

    def _crowds(self) -> str | None:
        if self.device.type != "cuda":
            return None
        room = ROOM * torch.cuda.get_device_properties(self.device).total_memory
        if torch.cuda.max_memory_allocated(self.device) < room:
            return None
        return f"they take more than {ROOM:.0%} of the GPU's memory, and a recording takes as much again"

    def _capture(self, step: CapturedStep, side: Any) -> bool:
        """Nothing moves by it: what is recorded is carried out when it is replayed."""
        self.hold()
        here, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        try:
            # Other threads (which pin memory) may go on; the backward pass has one of its own.
            with (
                torch.cuda.graph(graph, pool=self.pool, stream=side, capture_error_mode="thread_local"),
                no_host_sync(),
            ):
                step.taken = self.whole(step.inputs)
        except Exception as error:  # whatever it was, the run goes on as it would have without
            self._give_up(here, str(error).partition("\n")[0])
            return False
        step.graph = graph
        if sum(one is not None and one.graph is not None for one in self.captured.values()) == 1:
            self.say("Steps are recorded from here on.")
        return True

    def _replay(self, step: CapturedStep) -> StepResult:
        """Chance is what the generator says now: PyTorch writes its seed and offset where the recording reads them."""
        if step.graph is None or step.taken is None:
            with no_host_sync():
                return self.whole(step.inputs)
        step.graph.replay()
        return step.taken

    def _give_up(self, here: Any, why: str) -> None:
        """Leave everything as it was. A capture that broke off may leave its stream current, its pool open, and the
        generator, which it took part in, refusing to draw: that one gets a state which knows of no recording."""
        torch.cuda.set_stream(here)
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(self.device.index, self.pool)  # type: ignore[arg-type]
        self.captured, self.open = {}, False  # what was recorded reads the generator's old state
        fresh = torch.Generator(self.device)
        torch.cuda.default_generators[self.device.index].graphsafe_set_state(fresh)
        self.reseed()
        self.say(f"Steps are not recorded ({why}).")


def graph_key(batch: DeviceBatch, filling: PaddingPlan = EXACT) -> Any:
    """All that a recording depends on."""
    sizes = filling.sizes(batch.batch)
    return tuple(
        (name, value.dtype, sizes[name], None if name in filling.pad_values else value.stride())
        for name, value in sorted(batch.batch.items())
    )


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
