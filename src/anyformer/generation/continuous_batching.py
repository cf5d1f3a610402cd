"""Many prompts through a few rows: a row that is finished is given the next prompt, while the others go on.

    for index, ids in generate_many(model, prompts, rows=32, max_new_tokens=200): ...

A batch that waits for its longest row computes padding most of the time; here nobody waits. Prompts are read in small
groups and put into the free rows (core/cache_rows.py). The ids of each prompt are those that `generate` gives for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.cache import GROW_BY, Cache
from anyformer.core.cache_rows import compact, evict_rows, insert_rows
from anyformer.core.positions import Rotary
from anyformer.errors import InputError
from anyformer.generation.engine import decode_step, decoding_stage, pack_weights_for_decoding, prefill
from anyformer.generation.graph import LEAST, DecodeGraph, can_capture, get_graph
from anyformer.generation.logits_processors import Processor, sampling_processors
from anyformer.generation.options import resolve
from anyformer.generation.ranking import gumbel, pick
from anyformer.generation.requests import Prompt, Request, RequestQueue, collate
from anyformer.generation.stop_strings import StopStrings
from anyformer.generation.strategies import check_every, warn_stuck

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model

SHARE = 8  # free rows wait until one in so many is free: reading a few prompts takes hardly longer than reading one


def generate_many(
    model: Model, prompts: Iterable[Prompt], rows: int = 32, **options: Any
) -> Iterator[tuple[int, Tensor]]:
    """Each prompt's number and its ids [length], without padding, in the order in which they are finished.

    A prompt is its ids, or a mapping with `input_ids` and, if it wants, an `attention_mask` and its own max_new_tokens,
    min_new_tokens or seed. `prompts` is read as rows become free, so it need not have an end. A `seed` is counted up
    from prompt to prompt. The other options are those of `generate`, for greedy search and sampling.
    """
    if rows < 1:
        raise InputError(f"rows is {rows}; it must be 1 or more.")
    decoding_stage(model)
    given = resolve(model, options)
    for name in ("num_beams", "num_return_sequences"):
        if (given.get(name) or 1) != 1:
            raise InputError(f"{name} is {given[name]}; generate_many follows one line from each prompt, not several.")
    if given.get("prefix_allowed_tokens_fn") is not None:
        raise InputError("generate_many takes no prefix_allowed_tokens_fn, which is asked by the row; use generate.")
    if given.get("assistant_model") is not None or given.get("prompt_lookup_num_tokens"):
        raise InputError("generate_many takes no draft: its rows are never at the same place; use generate for that.")
    if any(isinstance(part, Rotary) and part.rope.rope_type == "dynamic" for part in model.modules()):
        raise InputError(
            "This model's rotary positions depend on the longest row of a batch; use generate, one by one."
        )
    pack_weights_for_decoding(model)
    return run(ContinuousBatcher(model, RequestQueue(model, prompts, rows, given)))


def run(refill: ContinuousBatcher) -> Iterator[tuple[int, Tensor]]:
    """The caller's code runs in `read` and at `yield`: outside of inference mode."""
    while True:
        refill.jobs.prefetch()
        if not refill.jobs.waiting and not any(refill.rows):
            return
        for job in refill.step():
            yield job.index, torch.tensor(job.generated_ids, device=job.ids.device)


class ContinuousBatcher:
    """The rows: the job that each of them has, what they remember, and the scores of what comes next."""

    def __init__(self, model: Model, jobs: RequestQueue) -> None:
        self.model, self.jobs = model, jobs
        self.rows: list[Request | None] = []  # None: free
        self.state = Cache()
        self.recording: DecodeGraph | None = None  # on a GPU: a step that is replayed, and remembers by itself
        self.kept: OrderedDict[Any, DecodeGraph] = OrderedDict()  # its own: between two turns others may decode
        self.room = 0  # columns that are left in the recording
        self.scores = torch.empty(0, device=model.device)
        self.generators: list[torch.Generator] = []  # one a row, or none where nothing is drawn
        self.limits: list[Processor] = []
        self.stops: StopStrings | None = None
        self.read = torch.empty(0, dtype=torch.long, device=model.device)  # one a row: how far a stop string is there
        self.end = torch.empty(0, dtype=torch.long, device=model.device)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Fill the free rows, then go on for as long as no row can be full; gives the jobs that are finished."""
        self._fill()
        live = [job for job in self.rows if job is not None]
        patience = 1 if any(job.processors for job in live) else check_every(self.model.device)
        steps: list[Tensor] = []
        for n in range(min(patience, *(job.remaining_tokens for job in live))):
            if n:
                self._step(steps[-1][0])
            token = self._next_tokens()
            steps.append(torch.stack([token, self._ends(token)]))
        finished = self._append_tokens(torch.stack(steps).tolist())
        if any(self.rows):
            self._step(steps[-1][0])
        return finished

    def _fill(self) -> None:
        """Give free rows to those that wait; where nobody waits any more, let the rows go."""
        free = [row for row, job in enumerate(self.rows) if job is None]
        if self.rows and len(free) < max(len(self.rows) // SHARE, 1):
            return
        taken = self.jobs.next_requests(len(free) if self.rows else self.jobs.ahead)
        if not self.rows:
            self._start(taken)
        elif taken:
            self._insert(free[: len(taken)], taken)
        live = len(self.rows) - len(free)
        if not taken and (live <= len(self.rows) // 2 or self.recording is None):  # other sizes are recorded anew
            self._shrink()

    def _start(self, jobs: list[Request]) -> None:
        plan = jobs[0].plan
        self.rows = list(jobs)
        self.limits = sampling_processors(plan)
        self.generators = [job.generator for job in jobs if job.generator is not None]
        self.end = torch.tensor(plan.eos_ids, dtype=torch.long, device=self.model.device)
        self.stops = plan.stop_strings
        self.read = self._begun(jobs)
        self.state, self.scores = self._prefill(jobs)

    def _insert(self, free: list[int], jobs: list[Request]) -> None:
        state, scores = self._prefill(jobs)
        rows = torch.tensor(free, device=scores.device)
        self._sync_from_graph()
        insert_rows(self.state, rows, state)
        compact(self.state)
        self.scores = self.scores.index_copy(0, rows, scores)
        self.read = self.read.index_copy(0, rows, self._begun(jobs))
        for row, job in zip(free, jobs, strict=True):
            self.rows[row] = job
            if job.generator is not None:
                self.generators[row] = job.generator

    def _prefill(self, jobs: list[Request]) -> tuple[Cache, Tensor]:
        if not self.jobs.reads_source:
            return prefill(self.model, collate(jobs, "left"), None)
        begin = torch.tensor([job.generated_ids for job in jobs], device=self.model.device)
        return prefill(self.model, collate(jobs, "right"), begin)

    def _shrink(self) -> None:
        live = [row for row, job in enumerate(self.rows) if job is not None]
        rows = torch.tensor(live, device=self.scores.device)
        self._sync_from_graph()
        self.state.reorder(rows)
        compact(self.state)
        self.scores = self.scores.index_select(0, rows)
        self.read = self.read.index_select(0, rows)
        self.rows = [self.rows[row] for row in live]
        self.generators = [self.generators[row] for row in live] if self.generators else []

    def _step(self, tokens: Tensor) -> None:
        tokens = tokens.clamp(min=0)  # of rows that are over
        name = decoding_stage(self.model).names[0]
        if self.recording is not None and self.room == 0:
            self._sync_from_graph()
            compact(self.state, spare=1)
        if self.recording is None and can_capture(self.model, self.state, LEAST):
            self.recording = get_graph(self.kept, self.model, name, self.state, self.state.length + GROW_BY)
            self.room = self.recording.state.columns - self.state.length
        if self.recording is None:
            self.scores = decode_step(self.model, self.state, tokens[:, None])
        else:
            self.room -= 1
            self.scores = self.recording.step(self.model, name, tokens)

    def _sync_from_graph(self) -> None:
        """Take back from the recording what it remembers, before rows come or go."""
        if self.recording is not None:
            self.recording.state.copy_back(self.state)
            self.recording = None

    def _next_tokens(self) -> Tensor:
        """The next token of each row [R], -1 if all are forbidden; that of a free row means nothing."""
        self._check()
        scores = self._apply_processors(self.scores)
        if not self.generators:
            return pick(scores, scores)
        for limit in self.limits:
            scores = limit(scores, self.end[None])  # none of them looks at what was said
        return pick(scores + gumbel(scores, self.generators), scores)

    def _ends(self, token: Tensor) -> Tensor:
        """Which of these tokens [R] end their rows."""
        ends = torch.isin(token, self.end) | (token < 0)
        if self.stops is not None:
            stopped, self.read = self.stops.step(self.read, token.clamp(min=0))
            ends = ends | stopped
        return ends

    def _begun(self, jobs: list[Request]) -> Tensor:
        """How much of a stop string each row's text ends with [n]."""
        if self.stops is None:
            return torch.zeros(len(jobs), dtype=torch.long, device=self.model.device)
        said = (torch.tensor([job.generated_ids], device=self.model.device) for job in jobs)
        return torch.cat([self.stops.begin(row) for row in said])

    def _apply_processors(self, scores: Tensor) -> Tensor:
        """The rules, for the rows of the same lengths together: they count from the prompt and read what was said."""
        alike: dict[tuple[int, int], list[int]] = {}
        for row, job in enumerate(self.rows):
            if job is not None and job.processors:
                alike.setdefault((id(job.processors), len(job.generated_ids)), []).append(row)
        for rows in alike.values():
            jobs = [job for job in (self.rows[row] for row in rows) if job is not None]
            at = torch.tensor(rows, device=scores.device)
            spoken = [job.generated_ids if self.jobs.reads_source else job.history_ids(scores.shape[1]) for job in jobs]
            history = torch.tensor(spoken, device=scores.device)
            ruled = scores.index_select(0, at)
            for rule in jobs[0].processors:
                ruled = rule(ruled, history)
            scores = scores.index_copy(0, at, ruled)
        return scores

    def _append_tokens(self, steps: list[list[list[int]]]) -> list[Request]:
        """Write down tokens, and whether each ends its row: steps x 2 x rows. Rows that are finished become free."""
        free, finished = [], []
        for row, job in enumerate(self.rows):
            if job is None:
                continue
            for tokens, ends in steps:
                if tokens[row] < 0:
                    warn_stuck(job.plan, [job.index])
                else:
                    job.generated_ids.append(tokens[row])
                if ends[row] or not job.remaining_tokens:
                    free.append(row)
                    finished.append(job)
                    self.rows[row] = None
                    break
        if free:
            rows = torch.tensor(free, device=self.scores.device)
            if self.recording is not None:
                self.recording.state.evict_rows(rows)
            else:
                evict_rows(self.state, rows)
        return finished

    def _check(self) -> None:
        """NaN would come out as some token or other. On a GPU looking would stop the queue at every token."""
        if self.scores.is_cuda or not bool(self.scores.isnan().any()):
            return
        for job, bad in zip(self.rows, self.scores.isnan().any(dim=1).tolist(), strict=True):
            if bad and job is not None:
                raise InputError(
                    f"The scores after token {len(job.generated_ids) - 1} of prompt {job.index} are not numbers (NaN)."
                )
