"""Llama (Touvron et al. 2023): as GPT-2, except that positions turn queries and keys instead of being added, norms are
RMS norms, the feed-forward network is gated with SiLU, several query heads share one key and value head, nothing has a
bias, and the output has a table of its own. Llama 3.1 stretches the rotation to longer texts.

The fields with which the kin differ (windows, query and key norms, sandwich norms) are here too; each of them is a
recipe of its own. SmolLM2 is this family as it stands.

Published: Llama 2 7B 45.3% on MMLU, Llama 3 8B 66.6% (their model cards); SmolLM2 1.7B 68.7% on HellaSwag (its own).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import Causal, Mask, Window
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Rotary
from anyformer.core.rope import RopeConfig
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import next_token_head, stack_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class LlamaConfig(Settings):
    n_layers: int = 32
    d_model: int = 4096
    n_heads: int = 32
    n_kv_heads: int | None = None  # None: n_heads
    d_head: int | None = None  # None: d_model / n_heads
    d_hidden: int = 11008
    vocab_size: int = 32000
    max_length: int = 4096
    activation: str = "silu"
    norm: Literal["rms", "rms_offset"] = "rms"
    norm_eps: float = 1e-5
    sandwich: bool = False  # norms after the sublayers as well as before
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    hidden_bias: bool = False
    scale: float | None = None  # scores are divided by the root of this; None: of d_head
    ropes: tuple[RopeConfig, ...] = (
        RopeConfig(),
    )  # of all layers; or of those that see everything, and of those with a window
    window: int | None = None  # tokens that a query sees, itself among them
    windowed: tuple[bool, ...] = (True,)  # which layers have the window, over and over up to n_layers
    scale_embedding: bool = False  # multiply word vectors by √d_model
    attention_dropout: float = 0.0
    tied: bool = False
    init_std: float = 0.02
    padding: int | None = None
    end: int | tuple[int, ...] | None = 2

    def check(self) -> None:
        whole = self.d_head is not None or self.d_model % self.n_heads == 0
        self.require(whole, f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}.")
        self.require(bool(self.windowed), "windowed needs an entry at least.")
        self.require(len(self.ropes) in (1, 2), f"ropes has {len(self.ropes)} entries; it takes one or two.")
        self.require(self.window is None or self.window > 0, f"window is {self.window}; it must be 1 or more.")

    @property
    def head_width(self) -> int:
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads

    @property
    def windows(self) -> list[bool]:
        """For each layer, whether it has a window."""
        return [self.window is not None and self.windowed[i % len(self.windowed)] for i in range(self.n_layers)]


def _norm(config: LlamaConfig) -> NormConfig:
    return NormConfig(kind=config.norm, eps=config.norm_eps)


def _block(config: LlamaConfig, windowed: bool) -> Block:
    mask: Mask = Causal()
    if windowed and config.window is not None:
        mask = mask & Window(config.window - 1)
    attention = AttentionConfig(
        d_query=config.d_model,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_qk=config.n_heads * config.head_width,
        bias=config.qkv_bias,
        out_bias=config.out_bias,
        scale=None if config.scale is None else config.scale**-0.5,
        qk_norm=_norm(config) if config.qk_norm else None,
        dropout=config.attention_dropout,
        mask=mask,
    )
    feedforward = FeedForwardConfig(
        d_model=config.d_model,
        d_hidden=config.d_hidden,
        activation=config.activation,
        gated=True,
        bias=config.hidden_bias,
    )
    return transformer_block(attention, feedforward, order="sandwich" if config.sandwich else "pre", norm=_norm(config))


def build(config: LlamaConfig, family: str = "llama") -> Model:
    inputs = TextInput(
        TextInputConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            scale=config.d_model**0.5 if config.scale_embedding else 1.0,
            padding=config.padding,
        )
    )
    rotations = [Rotary(config.head_width, rope=rope, trained=config.max_length) for rope in config.ropes]
    stack = Stack(
        [_block(config, windowed) for windowed in config.windows],
        make_norm(_norm(config), config.d_model),
        [rotations[-1] if windowed else rotations[0] for windowed in config.windows],
    )
    head = next_token_head(config, inputs)
    report = stack_report("decoder", config.n_layers, normed=True)
    return Model(family, config, [Stage("decoder", inputs, stack)], {"language": head}, report)


def init(config: LlamaConfig) -> InitConfig:
    return InitConfig(std=config.init_std)


TINY = LlamaConfig(
    n_layers=2, d_model=64, n_heads=4, n_kv_heads=2, d_hidden=128, vocab_size=256, max_length=128, attention_dropout=0.1
)

_LLAMA3 = LlamaConfig(
    n_kv_heads=8, d_hidden=14336, vocab_size=128256, max_length=8192, ropes=(RopeConfig(theta=500_000.0),), end=128001
)
_STRETCHED = RopeConfig(theta=500_000.0, rope_type="llama3", factor=32.0, original_max_length=8192)
_SMOL = LlamaConfig(vocab_size=49152, max_length=8192, ropes=(RopeConfig(theta=100_000.0),), tied=True, end=0)

SIZES = {
    "llama-tiny": TINY,
    "llama2-7b": LlamaConfig(),
    "llama3-8b": _LLAMA3,
    "llama3.2-1b": _LLAMA3.replace(
        n_layers=16, d_model=2048, d_hidden=8192, max_length=131072, ropes=(_STRETCHED,), tied=True
    ),
    "smollm2-135m": _SMOL.replace(n_layers=30, d_model=576, n_heads=9, n_kv_heads=3, d_hidden=1536),
    "smollm2-360m": _SMOL.replace(n_layers=32, d_model=960, n_heads=15, n_kv_heads=5, d_hidden=2560),
    "smollm2-1.7b": _SMOL.replace(
        n_layers=24, d_model=2048, n_heads=32, d_hidden=8192, ropes=(RopeConfig(theta=130_000.0),)
    ),
}

register(Family("llama", LlamaConfig, build, init, __doc__ or ""), SIZES)
