"""What text models have in common: settings, the inputs, and the heads of decoders, encoders and encoder-decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

from anyformer.core.block import NormOrder
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, MultipleChoiceHead, Problem
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.heads.pooling import PoolerConfig
from anyformer.heads.span import SpanHead
from anyformer.heads.tag import ReplacedTokenHead, TokenClassificationConfig, TokenClassificationHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.recipes.base import SequenceConfig, TransformerConfig

HeadName = Literal[
    "base",
    "language",
    "encoder",
    "pretraining",
    "masked",
    "next_sentence",
    "replaced_tokens",
    "classify",
    "tag",
    "span",
    "choice",
]


@dataclass(frozen=True, kw_only=True)
class TextConfig(SequenceConfig):
    vocab_size: int = 50257
    max_length: int = 512
    tied: bool = True  # the output is the table of words
    embedding_norm: bool = False
    embedding_dropout: float | None = None  # None: dropout
    scale_embedding: bool = False  # multiply word vectors by √d_model
    head: HeadName = "language"
    head_dropout: float | None = None
    n_labels: int = 2
    problem: Problem | None = None

    uses: ClassVar[tuple[HeadName, ...]] = ()  # the heads that the family can have

    # Constants of a family, or fields of its class.
    padding = cast("int | None", None)
    n_types = 0
    shared_types = False  # types are looked up among the words
    reads_text = True  # ids are words
    causal = False
    cross_attention = False
    logit_cap = cast("float | None", None)  # logits stay between -cap and cap
    d_embedding = cast("int | None", None)  # of word, position and type vectors; None: d_model
    reports_cross_attentions = False  # even if there are none

    def check(self) -> None:
        super().check()
        self.require(self.head in self.uses, f'head "{self.head}" is not one of {", ".join(self.uses)}.')
        for name in ("score_cap", "logit_cap"):
            cap = getattr(self, name)
            good = cap is None or 1e-3 <= cap <= 1e6
            self.require(good, f"{name} is {cap}; it must be 0.001 to 1,000,000, or None.")

    @property
    def takes_position_ids(self) -> bool:
        return True

    @property
    def first_position(self) -> int:
        """The position of the first token."""
        return 0

    @property
    def word_padding(self) -> int | None:
        """The word whose vector stays zero."""
        return self.padding

    @property
    def padding_position(self) -> int | None:
        """The position of padding tokens; None: their index."""
        return None

    @property
    def width(self) -> int:
        """Of word, position and type vectors."""
        return self.d_embedding if self.d_embedding is not None else self.d_model

    def language(self, stage: str) -> LanguageConfig:
        """The head that says the next word."""
        return LanguageConfig(
            d_model=self.d_model,
            vocab_size=self.vocab_size,
            stage=stage,
            seen=self.visible_prefix,
            soft_cap=self.logit_cap,
        )


def text_input_config(
    config: TextConfig, prefix: str = "", vocab_size: int | None = None, scale_inputs_embeds: bool = False
) -> TextInputConfig:
    width = config.width
    return TextInputConfig(
        vocab_size=vocab_size if vocab_size is not None else config.vocab_size,
        d_model=width,
        d_out=config.d_model if width != config.d_model else None,
        combine=config.positions_combine,
        prefix=prefix,
        types="own" if config.n_types else "shared" if config.shared_types else "none",
        n_types=config.n_types,
        position_ids=config.takes_position_ids,
        first_position=config.first_position,
        padding_position=config.padding_position,
        scale=config.d_model**0.5 if config.scale_embedding else 1.0,
        scale_inputs_embeds=scale_inputs_embeds,
        norm=config.norm_config if config.embedding_norm else None,
        dropout=config.dropout if config.embedding_dropout is None else config.embedding_dropout,
        padding=config.word_padding,
    )


def text_input(config: TextConfig, *args: Any, **options: Any) -> TextInput:
    """Words, positions and types. The arguments are those of `text_input_config`."""
    return TextInput(text_input_config(config, *args, **options), config.embedded_positions(config.width))


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(TextConfig, TransformerConfig):
    """Of a causal language model. A class is told from the last token, which has seen all of the text."""

    pooling: Literal["last", "mean"] = "last"

    uses: ClassVar[tuple[HeadName, ...]] = ("language", "base", "classify", "tag", "span")
    causal = True

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(shift=True, keep=True)


def label_heads(config: Any, stage: str, classify: ClassificationConfig) -> dict[str, Head]:
    """The heads that every text model can have: vectors, classes of texts or tokens, and spans."""
    use, width, dropout = config.head, config.d_model, classify.dropout
    if use == "base":
        return {"embed": EmbeddingHead(stage)}
    if use == "tag":
        tag = TokenClassificationConfig(d_model=width, n_labels=config.n_labels, stage=stage, dropout=dropout)
        return {"tag": TokenClassificationHead(tag)}
    if use == "span":
        return {"span": SpanHead(width, stage, dropout)}
    return {"classify": ClassificationHead(classify)}


def decoder_heads(config: Any, inputs: TextInput) -> dict[str, Head]:
    if config.head == "language":
        return {"language": LanguageHead(config.language("decoder"), inputs.words if config.tied else None)}
    classify = ClassificationConfig(
        d_model=config.d_model,
        n_labels=config.n_labels,
        stage="decoder",
        pooling=config.pooling,
        bias=False,  # as published classifiers
        dropout=config.head_dropout or 0.0,
        problem=config.problem,
    )
    return label_heads(config, "decoder", classify)


@dataclass(frozen=True, kw_only=True)
class TextEncoderConfig(TextConfig, TransformerConfig):
    d_hidden: int | None = 3072
    vocab_size: int = 30522
    norm_eps: float = 1e-12
    norm_order: NormOrder = "post"
    embedding_norm: bool = True
    dropout: float = 0.1
    attention_dropout: float | None = 0.1
    head_dropout: float | None = None  # None: dropout
    padding: int | None = 0
    head: HeadName = "masked"
    pooling: Literal["first", "mean"] = "first"  # which tokens a class is told from

    uses: ClassVar[tuple[HeadName, ...]] = ("base", "masked", "classify", "tag", "span", "choice")
    # Head -> the activation of the dense layer over the first token, where there is one.
    pools: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("base", "pretraining", "next_sentence", "classify", "choice"), "tanh"
    )
    drops_first: ClassVar[bool] = False  # dropout before that layer too
    word_activation: ClassVar[str | None] = None  # before the words; None: the model's own

    @property
    def padding_position(self) -> int | None:
        """Tables that leave room for padding keep the row before the first for it."""
        return self.first_position - 1 if self.first_position else None

    @property
    def takes_position_ids(self) -> bool:
        return self.kinds[0] in ("learned", "sinusoidal", "network")

    def pooler(self, use: str) -> PoolerConfig | None:
        """The dense layer over the first token; None: there is none."""
        activation = self.pool_activation(use)
        return PoolerConfig(d_model=self.d_model, activation=activation) if activation is not None else None

    def pool_activation(self, use: str) -> str | None:
        return self.pools.get(use)

    def use_dropout(self, use: str) -> float:
        """Before the last layer of a head."""
        if use == "span":
            return 0.0
        return self.head_dropout if self.head_dropout is not None else self.dropout

    def language(self, stage: str) -> LanguageConfig:
        """The head that says masked words."""
        return LanguageConfig(
            d_model=self.d_model,
            d_words=self.d_embedding,
            vocab_size=self.vocab_size,
            stage=stage,
            bias=True,
            transform=self.word_activation or self.activation,
            norm=self.norm_config,
        )


def word_head(config: TextEncoderConfig, inputs: TextInput, field: str = "logits") -> LanguageHead:
    settings = config.language("encoder").replace(field=field)
    return LanguageHead(settings, inputs.words if config.tied else None)


def pair_head(config: TextEncoderConfig, pool: PoolerConfig | None, alone: bool = False) -> ClassificationHead:
    """Whether one sentence follows the other (BERT's second loss)."""
    settings = ClassificationConfig(
        d_model=config.d_model,
        n_labels=2,
        stage="encoder",
        pool=pool,
        problem="single_label_classification",
        field="logits" if alone else "seq_relationship_logits",
        label_name="labels" if alone else "next_sentence_label",
    )
    return ClassificationHead(settings)


def text_heads(config: TextEncoderConfig, inputs: TextInput) -> dict[str, Head]:
    """The head that the settings name."""
    use, dropout = config.head, config.use_dropout(config.head)
    pool = config.pooler(use)
    if use == "base":
        return {"embed": EmbeddingHead("encoder", pool)}
    if use == "masked":
        return {"words": word_head(config, inputs)}
    if use == "pretraining":
        return {"words": word_head(config, inputs, "prediction_logits"), "pair": pair_head(config, pool)}
    if use == "next_sentence":
        return {"pair": pair_head(config, pool, alone=True)}
    if use == "replaced_tokens":
        return {"replaced": ReplacedTokenHead(config.d_model, config.activation, "encoder")}
    classify = ClassificationConfig(
        d_model=config.d_model,
        n_labels=1 if use == "choice" else config.n_labels,
        stage="encoder",
        pooling=config.pooling,
        pool=pool,
        input_dropout=dropout if config.drops_first and use == "classify" else 0.0,
        dropout=dropout,
        problem=config.problem,
    )
    return {"choice": MultipleChoiceHead(classify)} if use == "choice" else label_heads(config, "encoder", classify)


@dataclass(frozen=True, kw_only=True)
class PairConfig(TextConfig, TransformerConfig):
    """Of an encoder and a decoder; None: as the encoder's."""

    n_decoder_layers: int | None = None
    n_decoder_heads: int | None = None
    d_decoder_hidden: int | None = None
    decoder_layer_drop: float = 0.0
    padding: int | None = 0
    decoder_start: int = 0
    end: int | None = 1
    pooling: Literal["end", "mean"] = "end"  # which tokens of the decoder a class is told from

    uses: ClassVar[tuple[HeadName, ...]] = ("language", "base", "encoder", "classify")
    takes_position_ids = False
    scale_inputs_embeds = False  # whether decoder_inputs_embeds is multiplied too
    shifted_from: ClassVar[tuple[str, ...]] = ("labels",)  # what the decoder reads

    def check(self) -> None:
        super().check()
        heads = self.decoder_heads
        whole = self.d_head is not None or self.d_model % heads == 0
        self.require(whole, f"d_model {self.d_model} is not a multiple of n_decoder_heads {heads}.")

    @property
    def shared_words(self) -> bool:
        """Whether source and target words are one table."""
        return True

    @property
    def decoder_layers(self) -> int:
        return self.n_decoder_layers if self.n_decoder_layers is not None else self.n_layers

    @property
    def decoder_heads(self) -> int:
        return self.n_decoder_heads if self.n_decoder_heads is not None else self.n_heads

    @property
    def decoder_hidden(self) -> int:
        return self.d_decoder_hidden if self.d_decoder_hidden is not None else self.hidden

    @property
    def decoder_side(self) -> Self:
        """The settings of the decoder's stack."""
        return self.replace(
            n_layers=self.decoder_layers,
            n_heads=self.decoder_heads,
            d_hidden=self.decoder_hidden,
            layer_drop=self.decoder_layer_drop,
        )

    @property
    def target_words(self) -> int:
        return self.vocab_size

    def language(self, stage: str) -> LanguageConfig:
        return super().language(stage).replace(vocab_size=self.target_words)


def encoder_decoder_heads(config: Any, words: TextInput) -> dict[str, Head]:
    """The class of a text is told from what the decoder makes of its end token, as in BART."""
    if config.head == "language":
        return {"language": LanguageHead(config.language("decoder"), words.words if config.tied else None)}
    if config.head in ("base", "encoder"):
        return {"embed": EmbeddingHead("decoder" if config.head == "base" else "encoder")}
    dropout = config.dropout if config.head_dropout is None else config.head_dropout
    classify = ClassificationConfig(
        d_model=config.d_model,
        n_labels=config.n_labels,
        stage="decoder",
        pooling=config.pooling,
        end=config.end,
        pool=PoolerConfig(d_model=config.d_model),
        input_dropout=dropout,
        dropout=dropout,
        problem=config.problem,
    )
    return {"classify": ClassificationHead(classify)}
