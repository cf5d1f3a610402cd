"""Heads that say nothing: what a model makes of its input without them."""

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
    """Every attention by its name: "decoder.blocks.3.cross"."""
    return {path: part for path, part in model.named_modules() if isinstance(part, Attention)}


@contextmanager
def ablate_heads(model: Model, ablated: Sequence[AblatedHead]) -> Iterator[None]:
    """Inside, the output projection sees zeros where the silenced heads' values would be."""
    found, hooks = attentions(model), []
    chosen: dict[str, set[int]] = {}
    for mute in ablated:
        chosen.setdefault(f"{mute.stage}.blocks.{mute.layer}.{mute.part}", set()).add(mute.head)
    try:
        for name, heads in chosen.items():
            if name not in found:
                raise InputError(f'There is no attention "{name}" whose heads could be silenced.')
            hooks.append(found[name].out.register_forward_pre_hook(_mute(found[name], heads)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _mute(attention: Attention, heads: set[int]) -> Any:
    n, width = attention.config.n_heads, attention.config.width_value
    if any(not 0 <= head < n for head in heads):
        raise InputError(f"There are heads 0 to {n - 1}; {max(heads)} is none of them.")
    keep = torch.ones(n, width // n)
    keep[sorted(heads)] = 0.0

    def before(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        x, *rest = given
        return x * keep.flatten().to(x), *rest

    return before
