"""Masked autoencoder (He et al. 2022): as ViT, except that three quarters of the patches are dropped before the
encoder, positions are fixed sines and cosines, and a small decoder sees the rest again, a mask token in place of each
dropped patch, and predicts its pixels.

Published: B 83.6%, L 85.9%, H 86.9% on ImageNet after fine-tuning (table 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

from anyformer import registry
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.pixels import PixelHead
from anyformer.inputs.image import ImageInput, ImageInputConfig, RestoreInput
from anyformer.model import Model, Stage
from anyformer.recipes.base import TINY, stack, xavier_init
from anyformer.recipes.builders import register
from anyformer.recipes.common import stack_report
from anyformer.recipes.images import ImageConfig
from anyformer.recipes.settings import EMBEDDED, EMBEDDED_2D
from anyformer.recipes.vit import ViTConfig


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ImageConfig):
    """What MAE and VideoMAE say."""

    n_decoder_layers: int = 8
    d_decoder: int = 512
    n_decoder_heads: int = 16
    d_decoder_hidden: int = 2048
    mask_ratio: float = 0.75
    norm_pix_loss: bool = False

    mask_kinds = ("all",)  # tokens are dropped

    def check(self) -> None:
        super().check()
        width, heads = self.d_decoder, self.n_decoder_heads
        self.require(width % heads == 0, f"the width {width} is not a multiple of its {heads} heads.")

    @property
    def decoder(self) -> Self:
        """The decoder's sizes in the place of the encoder's."""
        return self.replace(
            n_layers=self.n_decoder_layers,
            d_model=self.d_decoder,
            n_heads=self.n_decoder_heads,
            d_hidden=self.d_decoder_hidden,
        )


@dataclass(frozen=True, kw_only=True)
class MAEConfig(AutoencoderConfig):
    positions: str = "sinusoidal-2d"
    head: Literal["base", "pixels"] = "pixels"

    position_kinds = (*EMBEDDED, *EMBEDDED_2D)

    @property
    def patches(self) -> ImageInputConfig:
        return super().patches.replace(class_token=True, mask_ratio=self.mask_ratio)


def build(config: MAEConfig, family: str) -> Model:
    images = config.patches
    report = stack_report("encoder", config.n_layers)
    if config.head == "base":
        stage = Stage("encoder", ImageInput(images), stack(config))
        return Model(family, config, [stage], {"base": EmbeddingHead("encoder")}, report)
    restore = RestoreInput("encoder", config.d_model, config.d_decoder, images.grid)
    stages = [Stage("encoder", ImageInput(images), stack(config)), Stage("decoder", restore, stack(config.decoder))]
    patch = (config.patch_size[0], config.patch_size[1])
    head = PixelHead(config.d_decoder, patch, config.n_channels, config.norm_pix_loss, "decoder", "encoder")
    return Model(family, config, stages, {"pixels": head}, report)


def encoder(model: Model) -> Model:
    """The encoder as a ViT that classifies the mean of its patches: what is fine-tuned after pre-training, its places
    still the fixed ones. Blocks are left out as in the paper's fine-tuning (table 9)."""
    old: MAEConfig = model.config  # type: ignore[assignment]
    same = {
        name: getattr(old, name)
        for name in ViTConfig.field_names()
        if name in MAEConfig.field_names() and name != "head"
    }
    config = ViTConfig(**{**same, "pooling": "mean", "drop_path": 0.1})
    single = registry.build_config(registry.family("vit"), config)
    ours = {name: value for name, value in model.state_dict().items() if name.startswith("encoder.")}
    missing, _ = single.load_state_dict(ours, strict=False, assign=model.device.type == "meta")
    assert not any(name.startswith("encoder.") for name in missing)
    single.origin.files = dict(model.origin.files)
    return single.to(device=model.device, dtype=model.dtype)


SIZES = {
    "mae-tiny": MAEConfig(
        **TINY,
        n_decoder_layers=1,
        d_decoder=32,
        n_decoder_heads=4,
        d_decoder_hidden=64,
        image_size=(32, 32),
        patch_size=(8, 8),
    ),
    # Its encoder is as wide and deep as vit-lite.
    "mae-cifar": MAEConfig(
        n_layers=7,
        d_model=256,
        n_heads=4,
        d_hidden=512,
        n_decoder_layers=2,
        d_decoder=128,
        n_decoder_heads=4,
        d_decoder_hidden=256,
        image_size=(32, 32),
        patch_size=(4, 4),
        norm_eps=1e-6,
        norm_pix_loss=True,
    ),
    "mae-b16": MAEConfig(),
    "mae-l16": MAEConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096),
    "mae-h14": MAEConfig(n_layers=32, d_model=1280, n_heads=16, d_hidden=5120, patch_size=(14, 14)),
}

register("mae", MAEConfig, build, SIZES, xavier_init, {"mae-cifar": {"train.lr": 2e-3}}, finetune_model=encoder)
