"""A recorded forward pass from which the attention of any layer can be recomputed.

The pass runs on the fast kernels and stores the input of each block. The weights, queries or values of a layer are
computed by running only that block again under `af.look`, so memory is needed for one layer only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.attend import attention_weights
from anyformer.core.attention import Attention
from anyformer.core.block import Block, Sublayer
from anyformer.core.masks import Mask
from anyformer.core.taps import Seen, watching
from anyformer.core.tokens import Tokens
from anyformer.core.wrapper import innermost
from anyformer.errors import InputError
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.request import AblatedHead
from anyformer.explorer.timeouts import Deadline
from anyformer.forward_context import ForwardContext, Output
from anyformer.model import Model, Stage

ROWS = 128  # queries per step, so that the weights fit into the CPU cache


@dataclass(frozen=True)
class BlockCall:
    """The input of a block and its run time."""

    index: int  # index of the block in its stack
    block: Block
    tokens: Tokens
    memory: Tokens | None
    seconds: float


@dataclass(frozen=True)
class AttentionSite:
    """An attention module: a layer of a stage (counted in forward order) and the name of the sublayer."""

    stage: str
    layer: int
    part: str
    heads: int
    point: str
    plain: bool  # whether it is multi-head attention whose heads can be separated and ablated


@dataclass
class Trace:
    """A forward pass: its outputs and the input of each block."""

    model: Model
    batch: dict[str, Any]
    ablated: tuple[AblatedHead, ...]
    run: ForwardContext
    output: Output
    seconds: float
    calls: dict[str, list[BlockCall]] = field(default_factory=dict)

    def size(self) -> int:
        """The approximate size in bytes."""
        kept = [call.tokens.x for calls in self.calls.values() for call in calls]
        kept += [value for value in self.output.values() if isinstance(value, Tensor)]
        return sum(x.numel() * x.element_size() for x in kept)

    def sites(self) -> list[AttentionSite]:
        """All attention modules in forward order."""
        return [
            AttentionSite(stage, layer, part, heads, f"{stage}.blocks.{call.index}.{part}.weights", plain)
            for stage, calls in self.calls.items()
            for layer, call in enumerate(calls)
            for part, heads, plain in _parts(call.block, call.memory is not None)
        ]

    def site(self, stage: str | None, layer: int, part: str) -> AttentionSite:
        """The attention module of a layer; an error lists those that exist."""
        sites = self.sites()
        here = [site for site in sites if site.part == part and stage in (None, site.stage)]
        found = next((site for site in here if site.layer == layer), None)
        if found is None:
            known = sorted({f"{one.stage} {one.part}" for one in sites})
            what = f"layers 0 to {len(here) - 1} there" if here else ", ".join(known) or "no attention"
            raise InputError(f"There is no {stage or ''} {part} attention in layer {layer}; the model has {what}.")
        return found

    def layers(self, stage: str | None, part: str) -> list[AttentionSite]:
        """All sites of one sublayer name, in order; without `stage`, those of the first stage that has it."""
        found = [site for site in self.sites() if site.part == part and stage in (None, site.stage)]
        return [site for site in found if site.stage == found[0].stage]

    @torch.inference_mode()
    def inside(self, stage: str, layer: int, *points: str) -> Seen:
        """Record taps of a layer, such as "self.weights". Only this block runs, and it stops when all taps are
        recorded."""
        call = self.calls[stage][layer]
        seen = _Until(f"{stage}.blocks.{call.index}.{point}" for point in points)
        try:
            with ablate_heads(self.model, self.ablated), watching(self.model.watch, *seen.wanted, seen=seen):
                call.block(call.tokens, call.memory, None)
        except _Stop:
            pass
        return seen

    def weights(self, site: AttentionSite) -> Tensor:
        """Attention weights [heads, queries, keys]."""
        return self.inside(site.stage, site.layer, f"{site.part}.weights")[site.point][0]

    @torch.inference_mode()
    def given(self, site: AttentionSite) -> tuple[Tokens, Tokens | None]:
        """The input of the attention (after a pre-norm), and the context of cross-attention or None."""
        found: list[Tokens | None] = []

        def take(_: nn.Module, args: tuple[Any, ...]) -> None:
            found.extend(args[:2])
            raise _Stop

        call, hook = self.calls[site.stage][site.layer], self.attention(site).register_forward_pre_hook(take)
        try:
            with ablate_heads(self.model, self.ablated):
                call.block(call.tokens, call.memory, None)
        except _Stop:
            pass
        finally:
            hook.remove()
        tokens, context = (None if one is None else one.pad() for one in (*found, None)[:2])
        assert tokens is not None
        return tokens, context if self.attention(site).crosses else None

    def mask(self, site: AttentionSite) -> Mask:
        """The attention mask of the module for its input."""
        tokens, context = self.given(site)
        keys = tokens if context is None else context
        return self.attention(site).mask_for(tokens, context, None, keys.x.shape[1])

    @torch.inference_mode()
    def mean_weights(self, site: AttentionSite) -> Tensor:
        """The mean over heads [queries, keys]. Computed in groups of queries to save memory."""
        if not site.plain:
            return self.weights(site).float().mean(dim=0)
        return torch.cat([part.float().mean(dim=0) for part in self._weight_groups(site, 0, None)])

    @torch.inference_mode()
    def row_weights(self, site: AttentionSite, at: int) -> Tensor:
        """Attention weights of one query [heads, keys]."""
        if not site.plain:
            return self.weights(site)[:, at]
        return next(self._weight_groups(site, at, at + 1))[:, 0]

    def _weight_groups(self, site: AttentionSite, first: int, last: int | None) -> Iterator[Tensor]:
        """Yield the weights of the queries first to last - 1 in groups [heads, queries, keys]."""
        attention, point = self.attention(site), site.point.removesuffix("weights")
        seen = self.inside(site.stage, site.layer, f"{site.part}.query", f"{site.part}.key")
        query, key, mask = seen[point + "query"][:1], seen[point + "key"][:1], self.mask(site)
        bias, keys = self.bias(site, query, key), key.shape[2]
        if bias is not None:
            bias = bias.expand(*bias.shape[:-2], query.shape[2], keys)
        last = query.shape[2] if last is None else last
        for start in range(first, last, ROWS):
            stop = min(start + ROWS, last)
            _, far = mask.key_range(start, stop, keys)
            part = None if bias is None else bias[..., start:stop, :far]
            some = query[:, :, start:stop], key[:, :, :far]
            found = attention_weights(
                *some, mask, scale=attention.scale, bias=part, offset=start, score=attention.score
            )
            yield F.pad(found[0], (0, keys - far))

    def bias(self, site: AttentionSite, query: Tensor, key: Tensor) -> Tensor | None:
        """The position bias of the scores [..., heads, queries, keys]; None if there is none."""
        encoding, attention = self.given(site)[0].encoding, self.attention(site)
        if encoding is None or attention.crosses:
            return None
        return encoding.bias(query, key, 0, attention.scale)

    def attention(self, site: AttentionSite) -> Attention:
        """The Attention module; an error if the sublayer is another kind of attention."""
        part = innermost(self.sublayer(site))
        if not isinstance(part, Attention):
            raise InputError(
                f"The {site.part} sublayer of this layer is not multi-head attention; it has no separate queries, keys"
                " and values."
            )
        return part

    def sublayer(self, site: AttentionSite) -> Sublayer:
        """The sublayer of a site."""
        return self.calls[site.stage][site.layer].block.sublayers[site.part]

    def tokens(self, stage: str) -> Tokens:
        """All tokens of a stage, from the input of its first block. The last block may compute fewer tokens."""
        calls = self.calls.get(stage)
        return (calls[0].tokens if calls else self.run.tokens[stage]).pad()

    def memory_stage(self, stage: str) -> str:
        """The stage that provides the keys of cross-attention."""
        return self.model.stages[stage].attends or stage


class _Stop(Exception):  # noqa: N818 - control flow, not an error
    """Raised to stop a block when all taps are recorded."""


class _Until(Seen):
    """Records taps and raises _Stop when all of them are recorded."""

    def __init__(self, wanted: Iterable[str]) -> None:
        super().__init__()
        self.wanted = tuple(wanted)

    def add(self, point: str, value: Tensor) -> None:
        super().add(point, value)
        if all(one in self for one in self.wanted):
            raise _Stop


def _parts(block: Block, crossing: bool) -> list[tuple[str, int, bool]]:
    """The attention sublayers of a block: name, number of heads, and whether it is multi-head attention."""
    found = []
    for name, sublayer in block.sublayers.items():
        if sublayer.crosses and not crossing:
            continue
        part = innermost(sublayer.part)
        if isinstance(part, Attention):
            found.append((name, part.config.n_heads, True))
        elif type(part).__name__ in ("AttentionRNNDecoder", "DotAttention"):
            found.append((name, 1, False))
    return found


@torch.inference_mode()
def trace(model: Model, batch: dict[str, Any], ablated: Sequence[AblatedHead], deadline: Deadline) -> Trace:
    """Run a normal forward pass and store the input of each block."""
    kept: dict[str, list[BlockCall]] = {name: [] for name in model.stages}
    runs: list[ForwardContext] = []
    start = time.perf_counter()
    with watched(model, kept, runs, deadline), ablate_heads(model, ablated):
        output = model(**batch)
    calls = {stage: each for stage, each in kept.items() if each}
    return Trace(model, batch, tuple(ablated), runs[-1], output, time.perf_counter() - start, calls)


@contextmanager
def watched(
    model: Model, kept: dict[str, list[BlockCall]] | None, runs: list[ForwardContext], deadline: Deadline
) -> Iterator[None]:
    """Within this context, every block checks the deadline before it starts; with `kept`, its input is stored."""
    hooks = []
    for name, stage in cast("dict[str, Stage]", dict(model.stages.items())).items():
        hooks.append(stage.register_forward_pre_hook(lambda _, given: runs.append(given[0])))
        for index, block in enumerate(stage.stack.blocks if stage.stack is not None else ()):
            hooks_of_block = _BlockHooks(index, kept[name] if kept is not None else None, deadline)
            hooks.append(block.register_forward_pre_hook(hooks_of_block.before))
            hooks.append(block.register_forward_hook(hooks_of_block.after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _BlockHooks:
    """The forward hooks of one block: check the deadline, measure the time, store the input."""

    def __init__(self, index: int, calls: list[BlockCall] | None, deadline: Deadline) -> None:
        self.index, self.calls, self.deadline = index, calls, deadline
        self.start_time = 0.0

    def before(self, block: nn.Module, args: tuple[Any, ...]) -> None:
        self.deadline.check()
        self.start_time = time.perf_counter()

    def after(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.calls is not None:
            seconds = time.perf_counter() - self.start_time
            self.calls.append(BlockCall(self.index, cast("Block", block), args[0], args[1], seconds))
