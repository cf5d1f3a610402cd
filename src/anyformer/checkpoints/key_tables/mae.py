"""MAE. Transformers writes its decoder's layers under another name than the files on the hub have; both are read."""

from __future__ import annotations

from anyformer.checkpoints.key_table import ENCODER, PICTURES, ConfigField, KeyTable, strip_prefix
from anyformer.checkpoints.key_tables.vit import LAYER, LAYER_ALIASES, body
from anyformer.checkpoints.names import batch_of_one, by_names, under

NAMES = {
    **body("vit"),
    "decoder.inputs.project": "decoder.decoder_embed",
    "decoder.inputs.mask_token.weight": batch_of_one("decoder.mask_token"),
    "decoder.inputs.positions.weight": batch_of_one("decoder.decoder_pos_embed"),
    **under("decoder.blocks.{i}", "decoder.decoder_layers.{i}", LAYER),
    "decoder.final_norm": "decoder.decoder_norm",
    "pixels.pixels": "decoder.decoder_pred",
}
_ALIASES = (
    (r"^(embeddings|encoder|layers|layernorm)\.", r"vit.\1."),
    (r"^vit\.layers\.", "vit.encoder.layer."),
    (r"^decoder\.decoder_encoder\.layer\.", "decoder.decoder_layers."),
    *LAYER_ALIASES,
)

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
    **by_names("mae", NAMES, aliases=_ALIASES),
    rename=strip_prefix("vit."),
    ignored_fields=frozenset({"encoder_stride"}),
)
