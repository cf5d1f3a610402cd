"""Packed tokens: the real tokens of all rows concatenated, without padding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anyformer.core.host import host_copy, to_device


@dataclass(frozen=True, eq=False)
class Packing:
    """Layout of packed tokens: `index` [N] into the flattened [B·T], `sizes` the number of real tokens of each row."""

    index: Tensor
    sizes: tuple[int, ...]
    length: int  # T of the padded form

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        known = host_copy(mask)
        index = known.flatten().nonzero().squeeze(1)
        return cls(to_device(index, mask.device), tuple(known.sum(dim=1).tolist()), mask.shape[1])

    @classmethod
    def full(cls, batch: int, length: int, device: torch.device) -> Packing:
        """Rows without padding, packed."""
        return cls(torch.arange(batch * length, device=device), (length,) * batch, length)

    @property
    def batch(self) -> int:
        return len(self.sizes)

    @cached_property
    def rows(self) -> Tensor:
        """The row each packed token belongs to.  sizes (2, 1) -> [0, 0, 1]"""
        return to_device(torch.repeat_interleave(torch.tensor(self.sizes)), self.index.device)

    @cached_property
    def starts(self) -> Tensor:
        """Start index of each row, and the end. sizes (2, 1) -> [0, 2, 3]"""
        sizes = torch.tensor((0, *self.sizes), dtype=torch.int32)
        return to_device(sizes.cumsum(0, dtype=torch.int32), self.index.device)

    @cached_property
    def places(self) -> Tensor:
        """Position of each packed token within its row. sizes (2, 1) -> [0, 1, 0]"""
        return torch.arange(len(self.index), device=self.index.device) - self.starts[self.rows]

    @cached_property
    def right_padded(self) -> Packing:
        """The same rows padded on the right up to the longest: a token's column is its position in the row."""
        length = max(self.sizes, default=0)
        return Packing(self.rows * length + self.places, self.sizes, length)

    @cached_property
    def mask(self) -> Tensor:
        flat = torch.zeros(self.batch * self.length, dtype=torch.bool, device=self.index.device)
        return flat.index_fill(0, self.index, True).view(self.batch, self.length)

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [N, ...]"""
        return x.flatten(0, 1).index_select(0, self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """[N, ...] -> [B, T, ...], with zeros at the padding."""
        flat = x.new_zeros(self.batch * self.length, *x.shape[1:]).index_copy(0, self.index, x)
        return flat.view(self.batch, self.length, *x.shape[1:])

    def pack_heads(self, x: Tensor) -> Tensor:
        """[B, H, T, d] -> [1, H, N, d]"""
        return self.pack(x.transpose(1, 2)).transpose(0, 1).unsqueeze(0)

    def unpack_heads(self, x: Tensor) -> Tensor:
        """[1, H, N, d] -> [B, H, T, d]"""
        return self.unpack(x[0].transpose(0, 1)).transpose(1, 2)
