"""Low-rank adapters (Hu et al. 2021): W + α/r · B A, with W frozen. They parametrize the weight itself, so that fused
products use them too; the cost is that the gradient of W is computed first."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from anyformer.core.linear import Linear
from anyformer.errors import ConfigError, nearest


class LoRA(nn.Module):
    """The update of a matrix [d_out, d_in]. B is initialized to zero, so that the initial update is zero."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        d_out, d_in = weight.shape
        self.a = nn.Parameter(weight.new_empty(rank, d_in))
        self.b = nn.Parameter(weight.new_zeros(d_out, rank))
        self.rank, self.alpha = rank, alpha
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.b, self.a, alpha=self.alpha / self.rank)


def add_lora(
    model: nn.Module, rank: int, alpha: float, targets: Sequence[str], trainable: Iterable[nn.Module] = ()
) -> None:
    """Add adapters to the matrices whose names match, and freeze all parameters but them and `learn`, the new head."""
    matrices = {path: module for path, module in model.named_modules() if isinstance(module, Linear)}
    for glob in targets:
        if not fnmatch.filter(matrices, glob):
            raise ConfigError(f'train.lora_targets: no matrix is named "{glob}".{nearest(glob, matrices)}')
    model.requires_grad_(False)
    for part in trainable:
        part.requires_grad_(True)
    for name, module in matrices.items():
        if any(fnmatch.fnmatchcase(name, glob) for glob in targets):
            parametrize.register_parametrization(module, "weight", LoRA(module.weight.detach(), rank, alpha))


def lora_layers(model: nn.Module) -> Iterator[tuple[str, Linear, LoRA]]:
    """Yield path, matrix and adapter, in order."""
    for path, module in model.named_modules():
        if isinstance(module, Linear) and parametrize.is_parametrized(module, "weight"):
            yield path, module, module.parametrizations["weight"][0]  # type: ignore[index, misc]


def merge_lora(model: nn.Module) -> None:
    """Merge the adapters into the matrices; the model has no adapters afterwards and computes the same numbers."""
    for _, module, _ in list(lora_layers(model)):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
