"""The order in which the cells of an image become tokens, and the same tokens as tiles with what lies around them.

An image is read in blocks, one row of blocks after another, and within a block in rows too (Parmar et al. 2018, §3.3).
Blocks of one cell are the usual reading order; blocks that all stand side by side are a line cut into pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Raster:
    """Blocks of `rows` x `columns` cells, `across` of them side by side (None: all), `depth` tokens a cell."""

    rows: int = 1
    columns: int = 1
    across: int | None = None
    depth: int = 1

    @property
    def size(self) -> int:
        """Tokens of a block."""
        return self.rows * self.columns * self.depth

    def corner(self, i: Tensor) -> tuple[Tensor, Tensor]:
        """Row and column of the first cell of the block in which token i stands."""
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
        """Rows of blocks, and blocks in a row, that hold so many tokens."""
        n = -(-length // self.size)
        return (1, n) if self.across is None else (-(-n // self.across), self.across)


@dataclass(frozen=True)
class BlockNeighborhood:
    """A block's memory: `above` rows over it and `aside` cells to either side, as far as they are read before it.

    Neither may be more than a block has itself.
    """

    raster: Raster
    above: int
    aside: int

    def tiles(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, blocks · H, tokens of a block, d]; what is missing at the end is zeros."""
        return self._flatten(self._cells(x))

    def neighborhoods(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [B, blocks · H, width, d]: each block's memory, then the block itself; zeros outside of the
        image. Slices of one padded tensor, since their gradients are cheap and a gather's are not.
        """
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
        """The way back: [B, blocks · H, tokens of a block, d] -> [B, H, T, d]"""
        return tiles.unflatten(1, (-1, n_heads)).transpose(1, 2).flatten(2, 3)[:, :, :length]

    def indices(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Which tokens stand where in `tiles` [blocks, tokens] and `memories` [blocks, width]; -1: none."""
        number = torch.arange(1, length + 1, device=device, dtype=torch.float32).view(1, 1, -1, 1)  # 0 fills
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
