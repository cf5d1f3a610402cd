"""GIT, a generative image-to-text transformer (Wang et al. 2022): as BERT's stack with a language head, except that it
is causal and CLIP's vision tower stands in front of the text: its tokens see each other both ways, and every word sees
them. Several frames of a film may stand there, each marked by a vector.

Published: base 131.4 CIDEr on COCO's captions (table 5 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import Causal
from anyformer.core.norms import NormConfig
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.prefix import PrefixedTextInput
from anyformer.inputs.text import TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.clip import CLIPVisionConfig, vision_stage
from anyformer.recipes.common import TINY, check_heads_divide, normal_init, stack_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class GITConfig(Settings):
    vision: CLIPVisionConfig = field(default_factory=lambda: CLIPVisionConfig(patch_size=(16, 16), head="base"))
    n_layers: int = 6
    d_model: int = 768
    n_heads: int = 12
    d_hidden: int = 3072
    vocab_size: int = 30522
    max_length: int = 1024
    activation: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    n_frames: int | None = None  # of a film; None: images alone
    tied: bool = False
    padding: int | None = 0
    begin: int | None = 101  # how a text begins and ends
    end: int | None = 102

    def check(self) -> None:
        check_heads_divide(self)
        self.require((self.n_frames or 0) <= 1000, f"n_frames is {self.n_frames}; it must be at most 1,000.")

    @property
    def image_size(self) -> tuple[int, ...]:
        return self.vision.image_size


def _block(config: GITConfig) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model, n_heads=config.n_heads, dropout=config.attention_dropout, mask=Causal()
    )
    feedforward = FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation)
    norm = NormConfig(eps=config.norm_eps)
    return transformer_block(attention, feedforward, order="post", norm=norm, dropout=config.dropout)


def build(config: GITConfig) -> Model:
    words = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=config.d_model,
        norm=NormConfig(eps=config.norm_eps),
        dropout=config.dropout,
        padding=config.padding,
    )
    inputs = PrefixedTextInput(
        words,
        LearnedPositions(config.max_length, config.d_model),
        "vision",
        config.vision.d_model,
        NormConfig(eps=config.vision.norm_eps),
        config.n_frames,
    )
    vision = vision_stage(config.vision, final_norm=True, frames=config.n_frames is not None, optional=True)
    stack = Stack([_block(config) for _ in range(config.n_layers)])
    settings = LanguageConfig(
        d_model=config.d_model,
        vocab_size=config.vocab_size,
        stage="decoder",
        shift=True,
        bias=True,
        keep=True,
        prefixed=True,
    )
    head = LanguageHead(settings, inputs.words if config.tied else None)
    report = stack_report("decoder", config.n_layers)
    return Model("git", config, [vision, Stage("decoder", inputs, stack)], {"language": head}, report)


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

register(Family("git", GITConfig, build, normal_init, __doc__ or ""), SIZES)
