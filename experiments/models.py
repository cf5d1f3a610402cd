"""Small models for experiments, put together from the library's parts where no recipe has the difference that is asked
about: tokens go in, a stack of any blocks reads them, and every token gets a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from anyformer.config import Settings
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, NormOrder, Sublayer
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Positions
from anyformer.core.stack import Stack
from anyformer.heads.tag import TokenClassificationConfig, TokenClassificationHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.layers.convolution import DilatedConvBlock, DilatedConvBlockConfig, TokenMixing, TokenMixingConfig
from anyformer.layers.recurrent import RNNEncoder, RNNEncoderConfig
from anyformer.layers.wrappers import NoResidual, RecurrentBlock
from anyformer.model import Model, OutputSpec, Stage
from anyformer.registry import Family, build_config

PARTS: dict[type[Settings], type[torch.nn.Module]] = {
    AttentionConfig: Attention,
    FeedForwardConfig: FeedForward,
    DilatedConvBlockConfig: DilatedConvBlock,
    TokenMixingConfig: TokenMixing,
    RNNEncoderConfig: RNNEncoder,
}


@dataclass(frozen=True, kw_only=True)
class BlockSpec(Settings):
    """A block before it is built: its parts by name, and what all of its sublayers have in common."""

    parts: Any  # tuples of a name and the settings of a part
    order: NormOrder = "pre"
    norm: NormConfig | None = NormConfig()
    residual: bool = True

    def build(self) -> torch.nn.Module:
        if len(self.parts) == 1 and not self.residual and self.norm is None:
            ((name, config),) = self.parts
            return RecurrentBlock(name, PARTS[type(config)](config))
        kind = Sublayer if self.residual else NoResidual
        return Block({name: kind(PARTS[type(c)](c), self._norm(c), order=self.order) for name, c in self.parts})

    def _norm(self, part: Settings) -> torch.nn.Module | None:
        width = part.d_query if isinstance(part, AttentionConfig) else part.d_model  # type: ignore[attr-defined]
        return None if self.norm is None else make_norm(self.norm, width)


@dataclass(frozen=True, kw_only=True)
class Reader(Settings):
    """`blocks` from the bottom up; `width` is what comes out of the last one."""

    vocab_size: int
    n_labels: int
    d_model: int
    blocks: tuple[BlockSpec, ...]
    width: int | None = None
    final_norm: NormConfig | None = NormConfig()
    init: InitConfig = InitConfig(linear="fan_in", embedding_std=1.0)


def read_with(config: Reader, *, seed: int, embed: Positions | None = None, attend: Positions | None = None) -> Model:
    """A fresh model. `embed` adds positions to the words, `attend` tells every self-attention of them."""

    def build(config: Reader) -> Model:
        inputs = TextInput(
            TextInputConfig(vocab_size=config.vocab_size, d_model=config.d_model, position_ids=False), embed
        )
        width = config.width if config.width is not None else config.d_model
        norm = None if config.final_norm is None else make_norm(config.final_norm, width)
        stack = Stack([spec.build() for spec in config.blocks], norm, attend)
        head = TokenClassificationHead(
            TokenClassificationConfig(d_model=width, n_labels=config.n_labels, stage="encoder")
        )
        return Model("reader", config, [Stage("encoder", inputs, stack)], {"tag": head}, OutputSpec())

    torch.manual_seed(seed)
    return build_config(Family("reader", Reader, build, lambda config: config.init, __doc__ or ""), config)


def block(*parts: tuple[str, Settings], **settings: Any) -> BlockSpec:
    """block(("self", AttentionConfig(…)), ("feedforward", …), order="post", residual=False)"""
    return BlockSpec(parts=parts, **settings)


def transformer_blocks(
    n_layers: int, d_model: int, n_heads: int, d_hidden: int | None = None, **settings: Any
) -> tuple[BlockSpec, ...]:
    """The usual blocks: self-attention, then a feed-forward network (none if d_hidden is 0)."""
    parts: list[tuple[str, Settings]] = [("self", AttentionConfig(d_query=d_model, n_heads=n_heads))]
    hidden = 4 * d_model if d_hidden is None else d_hidden
    if hidden:
        parts.append(("feedforward", FeedForwardConfig(d_model=d_model, d_hidden=hidden)))
    return (block(*parts, **settings),) * n_layers


def parameters(model: torch.nn.Module) -> int:
    """Those that learn."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def accuracy(model: Model, batch: dict[str, torch.Tensor]) -> float:
    """The share of labels that count (not -100) which are the model's first choice."""
    with torch.inference_mode():
        best = model(**{name: value for name, value in batch.items() if name != "labels"}).logits.argmax(dim=-1)
    counts = batch["labels"] != -100
    return (best == batch["labels"])[counts].float().mean().item()
