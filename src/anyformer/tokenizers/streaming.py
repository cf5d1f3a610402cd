"""Text as it comes, token by token: only what no later token can change.

reader = Reader(tokenizer)
"".join([*(reader.add(i) for i in ids), reader.end()]) == tokenizer.decode(ids)

Tokens end inside characters (bytes of an emoji), lose their space where a text begins, or are joined in runs; every
decoder has its own rules. None is repeated here: text is shown as far as it stays the same whichever token follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from anyformer.tokenizers.tokenizer import Tokenizer

BROKEN = "\ufffd"  # what half a character is shown as


class IncrementalDecoder:
    """One text. Special tokens are left out, as `Tokenizer.decode` leaves them out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.engine = tokenizer.engine
        self.special = {i for i, token in self.engine.get_added_tokens_decoder().items() if token.special}
        self.probes = _probes(tokenizer, self.special)
        self.window: list[int] = []  # from the last token that was shown whole
        self.shown = 0  # characters of the window's text

    def add(self, token: int) -> str:
        """One more token; returns what can be shown now, often its own text, sometimes nothing or more."""
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
        """What was held back; nothing comes after it."""
        rest = self._decode(self.window)[self.shown :]
        self.shown += len(rest)
        return rest

    def _decode(self, ids: list[int]) -> str:
        return self.engine.decode(ids, skip_special_tokens=False)


def _shared(text: str, other: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, other, strict=False)))


def _probes(tokenizer: Tokenizer, special: set[int]) -> list[int]:
    """Tokens that change what stands before them, if any does: a word, and a byte that belongs to no character."""
    names = tokenizer.engine.get_vocab(with_added_tokens=False)
    byte = names.get("<0x80>")
    word = next((i for name, i in names.items() if i not in special and name[-1:].isalpha()), None)
    return [probe for probe in (word, byte) if probe is not None]


class StopStringFilter:
    """Text up to the first of some strings, as it comes: what could be the beginning of one is held back.

    With `strip`, white space at both ends is left out.
    """

    def __init__(self, stops: Sequence[str] = (), strip: bool = False) -> None:
        self.stops = tuple(stops)
        self.strip = strip
        self.held = ""
        self.begun = False
        self.done = False

    def add(self, piece: str) -> str:
        if self.done:
            return ""
        self.held += piece
        at = find_stop(self.held, self.stops)
        if at is not None:
            self.done = True
            self.held = self.held[:at]
            return self.end()
        return self._release(len(self.held) - _beginning(self.held, self.stops))

    def end(self) -> str:
        """The rest, once nothing more comes."""
        piece = self._release(len(self.held))
        self.held = ""
        return piece

    def _release(self, n: int) -> str:
        if self.strip:
            if not self.begun:
                lost = n - len(self.held[:n].lstrip())
                self.held, n = self.held[lost:], n - lost
            n = len(self.held[:n].rstrip())
        piece, self.held = self.held[:n], self.held[n:]
        self.begun = self.begun or bool(piece)
        return piece


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of the strings begins."""
    return min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=None)


def _beginning(text: str, stops: Sequence[str]) -> int:
    """The length of the longest end of the text that a string begins with."""
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
