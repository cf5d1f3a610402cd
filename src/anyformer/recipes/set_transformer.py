"""Set Transformer (Lee et al. 2019): as the original encoder, except that its tokens have no places, so that their
order means nothing; a learned query then attends to them all and makes one vector of them, whatever their number.

Published: 0.904 on point clouds of ModelNet40, 5,000 points each (table 4 of the paper, with inducing points).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings
from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.stack import Stack
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.inputs.queries import LearnedQueries
from anyformer.inputs.sets import SetInput
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.common import check_heads_divide, sublayer, xavier_init
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class SetTransformerConfig(Settings):
    n_layers: int = 2
    d_item: int = 3  # numbers that describe an item: a point's coordinates
    d_model: int = 128
    n_heads: int = 4
    d_hidden: int = 256
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head: Literal["classify"] = "classify"
    n_labels: int = 40
    problem: Problem | None = None

    def check(self) -> None:
        check_heads_divide(self)


def _block(config: SetTransformerConfig, name: str) -> Block:
    attention = AttentionConfig(
        d_query=config.d_model,
        d_context=config.d_model if name == "cross" else None,
        n_heads=config.n_heads,
        dropout=config.attention_dropout,
    )
    feedforward = FeedForwardConfig(d_model=config.d_model, d_hidden=config.d_hidden, activation="relu")
    parts = {name: Attention(attention), "feedforward": FeedForward(feedforward)}
    return Block(
        {name: sublayer(part, config.d_model, order="post", dropout=config.dropout) for name, part in parts.items()}
    )


def build(config: SetTransformerConfig) -> Model:
    encoder = Stack([_block(config, "self") for _ in range(config.n_layers)])
    pool = Stack([_block(config, "cross")])
    seed = LearnedQueries(1, config.d_model, "encoder")
    stages = [
        Stage("encoder", SetInput(config.d_item, config.d_model), encoder),
        Stage("pool", seed, pool, attends="encoder"),
    ]
    head = ClassificationHead(
        ClassificationConfig(d_model=config.d_model, n_labels=config.n_labels, stage="pool", problem=config.problem)
    )
    report = OutputSpec(
        hidden={"hidden_states": ("encoder", tuple(range(config.n_layers + 1)))},
        attentions={
            "attentions": ("encoder.blocks.*.self.weights",),
            "cross_attentions": ("pool.blocks.*.cross.weights",),
        },
    )
    return Model("set-transformer", config, stages, {"classify": head}, report)


SIZES = {
    "set-transformer-tiny": SetTransformerConfig(d_model=32, d_hidden=64, d_item=2, n_labels=3),
    "set-transformer-small": SetTransformerConfig(),
}

register(Family("set-transformer", SetTransformerConfig, build, xavier_init, __doc__ or ""), SIZES)
