"""One pass through a model, kept so that any layer can be looked into afterwards.

A pass runs on the fast kernels and keeps what each block was given. Whoever wants the weights, queries or values of a
layer then has that one block run again under `af.look`: the cost of one layer, and memory for none of the others.
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

ROWS = 128  # queries at a time, whose weights fit into a processor's cache


@dataclass(frozen=True)
class BlockCall:
    """What a block was given, and the seconds it took."""

    index: int  # of the block in its stack
    block: Block
    tokens: Tokens
    memory: Tokens | None
    seconds: float


@dataclass(frozen=True)
class AttentionSite:
    """A place where attention happens: a layer of a stage, counted in the order of the pass, and a part of it."""

    stage: str
    layer: int
    part: str
    heads: int
    point: str
    plain: bool  # whether it is the scaled dot product, whose heads can be taken apart and silenced


@dataclass
class Trace:
    model: Model
    batch: dict[str, Any]
    mutes: tuple[AblatedHead, ...]
    run: ForwardContext
    output: Output
    seconds: float
    calls: dict[str, list[BlockCall]] = field(default_factory=dict)

    def size(self) -> int:
        """Bytes that it holds, about."""
        kept = [call.tokens.x for calls in self.calls.values() for call in calls]
        kept += [value for value in self.output.values() if isinstance(value, Tensor)]
        return sum(x.numel() * x.element_size() for x in kept)

    def sites(self) -> list[AttentionSite]:
        return [
            AttentionSite(stage, layer, part, heads, f"{stage}.blocks.{call.index}.{part}.weights", plain)
            for stage, calls in self.calls.items()
            for layer, call in enumerate(calls)
            for part, heads, plain in _parts(call.block, call.memory is not None)
        ]

    def site(self, stage: str | None, layer: int, part: str) -> AttentionSite:
        sites = self.sites()
        here = [site for site in sites if site.part == part and stage in (None, site.stage)]
        found = next((site for site in here if site.layer == layer), None)
        if found is None:
            known = sorted({f"{one.stage} {one.part}" for one in sites})
            what = f"layers 0 to {len(here) - 1} there" if here else ", ".join(known) or "no attention"
            raise InputError(f"There is no {stage or ''} {part} attention in layer {layer}; the model has {what}.")
        return found

    def layers(self, stage: str | None, part: str) -> list[AttentionSite]:
        """All sites of one kind, in order; without a stage, those of the first that has some."""
        found = [site for site in self.sites() if site.part == part and stage in (None, site.stage)]
        return [site for site in found if site.stage == found[0].stage]

    @torch.inference_mode()
    def inside(self, stage: str, layer: int, *points: str) -> Seen:
        """What the named points of a layer show ("self.weights"), in a pass of that block alone, which ends when all of
        them have been seen."""
        call = self.calls[stage][layer]
        seen = _Until(f"{stage}.blocks.{call.index}.{point}" for point in points)
        try:
            with ablate_heads(self.model, self.mutes), watching(self.model.watch, *seen.wanted, seen=seen):
                call.block(call.tokens, call.memory, None)
        except _Enough:
            pass
        return seen

    def weights(self, site: AttentionSite) -> Tensor:
        """[heads, queries, keys]."""
        return self.inside(site.stage, site.layer, f"{site.part}.weights")[site.point][0]

    @torch.inference_mode()
    def given(self, site: AttentionSite) -> tuple[Tokens, Tokens | None]:
        """What the attention there reads, after the norm that comes first, and what it looks at besides."""
        found: list[Tokens | None] = []

        def take(_: nn.Module, handed: tuple[Any, ...]) -> None:
            found.extend(handed[:2])
            raise _Enough

        call, hook = self.calls[site.stage][site.layer], self.attention(site).register_forward_pre_hook(take)
        try:
            with ablate_heads(self.model, self.mutes):
                call.block(call.tokens, call.memory, None)
        except _Enough:
            pass
        finally:
            hook.remove()
        tokens, context = (None if one is None else one.pad() for one in (*found, None)[:2])
        assert tokens is not None
        return tokens, context if self.attention(site).crosses else None

    def mask(self, site: AttentionSite) -> Mask:
        """Who may look at whom there: the mask that the attention works out from what it is given."""
        tokens, context = self.given(site)
        keys = tokens if context is None else context
        return self.attention(site).mask_for(tokens, context, None, keys.x.shape[1])

    @torch.inference_mode()
    def mean_weights(self, site: AttentionSite) -> Tensor:
        """[queries, keys], the mean of all heads, some queries at a time and only with keys within their reach: what is
        many heads wide stays small."""
        if not site.plain:
            return self.weights(site).float().mean(dim=0)
        return torch.cat([part.float().mean(dim=0) for part in self._some(site, 0, None)])

    @torch.inference_mode()
    def row_weights(self, site: AttentionSite, at: int) -> Tensor:
        """[heads, keys] of one query."""
        if not site.plain:
            return self.weights(site)[:, at]
        return next(self._some(site, at, at + 1))[:, 0]

    def _some(self, site: AttentionSite, first: int, last: int | None) -> Iterator[Tensor]:
        """The weights of the queries first…last-1, [heads, some, keys], a few at a time."""
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
        """What is added to the scores [.., heads, queries, keys], where positions are told that way."""
        encoding, attention = self.given(site)[0].encoding, self.attention(site)
        if encoding is None or attention.crosses:
            return None
        return encoding.bias(query, key, 0, attention.scale)

    def attention(self, site: AttentionSite) -> Attention:
        """The part itself, where it is the attention whose heads can be taken apart."""
        part = innermost(self.sublayer(site))
        if not isinstance(part, Attention):
            raise InputError(f"The {site.part} of this layer has no queries, keys and values to take apart.")
        return part

    def sublayer(self, site: AttentionSite) -> Sublayer:
        return self.calls[site.stage][site.layer].block.sublayers[site.part]

    def tokens(self, stage: str) -> Tokens:
        """All tokens of a stage: what its first block was given, for the last one may work on a few alone."""
        calls = self.calls.get(stage)
        return (calls[0].tokens if calls else self.run.tokens[stage]).pad()

    def memory_stage(self, stage: str) -> str:
        """The stage that cross-attention looks at."""
        return self.model.stages[stage].attends or stage


class _Enough(Exception):  # noqa: N818 - no mistake: what was asked for has been seen
    """Ends a block early."""


class _Until(Seen):
    """Ends the block as soon as everything that was wanted has been seen."""

    def __init__(self, wanted: Iterable[str]) -> None:
        super().__init__()
        self.wanted = tuple(wanted)

    def add(self, point: str, value: Tensor) -> None:
        super().add(point, value)
        if all(one in self for one in self.wanted):
            raise _Enough


def _parts(block: Block, crossing: bool) -> list[tuple[str, int, bool]]:
    """The sublayers with weights to show: name, heads, and whether they are the usual attention."""
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
    """Run the model once, as it always runs, and keep what its blocks were given."""
    kept: dict[str, list[BlockCall]] = {name: [] for name in model.stages}
    runs: list[ForwardContext] = []
    began = time.perf_counter()
    with watched(model, kept, runs, deadline), ablate_heads(model, ablated):
        output = model(**batch)
    calls = {stage: each for stage, each in kept.items() if each}
    return Trace(model, batch, tuple(ablated), runs[-1], output, time.perf_counter() - began, calls)


@contextmanager
def watched(
    model: Model, kept: dict[str, list[BlockCall]] | None, runs: list[ForwardContext], deadline: Deadline
) -> Iterator[None]:
    """Inside, every block asks for patience before it starts; with `kept`, what it is given is kept."""
    hooks = []
    for name, stage in cast("dict[str, Stage]", dict(model.stages.items())).items():
        hooks.append(stage.register_forward_pre_hook(lambda _, given: runs.append(given[0])))
        for index, block in enumerate(stage.stack.blocks if stage.stack is not None else ()):
            clock = _Clock(index, kept[name] if kept is not None else None, deadline)
            hooks.append(block.register_forward_pre_hook(clock.before))
            hooks.append(block.register_forward_hook(clock.after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Clock:
    """The two hooks of one block."""

    def __init__(self, index: int, calls: list[BlockCall] | None, deadline: Deadline) -> None:
        self.index, self.calls, self.patience = index, calls, deadline
        self.began = 0.0

    def before(self, block: nn.Module, given: tuple[Any, ...]) -> None:
        self.patience.check()
        self.began = time.perf_counter()

    def after(self, block: nn.Module, given: tuple[Any, ...], made: Any) -> None:
        if self.calls is not None:
            seconds = time.perf_counter() - self.began
            self.calls.append(BlockCall(self.index, cast("Block", block), given[0], given[1], seconds))
