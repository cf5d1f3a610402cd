"""Batch norms folded into the convolutions before them, for inference."""

from __future__ import annotations

from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.fast.device import is_hooked
from anyformer.fast.swap import plain_class, swap
from anyformer.fast.weight_copies import Copy
from anyformer.layers.resnet import ConvNormAct, FreezableBatchNorm2d

PARTS = ("weight", "bias", "running_mean", "running_var")  # tensors of a batch norm


class FoldedConvNormAct(ConvNormAct):
    """A convolution, norm and activation that computes convolution and norm as one convolution. Changed weights are
    folded again."""

    _folded: FoldedConv | None = None
    on_use = False  # whether to fold at the first use

    def forward(self, x: Tensor) -> Tensor:
        if self.norm.training or torch.is_grad_enabled() or self._is_watched():
            return super().forward(x)
        if self._folded is None and (not self.on_use or self.training or torch.compiler.is_compiling()):
            return super().forward(x)
        if self._folded is None or (not torch.compiler.is_compiling() and not self._folded.holds(*folds(self))):
            self.fold()
        return super().forward(x) if self._folded is None else self.activation(self._folded(x, self.filter))

    def fold(self) -> None:
        self._folded = None if self.filter.weight.is_inference() else FoldedConv(self)

    def _is_watched(self) -> bool:
        return is_hooked(self.filter) or is_hooked(self.norm)

    def train(self, mode: bool = True) -> Self:
        if self._folded is not None:
            self._folded.expire()
        self._folded = None if mode else self._folded
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._folded = None  # device or dtype changed
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_folded": None}  # a copy of the module folds again


class FoldedConv(Copy):
    """γ (W x - μ) / σ + β as one convolution: weight W γ / σ, bias β - μ γ / σ."""

    @torch.no_grad()
    def __init__(self, layer: ConvNormAct) -> None:
        super().__init__(*folds(layer))
        norm = layer.norm
        plain = layer.filter.weight
        wide = torch.promote_types(plain.dtype, torch.float32)
        weight, bias, mean, var = (getattr(norm, name).to(wide) for name in PARTS)
        scale = weight / (var + norm.eps).sqrt()
        self.weight = (plain * scale.view(-1, 1, 1, 1)).to(plain.dtype)
        if self.weight.is_cuda:
            self.weight = self.weight.contiguous(memory_format=torch.channels_last)
        self.bias = (bias - mean * scale).to(plain.dtype)

    def __call__(self, x: Tensor, like: nn.Conv2d | nn.ConvTranspose2d) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, like.stride, like.padding, like.dilation)


def folds(layer: ConvNormAct) -> list[Tensor]:
    """The tensors that are folded into one convolution."""
    return [layer.filter.weight, *(getattr(layer.norm, name) for name in PARTS)]


def folds_norm(layer: nn.Module) -> bool:
    """Whether the layer is a convolution followed by a batch norm of a backbone."""
    return plain_class(layer) is ConvNormAct and isinstance(layer.norm, FreezableBatchNorm2d)


def fold(layer: ConvNormAct) -> None:
    if folds_norm(layer):
        if not isinstance(layer, FoldedConvNormAct):
            swap(layer, FoldedConvNormAct)
        assert isinstance(layer, FoldedConvNormAct)
        layer.fold()
