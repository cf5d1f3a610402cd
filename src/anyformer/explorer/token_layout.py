"""The layout of a stage's tokens over the input (image, spectrogram, video, points, table). It turns attention weights
into maps of the input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.inputs.audio import MelConvInput
from anyformer.inputs.multimodal import MultimodalInput
from anyformer.inputs.prefix import PrefixedTextInput
from anyformer.inputs.queries import PatchesAndQueries
from anyformer.inputs.sets import SetInput, TableInput
from anyformer.inputs.text import TextInput
from anyformer.inputs.video import VideoInput


@dataclass(frozen=True)
class TokenLayout:
    """Tokens before the cells of the input, the cells, and tokens after the cells.

    A position counts the tokens before, the cells (frame by frame, row by row), and the tokens after. The tokens of a
    video may be stored in another order, or with a separate batch row for each frame.
    """

    shape: tuple[int, ...]  # (rows, columns), (frames, rows, columns) or (items,)
    before: int = 0
    after: int = 0
    cells_first: bool = False  # order of tokens: all frames of a cell, then the next cell
    apart: bool = False  # each frame is a separate batch row

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    @property
    def positions(self) -> int:
        return self.before + self.cells + self.after

    def over(self, weights: Tensor) -> Tensor:
        """Reshape weights [..., tokens] to [..., *shape]."""
        cells = weights[..., self.before : self.before + self.cells]
        if not self.cells_first:
            return cells.unflatten(-1, self.shape)
        frames, rows, columns = self.shape
        return cells.unflatten(-1, (rows, columns, frames)).movedim(-1, -3)

    def place(self, position: int) -> tuple[int, int] | None:
        """The frame and the cell of a position; None if it is not a cell of a video."""
        if not self.before <= position < self.before + self.cells or len(self.shape) != 3:
            return None
        return divmod(position - self.before, self.shape[1] * self.shape[2])

    def token(self, position: int) -> int:
        """The token index of a position."""
        at = self.place(position)
        if at is None or not self.cells_first:
            return position
        frame, cell = at
        return self.before + cell * self.shape[0] + frame


def layout(trace: Trace, stage: str) -> TokenLayout | None:
    """The layout of a stage; None if its tokens are not parts of the input, or most of them were dropped."""
    inputs = trace.model.stages[stage].inputs
    tokens = trace.tokens(stage)
    length = tokens.x.shape[1]
    if isinstance(inputs, VideoInput):
        return _clip(inputs, tokens)
    if isinstance(inputs, (PrefixedTextInput, MultimodalInput)):  # an image, then the text
        source = inputs.source if isinstance(inputs, PrefixedTextInput) else next(iter(inputs.places))
        inner = layout(trace, source) if source in trace.run.tokens else None
        fits = inner is not None and inner.positions <= length
        return replace(inner, after=length - inner.before - inner.cells) if inner is not None and fits else None
    if isinstance(inputs, TableInput):
        return TokenLayout((length - 1,), before=1)
    if isinstance(inputs, MelConvInput):
        return TokenLayout((1, length))
    if isinstance(inputs, SetInput) or (isinstance(inputs, TextInput) and stage not in trace.calls):
        return TokenLayout((length,))
    if tokens.grid is None or math.prod(tokens.grid) > length:
        return None
    spare = length - math.prod(tokens.grid)
    queries_last = isinstance(inputs, PatchesAndQueries)
    return TokenLayout(tokens.grid, before=0 if queries_last else spare, after=spare if queries_last else 0)


def _clip(inputs: VideoInput, tokens: Tokens) -> TokenLayout | None:
    shape, length = inputs.config.grid, tokens.x.shape[1]
    if tokens.grid is not None and len(tokens.grid) == 3:
        return TokenLayout(shape, before=length - math.prod(shape), cells_first=True)
    if tokens.grid is not None:
        return TokenLayout(shape, before=length - math.prod(tokens.grid), apart=True)
    return TokenLayout(shape) if length == math.prod(shape) else None


def key_stage(trace: Trace, site: AttentionSite) -> str:
    """The stage of the keys."""
    return trace.memory_stage(site.stage) if trace.sublayer(site).crosses else site.stage


def n_queries(trace: Trace, site: AttentionSite) -> int:
    """The number of query positions."""
    own = layout(trace, site.stage)
    return own.positions if own is not None and own.apart else trace.tokens(site.stage).x.shape[1]


def attention_axis(trace: Trace, site: AttentionSite) -> str:
    """Along which axis of a clip tokens attend: "time", "space" or "all"."""
    return getattr(trace.sublayer(site).part, "axis", "all")


def attention_map(trace: Trace, site: AttentionSite, position: int) -> Tensor:
    """The attention of one query as maps of the input [heads, *shape]; tokens that are not cells are left out."""
    where = layout(trace, key_stage(trace, site))
    if where is None:
        raise InputError("The keys of this attention are not parts of the input, or most of them were dropped.")
    axis = attention_axis(trace, site)
    own = None if trace.sublayer(site).crosses else where
    if axis == "all" and not where.apart:
        return where.over(trace.row_weights(site, position if own is None else own.token(position)))
    every = trace.inside(site.stage, site.layer, f"{site.part}.weights")[site.point]  # [groups, heads, queries, keys]
    return _along_time(where, every, position) if axis == "time" else _frame_by_frame(where, every, position)


def _along_time(where: TokenLayout, every: Tensor, position: int) -> Tensor:
    """A cell attends to the same cell in all frames."""
    at = where.place(position)
    if at is None:
        raise InputError("The class token has no attention over time; select a cell.")
    frame, cell = at
    maps = every.new_zeros(every.shape[1], where.shape[0], where.shape[1] * where.shape[2])
    maps[:, :, cell] = every[cell, :, frame]
    return maps.unflatten(-1, where.shape[1:])


def _frame_by_frame(where: TokenLayout, every: Tensor, position: int) -> Tensor:
    """A cell attends to its own frame; the class token attends to each frame separately."""
    at = where.place(position)
    if at is None:
        maps = every[:, :, position, where.before :].transpose(0, 1)  # [heads, frames, cells]
        return maps.unflatten(-1, where.shape[1:])
    frame, cell = at
    maps = every.new_zeros(every.shape[1], where.shape[0], where.shape[1] * where.shape[2])
    maps[:, frame] = every[frame, :, where.before + cell, where.before :]
    return maps.unflatten(-1, where.shape[1:])


def mean_attention(trace: Trace, site: AttentionSite) -> Tensor:
    """The mean over heads [tokens, keys]. Attention along one axis of a video is expanded to all tokens."""
    axis = attention_axis(trace, site)
    if axis == "all":
        return trace.mean_weights(site)
    where = layout(trace, site.stage)
    assert where is not None
    every = trace.inside(site.stage, site.layer, f"{site.part}.weights")[site.point].float().mean(dim=1)
    frames, cells = where.shape[0], where.shape[1] * where.shape[2]
    full = torch.zeros(where.positions, where.positions)
    index = where.before + torch.arange(cells * frames).view(cells, frames)  # token indices, cell by cell
    if axis == "time":
        full[: where.before, : where.before] = torch.eye(where.before)  # class tokens have no attention over time
        full[index[:, :, None], index[:, None, :]] = every
        return full
    first = torch.arange(where.before)
    for frame in range(frames):
        rows = torch.cat([first, index[:, frame]])
        full[rows[:, None], rows[None, :]] += every[frame]
    full[: where.before] /= frames  # the mean of its copies
    return full
