"""What a page asks of the explorer: a model's input, and which part of the answer to draw. Every request says all of
it, so that the server keeps nothing of anybody's."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.errors import InputError

MOST_CHARACTERS = 100_000
NEW = 20  # tokens that are written unless the page or the task says otherwise
MOST_NEW = 128  # tokens that are written for one request
MOST_BEAMS = 8
MOST_PADDING = 64
MOST_PICTURES = 16


@dataclass(frozen=True, kw_only=True)
class AblatedHead(Settings):
    """A head that says nothing: its values count as zeros."""

    stage: str
    layer: int
    part: str = "self"
    head: int = 0


@dataclass(frozen=True, kw_only=True)
class ViewRequest(Settings):
    text: str = ""
    pair: str | None = None  # a second text, for models that read two
    target: str | None = None  # what an encoder-decoder is made to say; None: what it says by itself
    picture: str | None = None  # a file, as base64
    sound: str | None = None  # likewise
    clip: str | None = None  # likewise; None: an example
    items: str | None = None  # a set or a table, likewise
    row: int = 0  # of a file that holds several
    pictures: tuple[str, ...] = ()  # a small data set, for the view of query slots
    padding: int = 0  # tokens that mean nothing, put beside the text
    padding_left: bool = False  # in front of it
    silence: tuple[AblatedHead, ...] = ()
    stage: str | None = None
    part: str = "self"
    layer: int = 0
    layers: tuple[int, ...] | None = None
    head: int | None = None  # None: all of them, or their mean
    position: int = -1
    to: int = 0  # the token that is looked at
    top: int = 0  # the corner of a tile
    left: int = 0
    raw: bool = False  # rollout without what stays in place
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    sample: bool = False
    seed: int = 0
    new_tokens: int | None = None  # None: as many as the model's task writes, or 20 without a task
    beams: int = 4
    share: float = 0.75  # of patches that are hidden
    threshold: float = 0.5

    def check(self) -> None:
        for name in ("text", "pair", "target"):
            size = len(getattr(self, name) or "")
            self.require(size <= MOST_CHARACTERS, f"{name} has {size:,} characters; the most is {MOST_CHARACTERS:,}.")
        self.require(1e-3 <= self.temperature <= 1e3, "temperature must be from 0.001 to 1000.")
        self.require(0 < self.top_p <= 1, "top_p must be above 0 and at most 1.")
        self.require(self.top_k >= 0, "top_k must be 0 or more.")
        self.require(-(2**63) <= self.seed < 2**63, "seed must be a whole number of at most 64 bits.")
        new = self.new_tokens
        self.require(new is None or 1 <= new <= MOST_NEW, f"new_tokens must be from 1 to {MOST_NEW}.")
        self.require(1 <= self.beams <= MOST_BEAMS, f"beams must be from 1 to {MOST_BEAMS}.")
        self.require(0 <= self.padding <= MOST_PADDING, f"padding must be from 0 to {MOST_PADDING}.")
        self.require(0 < self.share < 1, "share must be between 0 and 1.")
        self.require(0 <= self.threshold <= 1, "threshold must be from 0 to 1.")
        self.require(min(self.top, self.left, self.layer, self.row) >= 0, "top, left, layer and row count from 0.")
        self.require(len(self.pictures) <= MOST_PICTURES, f"at most {MOST_PICTURES} images go into one question.")
        self.require(len(self.silence) <= 4096, "no model has so many heads to silence.")

    @property
    def steps(self) -> int:
        """Tokens that are written one by one, to look at each."""
        return NEW if self.new_tokens is None else self.new_tokens

    def file(self, kind: str) -> bytes:
        """The image, the sound or what else was given."""
        content: str | None = getattr(self, kind)
        if content is None:
            raise InputError(f"This model reads {kind}s; give it one.")
        return decoded(content, kind)

    def key(self) -> tuple[object, ...]:
        """What a pass through the model depends on."""
        given = f"{self.picture} {self.sound} {self.clip} {self.items} {self.row}"
        files = hashlib.blake2b(given.encode(), digest_size=16).digest()
        padding = (self.padding, self.padding_left)
        return (self.text, self.pair, self.target, files, padding, self.silence, self.share, self.seed, self.new_tokens)


def decoded(content: str, kind: str) -> bytes:
    try:
        return base64.b64decode(content.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise InputError(f"The {kind} is not base64.") from None
