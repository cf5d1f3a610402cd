"""Whisper: Marian's names of the layers, without biases of the keys."""

from __future__ import annotations

from anyformer.recipes.whisper import Whisper
from anyformer.weights.table import LABELS, Field, Key, Table, assume, both, each_layer, spoken, without_key_bias
from anyformer.weights.tables.marian import SIDES, TARGET, WORDS, layer


def _side(side: str, n_layers: int) -> list[Key]:
    return [
        Key(f"{side}.inputs.positions.weight", f"model.{side}.embed_positions.weight"),
        *each_layer(n_layers, without_key_bias(layer(side))),
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
    words = [Key("decoder.inputs.words.weight", TARGET)]
    if config.head == "language":
        words = spoken(config.tied, TARGET, "proj_out.weight")
    return [*rows, *words, *_side("decoder", config.n_decoder_layers)]


def leftovers(config: Whisper) -> tuple[str, ...]:
    if config.head == "classify":
        return (r"^model\.decoder\.", r"^proj_out\.")
    return (r"^projector\.", r"^classifier\.", *((r"^proj_out\.",) if config.head == "base" else ()))


def rename(config: Whisper, name: str) -> str:
    return name if config.head == "language" else name.removeprefix("model.")


TABLE = Table(
    family="whisper",
    model_type="whisper",
    architectures={
        "WhisperForConditionalGeneration": {"head": "language"},
        "WhisperModel": {"head": "base"},
        "WhisperForAudioClassification": {"head": "classify"},
    },
    fields=(
        *assume(
            SIDES,
            encoder_layers=4,
            decoder_layers=4,
            d_model=384,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
            dropout=0.0,
        ),
        *assume(
            WORDS,
            without=("max_length", "scale_embedding"),
            vocab_size=51865,
            pad_token_id=50256,
            decoder_start_token_id=50257,
            eos_token_id=50256,
        ),
        Field("n_mels", "num_mel_bins", 80),
        Field("source_length", "max_source_positions", 1500),
        Field("max_length", "max_target_positions", 448),
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
