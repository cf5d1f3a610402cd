"""Continuous batching: many prompts through a fixed number of rows. A finished row takes the next prompt at once.

    for index, ids in generate_many(model, prompts, rows=32, max_new_tokens=200): ...

No row waits for the longest row of a batch. Prompts are prefilled in small groups and inserted into free rows
(generation/cache_rows.py). Each prompt gets the same ids as from `generate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core import rewrites
from anyformer.core.cache import GROW_BY, Cache
from anyformer.core.positions import Rotary
from anyformer.errors import InputError
from anyformer.generation.cache_rows import compact, evict_rows, insert_rows
from anyformer.generation.engine import LEAST, can_capture, decode_step, decoding_stage, optimize_for_decoding, prefill
from anyformer.generation.logits_processors import Processor, sampling_processors
from anyformer.generation.options import resolve
from anyformer.generation.ranking import gumbel, pick
from anyformer.generation.requests import Prompt, Request, RequestQueue, collate
from anyformer.generation.stop_strings import StopStrings
from anyformer.generation.strategies import check_every, warn_stuck

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

SHARE = 8  # start a prefill once 1/SHARE of the rows are free: prefilling a few prompts takes hardly longer than one


def generate_many(
    model: Model, prompts: Iterable[Prompt], rows: int = 32, **options: Any
) -> Iterator[tuple[int, Tensor]]:
    """Yield each prompt's index and its ids [length], without padding, in the order in which prompts finish.

    A prompt is a row of ids, or a mapping with `input_ids` and optionally `attention_mask`, `max_new_tokens`,
    `min_new_tokens` and `seed`. `prompts` is read as rows become free and may be endless. A single `seed` increases by
    one per prompt. The other options are those of `generate`, for greedy search and sampling.
    """
    if rows < 1:
        raise InputError(f"rows is {rows}; it must be 1 or more.")
    decoding_stage(model)
    given = resolve(model, options)
    for name in ("num_beams", "num_return_sequences"):
        if (given.get(name) or 1) != 1:
            raise InputError(f"{name} is {given[name]}; generate_many returns one sequence per prompt; leave it out.")
    if given.get("prefix_allowed_tokens_fn") is not None:
        raise InputError("generate_many does not support prefix_allowed_tokens_fn; use generate.")
    if given.get("assistant_model") is not None or given.get("prompt_lookup_num_tokens"):
        raise InputError("generate_many does not support assistant_model or prompt_lookup_num_tokens; use generate.")
    if any(isinstance(part, Rotary) and part.rope.rope_type == "dynamic" for part in model.modules()):
        raise InputError(
            "generate_many does not support rope_type dynamic, which depends on the longest row; use generate."
        )
    optimize_for_decoding(model)
    return run(ContinuousBatcher(model, RequestQueue(model, prompts, rows, given)))


def run(batcher: ContinuousBatcher) -> Iterator[tuple[int, Tensor]]:
    """Run the batcher to the end. The caller's code (in `prefetch` and at `yield`) runs outside inference mode."""
    while True:
        batcher.queue.prefetch()
        if not batcher.queue.waiting and not any(batcher.rows):
            return
        for request in batcher.step():
            yield request.index, torch.tensor(request.generated_ids, device=request.ids.device)


class ContinuousBatcher:
    """The rows of the batch: their requests, cache and next-token scores."""

    def __init__(self, model: Model, queue: RequestQueue) -> None:
        self.model, self.queue = model, queue
        self.rows: list[Request | None] = []  # None: free
        self.state = Cache()
        self.graph: Any = None  # CUDA graph of the decode step, with its own static cache
        self.kept: OrderedDict[Any, Any] = OrderedDict()  # its own graphs: other calls may decode in between
        self.room = 0  # free columns in the graph's cache
        self.scores = torch.empty(0, device=model.device)
        self.generators: list[torch.Generator] = []  # one per row; empty for greedy search
        self.limits: list[Processor] = []
        self.stops: StopStrings | None = None
        self.read = torch.empty(0, dtype=torch.long, device=model.device)  # stop-string state of each row
        self.end = torch.empty(0, dtype=torch.long, device=model.device)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Fill free rows, decode until a row may be full, and return the finished requests."""
        self._fill()
        live = [request for request in self.rows if request is not None]
        steps_left = 1 if any(request.processors for request in live) else check_every(self.model.device)
        steps: list[Tensor] = []
        for n in range(min(steps_left, *(request.remaining_tokens for request in live))):
            if n:
                self._step(steps[-1][0])
            token = self._next_tokens()
            steps.append(torch.stack([token, self._ends(token)]))
        finished = self._append_tokens(torch.stack(steps).tolist())
        if any(self.rows):
            self._step(steps[-1][0])
        return finished

    def _fill(self) -> None:
        """Insert waiting requests into free rows; drop free rows when no request waits."""
        free = [row for row, request in enumerate(self.rows) if request is None]
        if self.rows and len(free) < max(len(self.rows) // SHARE, 1):
            return
        taken = self.queue.next_requests(len(free) if self.rows else self.queue.ahead)
        if not self.rows:
            self._start(taken)
        elif taken:
            self._insert(free[: len(taken)], taken)
        live = len(self.rows) - len(free)
        if not taken and (live <= len(self.rows) // 2 or self.graph is None):  # a new size needs a new graph
            self._shrink()

    def _start(self, requests: list[Request]) -> None:
        plan = requests[0].plan
        self.rows = list(requests)
        self.limits = sampling_processors(plan)
        self.generators = [request.generator for request in requests if request.generator is not None]
        self.end = torch.tensor(plan.eos_ids, dtype=torch.long, device=self.model.device)
        self.stops = plan.stop_strings
        self.read = self._begun(requests)
        self.state, self.scores = self._prefill(requests)

    def _insert(self, free: list[int], requests: list[Request]) -> None:
        state, scores = self._prefill(requests)
        rows = torch.tensor(free, device=scores.device)
        self._sync_from_graph()
        insert_rows(self.state, rows, state)
        compact(self.state)
        self.scores = self.scores.index_copy(0, rows, scores)
        self.read = self.read.index_copy(0, rows, self._begun(requests))
        for row, request in zip(free, requests, strict=True):
            self.rows[row] = request
            if request.generator is not None:
                self.generators[row] = request.generator

    def _prefill(self, requests: list[Request]) -> tuple[Cache, Tensor]:
        if not self.queue.reads_source:
            return prefill(self.model, collate(requests, "left"), None)
        begin = torch.tensor([request.generated_ids for request in requests], device=self.model.device)
        return prefill(self.model, collate(requests, "right"), begin)

    def _shrink(self) -> None:
        live = [row for row, request in enumerate(self.rows) if request is not None]
        rows = torch.tensor(live, device=self.scores.device)
        self._sync_from_graph()
        self.state.reorder(rows)
        compact(self.state)
        self.scores = self.scores.index_select(0, rows)
        self.read = self.read.index_select(0, rows)
        self.rows = [self.rows[row] for row in live]
        self.generators = [self.generators[row] for row in live] if self.generators else []

    def _step(self, tokens: Tensor) -> None:
        tokens = tokens.clamp(min=0)  # finished rows may have -1
        name = decoding_stage(self.model).names[0]
        if self.graph is not None and self.room == 0:
            self._sync_from_graph()
            compact(self.state, spare=1)
        if self.graph is None and can_capture(self.model, self.state, LEAST):
            graphs = rewrites.apply("decode_graph")
            self.graph = graphs.get_graph(self.kept, self.model, name, self.state, self.state.length + GROW_BY)
            self.room = self.graph.state.columns - self.state.length
        if self.graph is None:
            self.scores = decode_step(self.model, self.state, tokens[:, None])
        else:
            self.room -= 1
            self.scores = self.graph.step(self.model, name, tokens)

    def _sync_from_graph(self) -> None:
        """Copy the graph's static cache back into the cache, before rows are inserted or removed."""
        if self.graph is not None:
            self.graph.state.copy_back(self.state)
            self.graph = None

    def _next_tokens(self) -> Tensor:
        """Return the next token of each row [R], -1 if all tokens are forbidden; values of free rows are unused."""
        self._check()
        scores = self._apply_processors(self.scores)
        if not self.generators:
            return pick(scores, scores)
        for limit in self.limits:
            scores = limit(scores, self.end[None])  # sampling processors ignore the history
        return pick(scores + gumbel(scores, self.generators), scores)

    def _ends(self, token: Tensor) -> Tensor:
        """Whether each token [R] ends its row."""
        ends = torch.isin(token, self.end) | (token < 0)
        if self.stops is not None:
            stopped, self.read = self.stops.step(self.read, token.clamp(min=0))
            ends = ends | stopped
        return ends

    def _begun(self, requests: list[Request]) -> Tensor:
        """Return the stop-string state of each request [n] after its tokens."""
        if self.stops is None:
            return torch.zeros(len(requests), dtype=torch.long, device=self.model.device)
        ids = (torch.tensor([request.generated_ids], device=self.model.device) for request in requests)
        return torch.cat([self.stops.begin(row) for row in ids])

    def _apply_processors(self, scores: Tensor) -> Tensor:
        """Apply the logits processors to groups of rows with equal processors and lengths."""
        alike: dict[tuple[int, int], list[int]] = {}
        for row, request in enumerate(self.rows):
            if request is not None and request.processors:
                alike.setdefault((id(request.processors), len(request.generated_ids)), []).append(row)
        for rows in alike.values():
            requests = [request for request in (self.rows[row] for row in rows) if request is not None]
            at = torch.tensor(rows, device=scores.device)
            ids = [
                request.generated_ids if self.queue.reads_source else request.history_ids(scores.shape[1])
                for request in requests
            ]
            history = torch.tensor(ids, device=scores.device)
            ruled = scores.index_select(0, at)
            for rule in requests[0].processors:
                ruled = rule(ruled, history)
            scores = scores.index_copy(0, at, ruled)
        return scores

    def _append_tokens(self, steps: list[list[list[int]]]) -> list[Request]:
        """Append tokens and end flags, given as [steps, 2, rows]. Free the finished rows and return their requests."""
        free, finished = [], []
        for row, request in enumerate(self.rows):
            if request is None:
                continue
            for tokens, ends in steps:
                if tokens[row] < 0:
                    warn_stuck(request.plan, [request.index])
                else:
                    request.generated_ids.append(tokens[row])
                if ends[row] or not request.remaining_tokens:
                    free.append(row)
                    finished.append(request)
                    self.rows[row] = None
                    break
        if free:
            rows = torch.tensor(free, device=self.scores.device)
            if self.graph is not None:
                self.graph.state.evict_rows(rows)
            else:
                evict_rows(self.state, rows)
        return finished

    def _check(self) -> None:
        """Raise an error on NaN scores. On CUDA this is skipped, because it would synchronize at every token."""
        if self.scores.is_cuda or not bool(self.scores.isnan().any()):
            return
        for request, bad in zip(self.rows, self.scores.isnan().any(dim=1).tolist(), strict=True):
            if bad and request is not None:
                raise InputError(
                    f"The scores after token {len(request.generated_ids) - 1} of prompt {request.index} are NaN."
                )
