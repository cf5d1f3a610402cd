"""MAE. Transformers writes its decoder's layers under another name than the files on the hub have; both are read."""

from __future__ import annotations

from anyformer.recipes.mae import MAE
from anyformer.weights.table import Field, Key, Table, both, each_layer, read_activation, write_activation
from anyformer.weights.tables.vit import LAYER_ALIASES, vit_inputs, vit_layer


def keys(config: MAE) -> list[Key]:
    cells = (config.image_size // config.patch_size) ** 2
    patch = (config.patch_size, config.patch_size)
    width = config.d_decoder
    return [
        *vit_inputs(config.d_model, config.n_channels, patch, cells),
        *each_layer(config.n_layers, vit_layer("encoder.blocks.{i}", "vit.encoder.layer.{i}", config.qkv_bias)),
        *both("encoder.final_norm", "vit.layernorm"),
        *both("decoder.inputs.project", "decoder.decoder_embed"),
        Key("decoder.inputs.mask_token.weight", "decoder.mask_token", "reshape", (1, 1, width)),
        Key("decoder.inputs.positions.weight", "decoder.decoder_pos_embed", "reshape", (1, cells + 1, width)),
        *each_layer(
            config.n_decoder_layers,
            vit_layer("decoder.blocks.{i}", "decoder.decoder_layers.{i}", config.qkv_bias),
        ),
        *both("decoder.final_norm", "decoder.decoder_norm"),
        *both("pixels.pixels", "decoder.decoder_pred"),
    ]


TABLE = Table(
    family="mae",
    model_type="vit_mae",
    architectures={"ViTMAEForPreTraining": {}},
    fields=(
        Field("n_layers", "num_hidden_layers", 12),
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_hidden", "intermediate_size", 3072),
        Field("n_decoder_layers", "decoder_num_hidden_layers", 8),
        Field("d_decoder", "decoder_hidden_size", 512),
        Field("n_decoder_heads", "decoder_num_attention_heads", 16),
        Field("d_decoder_hidden", "decoder_intermediate_size", 2048),
        Field("d_head", "head_dim", None),
        Field("image_size", "image_size", 224),
        Field("patch_size", "patch_size", 16),
        Field("n_channels", "num_channels", 3),
        Field("activation", "hidden_act", "gelu", read_activation, write_activation),
        Field("norm_eps", "layer_norm_eps", 1e-12),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
        Field("qkv_bias", "qkv_bias", True),
        Field("mask_ratio", "mask_ratio", 0.75),
        Field("normalise_pixels", "norm_pix_loss", False),
    ),
    keys=keys,
    inert=frozenset({"encoder_stride"}),
    aliases=(
        (r"^vit\.layers\.", "vit.encoder.layer."),
        (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
        *LAYER_ALIASES,
    ),
)
