"""What BERT and its kin share: settings, the block, the heads of the usual uses, and the model around them. Each family
says in its own file where it differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.masks import NO_MASK, Causal
from anyformer.core.norms import NormConfig
from anyformer.core.positions import Positions
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, MultipleChoiceHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.heads.pooling import PoolerConfig
from anyformer.heads.span import SpanHead
from anyformer.heads.tag import TokenClassificationConfig, TokenClassificationHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, Stage
from anyformer.recipes.common import check_heads_divide, stack_report, transformer_block

HeadName = Literal["base", "pretraining", "masked", "replaced_tokens", "classify", "tag", "span", "choice"]


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(Settings):
    n_layers: int = 12
    d_model: int = 768
    n_heads: int = 12
    d_hidden: int = 3072
    vocab_size: int = 30522
    max_length: int = 512
    activation: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = 0.1
    head_dropout: float | None = None  # None: dropout
    padding: int | None = 0
    head: HeadName = "masked"
    n_labels: int = 2
    problem: Problem | None = None
    pooling: Literal["first", "mean"] = "first"  # which tokens a class is told from
    tied: bool = True

    uses: ClassVar[tuple[HeadName, ...]] = ("base", "masked", "classify", "tag", "span", "choice")

    def check(self) -> None:
        check_heads_divide(self)
        self.require(self.head in self.uses, f'head "{self.head}" is not one of {", ".join(self.uses)}.')


def text_input(
    config: TextEncoderConfig,
    positions: Positions | None = None,
    *,
    n_types: int = 0,
    d_embedding: int | None = None,
    first_position: int = 0,
) -> TextInput:
    """Words, positions and types, their sum normalized; `d_embedding`: their width, projected to d_model after it."""
    width = d_embedding if d_embedding is not None else config.d_model
    settings = TextInputConfig(
        vocab_size=config.vocab_size,
        d_model=width,
        d_out=config.d_model if width != config.d_model else None,
        types="own" if n_types else "none",
        n_types=n_types,
        position_ids=positions is not None,
        first_position=first_position,
        # Tables that leave room for padding keep the row before the first for it.
        padding_position=first_position - 1 if first_position else None,
        norm=NormConfig(eps=config.norm_eps),
        dropout=config.dropout,
        padding=config.padding,
    )
    return TextInput(settings, positions)


def block(config: TextEncoderConfig, causal: bool = False, cross_attention: bool = False) -> Block:
    width, mask = config.d_model, Causal() if causal else NO_MASK
    attention = AttentionConfig(d_query=width, n_heads=config.n_heads, dropout=config.attention_dropout, mask=mask)
    network = FeedForwardConfig(d_model=width, d_hidden=config.d_hidden, activation=config.activation)
    norm, memory = NormConfig(eps=config.norm_eps), width if cross_attention else None
    return transformer_block(attention, network, d_context=memory, order="post", norm=norm, dropout=config.dropout)


@dataclass(frozen=True)
class HeadStyle:
    """Where the heads of the families differ. `pools`: use -> the activation of the dense layer over its first token;
    `drops_first`: dropout before that layer too; `words`: the activation before the words, None for the model's own.
    """

    pools: Mapping[HeadName, str]
    drops_first: bool = False
    words: str | None = None
    d_words: int | None = None  # the width of the word table, where it is not d_model
    choice_dropout: float | None = None
    span_dropout: float = 0.0


def word_head(config: TextEncoderConfig, style: HeadStyle, inputs: TextInput, field: str = "logits") -> LanguageHead:
    settings = LanguageConfig(
        d_model=config.d_model,
        d_words=style.d_words,
        vocab_size=config.vocab_size,
        stage="encoder",
        bias=True,
        transform=style.words if style.words is not None else config.activation,
        norm=NormConfig(eps=config.norm_eps),
        field=field,
    )
    return LanguageHead(settings, inputs.words if config.tied else None)


def pair_head(config: TextEncoderConfig, pool: PoolerConfig | None) -> ClassificationHead:
    """Whether one sentence follows the other (BERT's second loss)."""
    settings = ClassificationConfig(
        d_model=config.d_model,
        n_labels=2,
        stage="encoder",
        pool=pool,
        problem="single_label_classification",
        field="seq_relationship_logits",
        label_name="next_sentence_label",
    )
    return ClassificationHead(settings)


def heads(config: TextEncoderConfig, style: HeadStyle, inputs: TextInput) -> dict[str, Head]:
    """The head of the use that the settings name."""
    use, width = config.head, config.d_model
    dropout = config.head_dropout if config.head_dropout is not None else config.dropout
    pool = PoolerConfig(d_model=width, activation=style.pools[use]) if use in style.pools else None
    if use == "base":
        return {"embed": EmbeddingHead("encoder", pool)}
    if use == "masked":
        return {"words": word_head(config, style, inputs)}
    if use == "pretraining":
        return {"words": word_head(config, style, inputs, "prediction_logits"), "pair": pair_head(config, pool)}
    if use == "span":
        return {"span": SpanHead(width, "encoder", style.span_dropout)}
    if use == "tag":
        return {
            "tag": TokenClassificationHead(
                TokenClassificationConfig(d_model=width, n_labels=config.n_labels, stage="encoder", dropout=dropout)
            )
        }
    classify = ClassificationConfig(
        d_model=width,
        n_labels=config.n_labels,
        stage="encoder",
        pooling=config.pooling,
        pool=pool,
        input_dropout=dropout if style.drops_first else 0.0,
        dropout=dropout,
        problem=config.problem,
    )
    if use == "classify":
        return {"classify": ClassificationHead(classify)}
    if use != "choice":
        raise ConfigError(f'head "{use}" is not one of those that all encoders have; the family builds it itself.')
    last = style.choice_dropout if style.choice_dropout is not None else dropout
    return {"choice": MultipleChoiceHead(classify.replace(n_labels=1, input_dropout=0.0, dropout=last))}


def model(
    family: str,
    config: TextEncoderConfig,
    inputs: TextInput,
    heads: dict[str, Head],
    positions: Positions | None = None,
    *,
    causal: bool = False,
    cross_attention: bool = False,
) -> Model:
    """One stage, "encoder". `positions` are those that every attention sees (rotary, relative)."""
    blocks = [block(config, causal, cross_attention) for _ in range(config.n_layers)]
    stack = Stack(blocks, positions=positions)
    memory = "encoder_hidden_states" if cross_attention else None
    empty = config.head == "base" and family in ("bert", "roberta", "electra")  # whose classes may be decoders
    report = stack_report("encoder", config.n_layers, crosses=True, empty=empty)
    stage = Stage("encoder", inputs, stack, memory=memory)
    return Model(family, config, [stage], heads, report, choices=config.head == "choice")
