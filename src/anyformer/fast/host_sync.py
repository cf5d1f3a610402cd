"""Detect operations that make a step depend on the host. A step that is captured once and replayed must do the same for
all values: it must not read a value on the host, have shapes that depend on values, draw random numbers on the host, or
copy data from the host."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# Operations that read values, or whose result shapes depend on values. `lift_fresh` is `torch.tensor(…)`, which copies
# numbers from the host to a GPU.
SYNC_OPS = frozenset(
    "_local_scalar_dense nonzero nonzero_static masked_select masked_scatter_backward _unique unique_dim _unique2"
    " unique_consecutive bincount repeat_interleave equal lift_fresh _pin_memory".split()
)
INDEXING = frozenset("index index_put index_put_ _unsafe_index _unsafe_index_put _index_put_impl_".split())
SYNCHRONIZING = "called a synchronizing CUDA operation"  # part of PyTorch's warning


class HostSyncDetector(TorchDispatchMode):
    """Records the operations that make a step depend on more than the shapes of its inputs."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in SYNC_OPS and not _sized(name, kwargs or {}):
            self.found.append(name)
        elif name in INDEXING and _chooses(args):
            self.found.append(f"{name} by a mask")
        elif name in ("_to_copy", "copy_") and _moves(args, made):
            self.found.append("a copy between host and device")
        return made


def _sized(name: str, kwargs: Mapping[str, Any]) -> bool:
    return name == "repeat_interleave" and kwargs.get("output_size") is not None


def _chooses(args: Sequence[Any]) -> bool:
    """Whether a mask selects elements, so that the result's shape depends on values. Filling masked elements with one
    value does not."""
    masks = [one for one in args[1] if isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8)]
    filled = len(args) > 2 and isinstance(args[2], Tensor) and args[2].numel() == 1
    return bool(masks) and not filled


def _moves(args: Sequence[Any], made: Any) -> bool:
    tensors = [one for one in (*args, made) if isinstance(one, Tensor)]
    return len({one.device.type for one in tensors}) > 1


@contextmanager
def detect_host_syncs(device: torch.device, inside: bool = True) -> Iterator[list[str]]:
    """Yield a list that contains, after the block, the dependencies on the host. If `inside` is False, as for a
    compiled step, only synchronization and random numbers are detected, not single operations."""
    found: list[str] = []
    before = _generator_states() if device.type == "cuda" else None
    with _synchronizing(device, found):
        if inside:
            with HostSyncDetector(found):
                yield found
        else:
            yield found
    if before is not None and before != _generator_states():
        found.append("a draw on the host")


@contextmanager
def _synchronizing(device: torch.device, found: list[str]) -> Iterator[None]:
    """Record PyTorch's warnings about operations that synchronize with the host."""
    if device.type != "cuda":
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    found += ["a wait for the device" for one in said if SYNCHRONIZING in str(one.message)]


def _generator_states() -> tuple[bytes, Any, str, bytes]:
    """States of the host's random number generators."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), f"{name} {rest}", np.asarray(keys).tobytes()
