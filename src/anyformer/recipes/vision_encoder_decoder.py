"""Image encoder with a text decoder: as the encoder-decoder of any two families, except that the encoder reads images.
A ViT with GPT-2 and newly initialized cross-attention is the captioner without convolutions.

With TrOCR's decoder it reads lines of text (Li et al. 2021): the base and large models, and one made for lines of 32 by
640 pixels that is spelled by characters.

Published: ViT + GPT-2 as nlpconnect/vit-gpt2-image-captioning on the hub, a B/16 encoder with the 124M decoder; TrOCR
base 3.42% and large 2.89% of characters wrong on IAM's handwriting (table 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.errors import ConfigError
from anyformer.model import Model, Stage
from anyformer.recipes import encoder_decoder
from anyformer.recipes.deit import DeiTConfig
from anyformer.recipes.encoder_decoder import EncoderDecoderConfig
from anyformer.recipes.gpt2 import SIZES as GPT2_SIZES
from anyformer.recipes.gpt2 import GPT2Config
from anyformer.recipes.trocr import TrOCRConfig
from anyformer.recipes.vit import SIZES as VIT_SIZES
from anyformer.recipes.vit import ViTConfig
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class VisionEncoderDecoderConfig(EncoderDecoderConfig):
    """The settings of the two sides, as in any encoder-decoder."""


def build(config: VisionEncoderDecoderConfig) -> Model:
    model = encoder_decoder.build(config, "vision-encoder-decoder")
    encoder = model.stages["encoder"]
    if not isinstance(encoder, Stage) or "pixel_values" not in encoder.inputs.names:
        raise ConfigError(f"the encoder must read images; {config.encoder['family']} does not.")
    return model


def _reader(encoder: ViTConfig, decoder: TrOCRConfig, start: int, end: int) -> VisionEncoderDecoderConfig:
    return VisionEncoderDecoderConfig(
        encoder={
            "family": "deit" if isinstance(encoder, DeiTConfig) else "vit",
            **encoder.replace(head="base").to_json(),
        },
        decoder={"family": "trocr", **decoder.to_json()},
        padding=decoder.padding,
        decoder_start=start,
        end=end,
    )


def _pair(encoder: ViTConfig, decoder: GPT2Config, end: int) -> VisionEncoderDecoderConfig:
    return VisionEncoderDecoderConfig(
        encoder={"family": "vit", **encoder.replace(head="base").to_json()},
        decoder={"family": "gpt2", **decoder.replace(cross_attention=True).to_json()},
        padding=end,
        decoder_start=end,
        end=end,
    )


_LARGE_PICTURES = ViTConfig(image_size=(384, 384), qkv_bias=False)
_END = 50256  # GPT-2's one token with a meaning of its own begins, ends and fills

RECIPES = {
    # Of two widths, so that the projection between them is there.
    "vision-encoder-decoder-tiny": _pair(VIT_SIZES["vit-tiny"], GPT2_SIZES["gpt2-tiny"].replace(d_model=48), 0),
    "vit-gpt2": _pair(VIT_SIZES["vit-b16"], GPT2_SIZES["gpt2-124m"], _END),
    # BEiT's weights without its relative positions, and RoBERTa large's vocabulary.
    "trocr-small": _reader(
        DeiTConfig(d_model=384, n_heads=6, d_hidden=1536, image_size=(384, 384)),
        TrOCRConfig(
            n_layers=6,
            d_model=256,
            n_heads=8,
            d_hidden=1024,
            d_context=384,
            vocab_size=64044,
            activation="relu",
            scale_embedding=True,
            tied=False,
        ),
        2,
        2,
    ),
    "trocr-base": _reader(_LARGE_PICTURES, TrOCRConfig(d_context=768), 2, 2),
    "trocr-large": _reader(
        _LARGE_PICTURES.replace(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096), TrOCRConfig(d_context=1024), 2, 2
    ),
    # A few thousand images of 160 x 160 and their captions.
    "vit-transformer-small": _pair(
        ViTConfig(n_layers=6, d_model=256, n_heads=4, d_hidden=1024, image_size=(160, 160), dropout=0.1),
        GPT2Config(n_layers=3, d_model=256, n_heads=4, vocab_size=10_000, max_length=128),
        0,
    ),
    "trocr-small-lines": _reader(
        ViTConfig(
            n_layers=6, d_model=256, n_heads=4, d_hidden=1024, image_size=(32, 640), patch_size=(32, 8), n_channels=1
        ),
        TrOCRConfig(n_layers=3, d_model=256, n_heads=4, d_hidden=1024, vocab_size=256, max_length=128, padding=0),
        1,
        2,
    ),
}

register(
    Family("vision-encoder-decoder", VisionEncoderDecoderConfig, build, encoder_decoder.init, __doc__ or ""), RECIPES
)
