"""Audio inputs: patches of a spectrogram, or frames after two convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.positions import LearnedGrid, LearnedPositions
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext, check_shape, to_bool_mask
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens


@dataclass(frozen=True, kw_only=True)
class SpectrogramInputConfig(Settings):
    n_frames: int
    n_mels: int
    patch_size: tuple[int, ...]  # mels, frames
    stride: tuple[int, ...]  # distance of patches; if smaller than patch_size, they overlap
    d_model: int
    n_tokens: int = 2  # learned tokens before the patches: class and distillation token
    combine: Literal["add", "concat"] = "add"  # add positions to patches, or concatenate them
    d_position: int | None = None  # None: d_model
    positions: bool = True  # a learned vector for each patch and each of those tokens
    dropout: float = 0.0

    @property
    def grid(self) -> tuple[int, int]:
        (height, width), (down, along) = self.patch_size, self.stride
        return (self.n_mels - height) // down + 1, (self.n_frames - width) // along + 1

    def check(self) -> None:
        fits = self.patch_size[0] <= self.n_mels and self.patch_size[1] <= self.n_frames
        self.require(fits, f"a patch of {self.patch_size} exceeds {self.n_mels} mels x {self.n_frames} frames.")
        self.require(min(self.stride) > 0, f"stride {self.stride} must be above 0.")


class SpectrogramInput(Input):
    """[B, frames, mels] as an image with low frequencies at the top; patches run along time first."""

    mask_name = "attention_mask"
    names = ("input_values", "attention_mask")

    def __init__(self, config: SpectrogramInputConfig) -> None:
        super().__init__()
        self.config = config
        height, width = config.patch_size
        self.patches = Linear(height * width, config.d_model)
        d_position = config.d_position if config.d_position is not None else config.d_model
        self.positions = LearnedGrid(*config.grid, d_position, extra=config.n_tokens) if config.positions else None
        self.tokens = nn.ModuleList(LearnedTokens(1, config.d_model) for _ in range(config.n_tokens))

    def forward(self, run: ForwardContext) -> Tokens:
        _, values = run.require_one("input_values")
        config = self.config
        check_shape(values, "input_values", "batch", config.n_frames, config.n_mels)
        x = self.patches(self._cut(values.to(self.patches.weight.dtype)))
        learned = torch.cat([token() for token in self.tokens]) if config.n_tokens else None
        if self.positions is not None:
            table = self.positions(*config.grid)
            extra, cells = table[: config.n_tokens], table[config.n_tokens :]
            x = x + cells if config.combine == "add" else torch.cat([x, cells.expand(x.shape[0], -1, -1)], dim=-1)
            learned = None if learned is None else learned + extra
        if learned is not None:
            x = torch.cat([learned.expand(x.shape[0], -1, -1), x], dim=1)
        mask = to_bool_mask(run.tensor("attention_mask"), (x.shape[0], x.shape[1]), "attention_mask")
        return Tokens(F.dropout(x, config.dropout, self.training), mask, grid=config.grid)

    def _cut(self, values: Tensor) -> Tensor:
        """[B, frames, mels] -> [B, patches, mels·frames of a patch]."""
        (height, width), (down, along) = self.config.patch_size, self.config.stride
        return values.transpose(1, 2).unfold(1, height, down).unfold(2, width, along).flatten(3).flatten(1, 2)


class MelConvInput(Input):
    """Two convolutions of width 3 over [B, mels, frames], the second with stride 2. attention_mask is ignored: padding
    is read as silence.
    """

    names = ("input_features", "attention_mask")

    def __init__(self, n_mels: int, n_tokens: int, d_model: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.n_mels, self.n_tokens, self.dropout = n_mels, n_tokens, dropout
        self.window = 2 * n_tokens  # fixed number of frames
        self.first = Linear(3 * n_mels, d_model)
        self.second = Linear(3 * d_model, d_model)
        self.positions = LearnedPositions(n_tokens, d_model, fixed="stretched")

    def forward(self, run: ForwardContext) -> Tokens:
        _, frames = run.require_one("input_features")
        why = ": pad the audio with silence, or use generate, which accepts any length"
        check_shape(frames, "input_features", "batch", self.n_mels, 2 * self.n_tokens, why=why)
        x = F.gelu(self.first(_neighbors(frames.to(self.first.weight.dtype).transpose(1, 2))))
        x = F.gelu(self.second(_neighbors(x, 2)))
        x = x + self.positions(Tokens(x))
        return Tokens(F.dropout(x, self.dropout, self.training))


def _neighbors(x: Tensor, step: int = 1) -> Tensor:
    """Concatenate each frame with its neighbors, [B, T, d] -> [B, T / step, 3d]; zeros beyond the ends."""
    return F.pad(x, (0, 0, 1, 1)).unfold(1, 3, step).flatten(2)
