"""Stop strings: a row is finished once its text contains one, regardless of token boundaries.

All strings form one automaton that reads bytes (Aho and Corasick 1975). A table maps each state and token to the state
after the token's bytes and whether a string was completed. Decoding needs one lookup per step on the device, and no
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import InputError


class StopStrings:
    """Stop-string automaton: `step(state, token)` returns whether a string is complete, and the new state."""

    def __init__(self, strings: Sequence[bytes], spelled: Sequence[bytes]) -> None:
        self.longest = max(map(len, strings))
        following, complete = automaton(strings)
        self.states = len(following)
        self.table = torch.from_numpy(read_tokens(following, complete, spelled))  # [states, vocabulary + 1]

    def begin(self, prompt: Tensor) -> Tensor:
        """Return the state of each row [R] after its prompt [R, L]; a string may begin in the prompt and end later."""
        self.table = self.table.to(prompt.device)
        state = prompt.new_zeros(prompt.shape[0])
        for token in prompt[:, -self.longest :].unbind(1):
            state = self.step(state, token)[1]
        return state

    def step(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        last = self.table.shape[1] - 1  # ids outside the tokenizer reset the state
        found = self.table[state, token.clamp(max=last)].long()
        return found >= self.states, found % self.states


def make_stops(strings: Any, tokenizer: Any) -> StopStrings | None:
    """Build StopStrings from the options `stop_strings` and `tokenizer`; None without strings."""
    several = [strings] if isinstance(strings, str) else [] if strings is None else strings
    if not isinstance(several, (list, tuple)) or not all(isinstance(one, str) and one for one in several):
        raise InputError("stop_strings must be a string or a list of strings, none of them empty.")
    if not several:
        return None
    if tokenizer is None:
        raise InputError("stop_strings needs the tokenizer: generate(..., stop_strings=[...], tokenizer=tok).")
    from anyformer.tokenizers.token_bytes import engine_of, token_bytes

    return StopStrings([string.encode() for string in several], token_bytes(engine_of(tokenizer)))


def automaton(strings: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Return the state after each byte [states, 256], and whether a string ends in a state [states].

    A state is the longest suffix of the text that is a prefix of a string.
    """
    begun = sorted(
        {string[:n] for string in strings for n in range(len(string) + 1)}, key=lambda start: (len(start), start)
    )
    number = {start: i for i, start in enumerate(begun)}
    following = np.zeros((len(begun), 256), dtype=np.int64)
    complete = np.zeros(len(begun), dtype=bool)
    for start, i in number.items():
        complete[i] = any(start.endswith(string) for string in strings)
        shorter = next((number[start[n:]] for n in range(1, len(start) + 1) if start[n:] in number), 0)
        following[i] = following[shorter] if i else 0
        for byte in range(256):
            following[i, byte] = number.get(start + bytes([byte]), following[i, byte])
    return following, complete


def read_tokens(following: np.ndarray, complete: np.ndarray, spelled: Sequence[bytes]) -> np.ndarray:
    """Return the state after each token [states, vocabulary + 1], plus len(states) if a string was completed."""
    lengths = np.array([*map(len, spelled), 0])
    order = np.argsort(-lengths, kind="stable")
    letters = np.zeros((lengths.max(), len(lengths)), dtype=np.uint8)
    for column, i in enumerate(order):
        if lengths[i]:
            letters[: lengths[i], column] = np.frombuffer(spelled[i], dtype=np.uint8)
    state = np.repeat(np.arange(len(following))[:, None], len(lengths), axis=1)
    hit = np.zeros_like(state, dtype=bool)
    for n, row in enumerate(letters):
        longer = int((lengths > n).sum())  # tokens with a byte at position n come first
        state[:, :longer] = following[state[:, :longer], row[:longer]]
        hit[:, :longer] |= complete[state[:, :longer]]
    table = np.empty_like(state, dtype=np.int32)
    table[:, order] = state + hit * len(following)
    table[:, -1] = 0
    return table
