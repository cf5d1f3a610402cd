"""CLIP (Radford et al. 2021): as a ViT beside a GPT-2 without cross-attention, except that each gives one vector, and
the two are trained so that a text's lies next to its image's. The image's patches have no bias and are normalized
at the bottom; the text is summed up at its end token. Each tower also stands alone, with the shared space or without.

Published: ViT-B/32 63.2%, ViT-L/14 75.5% of ImageNet's images by the names of its classes alone (table 11).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig
from anyformer.heads.contrastive import LOG_SCALE, ContrastiveHead, ProjectionHead
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.base import TransformerConfig, deep_init, stack
from anyformer.recipes.common import stack_report
from anyformer.recipes.images import ImageConfig
from anyformer.registry import Family, register

Use = Literal["base", "embed"]  # "embed": in the shared space


@dataclass(frozen=True, kw_only=True)
class CLIPTextConfig(TransformerConfig):
    d_model: int = 512
    n_heads: int = 8
    d_hidden: int | None = 2048
    activation: str = "quick_gelu"
    vocab_size: int = 49408
    max_length: int = 77
    padding: int | None = 1
    end: int = 49407  # 2: the largest id in a row, as the first published configs mean it
    d_shared: int = 512
    head: Use = "embed"


@dataclass(frozen=True, kw_only=True)
class CLIPVisionConfig(ImageConfig):
    activation: str = "quick_gelu"
    norm_eps: float = 1e-5
    patch_size: tuple[int, ...] = (32, 32)
    d_shared: int = 512
    head: Use = "embed"

    @property
    def patches(self) -> ImageInputConfig:
        return super().patches.replace(class_token=True, patch_bias=False, norm=self.norm_config, masked=False)

    @property
    def grid_offset(self) -> int:
        return 1

    @property
    def has_final_norm(self) -> bool:
        """The head normalizes the first token alone."""
        return False


@dataclass(frozen=True, kw_only=True)
class CLIPConfig(Settings):
    text: CLIPTextConfig = field(default_factory=CLIPTextConfig)
    vision: CLIPVisionConfig = field(default_factory=CLIPVisionConfig)
    d_shared: int = 512
    log_scale: float = LOG_SCALE  # of the cosines, at the start

    @property
    def vocab_size(self) -> int:
        return self.text.vocab_size

    @property
    def image_size(self) -> tuple[int, ...]:
        return self.vision.image_size


def text_stage(config: CLIPTextConfig) -> Stage:
    words = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        combine=config.positions_combine,
        embeds=False,
        dropout=config.dropout,
    )
    inputs = TextInput(words, config.embedded_positions(config.d_model))
    return Stage("text", inputs, stack(config, causal=True), decodes=False)


def vision_stage(
    config: CLIPVisionConfig, final_norm: NormConfig | None = None, frames: bool = False, optional: bool = False
) -> Stage:
    """CLIP normalizes the first token alone, after this; GIT all of them (`final_norm`), of images or films."""
    inputs = ImageInput(config.patches.replace(frames=frames))
    return Stage("vision", inputs, stack(config, final_norm=final_norm), optional=optional)


def text_head(config: CLIPTextConfig, d_shared: int | None) -> ProjectionHead:
    return ProjectionHead("text", config.d_model, end=config.end, d_shared=d_shared, embeds="text_embeds")


def vision_head(config: CLIPVisionConfig, d_shared: int | None) -> ProjectionHead:
    return ProjectionHead("vision", config.d_model, norm=config.norm_config, d_shared=d_shared, embeds="image_embeds")


def build_text(config: CLIPTextConfig) -> Model:
    head = text_head(config, config.d_shared if config.head == "embed" else None)
    return Model("clip-text", config, [text_stage(config)], {config.head: head}, stack_report("text", config.n_layers))


def build_vision(config: CLIPVisionConfig) -> Model:
    head = vision_head(config, config.d_shared if config.head == "embed" else None)
    report = stack_report("vision", config.n_layers)
    return Model("clip-vision", config, [vision_stage(config)], {config.head: head}, report)


def build(config: CLIPConfig) -> Model:
    match = ContrastiveHead(
        text_head(config.text, config.d_shared), vision_head(config.vision, config.d_shared), config.log_scale
    )
    layers = {"text": config.text.n_layers, "vision": config.vision.n_layers}
    report = OutputSpec(
        hidden={f"{side}_model_output.hidden_states": (side, tuple(range(n + 1))) for side, n in layers.items()},
        attentions={f"{side}_model_output.attentions": (f"{side}.blocks.*.self.weights",) for side in layers},
    )
    stages = [text_stage(config.text), vision_stage(config.vision)]
    return Model("clip", config, stages, {"match": match}, report)


def init(config: CLIPConfig) -> InitConfig:
    return deep_init(config.text)


def _pair(patch: int, width: int, layers: int, text: int, shared: int, image: int = 224) -> CLIPConfig:
    words = CLIPTextConfig(d_model=text, n_heads=text // 64, d_hidden=4 * text, d_shared=shared)
    vision = CLIPVisionConfig(
        n_layers=layers,
        d_model=width,
        n_heads=width // 64,
        d_hidden=4 * width,
        patch_size=(patch, patch),
        image_size=(image, image),
        d_shared=shared,
    )
    return CLIPConfig(text=words, vision=vision, d_shared=shared)


_TINY = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_hidden": 128, "d_shared": 32}
_TINY_TEXT = CLIPTextConfig.from_json({**_TINY, "vocab_size": 256, "max_length": 128, "end": 1, "padding": 0})
_TINY_VISION = CLIPVisionConfig.from_json({**_TINY, "image_size": [32, 32], "patch_size": [8, 8]})

# Made for a few thousand images of 160 x 160 with five captions each.
_SMALL = CLIPConfig(
    text=CLIPTextConfig(
        n_layers=4,
        d_model=256,
        n_heads=4,
        d_hidden=1024,
        d_shared=256,
        vocab_size=6000,
        max_length=64,
        padding=0,
        end=2,
        dropout=0.1,
    ),
    vision=CLIPVisionConfig(
        n_layers=6,
        d_model=384,
        n_heads=6,
        d_hidden=1536,
        d_shared=256,
        image_size=(160, 160),
        patch_size=(16, 16),
        dropout=0.1,
    ),
    d_shared=256,
)

SIZES = {
    "clip-tiny": CLIPConfig(text=_TINY_TEXT, vision=_TINY_VISION, d_shared=32),
    "clip-small": _SMALL,
    #                    patch width layers text shared image
    "clip-b32": _pair(32, 768, 12, 512, 512),
    "clip-b16": _pair(16, 768, 12, 512, 512),
    "clip-l14": _pair(14, 1024, 24, 768, 768),
    "clip-l14-336": _pair(14, 1024, 24, 768, 768, 336),
}

register(Family("clip", CLIPConfig, build, init, __doc__ or ""), SIZES)
register(
    Family("clip-text", CLIPTextConfig, build_text, deep_init, "Text tower of CLIP"), {"clip-text-tiny": _TINY_TEXT}
)
register(
    Family("clip-vision", CLIPVisionConfig, build_vision, deep_init, "Image tower of CLIP"),
    {"clip-vision-tiny": _TINY_VISION},
)
