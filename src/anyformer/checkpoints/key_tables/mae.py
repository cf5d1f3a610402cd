"""MAE. Transformers writes its decoder's layers under another name than the files on the hub have; both are read."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    ENCODER,
    PICTURES,
    ConfigField,
    Key,
    KeyTable,
    strip_prefix,
    vectors,
    weight_and_bias,
)
from anyformer.checkpoints.key_tables.vit import LAYER_ALIASES, cells, vit_inputs, vit_layers
from anyformer.recipes.mae import MAEConfig


def keys(config: MAEConfig) -> list[Key]:
    n_cells = cells(config)
    width = config.d_decoder
    rows = [
        *vit_inputs(config, config.patch_size, n_cells, "vit.embeddings"),
        *vit_layers(config, "vit.encoder.layer"),
        *weight_and_bias("encoder.final_norm", "vit.layernorm"),
    ]
    if config.head == "base":
        return rows
    return [
        *rows,
        *weight_and_bias("decoder.inputs.project", "decoder.decoder_embed"),
        vectors("decoder.inputs.mask_token.weight", "decoder.mask_token", 1, width),
        vectors("decoder.inputs.positions.weight", "decoder.decoder_pos_embed", n_cells + 1, width),
        *vit_layers(config, "decoder.decoder_layers", "decoder", config.n_decoder_layers),
        *weight_and_bias("decoder.final_norm", "decoder.decoder_norm"),
        *weight_and_bias("pixels.pixels", "decoder.decoder_pred"),
    ]


TABLE = KeyTable(
    family="mae",
    model_type="vit_mae",
    architectures={"ViTMAEForPreTraining": {"head": "pixels"}, "ViTMAEModel": {"head": "base"}},
    fields=(
        *ENCODER,
        ConfigField("n_decoder_layers", "decoder_num_hidden_layers", 8),
        ConfigField("d_decoder", "decoder_hidden_size", 512),
        ConfigField("n_decoder_heads", "decoder_num_attention_heads", 16),
        ConfigField("d_decoder_hidden", "decoder_intermediate_size", 2048),
        ConfigField("d_head", "head_dim", None),
        *PICTURES,
        ConfigField("qkv_bias", "qkv_bias", True),
        ConfigField("mask_ratio", "mask_ratio", 0.75),
        ConfigField("norm_pix_loss", "norm_pix_loss", False),
    ),
    keys=keys,
    ignored_fields=frozenset({"encoder_stride"}),
    ignored_keys=lambda config: (r"^decoder\.",) if config.head == "base" else (),
    rename=strip_prefix("vit."),
    aliases=(
        (r"^(embeddings|encoder|layers|layernorm)\.", r"vit.\1."),
        (r"^vit\.layers\.", "vit.encoder.layer."),
        (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
        *LAYER_ALIASES,
    ),
)
