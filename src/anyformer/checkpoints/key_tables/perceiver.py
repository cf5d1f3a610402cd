"""Perceiver: masked bytes, and images with learned positions or with waves."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    LABELS,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    activation,
    weight_and_bias,
    weights_and_biases,
)
from anyformer.recipes.perceiver import D_PIXEL, PerceiverConfig


def _layer(block: str, name: str, theirs: str) -> list[Key]:
    inner = f"{theirs}.attention.self"
    rows = weight_and_bias(f"{block}.{name}.norm", f"{inner}.layernorm1")
    if name == "cross":
        rows += weight_and_bias(f"{block}.cross.context_norm", f"{inner}.layernorm2")
    return [
        *rows,
        *weights_and_biases(f"{block}.{name}", inner, {role: role for role in ("query", "key", "value")}),
        *weight_and_bias(f"{block}.{name}.out", f"{theirs}.attention.output.dense"),
        *weights_and_biases(
            f"{block}.feedforward", theirs, {"norm": "layernorm", "up": "mlp.dense1", "down": "mlp.dense2"}
        ),
    ]


def _words(config: PerceiverConfig) -> list[Key]:
    reader = "perceiver.input_preprocessor"
    return [
        Key("inputs.inputs.words.weight", f"{reader}.embeddings.weight"),
        Key("inputs.inputs.positions.weight", f"{reader}.position_embeddings.weight"),
        Key("outputs.inputs.vectors.weight", "perceiver.decoder.output_position_encodings.position_embeddings"),
        *_layer("outputs.blocks.0", "cross", "perceiver.decoder.decoding_cross_attention"),
        Key("masked.bias", "embedding_decoder.bias"),
    ]


def _pixels(config: PerceiverConfig) -> list[Key]:
    reader, writer = "perceiver.input_preprocessor", "perceiver.decoder.decoder"
    learned = [
        Key("inputs.inputs.patches.weight", f"{reader}.convnet_1x1.weight", "reshape", (D_PIXEL, 3, 1, 1)),
        Key("inputs.inputs.patches.bias", f"{reader}.convnet_1x1.bias"),
        Key("inputs.inputs.positions.weight", f"{reader}.position_embeddings.position_embeddings"),
        *weight_and_bias("inputs.inputs.project", f"{reader}.positions_projection"),
    ]
    return [
        *(learned if config.positions == "learned" else []),
        Key("outputs.inputs.vectors.weight", f"{writer}.output_position_encodings.position_embeddings"),
        *_layer("outputs.blocks.0", "cross", f"{writer}.decoding_cross_attention"),
        *weight_and_bias("classify-image.classes", f"{writer}.final_layer"),
    ]


def keys(config: PerceiverConfig) -> list[Key]:
    shifted = [
        Key(key.ours.replace("blocks.#", f"blocks.{i + 1}"), key.theirs.replace("#", str(i)))
        for i in range(config.n_layers)
        for key in _layer("latents.blocks.#", "self", "perceiver.encoder.self_attends.#")
    ]
    return [
        Key("latents.inputs.vectors.weight", "perceiver.embeddings.latents"),
        *_layer("latents.blocks.0", "cross", "perceiver.encoder.cross_attention"),
        *shifted,
        *(_words(config) if config.head == "masked" else _pixels(config)),
    ]


TABLE = KeyTable(
    family="perceiver",
    model_type="perceiver",
    architectures={
        "PerceiverForMaskedLM": {"head": "masked"},
        "PerceiverForImageClassificationLearned": {"head": "classify-image", "positions": "learned"},
        "PerceiverForImageClassificationFourier": {
            "head": "classify-image",
            "positions": "fourier",
            "bands": 64,
            "resolution": 224,
        },
    },
    fields=(
        ConfigField("n_latents", "num_latents", 256),
        ConfigField("d_latents", "d_latents", 1280),
        ConfigField("d_model", "d_model", 768),
        ConfigField("n_layers", "num_self_attends_per_block", 26),
        ConfigField("n_repeats", "num_blocks", 1),
        ConfigField("n_heads", "num_self_attention_heads", 8),
        ConfigField("n_cross_heads", "num_cross_attention_heads", 8),
        ConfigField("d_qk", "qk_channels", None),
        ConfigField("d_value", "v_channels", None),
        ConfigField("cross_width", "cross_attention_shape_for_attention", "kv"),
        ConfigField("widening_factor", "self_attention_widening_factor", 1),
        ConfigField("cross_widening_factor", "cross_attention_widening_factor", 1),
        activation("hidden_act", "gelu"),
        ConfigField("attention_dropout", "attention_probs_dropout_prob", 0.1),
        ConfigField("query_residual", "use_query_residual", True),
        ConfigField("vocab_size", "vocab_size", 262),
        ConfigField("max_length", "max_position_embeddings", 2048),
        ConfigField("image_size", "image_size", 56),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    # Its norms have a fixed epsilon whatever layer_norm_eps says; the rest belongs to flow, video and sound.
    ignored_fields=frozenset(
        "layer_norm_eps train_size num_frames audio_samples_per_frame samples_per_patch output_shape"
        " output_num_channels".split()
    ),
)
