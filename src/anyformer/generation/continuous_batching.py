"""Continuous batching: many prompts through a fixed number of rows. A finished row takes the next prompt at once.

    for index, ids in generate_many(model, prompts, rows=32, max_new_tokens=200): ...

No row waits for the longest row of a batch. Prompts are prefilled in small groups and inserted into free rows
(generation/cache_rows.py). Each prompt gets the same ids as from `generate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core import rewrites
from anyformer.core.cache import GROW_BY, Cache
from anyformer.core.positions import Rotary
from anyformer.errors import InputError, nearest
from anyformer.generation.cache_rows import compact, evict_rows, insert_rows
from anyformer.generation.engine import LEAST, can_capture, decode_step, optimize_for_decoding, prefill
from anyformer.generation.logits_processors import Processor, make_processors, sampling_processors
from anyformer.generation.options import as_python, check_seed, check_values
from anyformer.generation.plan import make_plan, resolve
from anyformer.generation.ranking import gumbel, pick
from anyformer.generation.requests import Request, decoding_stage, input_names, make_request
from anyformer.generation.stop_strings import StopStrings
from anyformer.generation.strategies import check_every, warn_stuck
from anyformer.schema import shown

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

Prompt = Tensor | Sequence[int] | Mapping[str, Any]
OWN = ("max_new_tokens", "min_new_tokens", "seed")  # options that a prompt may set for itself
# Options that concern the rows of one call together, with their unused values.
UNSUPPORTED: dict[str, Any] = {
    **dict.fromkeys(("num_beams", "num_return_sequences", "encoder_repetition_penalty", "guidance_scale"), 1),
    **dict.fromkeys(("prompt_lookup_num_tokens", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("logits_processor", "stopping_criteria", "prefix_allowed_tokens_fn"), ()),
    **dict.fromkeys(("assistant_model", "max_time", "negative_prompt_ids"), None),
}
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
    inputs = input_names(model)  # an error if the model does not generate tokens
    beside = [name for name in options if name in inputs]
    if beside:
        raise InputError(f'{beside[0]} goes with each prompt of generate_many: {{"input_ids": […], …}}.')
    given = resolve(model, options)
    for name, unused in UNSUPPORTED.items():
        if given.get(name) not in (None, unused):
            raise InputError(f"{name} is {shown(given[name])}; generate_many decodes each prompt alone: use generate.")
    rope = next((part.rope for part in model.modules() if isinstance(part, Rotary) and part.rope.by_length), None)
    if rope is not None:
        raise InputError(
            f"generate_many does not support rope_type {rope.rope_type}, which depends on the longest row; use"
            " generate."
        )
    optimize_for_decoding(model)
    return run(ContinuousBatcher(model, RequestQueue(model, prompts, rows, given)))


def run(batcher: ContinuousBatcher) -> Iterator[tuple[int, Tensor]]:
    """Run the batcher to the end. The caller's code (in `prefetch` and at `yield`) runs outside inference mode."""
    while True:
        batcher.queue.prefetch()
        if not batcher.queue.waiting and not any(batcher.rows):
            return
        for row in batcher.step():
            yield row.index, torch.tensor(row.ids, device=batcher.model.device)


@dataclass(eq=False)
class Row:
    """A prompt in progress: its request, and the ids so far, including the prompt or start token."""

    index: int
    request: Request
    ids: list[int]
    processors: list[Processor]
    generator: torch.Generator | None  # if it samples

    @property
    def history(self) -> list[int]:
        """The ids for logits processors: padding of the prompt is an id outside the vocabulary."""
        plan = self.request.plan
        begin = [] if plan.history is None else plan.history[0].tolist()
        return [*begin, *self.ids[len(begin) :]]

    @property
    def remaining_tokens(self) -> int:
        return self.request.plan.max_length - len(self.ids)


class RequestQueue:
    """The queue. It reads up to `ahead` prompts in advance, so that those of similar length are prefilled together."""

    def __init__(self, model: Model, prompts: Iterable[Prompt], ahead: int, given: dict[str, Any]) -> None:
        self.model, self.ahead, self.seed = model, ahead, given.get("seed")
        self.given = {**given, "seed": None}
        self.plan = make_plan(model, given)  # the requests differ only in lengths
        if self.seed is not None and not self.plan.do_sample:
            raise InputError("seed is used only in sampling; pass do_sample=True too, or leave it out.")
        self.reads_source = decoding_stage(model).attends is not None
        self.queue = enumerate(prompts)
        self.waiting: list[Row] = []
        self.rules = lru_cache(maxsize=256)(make_processors)  # requests of equal lengths share their processors

    def prefetch(self) -> None:
        while len(self.waiting) < self.ahead and (numbered := next(self.queue, None)) is not None:
            try:
                self.waiting.append(self._row(*numbered))
            except InputError as error:
                raise InputError(f"Prompt {numbered[0]}: {error}") from None

    def next_rows(self, n: int) -> list[Row]:
        """Return up to n rows: the oldest one and those closest to it in length."""
        if n < len(self.waiting):
            length = len(_ids(self.waiting[0]))
            order = sorted(self.waiting, key=lambda row: abs(len(_ids(row)) - length))
            taken = [self.waiting[0], *[row for row in order if row is not self.waiting[0]]][:n]
        else:
            taken = self.waiting
        self.waiting = [row for row in self.waiting if row not in taken]
        return taken

    def _row(self, index: int, prompt: Prompt) -> Row:
        own: dict[str, Any] = dict(prompt) if isinstance(prompt, Mapping) else {"input_ids": prompt}
        ids, mask = (_as_row(name, own.pop(name, None), self.model.device) for name in ("input_ids", "attention_mask"))
        for name in own:
            if name not in OWN:
                fields = ("input_ids", "attention_mask", *OWN)
                raise InputError(f'a prompt has no field "{name}".{nearest(name, OWN)} Fields: {", ".join(fields)}.')
        if ids is None or len(ids) == 0:
            raise InputError("input_ids is empty; give at least one token, such as bos_token_id.")
        if mask is not None and len(mask) != len(ids):
            raise InputError(f"attention_mask has {len(mask)} entries for {len(ids)} tokens.")
        own = {name: as_python(value) for name, value in own.items()}
        check_values(own)
        seed = own.pop("seed", _seed(self.seed, index))
        if seed is not None and not self.plan.do_sample:
            raise InputError("seed is used only in sampling; pass do_sample=True too, or leave it out.")
        given = {**self.given, **own}
        inputs = {"input_ids": ids[None], **({} if mask is None else {"attention_mask": mask[None]})}
        request = make_request(self.model, inputs, given, given.get("max_new_tokens") is not None, self.plan)
        generator = _generator(seed, self.model.device) if self.plan.do_sample else None
        return Row(index, request, request.prompt[0].tolist(), self.rules(request.plan), generator)


def _as_row(name: str, value: Any, device: torch.device) -> Tensor | None:
    """Return ids or a mask, given as a list, [P] or [1, P], as a tensor [P]."""
    if value is None:
        return None
    try:
        row = torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {value!r:.80}; it must be a list or tensor of ids.") from None
    if name == "input_ids" and row.is_floating_point() and row.numel():
        raise InputError(f"{name} holds {row.flatten()[0].item()}; ids must be integers.")
    row = row[0] if row.dim() == 2 and row.shape[0] == 1 else row
    if row.dim() != 1:
        raise InputError(f"{name} has shape {list(row.shape)}; each prompt must have shape [tokens].")
    return row


def _seed(seed: Any, index: int) -> int | None:
    """Return the seed of a prompt; a single seed is counted up, as in `generate`."""
    if not isinstance(seed, (list, tuple)):
        return None if seed is None else check_seed(check_seed(seed) + index)
    if index >= len(seed):
        raise InputError(f"seed has {len(seed)} entries, fewer than prompts; give one per prompt, or a single number.")
    return check_seed(seed[index])


def _generator(seed: int | None, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())) if seed is None else check_seed(seed))


def _ids(row: Row) -> Tensor:
    ids: Tensor = row.request.inputs["input_ids"]
    return ids[0]


def collate(rows: Sequence[Row], side: str) -> dict[str, Tensor]:
    """Return a batch of the prompts [n, longest], padded on one side, with a mask if there is padding."""
    masks = [row.request.inputs.get("attention_mask") for row in rows]
    longest = max(len(_ids(row)) for row in rows)
    ids = _ids(rows[0]).new_zeros(len(rows), longest)
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    for i, row in enumerate(rows):
        n = len(_ids(row))
        where = slice(longest - n, longest) if side == "left" else slice(0, n)
        ids[i, where] = _ids(row)
        mask[i, where] = True if (own := masks[i]) is None else own[0].bool()
    plain = all(own is None for own in masks) and all(len(_ids(row)) == longest for row in rows)
    return {"input_ids": ids} if plain else {"input_ids": ids, "attention_mask": mask}


class ContinuousBatcher:
    """The rows of the batch, their cache and next-token scores."""

    def __init__(self, model: Model, queue: RequestQueue) -> None:
        self.model, self.queue = model, queue
        self.rows: list[Row | None] = []  # None: free
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
    def step(self) -> list[Row]:
        """Fill free rows, decode until a row may be full, and return the finished ones."""
        self._fill()
        live = [row for row in self.rows if row is not None]
        steps_left = 1 if any(row.processors for row in live) else check_every(self.model.device)
        steps: list[Tensor] = []
        for n in range(min(steps_left, *(row.remaining_tokens for row in live))):
            if n:
                self._step(steps[-1][0])
            token = self._next_tokens()
            steps.append(torch.stack([token, self._ends(token)]))
        finished = self._append_tokens(torch.stack(steps).tolist())
        if any(self.rows):
            self._step(steps[-1][0])
        return finished

    def _fill(self) -> None:
        """Insert waiting prompts into free rows; drop free rows when none waits."""
        free = [i for i, row in enumerate(self.rows) if row is None]
        if self.rows and len(free) < max(len(self.rows) // SHARE, 1):
            return
        taken = self.queue.next_rows(len(free) if self.rows else self.queue.ahead)
        if not self.rows:
            self._start(taken)
        elif taken:
            self._insert(free[: len(taken)], taken)
        live = len(self.rows) - len(free)
        if not taken and (live <= len(self.rows) // 2 or self.graph is None):  # a new size needs a new graph
            self._shrink()

    def _start(self, taken: list[Row]) -> None:
        plan = self.queue.plan
        self.rows = list(taken)
        self.limits = sampling_processors(plan)
        self.generators = [row.generator for row in taken if row.generator is not None]
        self.end = torch.tensor(plan.eos_ids, dtype=torch.long, device=self.model.device)
        self.stops = plan.stop_strings
        self.read = self._begun(taken)
        self.state, self.scores = self._prefill(taken)

    def _insert(self, free: list[int], taken: list[Row]) -> None:
        state, scores = self._prefill(taken)
        rows = torch.tensor(free, device=scores.device)
        self._sync_from_graph()
        insert_rows(self.state, rows, state)
        compact(self.state)
        self.scores = self.scores.index_copy(0, rows, scores)
        self.read = self.read.index_copy(0, rows, self._begun(taken))
        for i, row in zip(free, taken, strict=True):
            self.rows[i] = row
            if row.generator is not None:
                self.generators[i] = row.generator

    def _prefill(self, taken: list[Row]) -> tuple[Cache, Tensor]:
        if not self.queue.reads_source:
            return prefill(self.model, collate(taken, "left"), None)
        begin = torch.tensor([row.ids for row in taken], device=self.model.device)
        return prefill(self.model, collate(taken, "right"), begin)

    def _shrink(self) -> None:
        live = [i for i, row in enumerate(self.rows) if row is not None]
        rows = torch.tensor(live, device=self.scores.device)
        self._sync_from_graph()
        self.state.reorder(rows)
        compact(self.state)
        self.scores = self.scores.index_select(0, rows)
        self.read = self.read.index_select(0, rows)
        self.rows = [self.rows[i] for i in live]
        self.generators = [self.generators[i] for i in live] if self.generators else []

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

    def _begun(self, taken: list[Row]) -> Tensor:
        """Return the stop-string state of each row [n] after its tokens."""
        if self.stops is None:
            return torch.zeros(len(taken), dtype=torch.long, device=self.model.device)
        ids = (torch.tensor([row.ids], device=self.model.device) for row in taken)
        return torch.cat([self.stops.begin(one) for one in ids])

    def _apply_processors(self, scores: Tensor) -> Tensor:
        """Apply the logits processors to groups of rows with equal processors and lengths."""
        alike: dict[tuple[int, int], list[int]] = {}
        for i, row in enumerate(self.rows):
            if row is not None and row.processors:
                alike.setdefault((id(row.processors), len(row.ids)), []).append(i)
        for places in alike.values():
            rows = [row for row in (self.rows[i] for i in places) if row is not None]
            at = torch.tensor(places, device=scores.device)
            history = torch.tensor([row.history for row in rows], device=scores.device)
            ruled = scores.index_select(0, at)
            for rule in rows[0].processors:
                ruled = rule(ruled, history)
            scores = scores.index_copy(0, at, ruled)
        return scores

    def _append_tokens(self, steps: list[list[list[int]]]) -> list[Row]:
        """Append tokens and end flags, given as [steps, 2, rows]. Free the finished rows and return them."""
        free, finished = [], []
        for i, row in enumerate(self.rows):
            if row is None:
                continue
            for tokens, ends in steps:
                if tokens[i] < 0:
                    warn_stuck(row.request.plan, [row.index])
                else:
                    row.ids.append(tokens[i])
                if ends[i] or not row.remaining_tokens:
                    free.append(i)
                    finished.append(row)
                    self.rows[i] = None
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
        for row, bad in zip(self.rows, self.scores.isnan().any(dim=1).tolist(), strict=True):
            if bad and row is not None:
                raise InputError(f"The scores after token {len(row.ids) - 1} of prompt {row.index} are NaN.")
