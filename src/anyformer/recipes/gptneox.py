"""GPT-NeoX (Black et al. 2022): as GPT-2, except that attention and the feed-forward network of a layer read the same
input and are added together, positions turn a quarter of each head's features instead of being added, and the output
has a table of its own. Pythia (Biderman et al. 2023) is the same family in ten sizes.

Published: 20B 72.0% on LAMBADA, zero-shot (the GPT-NeoX paper).
"""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import Causal
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Rotary
from anyformer.core.rope import RopeConfig
from anyformer.core.stack import Stack
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import TINY, check_heads_divide, next_token_head, stack_report, transformer_block
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class GPTNeoXConfig(Settings):
    n_layers: int = 44
    d_model: int = 6144
    n_heads: int = 64
    d_hidden: int = 24576
    vocab_size: int = 50432
    max_length: int = 2048
    activation: str = "gelu"
    norm_eps: float = 1e-5
    parallel: bool = True
    bias: bool = True  # of the attention's projections
    rope: RopeConfig = RopeConfig(partial_rotary_factor=0.25)
    dropout: float = 0.0
    attention_dropout: float = 0.0
    tied: bool = False
    init_std: float = 0.02
    end: int | tuple[int, ...] | None = 0

    def check(self) -> None:
        check_heads_divide(self)


def _block(config: GPTNeoXConfig) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model,
        n_heads=config.n_heads,
        bias=config.bias,
        out_bias=config.bias,
        dropout=config.attention_dropout,
        mask=Causal(),
    )
    feedforward = FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden, activation=config.activation)
    norm = NormConfig(eps=config.norm_eps)
    return transformer_block(attention, feedforward, norm=norm, dropout=config.dropout, parallel=config.parallel)


def build(config: GPTNeoXConfig) -> Model:
    inputs = TextInput(
        TextInputConfig(vocab_size=config.vocab_size, d_model=config.d_model, dropout=config.dropout),
    )
    rotary = Rotary(config.d_model // config.n_heads, rope=config.rope, trained=config.max_length)
    norm = make_norm(NormConfig(eps=config.norm_eps), config.d_model)
    stack = Stack([_block(config) for _ in range(config.n_layers)], norm, rotary)
    head = next_token_head(config, inputs)
    report = stack_report("decoder", config.n_layers, normed=True)
    stage = Stage("decoder", inputs, stack)
    return Model("gptneox", config, [stage], {"language": head}, report)


def init(config: GPTNeoXConfig) -> InitConfig:
    return InitConfig(std=config.init_std)


def _pythia(n_layers: int, d_model: int, n_heads: int, vocab_size: int = 50304) -> GPTNeoXConfig:
    return GPTNeoXConfig(
        n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_hidden=4 * d_model, vocab_size=vocab_size
    )


SIZES = {
    "gptneox-tiny": GPTNeoXConfig(**TINY, vocab_size=256, max_length=128, attention_dropout=0.1),
    "gptneox-20b": GPTNeoXConfig(),
    #                    layers  width  heads  words
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    "pythia-12b": _pythia(36, 5120, 40, 50688),
}

register(Family("gptneox", GPTNeoXConfig, build, init, __doc__ or ""), SIZES)
