"""Any encoder with any decoder (Rothe et al. 2020): as the original Transformer, except that its two sides are models
of other families, each built by its own recipe; the decoder's has cross-attention and reads decoder_input_ids.

Published: BERT2BERT, two BERT base with new cross-attention, for summaries and translation (§3 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyformer import registry
from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError
from anyformer.heads.embed import EmbedHead
from anyformer.heads.language import LanguageHead
from anyformer.inputs.text import TextInput
from anyformer.model import Model, Report, Stage
from anyformer.recipes.bert import BERT, SIZES
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class EncoderDecoder(Settings):
    # The settings of a family that is known only when they are read: {"family": "bert", "n_layers": 12, …}
    encoder: dict[str, Any] = field(default_factory=dict, hash=False)
    decoder: dict[str, Any] = field(default_factory=dict, hash=False)
    padding: int | None = None
    decoder_start: int | None = None
    end: int | None = None

    def check(self) -> None:
        for name, side in (("encoder", self.encoder), ("decoder", self.decoder)):
            self.require("family" in side, f'{name} does not say its "family".')


def side(given: Mapping[str, Any]) -> tuple[Family, Settings]:
    family = registry.family(given["family"])
    return family, family.config.from_json({name: value for name, value in given.items() if name != "family"})


def _build_side(given: Mapping[str, Any], name: str) -> tuple[TextInput, Stack, Model]:
    family, settings = side(given)
    model = family.build(settings)
    stages = [stage for stage in model.stages.values() if isinstance(stage, Stage)]
    inputs, stack = stages[0].inputs, stages[0].stack
    if len(stages) > 1 or stack is None or not isinstance(inputs, TextInput):
        raise ConfigError(f"{family.name} is not one stack over text, so it cannot be the {name}.")
    return inputs, stack, model


def _encoder(given: Mapping[str, Any]) -> tuple[Stage, int]:
    inputs, stack, model = _build_side(given, "encoder")
    stage = Stage("encoder", inputs, stack)
    for head in model.heads.values():
        if isinstance(head, EmbedHead) and head.pool is not None:
            # The published form holds the encoder's pooler, which nothing reads: kept, and not trained.
            stage.add_module("pooler", head.pool.requires_grad_(False))
    return stage, _width(stack)


def _decoder(given: Mapping[str, Any]) -> tuple[Stage, LanguageHead, int]:
    inputs, stack, model = _build_side(given, "decoder")
    inputs.read("decoder_")
    heads = [head for head in model.heads.values() if isinstance(head, LanguageHead)]
    names = {sublayer.name for block in stack.config.blocks for sublayer in block.sublayers}
    stage = Stage("decoder", inputs, stack, attends="encoder")
    if not heads or not stage.remembers or "cross" not in names:
        raise ConfigError("the decoder must be causal, have cross-attention and a language head.")
    head = heads[0]
    head.reads = "decoder"
    head.config = head.config.replace(reads="decoder", shift=False, field="logits")
    return stage, head, _width(stack)


def _width(stack: Stack) -> int:
    return stack.config.blocks[0].sublayers[0].width


def _layers(stage: Stage) -> tuple[int, ...]:
    assert stage.stack is not None
    n = len(stage.stack.blocks)
    return (*range(n), n if stage.stack.final_norm is None else -1)


def build(config: EncoderDecoder) -> Model:
    encoder, width = _encoder(config.encoder)
    decoder, head, other = _decoder(config.decoder)
    if width != other:
        raise ConfigError(f"the encoder is {width} wide and the decoder {other}; they must have one width.")
    report = Report(
        hidden={
            "encoder_hidden_states": ("encoder", _layers(encoder)),
            "decoder_hidden_states": ("decoder", _layers(decoder)),
        },
        attentions={
            "encoder_attentions": ("encoder.blocks.*.self.weights",),
            "decoder_attentions": ("decoder.blocks.*.self.weights",),
            "cross_attentions": ("decoder.blocks.*.cross.weights",),
        },
        last={"encoder_last_hidden_state": "encoder"},
    )
    return Model(
        "encoder-decoder",
        config,
        [encoder, decoder],
        {"language": head},
        report,
        decoder_start=config.decoder_start,
        padding=config.padding,
    )


def init(config: EncoderDecoder) -> InitConfig:
    family, settings = side(config.encoder)
    return family.init(settings)


def _pair(size: BERT, start: int, end: int) -> EncoderDecoder:
    decoder = size.replace(head="masked", causal=True, cross_attention=True)
    return EncoderDecoder(
        encoder={"family": "bert", **size.replace(head="base").to_json()},
        decoder={"family": "bert", **decoder.to_json()},
        padding=0,
        decoder_start=start,
        end=end,
    )


_CLS, _SEP = 101, 102  # in BERT's vocabulary

RECIPES = {
    "encoder-decoder-tiny": _pair(SIZES["bert-tiny"], 1, 2),
    "bert2bert-base": _pair(SIZES["bert-base"], _CLS, _SEP),
}

register(Family("encoder-decoder", EncoderDecoder, build, init, __doc__ or ""), RECIPES)
