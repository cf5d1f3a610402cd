"""Search strategies: choose the next tokens, and the rows that they continue, by the scores of the next token.

A strategy holds its rows and sets `done`. `advance(scores)` returns the next token of every running row [R] and the
old row that each continues (None: its own), so that the engine can reorder its cache.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core.host import widest
from anyformer.generation.logits_processors import (
    CallersProcessor,
    Processor,
    make_processors,
    meets_criteria,
    renormalize,
    repeat_to,
    sampling_processors,
)
from anyformer.generation.options import StoppingCriterion
from anyformer.generation.plan import GenerationPlan
from anyformer.generation.ranking import best_logs, can_rank, exact, gumbel, largest, pick, top


@dataclass
class SpeculationStats:
    """Statistics of speculative decoding, in tokens per row; `accepted` counts tokens accepted by all rows."""

    steps: int = 0  # forward passes after the prompt's
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        return self.accepted / max(self.drafted, 1)


CHECK_EVERY = 8  # steps between two checks whether all rows are finished, if a check synchronizes the GPU


def check_every(device: torch.device) -> int:
    """Number of steps between two checks whether all rows are finished: free on CPU, a synchronization on GPU."""
    return 1 if device.type == "cpu" else CHECK_EVERY


# Options that forbid tokens: name -> field of the plan.
FORBIDDING = {
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size": "encoder_no_repeat_ngram_size",
    "logits_processor": "processors",
    "bad_words_ids": "bad_words",
    "prefix_allowed_tokens_fn": "allowed_tokens_fn",
    "suppress_tokens": "suppress",
    "begin_suppress_tokens": "begin_suppress",
    "min_length or min_new_tokens": "min_length",
}


def warn_stuck(plan: GenerationPlan, rows: Sequence[int]) -> None:
    """Warn about rows that ended because every next token was forbidden."""
    if not rows:
        return
    some = ", ".join(map(str, rows[:5])) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
    names = ", ".join(option for option, field in FORBIDDING.items() if getattr(plan, field))
    warnings.warn(
        f"Row {some} ends early: every next token is forbidden ({names}). The tokens so far are returned.",
        stacklevel=2,
    )


class TimeLimit:
    """Stopping criterion of `max_time`, in seconds from now on."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def __call__(self, ids: Tensor, scores: object) -> bool:
        return time.monotonic() > self.end


class Strategy:
    """Base class of searches: rows so far, logits processors and end tokens."""

    done = False
    observed = False  # whether an observer or a stream needs every step
    processed: Tensor  # the scores [R, V] after logits processors, by which the last tokens were chosen
    speculation: SpeculationStats | None = None  # statistics of the draft, if there was one
    shown: list[Tensor] | None = None  # `processed` of all steps, for the caller's stopping criteria

    def __init__(self, plan: GenerationPlan, prompt: Tensor) -> None:
        self.plan = plan
        self.stops = plan.stop_strings
        limits = [] if plan.max_time is None else [TimeLimit(plan.max_time)]
        self.criteria: list[StoppingCriterion] = [*plan.criteria, *limits]
        self.processors: list[Processor] = make_processors(plan)
        self.end = torch.tensor(plan.eos_ids, dtype=torch.long, device=prompt.device)
        self.every = 1 if self.criteria else check_every(prompt.device)

    @property
    def plain(self) -> bool:
        """Whether the scores alone decide, so that a CUDA graph can choose the tokens itself."""
        return not self.processors and not self.observed and self.stops is None and not self.criteria

    def apply(self, rules: list[Processor], scores: Tensor, history: Tensor) -> Tensor:
        given = history
        if rules and self.plan.history is not None:  # padding is not part of the history
            prompt = repeat_to(self.plan.history, len(history))
            history = torch.cat([prompt, history[:, prompt.shape[1] :]], dim=1)
        for rule in rules:
            scores = rule(scores, given if isinstance(rule, CallersProcessor) else history)
        return scores

    def show(self, scores: Tensor) -> None:
        """Keep the scores that tokens are chosen by."""
        self.processed = scores
        if self.shown is not None:
            self.shown.append(scores.clone())

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        raise TypeError("a strategy must define advance")

    def result(self) -> Tensor:
        raise TypeError("a strategy must define result")

    def stuck_rows(self) -> list[int]:
        """Return the indices of the rows that ended because every next token was forbidden."""
        raise TypeError("a strategy must define stuck_rows")


class SingleSequence(Strategy):
    """One sequence per row: greedy search or sampling."""

    def __init__(self, plan: GenerationPlan, prompt: Tensor) -> None:
        super().__init__(plan, prompt)
        self.columns = [prompt]
        self.joined = (prompt, 1)  # concatenated columns, and their number
        self.finished = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
        self.read = self.stops.begin(prompt) if self.stops is not None else None
        self.lengths = torch.full_like(self.finished, prompt.shape[1], dtype=torch.long)
        self.stuck = torch.zeros_like(self.finished)

    @property
    def history(self) -> Tensor:
        """All ids so far [R, length]; columns are concatenated incrementally."""
        whole, n = self.joined
        if n < len(self.columns):
            self.joined = (torch.cat([whole, *self.columns[n:]], dim=1), len(self.columns))
        return self.joined[0]

    def next_token(self, scores: Tensor, history: Tensor) -> Tensor:
        """Return the token after `history`, -1 if all are forbidden. Repeated calls give the same token."""
        scores = exact(scores) if self.processors or self.observed else scores
        chosen = self.apply(self.processors, scores.clone(), history) if self.processors else scores
        self.show(chosen)
        return pick(chosen, chosen) if self.processors else largest(chosen)

    def show(self, scores: Tensor) -> None:
        """Keep the scores that tokens are chosen by. Only observers need them normalized."""
        super().show(renormalize(scores, scores) if self.observed and self.plan.renormalize_logits else scores)

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        history = self.history if self.processors or self.plan.do_sample or self.criteria else self.columns[0]
        return self.append(self.next_token(scores, history)), None

    def append(self, token: Tensor) -> Tensor:
        """Append these tokens [R]; finished rows, and those that cannot continue (-1), get padding."""
        if self.processors:
            self.stuck = self.stuck | ((token < 0) & ~self.finished)
            self.finished = self.finished | self.stuck
        pads = len(self.end) > 0 or not self.criteria  # as in transformers, where only end tokens bring padding
        token = token.masked_fill(self.finished if pads else self.stuck, self.plan.pad_id)
        self.columns.append(token[:, None])
        self.lengths += ~self.finished
        self.finished = self.finished | torch.isin(token, self.end)
        if self.stops is not None and self.read is not None:
            stopped, self.read = self.stops.step(self.read, token)
            self.finished = self.finished | stopped
        if self.criteria:
            self.finished = self.finished | meets_criteria(self.criteria, self.history, self.shown)
        length = self.plan.prompt_length + len(self.columns) - 1
        full = length >= self.plan.max_length
        self.done = full or (len(self.columns) % self.every == 0 and bool(self.finished.all()))
        return token

    def result(self) -> Tensor:
        return self.history[:, : int(self.lengths.max())]

    def stuck_rows(self) -> list[int]:
        return self.stuck.nonzero().flatten().tolist() if self.processors else []


class Greedy(SingleSequence):
    """The most probable token at each step."""

    def extend(self, tokens: Tensor) -> None:
        """Append several tokens at once [R, n]; those after an end token are dropped."""
        ends = torch.isin(tokens, self.end)
        late = self.finished[:, None] | (ends.cumsum(dim=1) - ends.long() > 0)
        self.columns += tokens.masked_fill(late, self.plan.pad_id).split(1, dim=1)
        self.lengths += (~late).sum(dim=1)
        self.finished = self.finished | ends.any(dim=1)
        full = self.plan.prompt_length + len(self.columns) - 1 >= self.plan.max_length
        self.done = full or (len(self.end) > 0 and bool(self.finished.all()))


class Sampling(SingleSequence):
    """A sampled token: the argmax of score + Gumbel noise, which has the same distribution.

    The noise is fixed per position, so that repeated calls for a position give the same token.
    """

    def __init__(self, plan: GenerationPlan, prompt: Tensor) -> None:
        super().__init__(plan, prompt)
        self.limits = sampling_processors(plan)
        self.generators = [torch.Generator(prompt.device).manual_seed(seed) for seed in plan.seeds or ()]
        self.noise: dict[int, Tensor] = {}  # by position; generated in order

    def next_token(self, scores: Tensor, history: Tensor) -> Tensor:
        scores = self.apply([*self.processors, *self.limits], exact(scores).clone(), history)
        self.show(scores)
        place = history.shape[1]
        if place not in self.noise:
            self.noise[place] = gumbel(scores, self.generators)
        return pick(scores + self.noise[place], scores)

    def append(self, token: Tensor) -> Tensor:
        self.noise.pop(self.plan.prompt_length + len(self.columns) - 1, None)
        return super().append(token)


NEG_INF = -1.0e9  # the score of an absent beam


class BeamSearch(Strategy):
    """Beam search: the `num_beams` best prefixes continue, and the best finished sequences are kept.

    Scores of finished sequences are divided by their length (without the prompt) to the power of `length_penalty`.
    `early_stopping`: True stops at `num_beams` finished sequences; False, when no running beam would beat the worst of
    them if it ended now; "never", when none could at any length.

    With `num_beam_groups` the beams of a prompt search in groups, each of which is one row of the tensors below; see
    `_diversify`. All tensors keep their shapes and addresses, so that a step can be captured.
    """

    def __init__(self, plan: GenerationPlan, prompt: Tensor) -> None:
        super().__init__(plan, prompt)
        self.prompts, self.groups = prompt.shape[0], plan.num_beam_groups
        prompt = prompt.repeat_interleave(self.groups, dim=0)
        batch, beams = prompt.shape[0], plan.num_beams // self.groups
        self.batch, self.beams, device = batch, beams, prompt.device
        # of the last step: beams and tokens of the candidates [B, keep], and which of them continue [B, beams]
        self.considered: tuple[Tensor, Tensor, Tensor]
        self.keep = max(2, 1 + len(plan.eos_ids)) * beams  # enough candidates that `beams` of them do not end
        self.limits = sampling_processors(plan) if plan.do_sample else []
        self.length = plan.prompt_length  # tokens of every running row; `at` is the same on the device
        self.at = torch.full((1,), plan.prompt_length, device=device)
        self.running = prompt.new_full((batch, beams, plan.max_length), plan.pad_id)
        self.running[..., : plan.prompt_length] = prompt[:, None]
        self.scores = torch.full((batch, beams), NEG_INF, device=device, dtype=torch.float32)
        self.scores[:, 0] = 0.0  # all beams begin equal: only the first counts
        self.ends = self.running.clone()
        self.end_scores = torch.full_like(self.scores, NEG_INF)
        self.end_lengths = torch.zeros_like(self.scores, dtype=torch.long)  # 0: unused
        self.unfinished = torch.ones(batch, 1, dtype=torch.bool, device=device)
        self.stuck = torch.zeros_like(self.scores, dtype=torch.bool)  # ends kept because no token was allowed
        self.first_row = torch.arange(batch, device=device)[:, None] * beams
        self.first = torch.arange(self.keep, device=device) < beams
        new = (torch.arange(plan.max_length + 1, device=device) - plan.prompt_length).clamp(min=1)
        self.divisors = (new.to(widest(device)) ** plan.length_penalty).float()  # by length
        self.logs = torch.empty(0, device=device)
        self.read = self.stops.begin(prompt)[:, None].expand(-1, beams) if self.stops is not None else None

    @property
    def plain(self) -> bool:
        return super().plain and not self.plan.do_sample and self.groups == 1

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        first = scores.shape[0] == self.prompts
        tokens, rows = self.step_tensors(scores.repeat_interleave(self.plan.num_beams, dim=0) if first else scores)
        self.count(1)
        return tokens, rows // self.plan.num_beams if first else rows

    def step_tensors(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Update all tensors by one step, without host synchronization."""
        best, source, token = self._candidates(scores)
        if not self.plain:
            self._give_up(best)
        sequences = _pick(self.running, source).index_copy_(2, self.at, token[..., None])  # [B, keep, max_length]
        self.at += 1
        stops = torch.isin(token, self.end) | (self.at >= self.plan.max_length)
        read = None
        if self.stops is not None and self.read is not None:
            stopped, read = self.stops.step(self.read.gather(1, source), token)
            stops = stops | stopped
        if self.criteria:
            ids = sequences[..., : self.length + 1].flatten(0, 1)
            stops = stops | meets_criteria(self.criteria, ids, self.shown).view_as(stops)
        self._collect(sequences, best, stops)
        running, order = (best + stops * NEG_INF).topk(self.beams)
        self.scores.copy_(running)
        self.read = None if read is None else read.gather(1, order)
        self.considered = source, token, order
        self.running.copy_(_pick(sequences, order))
        self._check_done()
        return token.gather(1, order).flatten(), (source.gather(1, order) + self.first_row).flatten()

    def count(self, steps: int) -> None:
        """Count steps and update `done`; on GPU this is checked every few steps, because it synchronizes."""
        before, self.length = self.length - self.plan.prompt_length, self.length + steps
        if self.length >= self.plan.max_length:
            self.done = True
        elif (before + steps) // self.every > before // self.every:
            enough = self.plan.early_stopping is True and bool((self.end_lengths > 0).all())
            self.done = enough or not bool(self.unfinished.any())

    def load(self, other: BeamSearch) -> None:
        """Copy the state of another search with the same plan and size."""
        self.length, self.done = other.length, other.done
        for name in ("at", "running", "scores", "ends", "end_scores", "end_lengths", "unfinished"):
            getattr(self, name).copy_(getattr(other, name))

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the best continuations of each row's beams: their scores, beams and tokens, each [B, keep]."""
        n = scores.shape[-1]
        k = min(self.keep, n)
        if self.plain and can_rank(scores):
            return self._best(*best_logs(scores, k))
        logs = self.logs = torch.log_softmax(scores.float(), -1, out=self.logs)  # reuses one buffer
        history = self.running[..., : self.length].flatten(0, 1)
        logs = self.apply([*self.processors, *self.limits], logs, history)
        self.show(logs)
        if not self.plan.do_sample and self.groups == 1:
            return self._best(*top(logs, k))
        total = (logs.view(self.batch, self.beams, -1) + self.scores[..., None]).flatten(1)  # [B, beams·V]
        total = self._diversify(total) if self.groups > 1 else total
        if self.plan.do_sample:
            probs = total.log_softmax(-1).exp()
            index = torch.multinomial(probs.nan_to_num(1.0), self.keep)  # NaN: a row has no allowed token
            best = total.gather(1, index)
        else:
            best, index = total.topk(self.keep)
        return best, index // n, index % n

    def _best(self, each: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Combine the best of each beam [B·beams, n] with the beams' scores."""
        total = (each.view(self.batch, self.beams, -1) + self.scores[..., None]).flatten(1)
        best, index = total.topk(self.keep)
        return best, index // each.shape[-1], tokens.view(self.batch, -1).gather(1, index)

    def _diversify(self, total: Tensor) -> Tensor:
        """Apply the diversity penalty (Vijayakumar et al. 2018, algorithm 1, Hamming diversity).

        The groups of a prompt choose in turn; a token loses `diversity_penalty` for each beam of an earlier group that
        chose it at this step. The penalty stays in a beam's score. Finished groups add no penalty.
        """
        total = total.view(self.prompts, self.groups, self.beams, -1).clone()
        active = self.unfinished.view(self.prompts, self.groups, 1)
        used = torch.zeros_like(total[:, 0, 0])  # [prompts, V]
        for group in range(self.groups):
            total[:, group] -= self.plan.diversity_penalty * used[:, None]
            running = total[:, group].index_fill(-1, self.end, NEG_INF).flatten(1)
            token = running.topk(self.beams).indices % total.shape[-1]
            used.scatter_add_(1, token, active[:, group].to(used.dtype).expand_as(token))
        return total.flatten(0, 1).flatten(1)

    def _collect(self, sequences: Tensor, best: Tensor, stops: Tensor) -> None:
        """Keep the best finished sequences. Only the first `num_beams` candidates may end, as in transformers."""
        just = stops & self.first & self.unfinished
        if self.plan.early_stopping is True:
            just = just & ~(self.end_lengths > 0).all(dim=1, keepdim=True)
        value = torch.where(just, best / self.divisors[self.at], 2 * NEG_INF)
        scores, order = torch.cat([self.end_scores, value], dim=1).topk(self.beams)
        self.end_scores.copy_(scores)
        self.ends.copy_(_pick(torch.cat([self.ends, sequences], dim=1), order))
        lengths = torch.cat([self.end_lengths, just * self.at], dim=1)
        self.end_lengths.copy_(lengths.gather(1, order))

    def _give_up(self, best: Tensor) -> None:
        """If no beam of a row can continue, fill its unused end slots with the sequences so far."""
        real = self.scores > NEG_INF / 2  # an absent beam may have allowed tokens
        over = real.any(dim=1, keepdim=True) & (best.amax(dim=1, keepdim=True) <= NEG_INF / 2) & self.unfinished
        index = torch.arange(self.beams, device=best.device) - (self.end_lengths > 0).sum(dim=1, keepdim=True)
        index, free = index.clamp(min=0), index >= 0  # the best beam goes to the first slot after the last end
        take = over & free & real.gather(1, index)
        values = self.scores.gather(1, index) / self.divisors[self.at]
        self.ends.copy_(torch.where(take[..., None], _pick(self.running, index), self.ends))
        self.end_scores.copy_(torch.where(take, values, self.end_scores))
        self.end_lengths.copy_(torch.where(take, self.at, self.end_lengths))
        self.stuck |= take
        self.unfinished &= ~over

    def _check_done(self) -> None:
        """Update `unfinished`: whether a running beam can still beat the finished sequences."""
        never = self.plan.early_stopping == "never" and self.plan.length_penalty > 0
        hope = self.scores[:, :1] / (self.divisors[-1] if never else self.divisors[self.at])
        worst = torch.where(self.end_lengths > 0, self.end_scores.amin(dim=1, keepdim=True), NEG_INF)
        self.unfinished &= (hope > worst).any(dim=1, keepdim=True)

    def returned(self) -> Tensor:
        """Return the indices of the returned sequences, best first: [prompts, num_return_sequences]."""
        below = self.stuck + 2.0 * (self.end_lengths == 0)  # order: finished, stuck, unused
        scores = (self.end_scores.to(widest(self.end_scores.device)) + NEG_INF * below).view(self.prompts, -1)
        return scores.sort(dim=1, descending=True, stable=True).indices[:, : self.plan.num_return_sequences]

    def result(self) -> Tensor:
        best = self.returned()
        lengths = self.end_lengths.view(self.prompts, -1).gather(1, best)
        ends = _pick(self.ends.view(self.prompts, self.plan.num_beams, -1), best)
        return ends.flatten(0, 1)[:, : int(lengths.max())]

    def stuck_rows(self) -> list[int]:
        if self.plain:
            return []
        rows = self.stuck.view(self.prompts, -1).gather(1, self.returned())
        return rows.flatten().nonzero().flatten().tolist()


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Select x [B, n, L] at index [B, m] -> [B, m, L]."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def make_strategy(plan: GenerationPlan, prompt: Tensor) -> Strategy:
    if plan.num_beams > 1:
        return BeamSearch(plan, prompt)
    return Sampling(plan, prompt) if plan.do_sample else Greedy(plan, prompt)
