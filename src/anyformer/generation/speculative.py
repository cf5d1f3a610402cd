"""Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): a cheap draft guesses a few tokens, the model reads
them all in one pass and keeps what it would have said itself.

Draft and model choose with one strategy: the same rules, the same truncations and, where tokens are drawn, the same
noise at each place of the text (Daliri et al. 2025). A guess is kept where it is the model's own choice, so the text is
the one that the model writes without a draft, token for token, greedy or drawn. The rows of a batch go on together, as
far as all of them agree with their drafts; finished rows agree to anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.generation.strategies import SingleSequence, SpeculationStats

Note = Callable[[Tensor, SingleSequence, Tensor, int], None]
Read = Callable[[Cache, Tensor], Tensor]  # ids [B, n] that the state remembers from now on -> scores [B, n, V]


class Draft(Protocol):
    n: int  # how many tokens it guesses at a time

    def guess(self, strategy: SingleSequence, n: int) -> Tensor:
        """Up to n tokens [B, ≤ n] that may follow what the strategy says so far."""


class CachedReader:
    """A model with its memory, which can take back what it read last."""

    def __init__(self, read: Read, state: Cache) -> None:
        self._read, self.state = read, state
        self.mark = state.mark()

    def next(self, history: Tensor) -> Tensor:
        """The scores [B, n, V] after each token of `history` [B, L] that it has not read yet."""
        return self._read(self.state, history[:, self.state.length :])

    def rewind_to(self, history: Tensor) -> None:
        """Forget what was read beyond `history`, all of whose tokens up to the last mark it knows."""
        length = history.shape[1]
        if self.state.length > length and not self.state.truncate(length):
            self.state.rewind(self.mark)  # a recurrence goes back to the mark and reads on from there
            if length > self.state.length:
                self.next(history)
        self.mark = self.state.mark()


class ModelDraft:
    """Guesses of a smaller model, whose reader has read the prompt."""

    def __init__(self, reader: CachedReader, n: int) -> None:
        self.reader, self.n = reader, n

    def guess(self, strategy: SingleSequence, n: int) -> Tensor:
        history = strategy.history
        known = history.shape[1]
        self.reader.rewind_to(history[:, :-1])  # the last token is the model's own: guessed otherwise, or not at all
        for _ in range(n):
            scores = self.reader.next(history)[:, -1]
            token = strategy.next_token(scores, history).clamp(min=0)  # a row that cannot go on is ended by the model
            history = torch.cat([history, token[:, None]], dim=1)
        return history[:, known:]


class PromptLookupDraft:
    """Guesses that a text goes on as it did where its last tokens stood before (prompt lookup, Saxena 2023)."""

    def __init__(self, n: int, longest: int) -> None:
        self.n, self.longest = n, longest

    def guess(self, strategy: SingleSequence, n: int) -> Tensor:
        history = strategy.history
        length = history.shape[1]
        goes_on = history.new_zeros(history.shape[0])  # where the text goes on after such tokens; 0: nowhere
        for size in range(1, min(self.longest, length - 1) + 1):  # a longer match wins, and of those the latest
            runs = history[:, :-1].unfold(1, size, 1)  # [B, length - size, size]
            hit = (runs == history[:, None, -size:]).all(dim=-1)
            last = (hit * torch.arange(size, length, device=history.device)).amax(dim=1)
            goes_on = torch.where(last > 0, last, goes_on)
        if not bool(((goes_on > 0) | strategy.finished).all()):
            return history[:, :0]
        ahead = torch.arange(n, device=history.device)[None] % (length - goes_on[:, None])  # round and round
        return history.gather(1, goes_on[:, None] + ahead)


def speculate(
    reader: CachedReader, scores: Tensor, strategy: SingleSequence, draft: Draft, note: Note | None = None
) -> SpeculationStats:
    """Go on from the prompt, which the reader has read and after which it gave `scores` [B, V], until all is said.

    `note` is told each token that is kept: the model's scores, the strategy, the token, and the query it comes from.
    """
    report = SpeculationStats()
    tokens, _ = strategy.advance(scores)
    if note is not None:
        note(scores, strategy, tokens, -1)
    while not strategy.done:
        history = strategy.history
        room = strategy.plan.max_length - history.shape[1] - 1  # for guesses; the model's own choice comes after them
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
    """What the model itself says after each guess [B, n + 1], were all guesses before it right, and the scores that
    it chose by.
    """
    rows = torch.cat([history, guesses], dim=1)
    first, chosen, processed = history.shape[1], [], []
    for i in range(scores.shape[1]):
        chosen.append(strategy.next_token(scores[:, i], rows[:, : first + i]))
        processed.append(strategy.processed)
    return torch.stack(chosen, dim=1), processed


def _agreed(strategy: SingleSequence, choices: Tensor, guesses: Tensor) -> int:
    """How many guesses are what the model says, in all rows that are not finished before."""
    own = choices[:, : guesses.shape[1]]
    over = strategy.finished[:, None] | (torch.isin(own, strategy.end).cumsum(dim=1) > 0)
    return int(((own == guesses) | over).all(dim=0).cumprod(dim=0).sum())
