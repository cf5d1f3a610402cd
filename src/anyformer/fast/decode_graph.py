"""CUDA graph of a decode step: replaying it needs no kernel launches and no synchronization at each token.

A graph has a fixed number of rows and cache columns. Graphs are cached per model, so that the next call of `generate`
of about the same size starts at once.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.core.block import Block
from anyformer.core.cache import Cache, RecurrentState
from anyformer.core.feedforward import FeedForward
from anyformer.core.positions import Positions, Rotary
from anyformer.core.taps import is_watched
from anyformer.fast.device import is_hooked
from anyformer.fast.rewrite import decoding
from anyformer.fast.static_cache import StaticCache, shape_key, supports_static_cache
from anyformer.generation.engine import LEAST
from anyformer.generation.strategies import BeamSearch, Greedy, Strategy
from anyformer.layers.wrappers import RecurrentBlock

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

KEPT = 4  # graphs cached per model
LOOK_EVERY = 16  # steps between two checks whether all rows are finished
WARM = 3  # warm-up passes before capture, in which libraries initialize


class DecodeGraph:
    """A captured decode step: token ids [R, 1] in, scores [R, V] out, at fixed addresses.

    The step also chooses the next tokens, by beam search or argmax, so that replaying it again continues from them.
    """

    def __init__(self, state: Cache, columns: int, beams: int, beam: BeamSearch | None = None) -> None:
        self.state = StaticCache(state, columns, beams)
        self.beam = copy.deepcopy(beam)
        self.ids = torch.zeros(len(self.state.first), 1, dtype=torch.long, device=self.state.first.device)
        self.graph: Any = None
        self.scores = torch.empty(0)
        self.generated = self.ids.new_zeros(len(self.ids), columns)  # at each column, the argmax token after it

    def start(self, model: Model, name: str, state: Cache, beam: BeamSearch | None = None) -> None:
        """Load `state` and `beam`, and capture the graph if there is none."""
        self._load(state, beam)
        if self.graph is None and self.ids.is_cuda:
            self._capture(model, name)
            self._load(state, beam)  # undo what warm-up and capture wrote

    def _load(self, state: Cache, beam: BeamSearch | None) -> None:
        self.state.load(state)
        if self.beam is not None and beam is not None:
            self.beam.load(beam)

    def _capture(self, model: Model, name: str) -> None:
        """Other threads may run the model meanwhile, so its twin is captured."""
        model = twin(model)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self._pass(model, name)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.scores = self._pass(model, name)

    def _pass(self, model: Model, name: str) -> Tensor:
        # Fused residual sums need the kernel that follows the static cache: a step that nothing watches.
        with decoding(model) if self.state.fresh is not None else nullcontext():
            scores: Tensor = model(**{name: self.ids}, past_key_values=self.state).logits[:, -1]
        if self.beam is not None:
            tokens, rows = self.beam.step_tensors(scores)
            self.state.reorder(rows)
            self.ids.copy_(tokens[:, None])
        else:
            self._argmax(scores)
        return scores

    def _argmax(self, scores: Tensor) -> None:
        if self.state.fresh is not None:
            from anyformer.fast.triton_decode import argmax_tokens

            argmax_tokens(scores, self.ids, self.generated, self.state.column)
        else:
            token = scores.argmax(dim=-1, keepdim=True)
            self.generated.index_copy_(1, self.state.column, token)
            self.ids.copy_(token)

    def step(self, model: Model, name: str, tokens: Tensor) -> Tensor:
        """Return the scores after these tokens [R]; they are valid until the next step."""
        self.ids.copy_(tokens[:, None])
        return self._replay(model, name)

    def run_to_end(self, model: Model, name: str, strategy: Greedy | BeamSearch, tokens: Tensor) -> None:
        """Replay the step until all rows are finished, checking every LOOK_EVERY steps."""
        plan, self.ids[:] = strategy.plan, tokens[:, None]
        left = plan.max_length - plan.prompt_length - 1
        while not strategy.done:
            n = min(left, LOOK_EVERY) if plan.eos_ids else left
            first, left = int(self.state.column) + 1, left - n
            for _ in range(n):
                self._replay(model, name)
            if isinstance(strategy, Greedy):
                strategy.extend(self.generated[:, first : first + n])
            elif self.beam is not None:
                self.beam.count(n)
                strategy.done = self.beam.done
        if isinstance(strategy, BeamSearch) and self.beam is not None:
            strategy.load(self.beam)

    def _replay(self, model: Model, name: str) -> Tensor:
        if self.graph is None:
            return self._pass(model, name)
        self.graph.replay()
        return self.scores


def twin(model: Model) -> Model:
    """A copy of the model around the same parameters and buffers: its modules can be swapped while others run ours."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


# Graphs are held here with weak keys: a graph must not keep its model alive.
GRAPHS: WeakKeyDictionary[Model, OrderedDict[Any, DecodeGraph]] = WeakKeyDictionary()


def can_capture(model: Model, state: Cache, new_tokens: int) -> bool:
    """Whether the step can be captured: on CUDA, no taps, no dropout, enough new tokens, and a static cache."""
    if model.device.type != "cuda":
        return False
    stages = [stage for stage in model.stages.values() if stage.has_cache]
    parts = [part for stage in stages for part in stage.modules()]
    hooked = any(is_hooked(module) for module in model.modules())  # hooks would not run in a replay
    plain = not model.training and not is_watched(model) and not hooked and new_tokens >= LEAST and len(stages) == 1
    return plain and keys_only(state) and all(is_static(part) for part in parts)


def keys_only(state: Cache) -> bool:
    return all(not isinstance(layer, RecurrentState) for layer in state.layers.values())


def is_static(part: Any) -> bool:
    """Whether this part of a stage does the same at every step."""
    if isinstance(part, Positions):
        dynamic = isinstance(part, Rotary) and part.rope.by_length
        return not dynamic and not part.has_bias
    if isinstance(part, Attention):
        return part.score is None and (part.crosses or supports_static_cache(part.config.mask))
    if isinstance(part, RecurrentBlock):
        return False
    return not isinstance(part, Block) or all(
        isinstance(sublayer.part, (Attention, FeedForward)) for sublayer in part.sublayers.values()
    )


def capture_step(model: Model, name: str, state: Cache, strategy: Strategy) -> DecodeGraph:
    """Return a graph that continues from `state` and `strategy`; a cached one is reused if the sizes fit."""
    plan = strategy.plan
    beam = strategy if isinstance(strategy, BeamSearch) and strategy.plain else None
    kept = GRAPHS.setdefault(model, OrderedDict())
    return get_graph(kept, model, name, state, plan.max_length, plan.num_beams, beam)


def get_graph(
    kept: OrderedDict[Any, DecodeGraph],
    model: Model,
    name: str,
    state: Cache,
    columns: int,
    beams: int = 1,
    beam: BeamSearch | None = None,
) -> DecodeGraph:
    """Return a graph with at least `columns` columns, from `kept` or new, that continues from `state`."""
    room = 128
    while room < columns:
        room *= 2
    weights = hash(tuple(parameter.data_ptr() for parameter in model.parameters()))
    key = (weights, name, room, beams, None if beam is None else beam.plan, *shape_key(state))
    graph = kept.pop(key, None)
    if graph is None:
        graph = DecodeGraph(state, room, beams, beam)
    kept[key] = graph
    while len(kept) > KEPT:
        kept.popitem(last=False)
    graph.start(model, name, state, beam)
    return graph
