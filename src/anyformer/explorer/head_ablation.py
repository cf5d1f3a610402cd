"""Ablation of attention heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.errors import InputError
from anyformer.explorer.request import AblatedHead
from anyformer.model import Model


def attentions(model: Model) -> dict[str, Attention]:
    """All attention modules by name, such as "decoder.blocks.3.cross"."""
    return {path: part for path, part in model.named_modules() if isinstance(part, Attention)}


@contextmanager
def ablate_heads(model: Model, ablated: Sequence[AblatedHead]) -> Iterator[None]:
    """Within this context, the outputs of the ablated heads are zero before the output projection."""
    found, hooks = attentions(model), []
    chosen: dict[str, set[int]] = {}
    for one in ablated:
        chosen.setdefault(f"{one.stage}.blocks.{one.layer}.{one.part}", set()).add(one.head)
    try:
        for name, heads in chosen.items():
            if name not in found:
                raise InputError(f'There is no attention "{name}"; no head can be ablated there.')
            hooks.append(found[name].out.register_forward_pre_hook(_mask_heads(found[name], heads)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mask_heads(attention: Attention, heads: set[int]) -> Any:
    n, width = attention.config.n_heads, attention.config.width_value
    if any(not 0 <= head < n for head in heads):
        raise InputError(f"head is {max(heads)}; expected 0 to {n - 1}.")
    keep = torch.ones(n, width // n)
    keep[sorted(heads)] = 0.0

    def before(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *rest = given
        return x * keep.flatten().to(x), *rest

    return before
