"""Image inputs: patches with positions, optionally masked or dropped (MAE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import InterpolatedRowColumn, LearnedGrid, NetworkGrid
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, to_bool_mask
from anyformer.inputs.base import Input
from anyformer.inputs.patches import patchify
from anyformer.inputs.sequences import concat, restore, take
from anyformer.layers.resnet import ResNetBackbone, ResNetConfig


class LearnedTokens(nn.Module):
    """Learned vectors without ids: class tokens, mask tokens, queries."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, width))

    def reset(self, std: float) -> None:
        nn.init.trunc_normal_(self.weight, std=std)

    def forward(self, batch: int | None = None) -> Tensor:
        """The vectors [n, width], or a copy for each row [batch, n, width]."""
        return self.weight if batch is None else self.weight.expand(batch, -1, -1)


# Position embeddings of patches: learned per cell; learned per row and per column, concatenated; sinusoids of the
# index, or of row and column; computed by a network from row and column; none.
ImagePositions = Literal["learned", "learned-2d", "sinusoidal", "sinusoidal-2d", "network", "none"]


@dataclass(frozen=True, kw_only=True)
class ImageInputConfig(Settings):
    image_size: tuple[int, ...]  # rows, columns
    patch_size: tuple[int, ...]  # in pixels, or in cells of the backbone
    n_channels: int = 3
    d_model: int
    backbone: ResNetConfig | None = None  # patches of its features instead of the image (hybrid ViT)
    class_token: bool = True
    distill_token: bool = False  # a second special token, for distillation (DeiT)
    positions: ImagePositions = "learned"
    combine: Literal["add", "concat"] = "add"
    join: bool = False  # of concatenated positions: projects back to d_model
    d_position: int | None = None  # width of position vectors before their own projection (Perceiver)
    patch_bias: bool = True
    norm: NormConfig | None = None  # after adding positions
    masked: bool = True  # accepts attention_mask
    frames: bool = False  # also accepts [batch, frames, channels, height, width], each frame as a row
    dropout: float = 0.0
    mask_ratio: float | None = None  # fraction of patches to drop (MAE)
    mask_token: bool = False  # replaces patches in bool_masked_pos by a learned vector (BEiT)
    add_class_position: bool = False  # adds the class token's position to every cell, without a class token (ViTPose)
    padding: int = 0  # zero padding around the image (ViTPose)
    any_size: bool = False  # accepts other image sizes without interpolate_pos_encoding (BEiT)
    alias: str | None = None

    @property
    def step(self) -> tuple[int, int]:
        """Distance of patches in pixels."""
        cell = 1 if self.backbone is None else self.backbone.reduction
        return self.patch_size[0] * cell, self.patch_size[1] * cell

    @property
    def grid(self) -> tuple[int, int]:
        return self.image_size[0] // self.step[0], self.image_size[1] // self.step[1]

    def check(self) -> None:
        rows, columns = self.grid
        self.require(self.class_token or not self.distill_token, "distill_token needs class_token.")
        self.require(rows > 0 and columns > 0, f"patch_size {self.patch_size} is larger than the image.")
        ratio = 0.0 if self.mask_ratio is None else self.mask_ratio
        self.require(0 <= ratio < 1, f"mask_ratio is {self.mask_ratio}; it must be at least 0 and below 1.")


def make_positions(config: ImageInputConfig, width: int) -> LearnedGrid | InterpolatedRowColumn | NetworkGrid | None:
    rows, columns = config.grid
    if config.positions == "none":
        return None
    if config.positions == "learned-2d":
        return InterpolatedRowColumn(rows, columns, width)
    if config.positions == "network":
        return NetworkGrid(width)
    fixed: dict[ImagePositions, Literal["1d", "2d"]] = {"sinusoidal": "1d", "sinusoidal-2d": "2d"}
    extra = int(config.class_token or config.add_class_position) + config.distill_token
    return LearnedGrid(rows, columns, width, extra, fixed.get(config.positions))


class ImageInput(Input):
    def __init__(self, config: ImageInputConfig) -> None:
        super().__init__()
        self.config = config
        height, width = config.patch_size
        self.mask_name = "attention_mask" if config.masked else None
        self.resnet = ResNetBackbone(config.backbone) if config.backbone is not None else None
        channels = config.n_channels if config.backbone is None else config.backbone.d_out
        self.patches = Linear(channels * height * width, config.d_model, config.patch_bias)
        self.norm = make_norm(config.norm, config.d_model) if config.norm is not None else None
        d_position = config.d_position if config.d_position is not None else config.d_model
        self.positions = make_positions(config, d_position)
        self.project = Linear(d_position, d_position) if config.d_position is not None else None
        self.join = Linear(config.d_model + d_position, config.d_model) if config.join else None
        self.class_token = LearnedTokens(1, config.d_model) if config.class_token else None
        self.distill_token = LearnedTokens(1, config.d_model) if config.distill_token else None
        self.mask_token = LearnedTokens(1, config.d_model) if config.mask_token else None
        names = ["pixel_values", *([self.mask_name] if self.mask_name else []), "interpolate_pos_encoding"]
        names += ["noise"] if config.mask_ratio is not None else []
        names += ["bool_masked_pos"] if config.mask_token else []
        self.names = (*names, *([config.alias] if config.alias else []))

    def forward(self, run: ForwardContext) -> Tokens:
        _, pixels = run.require_one("pixel_values", *([self.config.alias] if self.config.alias else []))
        config = self.config
        pixels = pixels.flatten(0, 1) if config.frames and pixels.dim() == 5 else pixels
        rows, columns = self._check(pixels, bool(run.batch.get("interpolate_pos_encoding")))
        height, width = config.patch_size
        pixels = pixels.to(self.patches.weight.dtype)
        pixels = F.pad(pixels, [config.padding] * 4) if config.padding else pixels
        pixels = pixels if self.resnet is None else self.resnet(pixels)
        x = self._cover(run, self.patches(patchify(pixels, (height, width))))
        x, first = self._place(x, rows, columns)
        tokens = Tokens(x, grid=(rows, columns))
        if config.mask_ratio is not None:
            tokens = self._drop(run, tokens, config.mask_ratio)
        if first is not None:
            tokens = concat([Tokens(first.unsqueeze(0)), tokens])
        x = tokens.x if self.norm is None else self.norm(tokens.x)
        given = run.tensor(self.mask_name) if self.mask_name else None
        mask = to_bool_mask(given, (x.shape[0], x.shape[1]), "attention_mask")
        return Tokens(F.dropout(x, config.dropout, self.training), mask, tokens.positions, grid=(rows, columns))

    def _place(self, x: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor | None]:
        """Return the patches with positions, and the special tokens with theirs."""
        tokens: list[Tensor] = [one() for one in (self.class_token, self.distill_token) if one is not None]
        first = torch.cat(tokens) if tokens else None
        if self.positions is None:
            return x, first
        table = self.positions(rows, columns)
        table = table if self.project is None else self.project(table)
        extra, cells = table[: self.positions.extra], table[self.positions.extra :]
        cells = cells + extra if self.config.add_class_position else cells
        x = self._combine(x, cells.expand(x.shape[0], -1, -1))
        return x, first if first is None or not len(extra) else self._combine(first, extra)

    def _combine(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.config.combine == "add":
            return x + positions
        x = torch.cat([x, positions], dim=-1)
        return x if self.join is None else self.join(x)

    def _cover(self, run: ForwardContext, x: Tensor) -> Tensor:
        """Replace the patches in bool_masked_pos [B, patches] by the mask token."""
        if self.mask_token is None or (covered := run.tensor("bool_masked_pos")) is None:
            return x
        if covered.shape != x.shape[:2]:
            raise InputError(f"bool_masked_pos has shape {list(covered.shape)}; it must be {list(x.shape[:2])}.")
        return torch.where(covered.to(torch.bool).unsqueeze(-1), self.mask_token(), x)

    def _check(self, pixels: Tensor, interpolate: bool) -> tuple[int, int]:
        config = self.config
        if pixels.dim() != 4 or pixels.shape[1] != config.n_channels:
            raise InputError(
                f"pixel_values has shape {list(pixels.shape)}; it must be [batch, {config.n_channels}, height, width]."
            )
        size = (pixels.shape[2], pixels.shape[3])
        if size != tuple(config.image_size) and not (interpolate or config.any_size):
            raise InputError(
                f"pixel_values has images of {size[0]} x {size[1]}, but image_size is {config.image_size[0]} x"
                f" {config.image_size[1]}; resize them, or pass interpolate_pos_encoding=True."
            )
        return size[0] // config.step[0], size[1] // config.step[1]

    def _drop(self, run: ForwardContext, tokens: Tokens, ratio: float) -> Tokens:
        """Keep the patches with the smallest noise (He et al. 2022, appendix A.1). Their positions are their numbers,
        from 1 if a class token precedes them. With ratio 0 and no noise, patches keep their order.
        """
        batch, length = tokens.x.shape[:2]
        noise = run.tensor("noise")
        if noise is None and not ratio:
            noise = torch.arange(length, device=tokens.x.device).expand(batch, -1)
        elif noise is None:
            noise = torch.rand(batch, length, device=tokens.x.device)
        if tuple(noise.shape) != (batch, length):
            raise InputError(f"noise has shape {list(noise.shape)}; it must be {[batch, length]} (batch, patches).")
        order = noise.argsort(dim=1)
        kept = int(length * (1 - ratio))
        back = order.argsort(dim=1)
        run.outputs["ids_restore"] = back
        run.outputs["mask"] = (back >= kept).to(tokens.x.dtype)  # 1 = dropped
        first = int(self.class_token is not None) + (self.distill_token is not None)
        return take(tokens, order[:, :kept])._replace(positions=order[:, :kept] + first)


class RestoreInput(Input):
    """MAE's decoder input: the encoder's tokens at their positions, mask tokens elsewhere."""

    def __init__(self, source: str, d_source: int, d_model: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.source = source  # the stage whose tokens are put back in order
        self.project = Linear(d_source, d_model)
        self.mask_token = LearnedTokens(1, d_model)
        self.positions = LearnedGrid(*grid, d_model, extra=1, fixed="2d")

    def forward(self, run: ForwardContext) -> Tokens:
        encoded = run.tokens[self.source].pad()
        assert encoded.grid is not None and encoded.positions is not None
        rows, columns = encoded.grid
        batch, kept = encoded.x.shape[:2]
        number = torch.full((batch, 1 + rows * columns), kept, device=encoded.x.device)  # of the token at each position
        number = number.scatter(1, encoded.positions, torch.arange(kept, device=number.device).expand(batch, -1))
        x = restore(self.project(encoded.x), number, self.mask_token())
        return Tokens(x + self.positions(rows, columns, flat=True), grid=encoded.grid)
