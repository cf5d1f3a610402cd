"""Incremental decoding: text token by token, limited to what later tokens cannot change.

decoder = IncrementalDecoder(tokenizer)
"".join([*(decoder.add(i) for i in ids), decoder.end()]) == tokenizer.decode(ids)

Tokens may end inside a character, lose their leading space at the start of a text, or merge with neighbors, by rules of
each decoder. No rule is repeated here: text is returned once it is the same whichever token follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from anyformer.tokenizers.tokenizer import Tokenizer

BROKEN = "\ufffd"  # replacement for an incomplete character


class IncrementalDecoder:
    """Incremental decoder of one text. Special tokens are skipped, as in `Tokenizer.decode`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.engine = tokenizer.engine
        self.special = {i for i, token in self.engine.get_added_tokens_decoder().items() if token.special}
        self.probes = _probes(tokenizer, self.special)
        self.window: list[int] = []  # ids from the last token that was returned completely
        self.shown = 0  # characters of the window's text already returned

    def add(self, token: int) -> str:
        """Add a token; return the text that is now final, which may be empty or longer than the token."""
        if token in self.special or self.engine.id_to_token(token) is None:
            return ""
        self.window.append(token)
        text = self._decode(self.window)
        sure = len(text.rstrip(BROKEN))
        for probe in self.probes:
            sure = min(sure, _shared(text, self._decode([*self.window, probe])))
        piece = text[self.shown : sure]
        self.shown = max(self.shown, sure)
        if sure == len(text):
            self.window = [token]
            self.shown = len(self._decode(self.window))
        return piece

    def end(self) -> str:
        """Return the remaining text."""
        rest = self._decode(self.window)[self.shown :]
        self.shown += len(rest)
        return rest

    def _decode(self, ids: list[int]) -> str:
        return self.engine.decode(ids, skip_special_tokens=False)


def _shared(text: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def _probes(tokenizer: Tokenizer, special: set[int]) -> list[int]:
    """Tokens that can change the text before them: a word, and a byte that is not a valid character."""
    names = tokenizer.engine.get_vocab(with_added_tokens=False)
    byte = names.get("<0x80>")
    word = next((i for name, i in names.items() if i not in special and name[-1:].isalpha()), None)
    return [probe for probe in (word, byte) if probe is not None]


class StopStringFilter:
    """Streams text up to the first stop string; text that may begin one is held back.

    With `strip`, white space at both ends is dropped.
    """

    def __init__(self, stops: Sequence[str] = (), strip: bool = False) -> None:
        self.stops = tuple(stops)
        self.strip = strip
        self.pending = ""
        self.begun = False
        self.done = False

    def add(self, piece: str) -> str:
        if self.done:
            return ""
        self.pending += piece
        at = find_stop(self.pending, self.stops)
        if at is not None:
            self.done = True
            self.pending = self.pending[:at]
            return self.end()
        return self._pop(len(self.pending) - _beginning(self.pending, self.stops))

    def end(self) -> str:
        """Return the remaining text at the end of the stream."""
        piece = self._pop(len(self.pending))
        self.pending = ""
        return piece

    def _pop(self, n: int) -> str:
        if self.strip:
            if not self.begun:
                lost = n - len(self.pending[:n].lstrip())
                self.pending, n = self.pending[lost:], n - lost
            n = len(self.pending[:n].rstrip())
        piece, self.pending = self.pending[:n], self.pending[n:]
        self.begun = self.begun or bool(piece)
        return piece


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Return the index of the first stop string, or None."""
    return min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=None)


def _beginning(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of the text that is a prefix of a stop string."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
