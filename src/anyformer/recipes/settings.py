"""The spellings of `mask=`, `positions=` and `score=`, which every family takes.

positions: none, sinusoidal, learned or network, which enter with the tokens; rotary, relative, xl or alibi, which
attention uses; one of each with a "+", as in "learned+relative". Images have learned-2d, sinusoidal-2d and rotary-2d
too.

mask: what a token may attend to, besides what a decoder forbids. "all"; "causal"; "window:N", tokens fewer than N away
(with a causal mask: the last N tokens, the token itself among them); "dilated:N,K", every N-th token, up to K of them
on either side; "local-2d:N", cells of an image at most N rows and columns away; "prefix:N", the first N tokens, besides
what else is allowed. Several with a comma are those of the layers in turn: "all,window:256".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import nn

from anyformer import plugins
from anyformer.core.masks import NO_MASK, Causal, Dilated, Local2D, Mask, Prefix, Window
from anyformer.core.score import AdditiveScore, CosineScore, GeneralScore
from anyformer.errors import ConfigError, nearest

EMBEDDED = ("none", "sinusoidal", "learned", "network")  # kinds of positions that enter with the tokens
EMBEDDED_2D = ("learned-2d", "sinusoidal-2d")
ATTENDED = ("rotary", "relative", "xl", "alibi")  # kinds that attention uses
ATTENDED_2D = ("rotary-2d",)

MASKS: Mapping[str, tuple[str, ...]] = {  # name -> what its numbers are
    "all": (),
    "causal": (),
    "window": ("N",),
    "dilated": ("N", "K"),
    "local-2d": ("N",),
    "prefix": ("N",),
}


def split_masks(text: str) -> list[str]:
    """Split at the commas between layers.  "all,dilated:2,4" -> ["all", "dilated:2,4"]"""
    return [piece.strip() for piece in re.split(r",(?!\s*\d)", text)]


def _spelled(name: str) -> str:
    return f"{name}:{','.join(MASKS[name])}" if MASKS[name] else name


def check_mask(text: str, known: tuple[str, ...] = tuple(MASKS)) -> tuple[str, list[int]]:
    """The name and the numbers of one mask; ConfigError if it is none of those that are known."""
    name, _, rest = text.partition(":")
    if name not in known:
        spelled = ", ".join(map(_spelled, known))
        raise ConfigError(f'mask "{text}" is unknown here; it can be {spelled}.{nearest(name, known)}')
    numbers = [int(number) for number in rest.split(",") if number.strip().isdecimal()]
    given = len(rest.split(",")) if rest else 0
    if given != len(numbers) or given != len(MASKS[name]) or any(number < 1 for number in numbers):
        raise ConfigError(f'mask "{text}" must be written as {_spelled(name)}, with whole numbers from 1 on.')
    return name, numbers


def make_mask(text: str, causal: bool, grid: tuple[int, ...] | None = None, extra: int = 0) -> Mask:
    """The mask of one layer. `grid`: rows and columns of an image, before which `extra` other tokens stand."""
    name, numbers = check_mask(text)
    base: Mask = Causal() if causal else NO_MASK
    if name == "all":
        return base
    if name == "causal":
        return Causal()
    if name == "prefix":
        return base | Prefix(*numbers) if causal else NO_MASK
    if name == "window":
        return base & Window(numbers[0] - 1, 0 if causal else numbers[0] - 1)
    if name == "dilated":
        return base & Dilated(*numbers)
    assert grid is not None
    return base & Local2D(grid[1], numbers[0], numbers[0], extra)


def check_positions(text: str, known: tuple[str, ...]) -> None:
    """Raise ConfigError unless the text names position encodings of `known`, at most one of each sort."""
    kinds = text.split("+")
    known = (*known, *plugins.POSITIONS)
    for kind in kinds:
        if kind not in known:
            raise ConfigError(
                f'positions "{kind}" is unknown here; it can be {", ".join(known)}.{nearest(kind, known)}'
            )
    for sort in ((*EMBEDDED, *EMBEDDED_2D), (*ATTENDED, *ATTENDED_2D), (*plugins.POSITIONS,)):
        found = [kind for kind in kinds if kind in sort]
        if len(found) > 1:
            raise ConfigError(f'positions "{text}": only one of {" and ".join(found)} can be used at a time.')


def check_score(text: str) -> None:
    """Raise ConfigError unless the text names a score."""
    known = (*SCORES, *plugins.SCORES)
    if text not in known:
        raise ConfigError(f'score "{text}" is unknown; it can be {", ".join(known)}.{nearest(text, known)}')


def make_score(name: str, n_heads: int, width: int) -> nn.Module | None:
    """The module of a score; None for dot products."""
    return (SCORES[name] if name in SCORES else plugins.SCORES[name])(n_heads, width)


SCORES: Mapping[str, Callable[[int, int], nn.Module | None]] = {
    "scaled": lambda n_heads, width: None,
    "dot": lambda n_heads, width: None,
    "general": lambda n_heads, width: GeneralScore(width, width),
    "additive": lambda n_heads, width: AdditiveScore(width, width, width),
    "cosine": lambda n_heads, width: CosineScore(n_heads),
}
