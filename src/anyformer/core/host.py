"""What the host and the device know of each other: copies of values, passes that must read none, number types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

_HOST = WeakIdKeyDictionary()  # tensors on a GPU -> the copies that they were made from


def remember_host_copy(moved: Tensor, original: Tensor) -> Tensor:
    """Return `moved`; its values can be read from the original without waiting for the GPU."""
    if moved is not original:
        _HOST[moved] = original
    return moved


def host_copy(x: Tensor) -> Tensor:
    """Return the values from the copy that is cheapest to read."""
    if not x.is_cuda or torch.compiler.is_compiling():
        return x
    known: Tensor = _HOST.get(x, x)
    return known


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Move a tensor without waiting for the device's queued work."""
    if device.type != "cuda" or x.is_cuda:
        return x.to(device)
    return remember_host_copy(x.pin_memory().to(device, non_blocking=True), x)


NO_FLOAT64 = {"mps"}  # kinds of devices that have no float64


def widest(device: torch.device) -> torch.dtype:
    """The most precise floating-point type of the device: float64, on Apple's GPUs float32."""
    return torch.float32 if device.type in NO_FLOAT64 else torch.float64


_NO_SYNC = [False]


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Context of passes that must not depend on values, while a step is captured."""
    before, _NO_SYNC[0] = _NO_SYNC[0], True
    try:
        yield
    finally:
        _NO_SYNC[0] = before


def is_capturing(x: Tensor) -> bool:
    """Whether this pass is compiled, traced, captured or transformed (torch.func), so that the host may not read
    values."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._is_tracing() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return _NO_SYNC[0] or (x.is_cuda and torch.cuda.is_current_stream_capturing())
