"""GIT, a generative image-to-text transformer (Wang et al. 2022): as BERT's stack with a language head, except that it
is causal and CLIP's vision tower stands in front of the text: its tokens see each other both ways, and every word sees
them. Several frames of a film may stand there, each marked by a vector.

Published: base 131.4 CIDEr on COCO's captions (table 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from anyformer.core.block import NormOrder
from anyformer.heads.language import LanguageConfig
from anyformer.inputs.prefix import PrefixedTextInput
from anyformer.model import Model, Stage
from anyformer.recipes.base import TINY, stack
from anyformer.recipes.builders import register
from anyformer.recipes.clip import CLIPVisionConfig, vision_stage
from anyformer.recipes.common import stack_report
from anyformer.recipes.settings import EMBEDDED
from anyformer.recipes.text import DecoderConfig, HeadName, decoder_heads, text_input_config


@dataclass(frozen=True, kw_only=True)
class GITConfig(DecoderConfig):
    vision: CLIPVisionConfig = field(default_factory=lambda: CLIPVisionConfig(patch_size=(16, 16), head="base"))
    n_layers: int = 6
    d_hidden: int | None = 3072
    vocab_size: int = 30522
    max_length: int = 1024
    norm_eps: float = 1e-12
    norm_order: NormOrder = "post"
    embedding_norm: bool = True
    dropout: float = 0.1
    attention_dropout: float | None = 0.1
    n_frames: int | None = None  # of a film; None: images alone
    tied: bool = False
    padding: int | None = 0
    begin: int | None = 101  # how a text begins and ends
    end: int | None = 102

    uses: ClassVar[tuple[HeadName, ...]] = ("language", "base")
    position_kinds = EMBEDDED  # of the text; an image's tokens have those of their encoder
    mask_kinds = ("all",)

    def check(self) -> None:
        super().check()
        self.require((self.n_frames or 0) <= 1000, f"n_frames is {self.n_frames}; it must be at most 1,000.")

    @property
    def image_size(self) -> tuple[int, ...]:
        return self.vision.image_size

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(bias=True, prefixed=True)


def build(config: GITConfig, family: str) -> Model:
    eyes = config.vision
    inputs = PrefixedTextInput(
        text_input_config(config),
        config.embedded_positions(config.d_model),
        "vision",
        eyes.d_model,
        eyes.norm_config,
        config.n_frames,
    )
    vision = vision_stage(eyes, final_norm=eyes.norm_config, frames=config.n_frames is not None, optional=True)
    stages = [vision, Stage("decoder", inputs, stack(config, causal=True))]
    return Model(family, config, stages, decoder_heads(config, inputs), stack_report("decoder", config.n_layers))


_TINY = CLIPVisionConfig(
    n_layers=2, d_model=48, n_heads=4, d_hidden=96, image_size=(32, 32), patch_size=(8, 8), head="base"
)
_LARGE = CLIPVisionConfig(n_layers=24, d_model=1024, n_heads=16, d_hidden=4096, patch_size=(14, 14), head="base")

SIZES = {
    "git-tiny": GITConfig(vision=_TINY, **TINY, vocab_size=256, max_length=128, begin=1, end=2),
    "git-base": GITConfig(),
    "git-large": GITConfig(vision=_LARGE),
    "git-base-vatex": GITConfig(n_frames=6),
}

register("git", GITConfig, build, SIZES)
