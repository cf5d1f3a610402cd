"""Generated texts with their sources, and the joining of sentences to one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from anyformer.tasks.answers import Answer
from anyformer.tokenizers.sentence_split import CONJUNCTIONS

SEQUENCES = ("ids", "tokens", "source_tokens")  # of an answer
STOPS, PAUSES = (".", "!", "?", "…"), (",", ";", ":")


@dataclass(frozen=True)
class Written(Answer):
    """The generated text and its source; for a source of several sentences also the parts.

    With `logprobs=True`, `logprobs` has one number for each id. With `alignment=True`, `alignment` is the
    cross-attention [tokens, source tokens] of the step that generated each id, for
    `af.plot.alignment(answer.alignment, answer.source_tokens, answer.tokens)`.
    """

    text: str
    source: str
    ids: tuple[int, ...] = field(repr=False)
    sentences: tuple[Written, ...] = field(default=(), repr=False)
    logprobs: tuple[float, ...] | None = field(default=None, repr=False)
    alignment: Tensor | None = field(default=None, repr=False, compare=False)
    tokens: tuple[str, ...] = field(default=(), repr=False)
    source_tokens: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.text


def join(text: str, source: str, parts: Sequence[Written]) -> Written:
    """Sentences as one answer; no sentence looked at another's source, so the alignment is block-diagonal."""
    known = [part for part in parts if part.ids]
    logprobs, alignment = None, None
    if known and all(part.logprobs is not None for part in known):
        logprobs = tuple(chain(*(part.logprobs or () for part in known)))
    if known and all(part.alignment is not None for part in known):
        alignment = torch.block_diag(*(part.alignment for part in known))
    ids, tokens, read = (tuple(chain(*(getattr(one, name) for one in known))) for name in SEQUENCES)
    return Written(text, source, ids, tuple(parts), logprobs, alignment, tokens, read)


def shouted(one: Written, source: str) -> Written:
    """The answer to what was read in small letters, in capitals."""
    return replace(one, text=one.text.upper(), source=source)


def fitted(line: Sequence[Written]) -> list[str]:
    """The texts of a line; where a sentence was cut, without the stops and capitals of its parts."""
    texts = [one.text for one in line]
    for n, one in enumerate(line[:-1]):
        last = one.source[-1:]
        if last not in STOPS and one.ids:
            text = texts[n].rstrip("".join((*STOPS, *PAUSES, " ")))
            texts[n] = text + (last if last in PAUSES else "")
            follows = line[n + 1].source.split(" ", 1)[0]
            if follows in CONJUNCTIONS:
                texts[n + 1] = texts[n + 1][:1].lower() + texts[n + 1][1:]
    return texts
