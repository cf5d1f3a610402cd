"""Right-padded rows for layers that process tokens in order (recurrent, convolutional, state-space).

In these layers, padding between real tokens would change the state. `RightPadded` moves the real tokens of each row to
its beginning, whatever side the padding was on, and `restore` moves the results back.
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
    x: Tensor  # [B, T, d], the real tokens of each row first, then zeros
    packing: Packing | None  # None: every token is real, or `mask` marks the real ones
    packed: bool = False  # whether the input tokens were packed, and the results must be
    mask: Tensor | None = None  # [B, T], original mask, used if its values cannot be read (in a captured step)

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
        if x.shape[1] == 0:  # without any real tokens, one empty slot avoids empty tensors
            x = x.new_zeros(x.shape[0], 1, x.shape[2])
        return cls(x, packing, tokens.packed)

    @property
    def full(self) -> bool:
        """Whether every token is known to be real."""
        return self.packing is None and self.mask is None

    @property
    def sizes(self) -> Tensor:
        """Number of real tokens of each row [B]."""
        batch, length = self.x.shape[:2]
        if self.mask is not None:
            return self.mask.sum(dim=1)
        if self.packing is None:
            return torch.full((batch,), length, device=self.x.device)
        return to_device(torch.tensor(self.packing.sizes), self.x.device)

    @property
    def real(self) -> Tensor | None:
        """Mask of the real tokens [B, T]; None if all are real."""
        if self.full:
            return None
        return torch.arange(self.x.shape[1], device=self.x.device) < self.sizes[:, None]

    def restore(self, y: Tensor) -> Tensor:
        """Return results [B, T, …] in the layout of the original tokens, with zeros at the padding."""
        if self.mask is not None:
            return gather_tokens(y, left_align_order(self.mask).argsort(dim=1)).masked_fill(
                ~self.mask.unsqueeze(-1), 0.0
            )
        if self.packing is None:
            return y
        y = y.flatten(0, 1).index_select(0, self.packing.rows * y.shape[1] + self.packing.places)
        return y if self.packed else self.packing.unpack(y)

    def reverse(self, y: Tensor) -> Tensor:
        """Reverse each row's real tokens, with the padding still at the end; the function is its own inverse."""
        if self.full:
            return y.flip(1)
        at = self.sizes[:, None] - 1 - torch.arange(y.shape[1], device=y.device)
        return gather_tokens(y, torch.where(at < 0, torch.arange(y.shape[1], device=y.device), at))

    def extend(self, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows [B, n + T, d] with `past` [B, n, d] before them, and their last n real tokens, the next
        `past`."""
        n = past.shape[1]
        everything = torch.cat([past, self.x], dim=1)
        if self.full:
            return everything, everything[:, everything.shape[1] - n :]
        return everything, gather_tokens(everything, self.sizes[:, None] + torch.arange(n, device=past.device))


def left_align_order(mask: Tensor) -> Tensor:
    """The order [B, T] that moves each row's real tokens to its beginning and keeps their order."""
    return mask.int().argsort(dim=1, descending=True, stable=True)


def gather_tokens(x: Tensor, at: Tensor) -> Tensor:
    """Select the tokens `at` [B, n] from each row of x [B, T, d]."""
    return x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[2]))
