"""Small models for experiments, put together from the library's parts where no recipe has the difference that is asked
about: tokens go in, a stack of any blocks reads them, and every token gets a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import BlockConfig, PartConfig, SublayerConfig
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.norms import NormConfig
from anyformer.core.positions import Positions
from anyformer.core.stack import Stack, StackConfig
from anyformer.heads.tag import TokenClassificationConfig, TokenClassificationHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, OutputSpec, Stage
from anyformer.registry import Family, build_config


@dataclass(frozen=True, kw_only=True)
class Reader(Settings):
    """`blocks` from the bottom up; `width` is what comes out of the last one."""

    vocab_size: int
    n_labels: int
    d_model: int
    blocks: tuple[BlockConfig, ...]
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
        stack = Stack(StackConfig(blocks=config.blocks, final_norm=config.final_norm), width, attend)
        head = TokenClassificationHead(
            TokenClassificationConfig(d_model=width, n_labels=config.n_labels, stage="encoder")
        )
        return Model("reader", config, [Stage("encoder", inputs, stack)], {"tag": head}, OutputSpec())

    torch.manual_seed(seed)
    return build_config(Family("reader", Reader, build, lambda config: config.init, __doc__ or ""), config)


def block(*parts: tuple[str, PartConfig], **sublayer: object) -> BlockConfig:
    """block(("self", AttentionConfig(…)), ("feedforward", …), order="post", residual=False)"""
    return BlockConfig(sublayers=tuple(SublayerConfig(name=name, part=part, **sublayer) for name, part in parts))  # type: ignore[arg-type]


def transformer_blocks(
    n_layers: int, d_model: int, n_heads: int, d_hidden: int | None = None, **sublayer: object
) -> tuple[BlockConfig, ...]:
    """The usual blocks: self-attention, then a feed-forward network (none where d_hidden is 0)."""
    parts: list[tuple[str, PartConfig]] = [("self", AttentionConfig(d_query=d_model, n_heads=n_heads))]
    hidden = 4 * d_model if d_hidden is None else d_hidden
    if hidden:
        parts.append(("feedforward", FeedForwardConfig(d_model=d_model, d_hidden=hidden)))
    return (block(*parts, **sublayer),) * n_layers


def parameters(model: torch.nn.Module) -> int:
    """Those that learn."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def accuracy(model: Model, batch: dict[str, torch.Tensor]) -> float:
    """The share of labels that count (not -100) which are the model's first choice."""
    with torch.inference_mode():
        best = model(**{name: value for name, value in batch.items() if name != "labels"}).logits.argmax(dim=-1)
    counts = batch["labels"] != -100
    return (best == batch["labels"])[counts].float().mean().item()
