"""VideoMAE: ViT's names. Its keys have no bias, and ours makes no difference; older files call the biases of queries
and values q_bias and v_bias."""

from __future__ import annotations

import re
from dataclasses import replace

from anyformer.recipes.videomae import VideoMAE
from anyformer.weights.table import (
    LABELS,
    PROBLEM,
    Field,
    Key,
    Table,
    both,
    each_layer,
    pair,
    read_activation,
    unpair,
    write_activation,
)
from anyformer.weights.tables.vit import vit_layer


def _layers(side: str, theirs: str, n: int, bias: bool) -> list[Key]:
    rows = vit_layer(f"{side}.blocks.{{i}}", f"{theirs}.{{i}}", bias)
    return each_layer(n, [replace(key, optional=key.ours.endswith("key.bias")) for key in rows])


def keys(config: VideoMAE) -> list[Key]:
    projection = "videomae.embeddings.patch_embeddings.projection"
    shape = (config.d_model, config.n_channels, config.tubelet_size, *config.patch_size)
    rows = [
        Key("encoder.inputs.patches.weight", f"{projection}.weight", "reshape", shape),
        Key("encoder.inputs.patches.bias", f"{projection}.bias"),
        *_layers("encoder", "videomae.encoder.layer", config.n_layers, config.qv_bias),
        *([] if config.mean_pooling else both("encoder.final_norm", "videomae.layernorm")),
    ]
    if config.head == "base":
        return rows
    if config.head == "classify":
        norm = both("classify.norm", "fc_norm") if config.mean_pooling else []
        return [*rows, *norm, *(both("classify.classes", "classifier") if config.n_labels else [])]
    return [
        *rows,
        Key("decoder.inputs.project.weight", "encoder_to_decoder.weight"),
        Key("decoder.inputs.mask_token.weight", "mask_token", "reshape", (1, 1, config.d_decoder)),
        *_layers("decoder", "decoder.decoder_layers", config.n_decoder_layers, config.qv_bias),
        *both("decoder.final_norm", "decoder.norm"),
        *both("pixels.pixels", "decoder.head"),
    ]


def leftovers(config: VideoMAE) -> tuple[str, ...]:
    decoder = (r"^encoder_to_decoder\.", r"^mask_token$", r"^decoder\.", r"position_embeddings$")
    classes = (r"^fc_norm\.", r"^classifier\.")
    return (*(decoder if config.head != "pixels" else ()), *(classes if config.head != "classify" else ()))


def rename(config: VideoMAE, name: str) -> str:
    return re.sub(r"^videomae\.", "", name) if config.head == "base" else name


TABLE = Table(
    family="videomae",
    model_type="videomae",
    architectures={
        "VideoMAEForVideoClassification": {"head": "classify"},
        "VideoMAEForPreTraining": {"head": "pixels"},
        "VideoMAEModel": {"head": "base"},
    },
    fields=(
        Field("n_layers", "num_hidden_layers", 12),
        Field("d_model", "hidden_size", 768),
        Field("n_heads", "num_attention_heads", 12),
        Field("d_hidden", "intermediate_size", 3072),
        Field("n_decoder_layers", "decoder_num_hidden_layers", 4),
        Field("d_decoder", "decoder_hidden_size", 384),
        Field("n_decoder_heads", "decoder_num_attention_heads", 6),
        Field("d_decoder_hidden", "decoder_intermediate_size", 1536),
        Field("n_frames", "num_frames", 16),
        Field("tubelet_size", "tubelet_size", 2),
        Field("image_size", "image_size", 224, pair, unpair),
        Field("patch_size", "patch_size", 16, pair, unpair),
        Field("n_channels", "num_channels", 3),
        Field("activation", "hidden_act", "gelu", read_activation, write_activation),
        Field("norm_eps", "layer_norm_eps", 1e-12),
        Field("dropout", "hidden_dropout_prob", 0.0),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
        Field("qv_bias", "qv_bias", True),
        Field("mean_pooling", "use_mean_pooling", True),
        Field("normalise_pixels", "norm_pix_loss", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=(
        (r"^(embeddings|encoder|layernorm)\.", r"videomae.\1."),
        (r"\.attention\.q_bias$", ".attention.query.bias"),
        (r"\.attention\.v_bias$", ".attention.value.bias"),
    ),
    leftovers=leftovers,
    rename=rename,
)
