"""Video inputs: tubelets (patches over a few frames) with positions in space and time, optionally masked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.positions import LearnedGrid, LearnedPositions, sinusoids
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, check_shape
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens
from anyformer.inputs.patches import dropped, patchify
from anyformer.inputs.sequences import take


def masked_order(mask: Tensor) -> Tensor:
    """Return indices [B, N]: visible tokens in order, then masked ones."""
    return mask.to(torch.uint8).argsort(dim=1, stable=True)


def fixed_sinusoids(n: int, d_model: int, like: Tensor) -> Tensor:
    """Sinusoids of n positions [n, d_model], rounded as the published tables are."""
    return _sinusoids(n, d_model, like.device).to(like.dtype)


@lru_cache(maxsize=8)
def _sinusoids(n: int, d_model: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it is cached, and autograd may use it later
        return sinusoids(torch.arange(n, device=device), d_model).float()


@dataclass(frozen=True, kw_only=True)
class VideoInputConfig(Settings):
    n_frames: int
    image_size: tuple[int, ...]  # rows, columns
    tubelet: tuple[int, ...]  # frames, rows, columns
    d_model: int
    n_channels: int = 3
    class_token: bool = False
    positions: Literal["sines", "learned", "learned-space"] = "sines"  # "learned": one per cell and one per frame
    dropout: float = 0.0
    mask_ratio: float | None = None  # fraction of cells masked in all frames; None: no masking

    @property
    def grid(self) -> tuple[int, int, int]:
        """Number of tubelets along time, rows and columns."""
        frames, height, width = self.tubelet
        return self.n_frames // frames, self.image_size[0] // height, self.image_size[1] // width

    def check(self) -> None:
        fits = all(n > 0 for n in self.grid)
        self.require(fits, f"a tubelet of {self.tubelet} exceeds {self.n_frames} frames of {self.image_size}.")
        whole = self.n_frames % self.tubelet[0] == 0
        self.require(whole, f"n_frames {self.n_frames} must be a multiple of the tubelet's {self.tubelet[0]} frames.")

    @property
    def n_tokens(self) -> int:
        frames, rows, columns = self.grid
        return frames * rows * columns


class VideoInput(Input):
    """pixel_values [B, frames, channels, rows, columns]. Token order: with sines frame by frame; with learned positions
    cell by cell, each with all its frames, as attention over time or space expects ("learned-space": each frame is a
    row).
    """

    def __init__(self, config: VideoInputConfig) -> None:
        super().__init__()
        self.config = config
        frames, rows, columns = config.grid
        height, width = config.tubelet[1:]
        self.patches = Linear(config.n_channels * config.tubelet[0] * height * width, config.d_model)
        self.class_token = LearnedTokens(1, config.d_model) if config.class_token else None
        self.positions, self.times = None, None
        if config.positions != "sines":
            self.positions = LearnedGrid(rows, columns, config.d_model, extra=int(config.class_token))
        if config.positions == "learned":
            self.times = LearnedPositions(frames, config.d_model)
        self.names = ("pixel_values", *(("bool_masked_pos",) if config.mask_ratio is not None else ()))

    def forward(self, run: ForwardContext) -> Tokens:
        _, pixels = run.require_one("pixel_values")
        self._check(pixels)
        config = self.config
        x = self.patches(patchify(pixels.to(self.patches.weight.dtype), config.tubelet))  # [B, tubelets, d]
        if config.positions == "sines":
            return self._in_order(run, x)
        return self._cells(x)

    def _check(self, pixels: Tensor) -> None:
        config = self.config
        shape = (config.n_frames, config.n_channels, *config.image_size)
        check_shape(pixels, "pixel_values", "batch", *shape, why=" (frames, channels, rows, columns)")

    def _in_order(self, run: ForwardContext, x: Tensor) -> Tokens:
        config = self.config
        tokens = Tokens(
            F.dropout(x + fixed_sinusoids(config.n_tokens, config.d_model, x), config.dropout, self.training)
        )
        if config.mask_ratio is None:
            return tokens
        mask = self._mask(run, x)
        kept = int((~mask[0]).sum())
        order = masked_order(mask)[:, :kept]
        return take(tokens, order)._replace(positions=order)

    def _mask(self, run: ForwardContext, x: Tensor) -> Tensor:
        """Mask [B, tokens], True for dropped: the caller's, or tubes over all frames (Tong et al. 2022, §3.3)."""
        batch, (frames, rows, columns) = x.shape[0], self.config.grid
        given = run.tensor("bool_masked_pos")
        if given is None:
            cells = rows * columns
            dropped = int((self.config.mask_ratio or 0.0) * cells)
            if not dropped:
                ratio = self.config.mask_ratio
                raise InputError(f"mask_ratio {ratio} masks none of {cells} cells; raise it, or pass bool_masked_pos.")
            ranks = torch.rand(batch, cells, device=x.device).argsort(dim=1).argsort(dim=1)
            return (ranks < dropped).repeat(1, frames)
        check_shape(given, "bool_masked_pos", batch, self.config.n_tokens)
        mask = given.to(torch.bool)
        counts = mask.sum(dim=1)
        if not bool((counts == counts[0]).all()) or int(counts[0]) in (0, mask.shape[1]):
            raise InputError("bool_masked_pos must mask equally many tokens in each row, at least one and not all.")
        return mask

    def _cells(self, x: Tensor) -> Tokens:
        config = self.config
        batch, (frames, rows, columns) = x.shape[0], config.grid
        assert self.positions is not None and self.class_token is not None
        table = self.positions(rows, columns)
        x = F.dropout(x.unflatten(1, (frames, -1)) + table[1:], config.dropout, self.training)  # [B, t, cells, d]
        first = F.dropout(self.class_token() + table[:1], config.dropout, self.training)
        if self.times is None:
            x = x.flatten(0, 1)
            return Tokens(torch.cat([first.expand(len(x), -1, -1), x], dim=1), grid=(rows, columns))
        x = x.transpose(1, 2)  # [B, cells, t, d]
        x = x + self.times(Tokens(x))
        x = F.dropout(x, config.dropout, self.training).flatten(1, 2)
        return Tokens(torch.cat([first.expand(batch, -1, -1), x], dim=1), grid=(rows, columns, frames))


class MaskedTubesInput(Input):
    """VideoMAE's decoder input: the encoder's tokens, then a mask token for each dropped one, with their positions."""

    def __init__(self, source: str, d_source: int, d_model: int, n_tokens: int) -> None:
        super().__init__()
        self.source, self.n_tokens = source, n_tokens
        self.project = Linear(d_source, d_model, bias=False)
        self.mask_token = LearnedTokens(1, d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        encoded = run.tokens[self.source].pad()
        seen = self.project(encoded.x)
        order = masked_order(dropped(encoded, self.n_tokens))
        missing = self.mask_token().expand(len(seen), order.shape[1] - seen.shape[1], -1)
        places = fixed_sinusoids(self.n_tokens, seen.shape[2], seen)
        return Tokens(torch.cat([seen, missing], dim=1) + places[order])
