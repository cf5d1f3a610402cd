"""Perceiver IO (Jaegle et al. 2021): a few learned latents attend to any number of inputs, then to themselves, layer
after layer; learned queries read the answer out of the latents. As the original decoder, except that the queries are
learned and nothing is causal, both sides of the cross-attention are normalized first, and widths differ everywhere.

Published: language 81.0 average on GLUE from raw bytes; learned positions 72.7% on ImageNet (tables 1 and 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from anyformer.config import Settings
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, Sublayer
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.positions import LearnedPositions
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.audio import SpectrogramInput, SpectrogramInputConfig
from anyformer.inputs.base import Input
from anyformer.inputs.image import ImageInput, ImageInputConfig
from anyformer.inputs.queries import LearnedQueries
from anyformer.inputs.raw_pixels import RawPixelInput
from anyformer.inputs.sets import SetInput
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.layers.wrappers import ContextNorm, NoResidual
from anyformer.model import Model, OutputSpec, Stage
from anyformer.registry import Family, register

D_PIXEL = 256  # width of a pixel's features, and of its position, in the published image model
D_WORD_QK = 256  # width of query and key in the published language decoder, over 8 heads
N_WORD_HEADS = 8


@dataclass(frozen=True, kw_only=True)
class PerceiverConfig(Settings):
    head: Literal["masked", "classify-image", "classify-audio", "classify-set"] = "masked"
    n_latents: int = 256
    d_latents: int = 1280
    d_model: int = 768  # width of the words
    n_layers: int = 26  # self-attentions of a round
    n_repeats: int = 1  # how often they are applied
    n_heads: int = 8
    n_cross_heads: int = 8
    d_qk: int | None = None
    d_value: int | None = None
    cross_width: Literal["kv", "q"] = "kv"  # whose width query and key of the cross-attention take, d_qk not given
    widening_factor: int = 1
    cross_widening_factor: int = 1
    activation: str = "gelu"
    attention_dropout: float = 0.1
    query_residual: bool = True
    vocab_size: int = 262
    max_length: int = 2048
    image_size: int = 224
    positions: Literal["learned", "fourier"] = (
        "learned"  # of pixels; "fourier": raw pixels beside waves of their places
    )
    bands: int = 64  # frequencies of the waves
    resolution: int = 224  # pixels a side that the highest frequency can show
    n_mels: int = 64  # of sounds
    n_frames: int = 128
    audio_patch_size: tuple[int, ...] = (4, 4)  # mels, frames of an input; it and its place are d_model wide each
    d_item: int = 3  # numbers that describe an item of a set
    n_labels: int = 1000
    problem: Problem | None = None

    def check(self) -> None:
        for heads in (self.n_heads, self.n_cross_heads):
            self.require(self.d_latents % heads == 0, f"d_latents {self.d_latents} is not a multiple of {heads} heads.")
        value = self.d_value if self.d_value is not None else self.d_qk
        self.require(value in (None, self.d_latents), f"d_value {value} must equal d_latents {self.d_latents}.")

    @property
    def d_inputs(self) -> int:
        if self.head in ("masked", "classify-set"):
            return self.d_model
        if self.head == "classify-audio":
            return 2 * self.d_model
        return 2 * D_PIXEL if self.positions == "learned" else 3 + 2 + 4 * self.bands


def _block(config: PerceiverConfig, name: str, attention: AttentionConfig, widen: int, residual: bool = True) -> Block:
    width, d_context = attention.d_query, attention.d_context
    feedforward = FeedForwardConfig(d_model=width, d_hidden=widen * width, activation=config.activation)
    part: nn.Module = Attention(attention)
    if d_context is not None:
        part = ContextNorm(Attention(attention), nn.LayerNorm(d_context))
    kind = Sublayer if residual else NoResidual
    return Block(
        {name: kind(part, nn.LayerNorm(width)), "feedforward": Sublayer(FeedForward(feedforward), nn.LayerNorm(width))}
    )


def _cross(
    config: PerceiverConfig, d_query: int, d_context: int, n_heads: int, **widths: int | None
) -> AttentionConfig:
    d_qk = widths.get("d_qk")
    if d_qk is None:
        d_qk = d_query if config.cross_width == "q" else d_context
    return AttentionConfig(
        d_query=d_query,
        d_context=d_context,
        n_heads=n_heads,
        d_qk=d_qk,
        d_value=widths.get("d_value"),
        dropout=config.attention_dropout,
    )


def _encoder(config: PerceiverConfig) -> Stack:
    cross = _cross(
        config, config.d_latents, config.d_inputs, config.n_cross_heads, d_qk=config.d_qk, d_value=config.d_value
    )
    attention = AttentionConfig(
        d_query=config.d_latents,
        n_heads=config.n_heads,
        d_qk=config.d_qk,
        d_value=config.d_value,
        dropout=config.attention_dropout,
    )
    reads = _block(config, "cross", cross, config.cross_widening_factor, config.query_residual)
    thinks = [_block(config, "self", attention, config.widening_factor) for _ in range(config.n_layers)]
    return Stack([reads, *thinks * config.n_repeats])  # the same blocks again


def _words(config: PerceiverConfig) -> tuple[TextInput, LearnedQueries, AttentionConfig, bool]:
    inputs = TextInput(
        TextInputConfig(
            vocab_size=config.vocab_size, d_model=config.d_model, position_ids=False, alias="inputs", embeds=False
        ),
        LearnedPositions(config.max_length, config.d_model),
    )
    queries = LearnedQueries(config.max_length, config.d_model, "latents")
    cross = _cross(config, config.d_model, config.d_latents, N_WORD_HEADS, d_qk=D_WORD_QK, d_value=config.d_model)
    return inputs, queries, cross, False


def _things(config: PerceiverConfig) -> tuple[Input, LearnedQueries, AttentionConfig, bool]:
    """Pixels, a sound or a set: whatever it is, one query reads its class."""
    inputs: Input
    if config.head == "classify-set":
        inputs = SetInput(config.d_item, config.d_model)
    elif config.head == "classify-audio":
        inputs = _sound(config)
    else:
        inputs = (
            _learned(config) if config.positions == "learned" else RawPixelInput(3, config.bands, config.resolution)
        )
    queries = LearnedQueries(1, config.d_latents, "latents")
    return inputs, queries, _cross(config, config.d_latents, config.d_latents, 1), True


def _learned(config: PerceiverConfig) -> ImageInput:
    size = (config.image_size, config.image_size)
    return ImageInput(
        ImageInputConfig(
            image_size=size,
            patch_size=(1, 1),
            d_model=D_PIXEL,
            class_token=False,
            combine="concat",
            d_position=D_PIXEL,
            alias="inputs",
        )
    )


def _sound(config: PerceiverConfig) -> SpectrogramInput:
    return SpectrogramInput(
        SpectrogramInputConfig(
            n_frames=config.n_frames,
            n_mels=config.n_mels,
            patch_size=config.audio_patch_size,
            stride=config.audio_patch_size,
            d_model=config.d_model,
            n_tokens=0,
            combine="concat",
        )
    )


def build(config: PerceiverConfig) -> Model:
    inputs: Input
    head: Head
    if config.head == "masked":
        text, queries, cross, residual = _words(config)
        language = LanguageConfig(d_model=config.d_model, vocab_size=config.vocab_size, stage="outputs", bias=True)
        inputs, head = text, LanguageHead(language, text.words)
    else:
        inputs, queries, cross, residual = _things(config)
        head = ClassificationHead(
            ClassificationConfig(
                d_model=config.d_latents, n_labels=config.n_labels, stage="outputs", problem=config.problem
            )
        )
    latents = LearnedQueries(config.n_latents, config.d_latents, "inputs")
    stages = [
        Stage("inputs", inputs, None),
        Stage("latents", latents, _encoder(config), attends="inputs"),
        Stage("outputs", queries, Stack([_block(config, "cross", cross, 1, residual)]), attends="latents"),
    ]
    n = config.n_layers
    rounds = [range(1 + turn * n, 2 + turn * n + n) for turn in range(config.n_repeats)]
    report = OutputSpec(
        hidden={"hidden_states": ("latents", tuple(index for turn in rounds for index in turn))},
        attentions={
            "attentions": ("latents.blocks.*.self.weights",),
            "cross_attentions": ("latents.blocks.*.cross.weights", "outputs.blocks.*.cross.weights"),
        },
        apart="cross_attentions",
    )
    return Model("perceiver", config, stages, {config.head: head}, report)


def init(config: PerceiverConfig) -> InitConfig:
    return InitConfig(linear="fan_in", embedding_std=0.02)


_IMAGE = PerceiverConfig(
    head="classify-image", n_latents=512, d_latents=1024, n_layers=6, n_repeats=8, n_heads=8, n_cross_heads=1
)

_SMALL = PerceiverConfig(
    n_latents=32, d_latents=192, d_model=64, n_layers=4, n_heads=4, n_cross_heads=4, widening_factor=2, n_labels=10
)

SIZES = {
    "perceiver-tiny": PerceiverConfig(
        n_latents=8, d_latents=32, d_model=24, n_layers=2, n_heads=4, n_cross_heads=4, max_length=64
    ),
    "perceiver-language": PerceiverConfig(),
    "perceiver-image": _IMAGE,
    "perceiver-fourier": _IMAGE.replace(positions="fourier"),
    "perceiver-cifar": _IMAGE.replace(
        n_latents=128,
        d_latents=256,
        n_layers=8,
        n_repeats=1,
        widening_factor=2,
        image_size=32,
        positions="fourier",
        bands=32,
        resolution=32,
        n_labels=10,
    ),
    "perceiver-sound": _SMALL.replace(head="classify-audio"),
    "perceiver-set": _SMALL.replace(head="classify-set"),
}

# It knows nothing of neighbors and learns slowly at first: about thirty rounds, with little done to the images.
TRAINING: dict[str, dict[str, Any]] = {
    "perceiver-cifar": {
        "train.batch_size": 256,
        "train.steps": 6000,
        "train.lr": 1e-3,
        "train.warmup_steps": 500,
        "train.eval_every": 1500,
        "task.augment.randaugment_ops": 0,
        "task.augment.random_erasing": 0.0,
        "task.augment.mixup": 0.0,
        "task.augment.cutmix": 0.0,
    }
}

register(Family("perceiver", PerceiverConfig, build, init, __doc__ or ""), SIZES, TRAINING)
