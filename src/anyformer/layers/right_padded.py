"""Rows for parts that read in order (recurrent, convolutional, state-space): each row's real tokens stand first.

Such parts carry something from token to token, so a padded slot in between would move it. Flush rows have their padding
at the end only, whatever side it came on, and `back` puts the results where the tokens were.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.core.host import is_capturing, to_device
from anyformer.core.packing import Packing
from anyformer.core.tokens import Tokens


@dataclass(frozen=True, eq=False)
class RightPadded:
    x: Tensor  # [B, T, d], the real tokens of each row first, zeros after them
    packing: Packing | None  # None: every token is real, or `mask` says which
    packed: bool = False  # whether the tokens came, and go back, packed
    mask: Tensor | None = None  # [B, T], of tokens as they came, where nobody may look at it (a recorded step)

    @classmethod
    def from_tokens(cls, tokens: Tokens) -> RightPadded:
        packing = tokens.packing
        if packing is None and tokens.mask is not None and is_capturing(tokens.x):
            real = tokens.mask.bool()
            x = gather_tokens(tokens.x.masked_fill(~real.unsqueeze(-1), 0.0), left_align_order(real))
            return cls(x, None, mask=real)
        if packing is None and tokens.mask is not None:
            packing = Packing.of(tokens.mask)
        if packing is None:
            return cls(tokens.x, None)
        x = packing.right_padded.unpack(tokens.x if tokens.packed else packing.pack(tokens.x))
        if x.shape[1] == 0:  # nothing real at all; one empty slot keeps every shape alive
            x = x.new_zeros(x.shape[0], 1, x.shape[2])
        return cls(x, packing, tokens.packed)

    @property
    def full(self) -> bool:
        """Is every token known to be real?"""
        return self.packing is None and self.mask is None

    @property
    def sizes(self) -> Tensor:
        """Real tokens of each row [B]."""
        batch, length = self.x.shape[:2]
        if self.mask is not None:
            return self.mask.sum(dim=1)
        if self.packing is None:
            return torch.full((batch,), length, device=self.x.device)
        return to_device(torch.tensor(self.packing.sizes), self.x.device)

    @property
    def real(self) -> Tensor | None:
        """[B, T]; None: all."""
        if self.full:
            return None
        return torch.arange(self.x.shape[1], device=self.x.device) < self.sizes[:, None]

    def restore(self, y: Tensor) -> Tensor:
        """Results [B, T, …] in the form and at the slots that the tokens had; zeros at the padding."""
        if self.mask is not None:
            return gather_tokens(y, left_align_order(self.mask).argsort(dim=1)).masked_fill(
                ~self.mask.unsqueeze(-1), 0.0
            )
        if self.packing is None:
            return y
        y = y.flatten(0, 1).index_select(0, self.packing.rows * y.shape[1] + self.packing.places)
        return y if self.packed else self.packing.unpack(y)

    def reverse(self, y: Tensor) -> Tensor:
        """Each row's real tokens from last to first, the padding still behind them; its own inverse."""
        if self.full:
            return y.flip(1)
        at = self.sizes[:, None] - 1 - torch.arange(y.shape[1], device=y.device)
        return gather_tokens(y, torch.where(at < 0, torch.arange(y.shape[1], device=y.device), at))

    def extend(self, past: Tensor) -> tuple[Tensor, Tensor]:
        """The rows [B, n + T, d] with the `past` [B, n, d] before them, and the last n real ones: the next past."""
        n = past.shape[1]
        everything = torch.cat([past, self.x], dim=1)
        if self.full:
            return everything, everything[:, everything.shape[1] - n :]
        return everything, gather_tokens(everything, self.sizes[:, None] + torch.arange(n, device=past.device))


def left_align_order(mask: Tensor) -> Tensor:
    """The order [B, T] that puts each row's real tokens first, as they follow one another."""
    return mask.int().argsort(dim=1, descending=True, stable=True)


def gather_tokens(x: Tensor, at: Tensor) -> Tensor:
    """Of each row of x [B, T, d] the tokens `at` [B, n]."""
    return x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[2]))
