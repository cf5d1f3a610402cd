"""Three captioners over a residual network, each as the captioner ViT + transformer (`vision_encoder_decoder`), except
that a convolutional network sees the image and the writer differs.

Show and Tell (Vinyals et al. 2015): an LSTM that knows the image by its first state alone. Show, Attend and Tell (Xu
et al. 2015): an LSTM that looks at the feature grid before every word, through a gate, and is asked to look everywhere
over a caption; `hard_attention` draws one cell a word instead and learns by reward. The third is a transformer decoder
whose cross-attention sees the cells, after `n_layers` of self-attention among them.

Published: on Flickr8k, with encoders trained on ImageNet, Show and Tell 63 BLEU-1, Show, Attend and Tell
67 / 44.8 / 29.9 / 19.5 (soft) and 67 / 45.7 / 31.4 / 21.3 (hard) BLEU-1 to 4 (table 1 of Xu et al.).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.positions import LearnedGrid
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.caption import AttentionLossConfig, CaptionHead
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.feature_grid import FeatureGridInput
from anyformer.inputs.text import TextInput
from anyformer.layers.recurrent import AttentionRNNDecoder, AttentionRNNDecoderConfig, RNNDecoder, RNNDecoderConfig
from anyformer.layers.resnet import ResNetConfig
from anyformer.layers.wrappers import RecurrentBlock
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.builders import encoder_decoder
from anyformer.recipes.common import pair_report, text_input_config
from anyformer.recipes.settings import EMBEDDED
from anyformer.recipes.text import HeadName, PairConfig
from anyformer.registry import Family, register

_LOOKS = ("cross_attentions",)


@dataclass(frozen=True, kw_only=True)
class CaptionerConfig(Settings):
    """What all three say."""

    backbone: ResNetConfig = ResNetConfig(norm="batch")
    image_size: tuple[int, ...] = (224, 224)
    d_model: int = 512  # of words and, projected, of the grid's cells
    vocab_size: int = 10_000
    dropout: float = 0.5
    padding: int | None = 0
    decoder_start: int = 0
    end: int = 1

    @property
    def n_channels(self) -> int:
        return self.backbone.n_channels

    @property
    def grid(self) -> tuple[int, int]:
        """Cells of the feature grid; one that the image fills in part counts."""
        rows, columns = (-(-side // self.backbone.reduction) for side in self.image_size)
        return rows, columns


@dataclass(frozen=True, kw_only=True)
class ShowTellConfig(CaptionerConfig):
    d_hidden: int = 512
    n_layers: int = 1


@dataclass(frozen=True, kw_only=True)
class ShowAttendTellConfig(CaptionerConfig):
    d_hidden: int = 1000
    hard_attention: bool = False
    coverage_weight: float = 1.0  # how much the loss asks that every cell be looked at
    reward: float = 1.0  # of likely captions, for `hard`
    entropy_weight: float = 0.002


@dataclass(frozen=True, kw_only=True)
class CNNTransformerConfig(CaptionerConfig, PairConfig):
    n_layers: int = 0  # of self-attention among the cells
    n_decoder_layers: int | None = 6
    n_heads: int = 8
    d_hidden: int | None = 2048
    max_length: int = 128

    uses: ClassVar[tuple[HeadName, ...]] = ("language",)
    position_kinds = EMBEDDED  # of the words; the cells have learned ones
    mask_kinds = ("all",)

    @property
    def decoder_side(self) -> Self:
        return super().decoder_side.replace(attention_dropout=None)

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(bias=True)


def _recurrent(config: CaptionerConfig, part: nn.Module, name: str) -> Stage:
    words = TextInput(text_input_config(config, True, config.vocab_size))
    return Stage("decoder", words, Stack([RecurrentBlock(name, part)]), attends="encoder")


def _language(config: CaptionerConfig, width: int) -> LanguageConfig:
    return LanguageConfig(d_model=width, vocab_size=config.vocab_size, stage="decoder", bias=True)


def _model(family: str, config: CaptionerConfig, stages: list[Stage], head: Head, report: OutputSpec) -> Model:
    start, padding = config.decoder_start, config.padding
    return Model(family, config, stages, {"language": head}, report, decoder_start=start, padding=padding)


def build_show_tell(config: ShowTellConfig) -> Model:
    part = RNNDecoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        d_context=config.d_hidden,
        n_layers=config.n_layers,
        dropout=config.dropout,
    )
    encoder = Stage("encoder", FeatureGridInput(config.backbone, config.d_hidden, n_states=2 * config.n_layers), None)
    stages = [encoder, _recurrent(config, RNNDecoder(part), "recurrent")]
    head = LanguageHead(_language(config, config.d_hidden))
    return _model("show-tell", config, stages, head, pair_report(0, 1, attentions=()))


def build_show_attend_tell(config: ShowAttendTellConfig) -> Model:
    part = AttentionRNNDecoderConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        d_context=config.d_model,
        d_out=config.d_model,
        attend="before",
        score="additive",
        init_state="mean",
        deep_output=True,
        gate=True,
        hard_attention=config.hard_attention,
        track_attention=True,
        dropout=config.dropout,
    )
    encoder = Stage("encoder", FeatureGridInput(config.backbone, config.d_model), None)
    look = AttentionLossConfig(
        coverage=config.coverage_weight,
        reward=config.reward if config.hard_attention else 0.0,
        entropy=config.entropy_weight if config.hard_attention else 0.0,
    )
    head = CaptionHead(_language(config, config.d_model), look)
    stages = [encoder, _recurrent(config, AttentionRNNDecoder(part), "cross")]
    return _model("show-attend-tell", config, stages, head, pair_report(0, 1, attentions=_LOOKS))


def cells(config: CNNTransformerConfig) -> FeatureGridInput:
    places = LearnedGrid(*config.grid, config.d_model)
    return FeatureGridInput(config.backbone, config.d_model, places, dropout=config.dropout)


def build_cnn_transformer(config: CNNTransformerConfig) -> Model:
    model = encoder_decoder(config, "cnn-transformer", cells)
    model.report = pair_report(config.n_layers, config.decoder_layers, attentions=_LOOKS)
    return model


def init(config: CaptionerConfig) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=0.1)


def init_transformer(config: CNNTransformerConfig) -> InitConfig:
    return InitConfig(std=config.init_std, residual_depth=2 * (config.n_layers + config.decoder_layers))


_TINY_NET = ResNetConfig(block="basic", d_stem=8, widths=(8, 12), depths=(1, 1), norm="batch")
_TINY: dict[str, Any] = {
    "backbone": _TINY_NET,
    "image_size": (32, 32),
    "d_model": 32,
    "vocab_size": 256,
    "dropout": 0.1,
}
# A few thousand images of 160 x 160: a grid of 10 x 10, and encoders that start from nothing.
_SMALL_NET = ResNetConfig(block="basic", d_stem=64, widths=(64, 128, 256), depths=(2, 2, 2), norm="batch")
_SMALL: dict[str, Any] = {"backbone": _SMALL_NET, "image_size": (160, 160), "d_model": 256, "dropout": 0.3}

register(
    Family("show-tell", ShowTellConfig, build_show_tell, init, "Show and Tell (Vinyals et al. 2015)"),
    {"show-tell-tiny": ShowTellConfig(**_TINY, d_hidden=48), "show-tell-small": ShowTellConfig(**_SMALL, d_hidden=512)},
)
register(
    Family(
        "show-attend-tell", ShowAttendTellConfig, build_show_attend_tell, init, "Show, Attend and Tell (Xu et al. 2015)"
    ),
    {
        "show-attend-tell-tiny": ShowAttendTellConfig(**_TINY, d_hidden=48),
        "show-attend-tell-small": ShowAttendTellConfig(**_SMALL, d_hidden=512),
        "show-attend-tell-hard": ShowAttendTellConfig(**_SMALL, d_hidden=512, hard_attention=True),
    },
)
register(
    Family(
        "cnn-transformer",
        CNNTransformerConfig,
        build_cnn_transformer,
        init_transformer,
        "CNN encoder with a Transformer decoder",
    ),
    {
        "cnn-transformer-tiny": CNNTransformerConfig(**_TINY, n_layers=1, n_decoder_layers=2, n_heads=4, d_hidden=64),
        "cnn-transformer-small": CNNTransformerConfig(
            **_SMALL, n_layers=2, n_decoder_layers=3, n_heads=4, d_hidden=1024
        ),
    },
)
