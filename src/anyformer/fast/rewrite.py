"""Swap modules for faster ones before inference, training and decoding. Results are equal up to rounding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from torch import nn

from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForward
from anyformer.core.linear import FusedLinear, Linear
from anyformer.core.stack import Stack
from anyformer.fast import residual
from anyformer.fast.compiled_training import compiled_parts
from anyformer.fast.device import HAS_TRITON
from anyformer.fast.first_tokens import FirstTokensBlock, Readers, fits
from anyformer.fast.folded import FoldedConvNormAct, fold, folds_norm
from anyformer.fast.gpu_linear import GPUFeedForward, GPUFusedLinear, GPULinear
from anyformer.fast.packed import PackedFeedForward, PackedFusedLinear, PackedLinear
from anyformer.fast.swap import plain_class, restore, swap, swapped
from anyformer.layers.resnet import ConvNormAct

Classes = Mapping[type[nn.Module], type[nn.Module]]
ON_CPU: Classes = {Linear: PackedLinear, FusedLinear: PackedFusedLinear, FeedForward: PackedFeedForward}
ON_GPU: Classes = {Linear: GPULinear, FusedLinear: GPUFusedLinear, FeedForward: GPUFeedForward}
LASTING = {*ON_CPU.values(), *ON_GPU.values(), FirstTokensBlock, FoldedConvNormAct}


PACKED_BYTES = 2**31  # the largest model for which matrices are packed automatically, since packing needs a second copy
PACKED_ROWS = 64  # a layout for about so many rows costs little at one row


def optimize(model: nn.Module, rows: int) -> None:
    """Prepare for inference: faster linear layers, folded batch norms, and last blocks that compute only the tokens
    read."""
    optimize_products(model, rows)
    for module in list(model.modules()):
        if isinstance(module, ConvNormAct):
            fold(module)
    narrow_last_blocks(model)


def optimize_on_use(model: nn.Module) -> None:
    """As `optimize`, but weights are copied when they are first used."""
    if may_copy_weights(model):
        optimize_products(model, None)
    for module in list(model.modules()):
        if type(module) is ConvNormAct and folds_norm(module):
            swap(module, FoldedConvNormAct)
            module.on_use = True  # type: ignore[assignment]
    narrow_last_blocks(model)


def optimize_decoding(model: nn.Module) -> None:
    """Swap only the linear layers, and pack their weights at once."""
    if may_copy_weights(model):
        optimize_products(model, PACKED_ROWS)


def may_copy_weights(model: nn.Module) -> bool:
    """Whether faster linear layers are chosen automatically: on a CPU they keep a second copy of the weights."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return next(model.parameters()).device.type != "cpu" or size <= PACKED_BYTES


def packed_bytes(model: nn.Module) -> int:
    packed = [module._packed for module in model.modules() if isinstance(module, PackedLinear)]
    return sum(one.layout.numel() * one.layout.element_size() for one in packed if one is not None)


def narrow_last_blocks(model: nn.Module) -> None:
    for block, readers in last_blocks(model):
        if type(block) is Block:
            block.__dict__["_readers"] = readers
            swap(block, FirstTokensBlock)


def optimize_products(model: nn.Module, rows: int | None) -> None:
    """Swap linear layers for those of the device. On a CPU, pack their weights for products of about `rows` rows; None
    packs them at their first use."""
    kind = next(model.parameters()).device.type
    if kind == "meta":  # offloaded: the weights come for each call, and hooks hold the present forward
        return
    classes: Classes = {"cpu": ON_CPU, "cuda": ON_GPU}.get(kind, {})
    for module in list(model.modules()):
        if type(module) in LASTING and plain_class(module) in ON_CPU and type(module) not in classes.values():
            restore(module)  # the model has moved to another device
        if type(module) in classes:
            swap(module, classes[type(module)])
        if isinstance(module, PackedLinear) and rows is None:
            module.on_use, module.packed_rows = True, PACKED_ROWS
        elif isinstance(module, PackedLinear) and not module.packed:
            module.pack(cast("int", rows))


def restore_all(model: nn.Module) -> None:
    """Restore the original class of every module."""
    for module in list(model.modules()):
        while type(module) in LASTING:
            restore(module)
            for name in ("_packed", "_folded", "packed_rows", "_readers", "on_use"):
                module.__dict__.pop(name, None)


def last_blocks(model: Any) -> Iterator[tuple[Block, Readers]]:
    """Yield last blocks that only heads read, with the heads that read only the first tokens."""
    for name, stage in model.stages.items():
        others = {other.attends for other in model.stages.values()} | {*model.report.last.values()}
        stack = stage.stack
        if name in others or plain_class(stack or stage) is not Stack:
            continue
        readers = Readers(model, name)
        index = stack.order[-1] if stack.order else -1
        block = stack.blocks[index] if stack.order.count(index) == 1 else None
        if block is not None and plain_class(block) is Block and fits(block) and readers.n_first() is not None:
            yield block, readers


@contextmanager
def training(model: nn.Module, compiled: bool) -> Iterator[None]:
    """Context of training: last blocks compute only the tokens read; compiled steps on a GPU use our own kernels."""
    if next(model.parameters()).is_cuda:
        optimize_products(model, 0)  # before compiling, since compiled steps depend on the classes of modules
    pairs: list[tuple[nn.Module, type[nn.Module]]] = []
    for block, readers in last_blocks(model):
        if type(block) is Block:
            block.__dict__["_readers"] = readers
            pairs.append((block, FirstTokensBlock))
    with swapped(pairs):
        if not (compiled and HAS_TRITON):
            yield
            return
        from anyformer.fast.triton_training import can_sum_norm, sum_norm

        with fused_residuals(model, residual.Kernels(can_sum_norm, sum_norm)), swapped(compiled_parts(model)):
            yield


@contextmanager
def decoding(model: nn.Module) -> Iterator[None]:
    """Context of capturing a decode step."""
    from anyformer.fast.triton_decode import add_norm, can_add_norm, can_multiply, vector_linear

    kernels = residual.Kernels(can_add_norm, add_norm, vector_linear, can_multiply, partial(add_norm, keep=False))
    with fused_residuals(model, kernels):
        yield


@contextmanager
def fused_residuals(model: nn.Module, kernels: residual.Kernels) -> Iterator[None]:
    """Context in which stacks carry residual sums that these kernels compute."""
    pairs = list(residual.fused(model))
    sublayers = [module for module, faster in pairs if faster is residual.FusedSublayer]
    for sublayer in sublayers:
        sublayer.__dict__["kernels"] = kernels
    try:
        with swapped(pairs):
            yield
    finally:
        for sublayer in sublayers:
            del sublayer.__dict__["kernels"]
