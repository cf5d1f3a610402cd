"""VideoMAE: ViT's names, without biases of the keys; older files call those of queries and values q_bias and v_bias."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.checkpoints.key_table import ENCODER, LABELS, PICTURES, PROBLEM, ConfigField, KeyTable, mean_pooling
from anyformer.checkpoints.key_tables.vit import LAYER, body, inputs, no_key_bias
from anyformer.checkpoints.names import batch_of_one, by_names, under


def _convolution(config: Any, ours: Tensor) -> tuple[int, ...]:
    return (config.d_model, config.n_channels, config.tubelet_size, *config.patch_size)


NAMES = {
    **body("videomae", no_key_bias(LAYER)),
    **inputs("videomae.embeddings", _convolution),
    "decoder.inputs.project": "encoder_to_decoder",
    "decoder.inputs.mask_token.weight": batch_of_one("mask_token"),
    **under("decoder.blocks.{i}", "decoder.decoder_layers.{i}", no_key_bias(LAYER)),
    "decoder.final_norm": "decoder.norm",
    "pixels.pixels": "decoder.head",
    "classify.norm": "fc_norm",
    "classify.classes": "classifier",
}
_ALIASES = (
    (r"^(embeddings|encoder|layernorm)\.", r"videomae.\1."),
    (r"\.attention\.q_bias$", ".attention.query.bias"),
    (r"\.attention\.v_bias$", ".attention.value.bias"),
)

TABLE = KeyTable(
    family="videomae",
    model_type="videomae",
    architectures={
        "VideoMAEForVideoClassification": {"head": "classify"},
        "VideoMAEForPreTraining": {"head": "pixels"},
        "VideoMAEModel": {"head": "base"},
    },
    fields=(
        *ENCODER,
        *PICTURES,
        ConfigField("n_decoder_layers", "decoder_num_hidden_layers", 4),
        ConfigField("d_decoder", "decoder_hidden_size", 384),
        ConfigField("n_decoder_heads", "decoder_num_attention_heads", 6),
        ConfigField("d_decoder_hidden", "decoder_intermediate_size", 1536),
        ConfigField("n_frames", "num_frames", 16),
        ConfigField("tubelet_size", "tubelet_size", 2),
        ConfigField("qkv_bias", "qv_bias", True),
        mean_pooling("first"),
        ConfigField("norm_pix_loss", "norm_pix_loss", True),
        LABELS,
        PROBLEM,
    ),
    **by_names("videomae", NAMES, prefix="videomae", aliases=_ALIASES, ignored=(r"position_embeddings$",)),
)
