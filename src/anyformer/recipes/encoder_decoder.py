"""Any encoder with any decoder (Rothe et al. 2020): as the original Transformer, except that its two sides are models
of other families, each built by its own recipe; the decoder's has cross-attention and reads decoder_input_ids. Where
the two differ in width, a projection lies between them.

Published: BERT2BERT, two BERT base with new cross-attention, for summaries and translation (§3 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from anyformer import registry
from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.stack import Stack
from anyformer.errors import ConfigError
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.language import LanguageHead
from anyformer.inputs.base import Input
from anyformer.inputs.projection import ProjectedInput
from anyformer.inputs.text import TextInput
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.bert import SIZES, BERTConfig
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig(Settings):
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


def build_side(given: Mapping[str, Any], name: str) -> tuple[Input, Stack, Model]:
    family, settings = side(given)
    model = family.build(settings)
    stages = [stage for stage in model.stages.values() if isinstance(stage, Stage)]
    inputs = stages[0].inputs
    if len(stages) > 1 or stages[0].stack is None:
        raise ConfigError(f"{family.name} is not one stack, so it cannot be the {name}.")
    return inputs, cast("Stack", stages[0].release()), model


def _encoder(given: Mapping[str, Any]) -> tuple[Stage, Model]:
    inputs, stack, model = build_side(given, "encoder")
    stage = Stage("encoder", inputs, stack)
    for head in model.heads.values():
        if isinstance(head, EmbeddingHead) and head.pool is not None:
            # The published form holds the encoder's pooler, which nothing reads: kept, and not trained.
            stage.add_module("pooler", head.pool.requires_grad_(False))
    return stage, model


def _decoder(given: Mapping[str, Any], attends: str) -> tuple[Stage, LanguageHead, Model]:
    inputs, stack, model = build_side(given, "decoder")
    heads = [head for head in model.heads.values() if isinstance(head, LanguageHead)]
    names = {name for block in stack.blocks for name, _ in block.named_children()}
    if not isinstance(inputs, TextInput) or not heads or "cross" not in names:
        raise ConfigError("the decoder must read text, have cross-attention and a language head.")
    inputs.read("decoder_")
    stage = Stage("decoder", inputs, stack, attends=attends)
    if not stage.has_cache:
        raise ConfigError("the decoder must be causal.")
    head = heads[0]
    head.stage = "decoder"
    head.config = head.config.replace(stage="decoder", shift=False, field="logits")
    return stage, head, model


def widths(encoder: Settings, decoder: Settings) -> tuple[int, int]:
    """Of what the encoder makes, and of what the decoder looks at."""
    first, second = encoder.to_json(), decoder.to_json()
    wanted = second.get("d_context")
    if wanted is not None and wanted != first["d_model"]:
        raise ConfigError(f"the decoder looks at vectors of width {wanted}; the encoder's have {first['d_model']}.")
    return first["d_model"], second["d_model"] if wanted is None else wanted


def build(config: EncoderDecoderConfig, family: str = "encoder-decoder") -> Model:
    made, wanted = widths(side(config.encoder)[1], side(config.decoder)[1])
    encoder, first = _encoder(config.encoder)
    bridge = [Stage("bridge", ProjectedInput("encoder", made, wanted), None)] if made != wanted else []
    decoder, head, second = _decoder(config.decoder, "bridge" if bridge else "encoder")
    report = OutputSpec(
        hidden={
            "encoder_hidden_states": ("encoder", first.report.hidden["hidden_states"][1]),
            "decoder_hidden_states": ("decoder", second.report.hidden["hidden_states"][1]),
        },
        attentions={
            "encoder_attentions": ("encoder.blocks.*.self.weights",),
            "decoder_attentions": ("decoder.blocks.*.self.weights",),
            "cross_attentions": ("decoder.blocks.*.cross.weights",),
        },
        last={"encoder_last_hidden_state": "encoder"},
    )
    return Model(
        family,
        config,
        [encoder, *bridge, decoder],
        {"language": head},
        report,
        decoder_start=config.decoder_start,
        padding=config.padding,
    )


def init(config: EncoderDecoderConfig) -> InitConfig:
    family, settings = side(config.encoder)
    return family.init(settings)


def _pair(size: BERTConfig, start: int, end: int) -> EncoderDecoderConfig:
    decoder = size.replace(head="masked", causal=True, cross_attention=True)
    return EncoderDecoderConfig(
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

register(Family("encoder-decoder", EncoderDecoderConfig, build, init, __doc__ or ""), RECIPES)
