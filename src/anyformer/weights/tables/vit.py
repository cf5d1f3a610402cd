"""ViT. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

import re

from anyformer.recipes.vit import ViT
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

# Newer names of the pieces of a layer, as transformers has them in memory -> those in the files.
LAYER_ALIASES = (
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)


def vit_layer(block: str, theirs: str, qkv_bias: bool) -> list[Key]:
    rows = []
    for role in ("query", "key", "value"):
        names = both(f"{block}.self.{role}", f"{theirs}.attention.attention.{role}")
        rows += names if qkv_bias else names[:1]
    return [
        *rows,
        *both(f"{block}.self.out", f"{theirs}.attention.output.dense"),
        *both(f"{block}.self.norm", f"{theirs}.layernorm_before"),
        *both(f"{block}.feedforward.norm", f"{theirs}.layernorm_after"),
        *both(f"{block}.feedforward.up", f"{theirs}.intermediate.dense"),
        *both(f"{block}.feedforward.down", f"{theirs}.output.dense"),
    ]


def vit_inputs(
    d_model: int, n_channels: int, patch: tuple[int, ...], n_cells: int, prefix: str = "vit", extra: int = 1
) -> list[Key]:
    embeddings = f"{prefix}.embeddings"
    projection = f"{embeddings}.patch_embeddings.projection"
    return [
        Key("encoder.inputs.class_token.weight", f"{embeddings}.cls_token", "reshape", (1, 1, d_model)),
        Key(
            "encoder.inputs.positions.weight",
            f"{embeddings}.position_embeddings",
            "reshape",
            (1, n_cells + extra, d_model),
        ),
        Key("encoder.inputs.patches.weight", f"{projection}.weight", "reshape", (d_model, n_channels, *patch)),
        Key("encoder.inputs.patches.bias", f"{projection}.bias"),
    ]


def body(config: ViT, prefix: str, extra: int = 1) -> list[Key]:
    """Everything below the head; `extra` tokens stand before the patches."""
    cells = (config.image_size[0] // config.patch_size[0]) * (config.image_size[1] // config.patch_size[1])
    return [
        *vit_inputs(config.d_model, config.n_channels, config.patch_size, cells, prefix, extra),
        *each_layer(config.n_layers, vit_layer("encoder.blocks.{i}", f"{prefix}.encoder.layer.{{i}}", config.qkv_bias)),
        *both("encoder.final_norm", f"{prefix}.layernorm"),
    ]


def keys(config: ViT) -> list[Key]:
    rows = body(config, "vit")
    if config.head == "base":
        return [*rows, *both("base.pool", "vit.pooler.dense")]
    return [*rows, *(both("classify.classes", "classifier") if config.n_labels else [])]


def leftovers(config: ViT) -> tuple[str, ...]:
    others = r"^vit\.pooler\." if config.head == "classify" else r"^classifier\."
    return (others, r"^vit\.embeddings\.mask_token$")


def rename(config: ViT, name: str) -> str:
    return re.sub(r"^vit\.", "", name) if config.head == "base" else name


FIELDS = (
    Field("n_layers", "num_hidden_layers", 12),
    Field("d_model", "hidden_size", 768),
    Field("n_heads", "num_attention_heads", 12),
    Field("d_head", "head_dim", None),
    Field("d_hidden", "intermediate_size", 3072),
    Field("image_size", "image_size", 224, pair, unpair),
    Field("patch_size", "patch_size", 16, pair, unpair),
    Field("n_channels", "num_channels", 3),
    Field("activation", "hidden_act", "gelu", read_activation, write_activation),
    Field("norm_eps", "layer_norm_eps", 1e-12),
    Field("dropout", "hidden_dropout_prob", 0.0),
    Field("attention_dropout", "attention_probs_dropout_prob", 0.0),
    Field("qkv_bias", "qkv_bias", True),
    Field("d_pool", "pooler_output_size", None),
    Field("pool_activation", "pooler_act", "tanh", read_activation, write_activation),
    LABELS,
    PROBLEM,
)
# What the Hugging Face classes cannot say otherwise.
PLAIN = {"positions": "learned", "class_token": True, "pooling": "class"}

TABLE = Table(
    family="vit",
    model_type="vit",
    architectures={
        "ViTModel": {"head": "base", **PLAIN},
        "ViTForImageClassification": {"head": "classify", **PLAIN},
    },
    fields=FIELDS,
    keys=keys,
    inert=frozenset({"encoder_stride"}),
    aliases=(
        (r"^(embeddings|encoder|layers|layernorm|pooler)\.", r"vit.\1."),
        (r"^vit\.layers\.", "vit.encoder.layer."),
        *LAYER_ALIASES,
    ),
    leftovers=leftovers,
    rename=rename,
)
