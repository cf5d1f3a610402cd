"""What many recipes say in the same way: that heads divide the width, how fresh weights are drawn, the block of
attention and a network, what a model tells of its inside, the head that says a text's next word, how images are cut,
and what stands around a translator's stacks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, NormOrder, Sublayer
from anyformer.core.feedforward import FeedForward, FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.masks import NO_MASK
from anyformer.core.norms import LayerScale, NormConfig, make_norm
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.image import ImageInputConfig
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.model import Model, OutputSpec, Stage

# A model that is built in a moment: what tests and first steps want.
TINY: dict[str, Any] = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_hidden": 128}


def check_heads_divide(config: Any) -> None:
    """For `check`: every head gets the same number of features."""
    good = config.d_model % config.n_heads == 0
    config.require(good, f"d_model {config.d_model} is not a multiple of n_heads {config.n_heads}.")


def normal_init(config: Any) -> InitConfig:
    return InitConfig(std=0.02)


def xavier_init(config: Any) -> InitConfig:
    """For models that may be narrow, where a fixed spread is too timid."""
    return InitConfig(linear="xavier", embedding_std=0.02)


def deep_init(config: Any) -> InitConfig:
    """What is added to the residual stream starts smaller the deeper the model is."""
    return InitConfig(std=0.02, residual_depth=2 * config.n_layers)


_NORM = NormConfig()


def sublayer(
    part: nn.Module,
    width: int,
    norm: NormConfig | None = _NORM,
    *,
    order: NormOrder = "pre",
    dropout: float = 0.0,
    drop_path: float = 0.0,
    layer_scale: float | None = None,
) -> Sublayer:
    """A part of tokens `width` wide with the norms of its order."""
    made = [None if norm is None else make_norm(norm, width) for _ in range(2 if order == "sandwich" else 1)]
    return Sublayer(
        part,
        made[0],
        order=order,
        post_norm=made[1] if order == "sandwich" else None,
        dropout=dropout,
        drop_path=drop_path,
        layer_scale=None if layer_scale is None else LayerScale(width, layer_scale),
    )


def transformer_block(
    attention: AttentionConfig,
    feedforward: FeedForwardConfig,
    *,
    d_context: int | None = None,
    order: NormOrder = "pre",
    norm: NormConfig = _NORM,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    layer_scale: float | None = None,
    parallel: bool = False,
) -> Block:
    """Self-attention, cross-attention of the same form if `d_context` gives the width of its memory, and a network."""
    parts: dict[str, nn.Module] = {"self": Attention(attention)}
    if d_context is not None:
        parts["cross"] = Attention(attention.replace(d_context=d_context, mask=NO_MASK))
    parts["feedforward"] = FeedForward(feedforward)
    made = {
        name: sublayer(
            part, attention.d_query, norm, order=order, dropout=dropout, drop_path=drop_path, layer_scale=layer_scale
        )
        for name, part in parts.items()
    }
    return Block(made, parallel)


def stack_report(
    stage: str, n_layers: int, *, normed: bool = False, looks: str = "self", crosses: bool = False, empty: bool = False
) -> OutputSpec:
    """Of a model with one stack. `normed`: its last hidden state is that behind the final norm. `crosses`: it may
    attend to something else; `empty`: and its output has a field for that even if it does not.
    """
    attentions: dict[str, tuple[str, ...]] = {"attentions": (f"{stage}.blocks.*.{looks}.weights",)}
    if crosses:
        attentions["cross_attentions"] = (f"{stage}.blocks.*.cross.weights",)
    hidden = {"hidden_states": (stage, _layers(n_layers, normed))}
    return OutputSpec(hidden=hidden, attentions=attentions, empty=("cross_attentions",) if empty else ())


_WEIGHTS = {
    "encoder_attentions": ("encoder.blocks.*.self.weights",),
    "decoder_attentions": ("decoder.blocks.*.self.weights",),
    "cross_attentions": ("decoder.blocks.*.cross.weights",),
}


def pair_report(
    n_layers: int,
    n_decoder_layers: int,
    *,
    normed: tuple[bool, bool] = (False, False),
    attentions: Collection[str] = tuple(_WEIGHTS),
) -> OutputSpec:
    """Of an encoder and a decoder that attends to it; `attentions`: those that there are."""
    return OutputSpec(
        hidden={
            "encoder_hidden_states": ("encoder", _layers(n_layers, normed[0])),
            "decoder_hidden_states": ("decoder", _layers(n_decoder_layers, normed[1])),
        },
        attentions={name: _WEIGHTS[name] for name in attentions},
        last={"encoder_last_hidden_state": "encoder"},
    )


def _layers(n: int, normed: bool) -> tuple[int, ...]:
    """What went in, and what each layer made."""
    return (*range(n), -1 if normed else n)


def next_token_head(config: Any, inputs: TextInput, bias: bool = False) -> LanguageHead:
    """Over a decoder, with the table of `inputs` where the settings tie them."""
    settings = LanguageConfig(
        d_model=config.d_model, vocab_size=config.vocab_size, stage="decoder", shift=True, keep=True, bias=bias
    )
    return LanguageHead(settings, inputs.words if config.tied else None)


def image_input_config(config: Any) -> ImageInputConfig:
    """Images of one size, cut into patches."""
    return ImageInputConfig(
        image_size=config.image_size,
        patch_size=config.patch_size,
        n_channels=config.n_channels,
        d_model=config.d_model,
        dropout=config.dropout,
    )


def text_input_config(config: Any, decodes: bool, vocab_size: int) -> TextInputConfig:
    """The words of one side of a translator."""
    return TextInputConfig(
        vocab_size=vocab_size,
        d_model=config.d_model,
        prefix="decoder_" if decodes else "",
        position_ids=False,
        dropout=config.dropout,
        padding=config.padding,
    )


def encoder_decoder_model(
    family: str, config: Any, stages: list[Stage], report: OutputSpec, width: int, n_words: int
) -> Model:
    """A model whose last stage, the decoder, writes what it makes of the others."""
    head = LanguageHead(LanguageConfig(d_model=width, vocab_size=n_words, stage="decoder", bias=True))
    start, padding = config.decoder_start, config.padding
    return Model(family, config, stages, {"language": head}, report, decoder_start=start, padding=padding)
