"""The three forms that a transformer has: an encoder, a decoder, and an encoder with a decoder that attends to it.

    register("gpt2", GPT2Config, decoder, SIZES, deep_init)
    register("bert", BERTConfig, encoder, SIZES)
    register("t5", T5Config, encoder_decoder, SIZES, init)

Every form takes `head`, which names what the model answers with: `uses` of a family's settings lists those it can have.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.heads.base import Head
from anyformer.inputs.base import Input
from anyformer.inputs.text import TextInput
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.base import init, stack
from anyformer.recipes.common import pair_report, stack_report
from anyformer.recipes.text import TextConfig, decoder_heads, encoder_decoder_heads, text_heads, text_input
from anyformer.registry import Family
from anyformer.registry import register as add_family


def decoder(config: Any, family: str, report: OutputSpec | None = None) -> Model:
    """A causal language model, or another head over it; with `cross_attention` it attends to encoder_hidden_states if
    they are given."""
    inputs = text_input(config)
    memory = "encoder_hidden_states" if config.cross_attention else None
    blocks = stack(config, causal=True, d_context=config.d_model if memory else None)
    crosses = "cross_attention" in config.field_names()
    empty = config.reports_cross_attentions
    report = report or stack_report("decoder", config.n_layers, normed=True, crosses=crosses, empty=empty)
    stage = Stage("decoder", inputs, blocks, memory=memory)
    return Model(family, config, [stage], decoder_heads(config, inputs), report)


def encoder(
    config: Any,
    family: str,
    inputs: Callable[[Any], Input] = text_input,
    heads: Callable[[Any, Any], dict[str, Head]] = text_heads,
    report: OutputSpec | None = None,
) -> Model:
    """Tokens that see each other, and the heads that `config.head` names."""
    read = inputs(config)
    causal, crossed = getattr(config, "causal", False), getattr(config, "cross_attention", False)
    memory = "encoder_hidden_states" if crossed else None
    stage = Stage("encoder", read, stack(config, causal, config.d_model if memory else None), memory=memory)
    empty = config.head == "base" and getattr(config, "reports_cross_attentions", False)
    if report is None:
        crosses, normed = isinstance(config, TextConfig), config.reports_normed
        report = stack_report("encoder", config.n_layers, normed=normed, crosses=crosses, empty=empty)
    return Model(family, config, [stage], heads(config, read), report, choices=config.head == "choice")


def encoder_decoder(config: Any, family: str, inputs: Callable[[Any], Input] = text_input) -> Model:
    """An encoder, and a decoder that attends to it; the encoder alone with the head "encoder"."""
    source = inputs(config)
    first = Stage("encoder", source, stack(config))
    if config.head == "encoder":
        report = stack_report("encoder", config.n_layers, normed=config.has_final_norm)
        return Model(family, config, [first], encoder_decoder_heads(config, cast("TextInput", source)), report)
    target = text_input(config, "decoder_", config.target_words, config.scale_inputs_embeds)
    if config.shared_words and isinstance(source, TextInput):
        target.words.weight = source.words.weight
    second = stack(config.decoder_side, causal=True, d_context=config.d_model)
    normed = config.has_final_norm
    return Model(
        family,
        config,
        [first, Stage("decoder", target, second, attends="encoder")],
        encoder_decoder_heads(config, target),
        pair_report(config.n_layers, config.decoder_layers, normed=(normed, normed)),
        decoder_start=config.decoder_start,
        padding=config.padding,
        shifted_from=("input_ids",) if config.head == "classify" else config.shifted_from,
    )


def register(
    name: str,
    config: type[Settings],
    build: Callable[..., Model],
    sizes: Mapping[str, Settings],
    init: Callable[[Any], InitConfig] = init,
    training: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    finetune_model: Callable[[Model], Model] | None = None,
) -> None:
    """Add a family: its settings, one of the builders, its sizes, how some of them are best trained, and the part that
    is fine-tuned if that is not all of it."""
    about = sys.modules[config.__module__].__doc__ or ""
    add_family(Family(name, config, partial(build, family=name), init, about, finetune_model), sizes, training)
