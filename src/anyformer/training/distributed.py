"""One device or many, of one machine or several: the same few words for all of them.

torchrun --nproc-per-node 4 -m anyformer train …
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from anyformer.core.block import Block
from anyformer.device import choose_device
from anyformer.errors import ConfigError

TIMEOUT = timedelta(hours=4)  # for the first process's evaluation, while the others wait


@dataclass(frozen=True)
class Devices:
    """This process's device and its place among the others."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    parallel: Literal["ddp", "fsdp"] = "ddp"

    @property
    def is_main(self) -> bool:
        """The one process that writes and shows."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    @property
    def sharded(self) -> bool:
        """Whether each process holds a share of the model only."""
        return self.is_distributed and self.parallel == "fsdp"

    def to_device(self, model: nn.Module) -> None:
        """Put the model on the device; its parameters stay the objects they are, or become shares of themselves."""
        model.to(self.device)
        if self.sharded:
            single = next((name for name, value in model.named_parameters() if not value.dim()), None)
            if single is not None:
                raise ConfigError(f"{single} is a scalar, which fsdp cannot shard; use train.parallel=ddp.")
            # Its hooks do not see in-place changes of what the model gives; no loss makes any.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
            blocks = [module for module in model.modules() if isinstance(module, Block)]
            holders = Counter(id(parameter) for block in blocks for parameter in block.parameters())
            for block in blocks:
                if all(holders[id(parameter)] == 1 for parameter in block.parameters()):
                    fully_shard(block)  # blocks that share (Transformer-XL's biases) stay with the model
            fully_shard(model)

    def wrap(self, module: nn.Module, unused: bool) -> nn.Module:
        """The module whose backward pass averages gradients over all processes; `unused`: some may have none."""
        if not self.is_distributed or self.sharded:
            return module
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=ids, find_unused_parameters=unused)

    def no_sync(self, module: nn.Module, model: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Until the last batch of a step, gradients stay where they are."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)
        if last or not isinstance(module, DistributedDataParallel):
            return nullcontext()
        return module.no_sync()

    @contextmanager
    def full_params(self, model: nn.Module) -> Iterator[None]:
        """Every process has all of the weights, as plain tensors, to evaluate or to save."""
        shards = [module for module in model.modules() if isinstance(module, FSDPModule)] if self.sharded else []
        for shard in shards:
            shard.unshard()
            shard.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            for shard in shards:
                shard.set_reshard_after_forward(shard is not model, recurse=False)
                shard.reshard()

    def n_local_rows(self, rows: int) -> int:
        """How many of so many rows are this process's: every n-th."""
        return len(range(self.rank, rows, self.world_size))

    def gather_rows(self, values: Tensor, rows: int) -> Tensor:
        """The rows of all processes, each in its place, for all of them."""
        every = values.new_zeros(rows, *values.shape[1:])
        every[self.rank :: self.world_size] = values[: self.n_local_rows(rows)]
        return self.all_reduce(every)

    def local_rows(self, values: Tensor) -> Tensor:
        """This process's of the rows of all; one that has none repeats one for nothing."""
        return values[self.rank :: self.world_size] if self.n_local_rows(len(values)) else values[:1]

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.is_distributed:
            dist.all_reduce(values)
        return values

    def broadcast(self, value: Any) -> Any:
        """What the first process has, as JSON; the others' is ignored."""
        if not self.is_distributed:
            return value
        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8, device=self.device)
        size = torch.tensor(len(data), device=self.device)
        dist.broadcast(size, 0)
        data = data if self.is_main else torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(data, 0)
        return json.loads(bytes(data.tolist()).decode())

    def barrier(self) -> None:
        if self.is_distributed:
            dist.barrier()

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """What the first process prepares on disk, the others find there."""
        if not self.is_main:
            self.barrier()
        try:
            yield
        finally:
            if self.is_main:
                self.barrier()


def full_tensor(value: Tensor) -> Tensor:
    """A share of a tensor as the whole of it."""
    whole = getattr(value, "full_tensor", None)
    return value if whole is None else whole()


@contextmanager
def open_devices(device: str = "auto", parallel: Literal["ddp", "fsdp"] = "ddp") -> Iterator[Devices]:
    """The devices that torchrun speaks of in the environment, or else this process's own."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = local_device(device, int(os.environ.get("LOCAL_RANK", "0")) if ranks > 1 else None)
    if ranks == 1:
        yield Devices(chosen)
        return
    ours = not dist.is_initialized()
    if ours:
        _join_processes("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Devices(chosen, dist.get_rank(), dist.get_world_size(), parallel)
    finally:
        if ours:
            dist.destroy_process_group()


def _join_processes(backend: str) -> None:
    """Find the other processes. torchrun keeps one store through all its restarts, so that of a restarted process holds
    addresses of dead ones: a prefix hides them. Several machines count their restarts each for itself, and cannot."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or os.environ.get("GROUP_WORLD_SIZE") != "1":
        dist.init_process_group(backend, timeout=TIMEOUT)
        return
    store, rank, ranks = next(rendezvous("env://", timeout=TIMEOUT))
    store.set_timeout(TIMEOUT)
    fresh = PrefixStore(f"restart-{restarts}", store)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=ranks, timeout=TIMEOUT)


def local_device(name: str, local_rank: int | None = None) -> torch.device:
    """The device of this process, made the current one; with `local_rank`, the GPU of that number."""
    device = choose_device(name)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank if local_rank is not None else device.index or 0)
        torch.cuda.set_device(device)
    return device
