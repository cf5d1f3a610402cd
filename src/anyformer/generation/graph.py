"""One decoding step recorded on the GPU and replayed, so that the host neither launches kernels nor waits at a token.

A recording holds the model's step for so many rows and columns. It is kept with the model, so that the next call of
`generate` of about the same size starts at once.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from anyformer.core.attention import Attention
from anyformer.core.block import Block
from anyformer.core.cache import Cache, RecurrentState
from anyformer.core.feedforward import FeedForward
from anyformer.core.positions import Rotary
from anyformer.core.static_cache import StaticCache, shape_key, supports_static_cache
from anyformer.core.taps import is_watched
from anyformer.generation.strategies import BeamSearch, Greedy, Strategy

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model

KEPT = 4  # recordings a model keeps
LEAST = 8  # tokens below which recording does not pay
LOOK_EVERY = 16  # steps between two looks at whether all rows are finished
WARM = 3  # passes before recording, as libraries set themselves up in the first ones


class DecodeGraph:
    """The step of a model: token ids [R, 1] in, scores [R, V] out, at fixed addresses.

    A step also chooses the next tokens, by beam search or as the most probable ones, and continues from them when it is
    replayed.
    """

    def __init__(self, state: Cache, columns: int, beams: int, beam: BeamSearch | None = None) -> None:
        self.state = StaticCache(state, columns, beams)
        self.beam = copy.deepcopy(beam)
        self.ids = torch.zeros(len(self.state.first), 1, dtype=torch.long, device=self.state.first.device)
        self.graph: Any = None
        self.scores = torch.empty(0)
        self.generated = self.ids.new_zeros(len(self.ids), columns)  # at a column, the most probable token after it

    def start(self, model: Model, name: str, state: Cache, beam: BeamSearch | None = None) -> None:
        """Go on from `state`, and from where `beam` stands."""
        self._load(state, beam)
        if self.graph is None and self.ids.is_cuda:
            self._capture(model, name)
            self._load(state, beam)  # what recording wrote is forgotten

    def _load(self, state: Cache, beam: BeamSearch | None) -> None:
        self.state.load(state)
        if self.beam is not None and beam is not None:
            self.beam.load(beam)

    def _capture(self, model: Model, name: str) -> None:
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
            from anyformer.core.gpu import argmax_tokens

            argmax_tokens(scores, self.ids, self.generated, self.state.column)
        else:
            likeliest = scores.argmax(dim=-1, keepdim=True)
            self.generated.index_copy_(1, self.state.column, likeliest)
            self.ids.copy_(likeliest)

    def step(self, model: Model, name: str, tokens: Tensor) -> Tensor:
        """The scores after these tokens [R], valid until the next step."""
        self.ids.copy_(tokens[:, None])
        return self._replay(model, name)

    def run_to_end(self, model: Model, name: str, strategy: Greedy | BeamSearch, tokens: Tensor) -> None:
        """To the end by a step that feeds itself; the host only looks now and then whether all rows are done."""
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


# A recording must not keep its model alive, so models do not hold them and they do not hold models.
GRAPHS: WeakKeyDictionary[Model, OrderedDict[Any, DecodeGraph]] = WeakKeyDictionary()


def can_capture(model: Model, state: Cache, new_tokens: int) -> bool:
    """Is the step the same each time? Nobody looks in, nothing is drawn, and all that is remembered are keys."""
    if model.device.type != "cuda":
        return False
    stages = [stage for stage in model.stages.values() if stage.has_cache]
    parts = [part for stage in stages for part in stage.modules()]
    plain = not model.training and not is_watched(model) and new_tokens >= LEAST and len(stages) == 1
    return plain and keys_only(state) and all(is_static(part) for part in parts)


def keys_only(state: Cache) -> bool:
    return all(not isinstance(layer, RecurrentState) for layer in state.layers.values())


def is_static(part: Any) -> bool:
    if isinstance(part, Attention):
        turning = part.positions
        dynamic = isinstance(turning, Rotary) and turning.rope.rope_type == "dynamic"
        return (
            part.score is None
            and not dynamic
            and not (turning is not None and turning.has_bias)
            and (part.config.d_context is not None or supports_static_cache(part.config.mask))
        )
    return not isinstance(part, Block) or all(
        isinstance(sublayer.part, (Attention, FeedForward)) for sublayer in cast("Any", part.sublayers.values())
    )


def capture_step(model: Model, name: str, state: Cache, strategy: Strategy) -> DecodeGraph:
    """A recording that goes on from `state` and `strategy`, a kept one where its sizes fit."""
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
    """One of those that are `kept`, or a new one, with room for so many columns or more; it goes on from `state`."""
    room = 128
    while room < columns:
        room *= 2
    weights = hash(tuple(parameter.data_ptr() for parameter in model.parameters()))
    key = (weights, name, room, beams, None if beam is None else beam.plan, *shape_key(state))
    recording = kept.pop(key, None)
    if recording is None:
        recording = DecodeGraph(state, room, beams, beam)
    kept[key] = recording
    while len(kept) > KEPT:
        kept.popitem(last=False)
    recording.start(model, name, state, beam)
    return recording
