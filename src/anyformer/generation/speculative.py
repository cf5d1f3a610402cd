"""Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): a cheap draft proposes tokens, the model reads them
all in one pass and keeps those that it would have chosen itself.

Draft and model use one strategy: the same logits processors and, in sampling, the same noise at each position (Daliri
et al. 2025). The ids therefore equal those without a draft, greedy or sampled. The rows of a batch advance together by
the number of tokens that all unfinished rows accept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.generation.cache_marks import rewind, set_mark, truncate
from anyformer.generation.strategies import SingleSequence, SpeculationStats

Note = Callable[[Tensor, SingleSequence, Tensor, int], None]
Read = Callable[[Cache, Tensor], Tensor]  # ids [B, n], appended to the cache -> scores [B, n, V]


class Draft(Protocol):
    n: int  # draft tokens per step

    def guess(self, strategy: SingleSequence, n: int) -> Tensor:
        """Return up to n tokens [B, ≤ n] that may follow the strategy's ids."""


class CachedReader:
    """A model with its cache, which can be rewound."""

    def __init__(self, read: Read, state: Cache) -> None:
        self._read, self.state = read, state
        self.mark = set_mark(state)

    def next(self, history: Tensor) -> Tensor:
        """Return the scores [B, n, V] after each token of `history` [B, L] that is not in the cache yet."""
        return self._read(self.state, history[:, self.state.length :])

    def rewind_to(self, history: Tensor) -> None:
        """Drop what was read beyond `history`, which extends the ids at the last mark."""
        length = history.shape[1]
        if self.state.length > length and not truncate(self.state, length):
            rewind(self.state, self.mark)  # a recurrent state goes back to the mark and reads on from there
            if length > self.state.length:
                self.next(history)
        self.mark = set_mark(self.state)


class ModelDraft:
    """Draft of a smaller model, whose reader has read the prompt."""

    def __init__(self, reader: CachedReader, n: int) -> None:
        self.reader, self.n = reader, n

    def guess(self, strategy: SingleSequence, n: int) -> Tensor:
        history = strategy.history
        known = history.shape[1]
        self.reader.rewind_to(history[:, :-1])  # the draft has not read the last token, or read another one there
        for _ in range(n):
            scores = self.reader.next(history)[:, -1]
            token = strategy.next_token(scores, history).clamp(min=0)  # the model ends a row without allowed tokens
            history = torch.cat([history, token[:, None]], dim=1)
        return history[:, known:]


class PromptLookupDraft:
    """Draft that repeats what followed the last tokens at their previous occurrence (prompt lookup, Saxena 2023)."""

    def __init__(self, n: int, longest: int) -> None:
        self.n, self.longest = n, longest

    def guess(self, strategy: SingleSequence, n: int) -> Tensor:
        history = strategy.history
        length = history.shape[1]
        goes_on = history.new_zeros(history.shape[0])  # index after the previous occurrence; 0: none
        for size in range(1, min(self.longest, length - 1) + 1):  # a longer match wins, then the latest
            runs = history[:, :-1].unfold(1, size, 1)  # [B, length - size, size]
            hit = (runs == history[:, None, -size:]).all(dim=-1)
            last = (hit * torch.arange(size, length, device=history.device)).amax(dim=1)
            goes_on = torch.where(last > 0, last, goes_on)
        if not bool(((goes_on > 0) | strategy.finished).all()):
            return history[:, :0]
        ahead = torch.arange(n, device=history.device)[None] % (length - goes_on[:, None])  # wraps around
        return history.gather(1, goes_on[:, None] + ahead)


def speculate(
    reader: CachedReader, scores: Tensor, strategy: SingleSequence, draft: Draft, note: Note | None = None
) -> SpeculationStats:
    """Decode from the prompt, already read with last `scores` [B, V], until the strategy is done.

    `note` is called for each kept token: the model's scores, the strategy, the token and the index of its query.
    """
    report = SpeculationStats()
    tokens, _ = strategy.advance(scores)
    if note is not None:
        note(scores, strategy, tokens, -1)
    while not strategy.done:
        history = strategy.history
        room = strategy.plan.max_length - history.shape[1] - 1  # for the draft; the model adds one token of its own
        guesses = draft.guess(strategy, min(draft.n, room))
        reader.rewind_to(history[:, :-1])
        scores = reader.next(torch.cat([history, guesses], dim=1))
        choices, processed = _choices(strategy, scores, history, guesses)
        kept = _agreed(strategy, choices, guesses)
        report.steps += 1
        report.drafted += guesses.shape[1]
        report.accepted += kept
        for i, token in enumerate(choices[:, : kept + 1].unbind(1)):
            if not strategy.done:
                strategy.processed, taken = processed[i], strategy.append(token)
                if note is not None:
                    note(scores[:, i], strategy, taken, i - scores.shape[1])
    return report


def _choices(strategy: SingleSequence, scores: Tensor, history: Tensor, guesses: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the model's choice after each draft token [B, n + 1], as if all earlier ones were accepted, and the
    processed scores.
    """
    rows = torch.cat([history, guesses], dim=1)
    first, chosen, processed = history.shape[1], [], []
    for i in range(scores.shape[1]):
        chosen.append(strategy.next_token(scores[:, i], rows[:, : first + i]))
        processed.append(strategy.processed)
    return torch.stack(chosen, dim=1), processed


def _agreed(strategy: SingleSequence, choices: Tensor, guesses: Tensor) -> int:
    """Return the number of draft tokens that the model accepts in all unfinished rows."""
    own = choices[:, : guesses.shape[1]]
    over = strategy.finished[:, None] | (torch.isin(own, strategy.end).cumsum(dim=1) > 0)
    return int(((own == guesses) | over).all(dim=0).cumprod(dim=0).sum())
