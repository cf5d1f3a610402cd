"""VideoMAE: ViT's names, without biases of the keys; older files call those of queries and values q_bias and v_bias."""

from __future__ import annotations

from anyformer.checkpoints.key_table import (
    ENCODER,
    LABELS,
    PICTURES,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    each_layer,
    strip_prefix,
    vectors,
    weight_and_bias,
    without_key_bias,
)
from anyformer.checkpoints.key_tables.vit import classes, patches, vit_layer
from anyformer.recipes.videomae import VideoMAEConfig


def _layers(side: str, theirs: str, n: int, bias: bool) -> list[Key]:
    return each_layer(n, without_key_bias(vit_layer(f"{side}.blocks.{{i}}", f"{theirs}.{{i}}", bias)))


def keys(config: VideoMAEConfig) -> list[Key]:
    shape = (config.d_model, config.n_channels, config.tubelet_size, *config.patch_size)
    rows = [
        *patches("videomae.embeddings", shape),
        *_layers("encoder", "videomae.encoder.layer", config.n_layers, config.qkv_bias),
        *([] if config.mean_pooling else weight_and_bias("encoder.final_norm", "videomae.layernorm")),
    ]
    if config.head == "base":
        return rows
    if config.head == "classify":
        norm = weight_and_bias("classify.norm", "fc_norm") if config.mean_pooling else []
        return [*rows, *norm, *classes(config)]
    return [
        *rows,
        Key("decoder.inputs.project.weight", "encoder_to_decoder.weight"),
        vectors("decoder.inputs.mask_token.weight", "mask_token", 1, config.d_decoder),
        *_layers("decoder", "decoder.decoder_layers", config.n_decoder_layers, config.qkv_bias),
        *weight_and_bias("decoder.final_norm", "decoder.norm"),
        *weight_and_bias("pixels.pixels", "decoder.head"),
    ]


def ignored_keys(config: VideoMAEConfig) -> tuple[str, ...]:
    decoder = (r"^encoder_to_decoder\.", r"^mask_token$", r"^decoder\.", r"position_embeddings$")
    classes = (r"^fc_norm\.", r"^classifier\.")
    return (*(decoder if config.head != "pixels" else ()), *(classes if config.head != "classify" else ()))


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
        ConfigField("mean_pooling", "use_mean_pooling", True),
        ConfigField("norm_pix_loss", "norm_pix_loss", True),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    aliases=(
        (r"^(embeddings|encoder|layernorm)\.", r"videomae.\1."),
        (r"\.attention\.q_bias$", ".attention.query.bias"),
        (r"\.attention\.v_bias$", ".attention.value.bias"),
    ),
    ignored_keys=ignored_keys,
    rename=strip_prefix("videomae."),
)
