"""Pictures into words: as the encoder-decoder of any two families, except that the encoder reads pictures. A ViT with
GPT-2, its cross-attention new, is the captioner without any convolution.

Published: ViT + GPT-2 as nlpconnect/vit-gpt2-image-captioning on the hub, a B/16 encoder with the 124M decoder; the
same pattern carries TrOCR (Li et al. 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.errors import ConfigError
from anyformer.inputs.image import ImageInput
from anyformer.model import Model, Stage
from anyformer.recipes import encoder_decoder
from anyformer.recipes.encoder_decoder import EncoderDecoder
from anyformer.recipes.gpt2 import GPT2
from anyformer.recipes.gpt2 import SIZES as GPT2_SIZES
from anyformer.recipes.vit import SIZES as VIT_SIZES
from anyformer.recipes.vit import ViT
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class VisionEncoderDecoder(EncoderDecoder):
    """The settings of the two sides, as in any encoder-decoder."""


def build(config: VisionEncoderDecoder) -> Model:
    model = encoder_decoder.build(config, "vision-encoder-decoder")
    encoder = model.stages["encoder"]
    if not isinstance(encoder, Stage) or not isinstance(encoder.inputs, ImageInput):
        raise ConfigError(f"the encoder must read pictures; {config.encoder['family']} does not.")
    return model


def _pair(encoder: ViT, decoder: GPT2, end: int) -> VisionEncoderDecoder:
    return VisionEncoderDecoder(
        encoder={"family": "vit", **encoder.replace(head="base").to_json()},
        decoder={"family": "gpt2", **decoder.replace(cross_attention=True).to_json()},
        padding=end,
        decoder_start=end,
        end=end,
    )


_END = 50256  # GPT-2's one token with a meaning of its own begins, ends and fills

RECIPES = {
    # Of two widths, so that the projection between them is there.
    "vision-encoder-decoder-tiny": _pair(VIT_SIZES["vit-tiny"], GPT2_SIZES["gpt2-tiny"].replace(d_model=48), 0),
    "vit-gpt2": _pair(VIT_SIZES["vit-b16"], GPT2_SIZES["gpt2-124m"], _END),
}

register(Family("vision-encoder-decoder", VisionEncoderDecoder, build, encoder_decoder.init, __doc__ or ""), RECIPES)
