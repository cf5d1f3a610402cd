"""The raster order in which the cells of an image become tokens, and the same tokens as blocks with their
neighborhoods.

An image is read block by block in raster order, and cell by cell in raster order within a block (Parmar et al. 2018,
§3.3). Blocks of one cell give the usual reading order; blocks in a single row give 1D blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.masks import Mask
from anyformer.core.positions import Positions, highest_position, positions_of
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError


@dataclass(frozen=True)
class Raster:
    """Blocks of `rows` x `columns` cells, `across` of them side by side (None: all), with `depth` tokens per cell."""

    rows: int = 1
    columns: int = 1
    across: int | None = None
    depth: int = 1

    @property
    def size(self) -> int:
        """Tokens per block."""
        return self.rows * self.columns * self.depth

    def corner(self, i: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column of the first cell of the block that contains token i."""
        block = i // self.size
        if self.across is None:
            return torch.zeros_like(block), block * self.columns
        return block // self.across * self.rows, block % self.across * self.columns

    def coordinates(self, i: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row, column and depth of token i."""
        row, column = self.corner(i)
        inner = i % self.size // self.depth
        return row + inner // self.columns, column + inner % self.columns, i % self.depth

    def counts(self, length: int) -> tuple[int, int]:
        """Number of rows of blocks, and of blocks in a row, for this many tokens."""
        n = -(-length // self.size)
        return (1, n) if self.across is None else (-(-n // self.across), self.across)


@dataclass(frozen=True)
class BlockNeighborhood:
    """A block's memory: `above` rows over it and `aside` cells to either side, limited to cells read before the block.

    Neither may be larger than the block.
    """

    raster: Raster
    above: int
    aside: int

    def tiles(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, blocks · H, tokens per block, d], padded with zeros at the end."""
        return self._flatten(self._cells(x))

    def neighborhoods(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, blocks · H, width, d]: each block's memory, then the block itself, with zeros outside of
        the image. Uses slices of one padded tensor, whose gradients are cheaper than those of a gather."""
        cells, above, aside = self._cells(x), self.above, self.aside
        rows, columns = self.raster.rows, self.raster.columns
        wide = F.pad(cells, (0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0))  # a row of blocks above, one to either side
        left = wide[:, :, 1:, :-2, :, columns - aside :]
        pieces = [left, cells]
        if above:
            over = wide[:, :, :-1, :, rows - above :]
            pieces = [
                over[:, :, :, :-2, :, columns - aside :],
                over[:, :, :, 1:-1],
                over[:, :, :, 2:, :, :aside],
                *pieces,
            ]
        return torch.cat([self._flatten(piece) for piece in pieces], dim=2)

    def untile(self, tiles: Tensor, n_heads: int, length: int) -> Tensor:
        """Inverse of `tiles`: [B, blocks · H, tokens per block, d] -> [B, H, T, d]."""
        return tiles.unflatten(1, (-1, n_heads)).transpose(1, 2).flatten(2, 3)[:, :, :length]

    def indices(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Token index of each slot of `tiles` [blocks, tokens] and of the memories [blocks, width]; -1: none."""
        number = torch.arange(1, length + 1, device=device, dtype=torch.float32).view(1, 1, -1, 1)  # 0 marks padding
        queries, keys = self.tiles(number), self.neighborhoods(number)
        return queries[0, :, :, 0].long() - 1, keys[0, :, :, 0].long() - 1

    def _cells(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, H, rows of blocks, blocks in a row, rows, columns, depth, d]"""
        raster = self.raster
        down, across = raster.counts(x.shape[2])
        x = F.pad(x, (0, 0, 0, down * across * raster.size - x.shape[2]))
        return x.unflatten(2, (down, across, raster.rows, raster.columns, raster.depth))

    @staticmethod
    def _flatten(cells: Tensor) -> Tensor:
        batch, n_heads, down, across, rows, columns, depth, width = cells.shape
        tokens = cells.permute(0, 2, 3, 1, 4, 5, 6, 7)  # blocks before heads
        return tokens.reshape(batch, down * across * n_heads, rows * columns * depth, width)


@dataclass(frozen=True)
class BlockLocal2D(Mask):
    """Local attention over the cells of an image, block by block: a query sees its own block and that block's memory,
    which is the cells at most `above` rows over it and `aside` columns to either side (Image Transformer's local 2D
    attention; with blocks in a single row, its local 1D attention). Combine it with `Causal` to forbid later tokens."""

    by_position = True

    raster: Raster
    above: int
    aside: int

    @property
    def span(self) -> int:  # type: ignore[override]
        return self._behind + self.raster.size - 1

    @property
    def _behind(self) -> int:
        """Number of tokens before a block that can be part of its memory."""
        raster = self.raster
        if raster.across is None:
            return self.aside * raster.depth
        over, beside = -(-self.above // raster.rows), -(-self.aside // raster.columns)
        return (over * raster.across + beside) * raster.size

    def allowed(self, q: Tensor, k: Tensor) -> Tensor:
        top, left = self.raster.corner(q)
        row, column, _ = self.raster.coordinates(k)
        near = (row >= top - self.above) & (row < top + self.raster.rows)
        near = near & (column >= left - self.aside) & (column < left + self.raster.columns + self.aside)
        return near[None, None]

    def key_range(self, first: int, last: int, n_keys: int) -> tuple[int, int]:
        raster = self.raster
        low, high = first // raster.size * raster.size - self._behind, (last - 1) // raster.size + 1
        high = (high + -(-self.aside // raster.columns)) * raster.size
        return max(0, min(low, n_keys)), max(0, min(high, n_keys))

    @property
    def surroundings(self) -> BlockNeighborhood | None:
        """The memories as tiles of one size, if they reach no further than the next block; else None."""
        fits = self.above <= self.raster.rows and self.aside <= self.raster.columns
        return BlockNeighborhood(self.raster, self.above, self.aside) if fits else None


class RasterPositions(Positions):
    """Learned vectors of row, column and channel, summed, for the cells of an image in the order of `raster`. The
    `before` tokens that precede them (a text) have a table of their own."""

    def __init__(self, rows: int, columns: int, raster: Raster, d_model: int, before: int = 0) -> None:
        super().__init__()
        self.raster, self.before = raster, before
        self.max_positions = before + rows * columns * raster.depth
        self.text = nn.Parameter(torch.empty(before, d_model)) if before else None
        self.row = nn.Parameter(torch.empty(rows, d_model))
        self.column = nn.Parameter(torch.empty(columns, d_model))
        self.channel = nn.Parameter(torch.empty(raster.depth, d_model)) if raster.depth > 1 else None

    def reset(self, std: float) -> None:
        for table in (self.text, self.row, self.column, self.channel):
            if table is not None:
                nn.init.normal_(table, std=std)

    def forward(self, tokens: Tokens) -> Tensor:
        at = positions_of(tokens)
        longest = tokens.x.shape[-2] if tokens.positions is None else highest_position(at) + 1
        if self.max_positions is not None and longest > self.max_positions:
            raise InputError(f"There are {longest} tokens, but the model has {self.max_positions} positions.")
        row, column, channel = self.raster.coordinates((at - self.before).clamp(min=0))
        x = F.embedding(row, self.row) + F.embedding(column, self.column)
        x = x if self.channel is None else x + F.embedding(channel, self.channel)
        if self.text is None:
            return x
        words = F.embedding(at.clamp(max=self.before - 1), self.text)
        return torch.where((at < self.before).unsqueeze(-1), words, x)
