"""VideoMAE: ViT's names, without biases of the keys; older files call those of queries and values q_bias and v_bias."""

from __future__ import annotations

from anyformer.recipes.videomae import VideoMAE
from anyformer.weights.table import (
    ENCODER,
    LABELS,
    PICTURES,
    PROBLEM,
    Field,
    Key,
    Table,
    bare,
    both,
    each_layer,
    vectors,
    without_key_bias,
)
from anyformer.weights.tables.vit import classes, patches, vit_layer


def _layers(side: str, theirs: str, n: int, bias: bool) -> list[Key]:
    return each_layer(n, without_key_bias(vit_layer(f"{side}.blocks.{{i}}", f"{theirs}.{{i}}", bias)))


def keys(config: VideoMAE) -> list[Key]:
    shape = (config.d_model, config.n_channels, config.tubelet_size, *config.patch_size)
    rows = [
        *patches("videomae.embeddings", shape),
        *_layers("encoder", "videomae.encoder.layer", config.n_layers, config.qv_bias),
        *([] if config.mean_pooling else both("encoder.final_norm", "videomae.layernorm")),
    ]
    if config.head == "base":
        return rows
    if config.head == "classify":
        norm = both("classify.norm", "fc_norm") if config.mean_pooling else []
        return [*rows, *norm, *classes(config)]
    return [
        *rows,
        Key("decoder.inputs.project.weight", "encoder_to_decoder.weight"),
        vectors("decoder.inputs.mask_token.weight", "mask_token", 1, config.d_decoder),
        *_layers("decoder", "decoder.decoder_layers", config.n_decoder_layers, config.qv_bias),
        *both("decoder.final_norm", "decoder.norm"),
        *both("pixels.pixels", "decoder.head"),
    ]


def leftovers(config: VideoMAE) -> tuple[str, ...]:
    decoder = (r"^encoder_to_decoder\.", r"^mask_token$", r"^decoder\.", r"position_embeddings$")
    classes = (r"^fc_norm\.", r"^classifier\.")
    return (*(decoder if config.head != "pixels" else ()), *(classes if config.head != "classify" else ()))


TABLE = Table(
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
        Field("n_decoder_layers", "decoder_num_hidden_layers", 4),
        Field("d_decoder", "decoder_hidden_size", 384),
        Field("n_decoder_heads", "decoder_num_attention_heads", 6),
        Field("d_decoder_hidden", "decoder_intermediate_size", 1536),
        Field("n_frames", "num_frames", 16),
        Field("tubelet_size", "tubelet_size", 2),
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
    rename=bare("videomae."),
)
