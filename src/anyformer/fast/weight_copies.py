"""Copies of weights made for speed (packed, folded), and the check whether they are up to date.

A copy stores the tensors that it was made of and their versions, which PyTorch increments at in-place writes. Fused
optimizers do not increment them, so a hook does. Writes to `.data` are not counted either: before every pass without
gradients, a model compares a sample of the numbers that its copies were made of (`check_copies`).
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

SAMPLE = 32  # numbers sampled from each tensor
WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # bits are compared, so that NaN equals NaN


class Copy:
    """A tensor computed from weights, in eval mode and without gradients."""

    made: ClassVar[int] = 0  # number of copies made so far

    def __init__(self, *weights: Tensor) -> None:
        self.weights = weights
        self.versions = tuple(weight._version for weight in weights)
        self.places = [weight.data_ptr() for weight in weights]
        self.views = [_few(weight) for weight in weights]
        self.sample = torch.cat(self.views)
        Copy.made += 1

    def holds(self, *weights: Tensor) -> bool:
        """Whether the copy was made of these weights and they have not been written to since."""
        pairs = zip(weights, self.weights, self.versions, strict=True)
        return all(now is then and now._version == version for now, then, version in pairs)

    def expire(self) -> None:
        """Mark the copy as outdated."""
        self.versions = (-1,) * len(self.weights)


def _few(weight: Tensor) -> Tensor:
    """A strided view of some of the weight's numbers; an odd stride does not stay in one column."""
    flat = weight.detach().view(WHOLE[weight.element_size()])
    stride = max((weight.numel() - 1) // SAMPLE, 1)
    stride -= stride % 2 == 0
    return flat.as_strided((min(SAMPLE, weight.numel()),), (stride,))


class Samples:
    """The samples of all current copies of a model, concatenated for each device."""

    def __init__(self, model: nn.Module) -> None:
        held = (getattr(part, name, None) for part in model.modules() for name in ("_packed", "_folded"))
        copies = [copy for copy in held if isinstance(copy, Copy) and copy.holds(*copy.weights)]
        self.copies, self.made = copies, Copy.made
        self.weights = [weight for copy in copies for weight in copy.weights]
        self.places = [place for copy in copies for place in copy.places]
        by_device: dict[torch.device, list[Copy]] = {}
        for copy in copies:
            by_device.setdefault(copy.sample.device, []).append(copy)
        self.views = [[view for copy in some for view in copy.views] for some in by_device.values()]
        self.values = [torch.cat([copy.sample for copy in some]) for some in by_device.values()]

    def same(self) -> bool:
        if [weight.data_ptr() for weight in self.weights] != self.places:
            return False
        pairs = zip(self.views, self.values, strict=True)
        return all(torch.equal(torch.cat(some), values) for some, values in pairs)


_SAMPLES: WeakKeyDictionary[nn.Module, Samples] = WeakKeyDictionary()


def check_copies(model: nn.Module) -> None:
    """Mark all copies of the model as outdated if weights were written to without changing their versions."""
    if not Copy.made or torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._is_tracing():
        return
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return
    samples = _SAMPLES.get(model)
    if samples is None or samples.made != Copy.made:
        samples = _SAMPLES[model] = Samples(model)
    if not samples.same():
        for copy in samples.copies:
            copy.expire()


def _count_steps(optimizer: torch.optim.Optimizer, args: Any, options: Any) -> None:
    if Copy.made:
        for group in optimizer.param_groups:
            if group.get("fused"):
                torch.autograd.graph.increment_version(group["params"])


register_optimizer_step_post_hook(_count_steps)
