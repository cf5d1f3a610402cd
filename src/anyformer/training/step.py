"""One step of the optimizer: the gradients of one batch or several, on one device or many, clipped and applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.host import widest
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError, Error
from anyformer.training.distributed import Devices, full_tensor
from anyformer.training.loader import DeviceBatch
from anyformer.training.settings import TrainSettings
from anyformer.training.work import Batch, Work

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class OutOfMemoryError(Error):
    """A batch that does not fit the device; the message says what to lower."""


class LossModule(nn.Module):
    """The work's loss as a module, so that what PyTorch does to modules (compile, DDP) happens to all of it."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.model = work.model
        self._loss = work.loss

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        loss = self._loss(batch)
        return loss.total, loss.count, loss.parts


class Stepper:
    """Holds what a step needs. `figures` of a step: [loss, count, tokens, slots], summed over all, and parts."""

    def __init__(self, work: Work, settings: TrainSettings, devices: Devices, optimizer: torch.optim.Optimizer) -> None:
        self.settings, self.devices, self.optimizer, self.model = settings, devices, optimizer, work.model
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.objective = LossModule(work)
        self.carried: dict[str, Tensor] = {}  # what batches hand on to one another
        if settings.compile:
            self.objective.compile()
        self.module: nn.Module | None = None  # joined to the other processes' when the first batch is there
        self.precision = choose_precision(settings.precision, devices.device)
        if self.precision == "fp16" and devices.sharded:
            raise ConfigError("train.precision=fp16 does not support train.parallel=fsdp; use bf16.")
        self.scaler = torch.amp.GradScaler(devices.device.type, enabled=self.precision == "fp16")

    def autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(self.devices.device.type, dtype)

    def gradients(self, batches: Sequence[DeviceBatch]) -> tuple[Tensor, dict[str, Tensor]]:
        """Leave the gradients of the mean loss in the parameters, and give back the figures."""
        self.optimizer.zero_grad()
        if self.module is None:
            self.module = self._join(batches[0])
        sums = torch.zeros(4, dtype=widest(self.devices.device), device=self.devices.device)
        parts: dict[str, Tensor] = {}
        scale: Tensor | None = None
        for i, fed in enumerate(batches):
            with self.devices.no_sync(self.module, self.model, i == len(batches) - 1):
                with self.autocast():
                    total, count, some = self.module(fed.batch)
                figures = self._figures(total, count, fed)
                if scale is None:  # the count of the whole step is not known yet: that of its first batch will do
                    scale = figures[1].masked_fill(figures[1] == 0, 1.0) / self.devices.world_size
                weight = (total if fed.counts else total * 0.0) / scale.to(total.dtype)
                self.scaler.scale(weight).backward()
            sums += figures
            for name, value in some.items():
                parts[name] = parts.get(name, torch.zeros_like(sums[0])) + value.detach().to(sums.dtype) * fed.counts
        if len(batches) > 1 and scale is not None:
            self._rescale(scale * self.devices.world_size / sums[1].clamp(min=1e-30))
        return sums, {name: self.devices.all_reduce(value) for name, value in parts.items()}

    def clipped_gradients(self, batches: Sequence[DeviceBatch]) -> tuple[Tensor, dict[str, Tensor]]:
        """The same, cut down to the largest norm allowed; the norm before that is the last of the figures."""
        sums, parts = self.gradients(batches)
        return torch.cat([sums, self.clip().reshape(1)]), parts

    def _join(self, batch: DeviceBatch) -> nn.Module:
        """PyTorch wants to be told whether some parameters may have no gradient; the first batch shows it."""
        if not self.devices.is_distributed or self.devices.sharded:
            return self.objective
        written = [*self.model.buffers(), *self.carried.values()]
        before = [value.clone() for value in written]
        with torch.random.fork_rng(), self.autocast():
            total = self.objective(batch.batch)[0]
        for target, value in zip(written, before, strict=True):
            target.copy_(value)  # batch norm followed a batch that it is about to see again
        missing = len(self.parameters) - len(leaf_ids(total) & {id(parameter) for parameter in self.parameters})
        drops = any(module.layer_drop for module in self.model.modules() if isinstance(module, Stack))
        unused = self.devices.all_reduce(torch.tensor(float(missing + drops), device=self.devices.device))
        return self.devices.wrap(self.objective, bool(unused > 0))

    def _figures(self, total: Tensor, count: Tensor, batch: DeviceBatch) -> Tensor:
        """All devices together; they agree on it, so that they stop together too."""
        device = self.devices.device
        said = [one.detach().to(device).to(widest(device)) * batch.counts for one in (total, count)]
        return self.devices.all_reduce(torch.cat([torch.stack(said), batch.read(device)]))

    @torch.no_grad()
    def _rescale(self, factor: Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad *= factor.to(parameter.grad.dtype)

    def clip(self) -> Tensor:
        """The norm of all gradients together, before it was cut down to the largest allowed."""
        self.scaler.unscale_(self.optimizer)
        largest = self.settings.max_grad_norm or float("inf")
        norm = full_tensor(torch.nn.utils.clip_grad_norm_(self.parameters, largest)).detach()
        return norm.to(widest(norm.device))

    def lr_to_device(self) -> None:
        """Learning rates become numbers on the device, where a recorded step finds them when it is replayed."""
        device, cuda = self.devices.device, self.devices.device.type == "cuda"
        for group in self.optimizer.param_groups:
            group["lr"] = torch.zeros((), dtype=torch.float32 if cuda else widest(device), device=device)
            group["capturable"] = cuda

    def set_lr(self, rate: float) -> None:
        """Set the learning rate of the step."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate * group["share"])
            else:
                group["lr"] = rate * group["share"]

    def apply(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def leaf_ids(value: Tensor) -> set[int]:
    """The ids of the parameters that a value was computed from."""
    found, seen, left = set(), set(), [value.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        left += [after for after, _ in node.next_functions]
    return found


def choose_precision(name: str, device: torch.device) -> str:
    if name != "auto":
        return name
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


def out_of_memory(
    error: BaseException, batch: Sequence[DeviceBatch], settings: TrainSettings, contrastive: bool = False
) -> OutOfMemoryError | None:
    """What to lower, where an error says that memory ran out; None where it says something else."""
    ran_out = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
    if not ran_out:
        return None
    tried = max(batch, key=lambda one: one.slots).shape() if batch else "no batch yet"
    name, size = (
        ("batch_size", settings.batch_size)
        if settings.batch_tokens is None
        else ("batch_tokens", settings.batch_tokens)
    )
    lower = f"--set train.{name}={max(size // 2, 2 if contrastive else 1)}"
    gentle = "" if settings.gradient_checkpointing else "--set train.gradient_checkpointing=true"
    if contrastive:
        keeps = (
            f"{gentle} keeps them, and so do more processes (torchrun)"
            if gentle
            else "more processes (torchrun) keep them"
        )
        how = f"{lower} halves the negatives of each row, which train.gradient_accumulation does not restore; {keeps}"
    else:
        doubled = f"--set train.gradient_accumulation={settings.gradient_accumulation * 2}"
        how = f"{lower} {doubled} takes as much a step with half the memory"
        how += f"; or {gentle}" if gentle else ""
    return OutOfMemoryError(f"Out of memory with a batch of {tried}. Lower it: {how}; or lower data.max_length.")
