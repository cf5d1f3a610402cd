"""Whisper: Marian's names of the layers. Its keys have no bias, and ours makes no difference: it adds the same number
to all scores of a query."""

from __future__ import annotations

import re
from dataclasses import replace

from anyformer.recipes.whisper import Whisper
from anyformer.weights.table import LABELS, Field, Key, Table, both, each_layer, read_activation, write_activation
from anyformer.weights.tables.marian import TARGET, first, layer


def _side(side: str, n_layers: int) -> list[Key]:
    rows = [replace(key, optional=key.ours.endswith("key.bias")) for key in layer(side)]
    return [
        Key(f"{side}.inputs.positions.weight", f"model.{side}.embed_positions.weight"),
        *each_layer(n_layers, rows),
        *both(f"{side}.final_norm", f"model.{side}.layer_norm"),
    ]


def keys(config: Whisper) -> list[Key]:
    encoder, width = "model.encoder", config.d_model
    rows = [
        Key("encoder.inputs.first.weight", f"{encoder}.conv1.weight", "reshape", (width, config.n_mels, 3)),
        Key("encoder.inputs.first.bias", f"{encoder}.conv1.bias"),
        Key("encoder.inputs.second.weight", f"{encoder}.conv2.weight", "reshape", (width, width, 3)),
        Key("encoder.inputs.second.bias", f"{encoder}.conv2.bias"),
        *_side("encoder", config.n_layers),
    ]
    if config.head == "classify":
        return [*rows, *both("classify.project", "projector"), *both("classify.classes", "classifier")]
    speaks = config.head == "language"
    words = Key("decoder.inputs.words.weight", TARGET, also=("proj_out.weight",) if config.tied and speaks else ())
    output = [Key("language.words.weight", "proj_out.weight")] if speaks and not config.tied else []
    return [*rows, words, *_side("decoder", config.n_decoder_layers), *output]


def leftovers(config: Whisper) -> tuple[str, ...]:
    if config.head == "classify":
        return (r"^model\.decoder\.", r"^proj_out\.")
    return (r"^projector\.", r"^classifier\.", *((r"^proj_out\.",) if config.head == "base" else ()))


def rename(config: Whisper, name: str) -> str:
    return name if config.head == "language" else re.sub(r"^model\.", "", name)


TABLE = Table(
    family="whisper",
    model_type="whisper",
    architectures={
        "WhisperForConditionalGeneration": {"head": "language"},
        "WhisperModel": {"head": "base"},
        "WhisperForAudioClassification": {"head": "classify"},
    },
    fields=(
        Field("n_layers", "encoder_layers", 4),
        Field("n_decoder_layers", "decoder_layers", 4),
        Field("d_model", "d_model", 384),
        Field("n_heads", "encoder_attention_heads", 6),
        Field("n_decoder_heads", "decoder_attention_heads", 6),
        Field("d_hidden", "encoder_ffn_dim", 1536),
        Field("d_decoder_hidden", "decoder_ffn_dim", 1536),
        Field("vocab_size", "vocab_size", 51865),
        Field("n_mels", "num_mel_bins", 80),
        Field("source_length", "max_source_positions", 1500),
        Field("max_length", "max_target_positions", 448),
        Field("activation", "activation_function", "gelu", read_activation, write_activation),
        Field("dropout", "dropout", 0.0),
        Field("attention_dropout", "attention_dropout", 0.0),
        Field("hidden_dropout", "activation_dropout", 0.0),
        Field("layer_drop", "encoder_layerdrop", 0.0),
        Field("decoder_layer_drop", "decoder_layerdrop", 0.0),
        Field("tied", "tie_word_embeddings", True),
        Field("init_std", "init_std", 0.02),
        Field("padding", "pad_token_id", 50256),
        Field("decoder_start", "decoder_start_token_id", 50257),
        Field("end", "eos_token_id", 50256, read=first),
        Field("d_pool", "classifier_proj_size", 256),
        LABELS,
    ),
    keys=keys,
    fixed={"use_weighted_layer_sum": (False,), "apply_spec_augment": (False,)},
    # Vectors are never scaled whatever scale_embedding says; the rest is about training and about word times.
    inert=frozenset(
        "scale_embedding num_hidden_layers mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob"
        " mask_feature_length mask_feature_min_masks median_filter_width forced_decoder_ids".split()
    ),
    aliases=((r"^(encoder|decoder)\.", r"model.\1."),),
    leftovers=leftovers,
    rename=rename,
)
