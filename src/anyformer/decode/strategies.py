"""Searches: given the scores of what could come next, which tokens come, and which rows they continue.

A strategy holds its rows and says when it is done. `advance(scores)` gives the next token of every running row [R] and
the old row that each continues (None: its own), so that the engine can reorder its memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.decode.options import Plan
from anyformer.decode.processors import Processor, processors, truncations

CHECK_EVERY = 8  # steps between two looks at whether all rows are finished, where looking waits for a GPU


def check_every(device: torch.device) -> int:
    """Looking whether all rows are finished is free on the CPU, and stops the queue of a GPU."""
    return 1 if device.type == "cpu" else CHECK_EVERY


class Strategy:
    """What every search has: the rows so far, the rules, and an end."""

    done = False

    def __init__(self, plan: Plan, prompt: Tensor) -> None:
        self.plan = plan
        self.rules: list[Processor] = processors(plan)
        self.end = torch.tensor(plan.end, dtype=torch.long, device=prompt.device)
        self.every = check_every(prompt.device)

    def apply(self, rules: list[Processor], scores: Tensor, history: Tensor) -> Tensor:
        for rule in rules:
            scores = rule(scores, history)
        return scores

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        raise TypeError("a strategy says how it goes on")

    def result(self) -> Tensor:
        raise TypeError("a strategy says what came out")


class Line(Strategy):
    """One token after another in each row: greedy, or drawn."""

    def __init__(self, plan: Plan, prompt: Tensor) -> None:
        super().__init__(plan, prompt)
        self.columns = [prompt]
        self.finished = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
        self.lengths = torch.full_like(self.finished, prompt.shape[1], dtype=torch.long)

    def choose(self, scores: Tensor, history: Tensor) -> Tensor:
        return scores.argmax(dim=-1)

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        history = torch.cat(self.columns, dim=1) if self.rules or self.plan.do_sample else self.columns[0]
        if self.rules:
            scores = self.apply(self.rules, scores, history)
        token = self.choose(scores, history).masked_fill(self.finished, self.plan.padding)
        self.columns.append(token[:, None])
        self.lengths += ~self.finished
        self.finished = self.finished | torch.isin(token, self.end)
        length = self.plan.prompt + len(self.columns) - 1
        full = length >= self.plan.max_length
        self.done = full or (len(self.columns) % self.every == 0 and bool(self.finished.all()))
        return token, None

    def result(self) -> Tensor:
        return torch.cat(self.columns, dim=1)[:, : int(self.lengths.max())]


class Greedy(Line):
    """The likeliest token each time."""


class Sample(Line):
    """A token drawn by its probability: the largest of score + Gumbel noise, which is the same thing."""

    def __init__(self, plan: Plan, prompt: Tensor) -> None:
        super().__init__(plan, prompt)
        self.limits = truncations(plan)
        self.dice = [torch.Generator(prompt.device).manual_seed(seed) for seed in plan.seeds or ()]

    def choose(self, scores: Tensor, history: Tensor) -> Tensor:
        scores = self.apply(self.limits, scores, history)
        return (scores + gumbel(scores, self.dice)).argmax(dim=-1)


def gumbel(scores: Tensor, dice: Sequence[torch.Generator]) -> Tensor:
    """Noise for scores [R, V], from a die a row; without dice, from PyTorch's own."""
    if dice:
        even = torch.stack([torch.rand(scores.shape[1:], generator=die, device=scores.device) for die in dice])
    else:
        even = torch.rand(scores.shape, device=scores.device)
    return -torch.log(-torch.log(even.clamp(torch.finfo(even.dtype).tiny, 1 - 1e-7)))


LOST = -1.0e9  # the score of a beam that is not there


class Beam(Strategy):
    """Beam search: the `num_beams` best beginnings go on, and the best ends are kept.

    Scores of finished rows are divided by their length (without the prompt) to the power of `length_penalty`.
    `early_stopping`: True stops when there are enough ends; False when no running beam, were it to end now, would beat
    the worst of them; "never" when none could at any length.
    """

    def __init__(self, plan: Plan, prompt: Tensor) -> None:
        super().__init__(plan, prompt)
        batch, beams = prompt.shape[0], plan.num_beams
        self.batch, self.beams = batch, beams
        self.keep = max(2, 1 + len(plan.end)) * beams  # so many candidates that enough of them do not end
        self.limits = truncations(plan) if plan.do_sample else []
        self.running = prompt[:, None].expand(-1, beams, -1)  # [B, beams, L]
        self.scores = torch.full((batch, beams), LOST, device=prompt.device, dtype=torch.float32)
        self.scores[:, 0] = 0.0  # all beams begin alike: only the first counts
        self.ends = prompt.new_full((batch, beams, plan.max_length), plan.padding)
        self.ends[..., : plan.prompt] = prompt[:, None]
        self.end_scores = torch.full_like(self.scores, LOST)
        self.end_lengths = torch.zeros_like(self.scores, dtype=torch.long)
        self.ended = torch.zeros_like(self.scores, dtype=torch.bool)
        self.hopeful = torch.ones(batch, 1, dtype=torch.bool, device=prompt.device)

    def advance(self, scores: Tensor) -> tuple[Tensor, Tensor | None]:
        first = scores.shape[0] == self.batch and self.beams > 1
        if first:
            scores = scores.repeat_interleave(self.beams, dim=0)
        best, source, token = self._candidates(scores)
        length = self.running.shape[2] + 1
        sequences = torch.cat([_pick(self.running, source), token[..., None]], dim=2)  # [B, keep, L + 1]
        stops = torch.isin(token, self.end) | (length >= self.plan.max_length)
        self._collect(sequences, best, stops, length)
        self.scores, order = (best + stops * LOST).topk(self.beams)
        self.running = _pick(sequences, order)
        self._judge(length, stops)
        rows = source.gather(1, order) + torch.arange(self.batch, device=token.device)[:, None] * self.beams
        flat = rows.flatten() // self.beams if first else rows.flatten()
        return self.running[..., -1].flatten(), flat

    def _candidates(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best continuations of each row's beams: their scores, beams and tokens, each [B, keep]."""
        history = self.running.flatten(0, 1)
        logs = scores.float().log_softmax(-1)
        logs = self.apply([*self.rules, *self.limits], logs, history)
        total = (logs.view(self.batch, self.beams, -1) + self.scores[..., None]).flatten(1)  # [B, beams·V]
        if self.plan.do_sample:
            index = torch.multinomial(total.log_softmax(-1).exp(), self.keep)
            best = total.gather(1, index)
        else:
            best, index = total.topk(self.keep)
        return best, index // scores.shape[-1], index % scores.shape[-1]

    def _collect(self, sequences: Tensor, best: Tensor, stops: Tensor, length: int) -> None:
        """Keep the best ends. Only candidates among the first `num_beams` may end, as a finished beam would have."""
        first = torch.arange(self.keep, device=stops.device) < self.beams
        just = stops & first
        value = best / (length - self.plan.prompt) ** self.plan.length_penalty
        value = value + (~just) * LOST + (~self.hopeful) * LOST
        if self.plan.early_stopping is True:
            value = value + self.ended.all(dim=1, keepdim=True) * LOST
        padded = torch.nn.functional.pad(sequences, (0, self.plan.max_length - length), value=self.plan.padding)
        self.end_scores, order = torch.cat([self.end_scores, value], dim=1).topk(self.beams)
        self.ends = _pick(torch.cat([self.ends, padded], dim=1), order)
        lengths = torch.full_like(just, length, dtype=torch.long)
        self.end_lengths = torch.cat([self.end_lengths, lengths], dim=1).gather(1, order)
        self.ended = torch.cat([self.ended, just], dim=1).gather(1, order)

    def _judge(self, length: int, stops: Tensor) -> None:
        """Can a running beam still beat what has ended?"""
        never = self.plan.early_stopping == "never" and self.plan.length_penalty > 0
        reach = (self.plan.max_length if never else length) - self.plan.prompt
        hope = self.scores[:, :1] / reach**self.plan.length_penalty
        worst = torch.where(self.ended, self.end_scores.amin(dim=1, keepdim=True), LOST)
        self.hopeful = self.hopeful & (hope > worst).any(dim=1, keepdim=True)
        if length >= self.plan.max_length:
            self.done = True
        elif (length - self.plan.prompt) % self.every == 0:
            enough = self.plan.early_stopping is True and bool(self.ended.all())
            self.done = enough or not bool(self.hopeful.any()) or bool(stops.all())

    def result(self) -> Tensor:
        many = self.plan.num_return_sequences
        lengths = self.end_lengths[:, :many]
        return self.ends[:, :many].flatten(0, 1)[:, : int(lengths.max())]


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x [B, n, L] at index [B, m] -> [B, m, L]"""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def make_strategy(plan: Plan, prompt: Tensor) -> Strategy:
    if plan.num_beams > 1:
        return Beam(plan, prompt)
    return Sample(plan, prompt) if plan.do_sample else Greedy(plan, prompt)
