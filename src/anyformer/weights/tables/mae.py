"""MAE. Transformers writes its decoder's layers under another name than the files on the hub have; both are read."""

from __future__ import annotations

from anyformer.recipes.mae import MAE
from anyformer.weights.table import ENCODER, Field, Key, Table, both, vectors
from anyformer.weights.tables.vit import LAYER_ALIASES, vit_inputs, vit_layers


def keys(config: MAE) -> list[Key]:
    cells = (config.image_size // config.patch_size) ** 2
    patch = (config.patch_size, config.patch_size)
    width = config.d_decoder
    return [
        *vit_inputs(config, patch, cells, "vit.embeddings"),
        *vit_layers(config, "vit.encoder.layer"),
        *both("encoder.final_norm", "vit.layernorm"),
        *both("decoder.inputs.project", "decoder.decoder_embed"),
        vectors("decoder.inputs.mask_token.weight", "decoder.mask_token", 1, width),
        vectors("decoder.inputs.positions.weight", "decoder.decoder_pos_embed", cells + 1, width),
        *vit_layers(config, "decoder.decoder_layers", "decoder", config.n_decoder_layers),
        *both("decoder.final_norm", "decoder.decoder_norm"),
        *both("pixels.pixels", "decoder.decoder_pred"),
    ]


TABLE = Table(
    family="mae",
    model_type="vit_mae",
    architectures={"ViTMAEForPreTraining": {}},
    fields=(
        *ENCODER,
        Field("n_decoder_layers", "decoder_num_hidden_layers", 8),
        Field("d_decoder", "decoder_hidden_size", 512),
        Field("n_decoder_heads", "decoder_num_attention_heads", 16),
        Field("d_decoder_hidden", "decoder_intermediate_size", 2048),
        Field("d_head", "head_dim", None),
        Field("image_size", "image_size", 224),
        Field("patch_size", "patch_size", 16),
        Field("n_channels", "num_channels", 3),
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
