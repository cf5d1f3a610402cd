"""Capture a whole training step as a CUDA graph and replay it: forward, loss, backward, clipping, optimizer and moving
average in one launch. A small model's step is about a thousand kernels, which run faster than Python launches them.

The first steps for each batch shape run eagerly on the stream used for capture, and the last of them is checked for
host synchronization (host_sync.py). The next step is captured and replayed. Shapes that cannot be captured run eagerly.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anyformer.core.host import no_host_sync, widest
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError
from anyformer.fast.host_sync import detect_host_syncs
from anyformer.training.distributed import Devices
from anyformer.training.loader import DeviceBatch
from anyformer.training.settings import TrainSettings
from anyformer.training.step import choose_precision
from anyformer.training.work import Work

KEPT = 96  # the largest number of captured shapes
ROWS, TOKENS = 32, 8  # texts are padded to multiples of these, to limit the number of shapes
SMALL = 40_000_000  # parameters: larger models keep a GPU busy without graphs and lose time to the padding
WARM = 3  # eager steps per shape before capture, in which libraries initialize
ROOM = 0.25  # fraction of the device's memory that steps may use, since a capture uses as much again

StepResult = tuple[Tensor, dict[str, Tensor]]  # metric of the step and the parts of its loss
Whole = Callable[[DeviceBatch], StepResult]  # a step over one batch, from zeroed gradients to updated weights


def can_capture_steps(work: Work, settings: TrainSettings, devices: Devices) -> bool:
    """Whether to capture steps. Raises ConfigError if train.cuda_graphs is true and they cannot be captured."""
    if settings.cuda_graphs is False:
        return False
    why = capture_obstacle(work, settings, devices)
    if why is not None and settings.cuda_graphs is True:
        raise ConfigError(f"train.cuda_graphs: steps cannot be captured {why}.")
    return why is None and (settings.cuda_graphs is True or why_only_on_request(work, settings) is None)


def why_not_captured(work: Work, settings: TrainSettings, devices: Devices) -> str | None:
    """Message for the user if steps are not captured on a GPU and train.cuda_graphs is not false; else None."""
    if settings.cuda_graphs is False or devices.device.type != "cuda":
        return None
    why = capture_obstacle(work, settings, devices)
    if why is None and settings.cuda_graphs == "auto":
        why = why_only_on_request(work, settings)
    return None if why is None else f"Steps are not captured as CUDA graphs {why}."


def why_only_on_request(work: Work, settings: TrainSettings) -> str | None:
    """Why steps that could be captured are captured only with train.cuda_graphs=true; None if they are by default."""
    small = sum(parameter.numel() for parameter in work.model.parameters()) < SMALL
    if not work.steady and work.fills and not small:
        return "if texts differ in length and the model is large (packing gains more); train.cuda_graphs=true tries"
    if not work.steady and not work.fills:
        return "if batches differ in shape or the host reads values; train.cuda_graphs=true tries"
    if settings.compile:
        return "if they are compiled (train.compile); train.cuda_graphs=true does both"
    return None


def capture_obstacle(work: Work, settings: TrainSettings, devices: Devices) -> str | None:
    """Why steps cannot be captured, as far as the settings and the model determine it; None if they can."""
    if devices.device.type != "cuda":
        return "without a GPU"
    if devices.is_distributed:
        return "on multiple devices"
    if settings.gradient_accumulation > 1:
        return "with train.gradient_accumulation"
    if choose_precision(settings.precision, devices.device) == "fp16":
        return "in fp16, whose loss scale is computed on the host; use bf16"
    if settings.gradient_checkpointing:
        return "with train.gradient_checkpointing, which reads the random number generator's state"
    if any(module.layer_drop for module in work.model.modules() if isinstance(module, Stack)):
        return "with layer_drop, which skips layers at random"
    return None


@dataclass(frozen=True)
class PaddingPlan:
    """How texts are padded to few shapes: pad values by the name of a tensor, and the maximum length."""

    pad_values: Mapping[str, int] = field(default_factory=dict)
    longest: int | None = None

    def sizes(self, batch: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
        """Padded shapes: token counts are rounded up to a multiple; row counts too, if all tensors can be padded."""
        whole = self.pad_values.keys() >= batch.keys()
        return {name: self._size(tuple(value.shape), name in self.pad_values, whole) for name, value in batch.items()}

    def _size(self, shape: tuple[int, ...], filled: bool, whole: bool) -> tuple[int, ...]:
        if not filled or len(shape) != 2:
            return shape
        rows, tokens = shape
        most = tokens if self.longest is None else self.longest
        return _up(rows, ROWS) if whole else rows, max(min(_up(tokens, TOKENS), most), tokens)

    def room(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return uninitialized buffers for batches of this shape."""
        sizes = self.sizes(batch)
        return {
            name: value.new_empty(sizes[name]) if name in self.pad_values else torch.empty_like(value)
            for name, value in batch.items()
        }


EXACT = PaddingPlan()


class CapturedStep:
    """A step over batches of one shape, with its inputs and outputs at fixed addresses."""

    def __init__(self, batch: DeviceBatch, device: torch.device, filling: PaddingPlan = EXACT) -> None:
        self.fills = filling.pad_values
        counts = torch.zeros(2, dtype=widest(device), device=device)
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
    """Runs steps eagerly or replays captured ones. `filling` pads rows of tokens to few shapes. `hold` pauses other
    threads, and `reseed` resets the random number generators to the start of the step."""

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
        self.captured: dict[Any, CapturedStep | None] = {}  # None: this shape is not captured
        self.open = True  # False after a failed capture: all steps run eagerly
        self.explained: set[str] = set()  # reasons already reported
        cuda = device.type == "cuda"
        self.side = torch.cuda.Stream(device) if cuda else None
        self.pool = torch.cuda.graph_pool_handle() if cuda else None  # all graphs share their memory

    def step(self, batch: DeviceBatch) -> StepResult | None:
        """Run the step; None if it was not run and the caller must run it."""
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
        """Run on the capture stream, so that the state PyTorch initializes in the first steps belongs to it."""
        if self.side is None:
            return self.whole(batch)
        here = torch.cuda.current_stream(self.device)
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            made = self.whole(batch)
        here.wait_stream(self.side)
        return made

    def _try(self, key: Any, batch: DeviceBatch) -> StepResult:
        """Run a step from the fixed addresses and detect host synchronization: such a step counts, but is not
        captured."""
        step = CapturedStep(batch, self.device, self.filling)
        step.load(batch)
        with detect_host_syncs(self.device, inside=not self.compiled) as found, no_host_sync():
            made = self._warm_up(step.inputs)
        why = f"they synchronize with the host ({', '.join(dict.fromkeys(found))})" if found else self._crowds()
        if why is not None:
            self._explain(why)
        self.captured[key] = step if why is None else None
        return made

    def _explain(self, why: str) -> None:
        """Report once why steps are not captured, since training is then slower."""
        if why not in self.explained:
            self.explained.add(why)
            whose = "Some steps" if any(step is not None for step in self.captured.values()) else "Steps"
            self.say(f"{whose} are not captured as CUDA graphs: {why}.")

    def end(self) -> None:
        """End of the run: report it if no shape occurred often enough to be captured."""
        if self.seen and not self.explained and max(self.seen.values()) <= WARM:
            self.say(f"No step was captured as a CUDA graph: no batch shape occurred more than {WARM} times.")

    def _crowds(self) -> str | None:
        if self.device.type != "cuda":
            return None
        room = ROOM * torch.cuda.get_device_properties(self.device).total_memory
        if torch.cuda.max_memory_allocated(self.device) < room:
            return None
        return f"they take more than {ROOM:.0%} of the GPU's memory, and a CUDA graph takes as much again"

    def _capture(self, step: CapturedStep, side: Any) -> bool:
        """Capture the step without running it: its operations run at replay."""
        self.hold()
        here, graph = torch.cuda.current_stream(self.device), torch.cuda.CUDAGraph()
        try:
            # Other threads (which pin memory) may continue; the backward pass has its own thread.
            with (
                torch.cuda.graph(graph, pool=self.pool, stream=side, capture_error_mode="thread_local"),
                no_host_sync(),
            ):
                step.taken = self.whole(step.inputs)
        except Exception as error:  # on any error, training continues without graphs
            self._give_up(here, str(error).partition("\n")[0])
            return False
        step.graph = graph
        if sum(one is not None and one.graph is not None for one in self.captured.values()) == 1:
            self.say("Steps are captured as CUDA graphs from now on.")
        return True

    def _replay(self, step: CapturedStep) -> StepResult:
        """Replay the step. PyTorch writes the generator's current seed and offset to the addresses that the graph
        reads."""
        if step.graph is None or step.taken is None:
            with no_host_sync():
                return self.whole(step.inputs)
        step.graph.replay()
        return step.taken

    def _give_up(self, here: Any, why: str) -> None:
        """Restore the state before a failed capture. It may leave its stream current, its pool open, and the generator
        registered with the graph and unable to draw: the generator gets a fresh state."""
        torch.cuda.set_stream(here)
        with contextlib.suppress(Exception):
            torch._C._cuda_endAllocateToPool(self.device.index, self.pool)  # type: ignore[arg-type]
        self.captured, self.open = {}, False  # captured graphs read the generator's old state
        fresh = torch.Generator(self.device)
        torch.cuda.default_generators[self.device.index].graphsafe_set_state(fresh)
        self.reseed()
        self.say(f"Steps are not captured as CUDA graphs ({why}).")


def graph_key(batch: DeviceBatch, filling: PaddingPlan = EXACT) -> Any:
    """Everything that a captured graph depends on: names, types, shapes and strides."""
    sizes = filling.sizes(batch.batch)
    return tuple(
        (name, value.dtype, sizes[name], None if name in filling.pad_values else value.stride())
        for name, value in sorted(batch.batch.items())
    )


def _up(n: int, step: int) -> int:
    return -(-n // step) * step
