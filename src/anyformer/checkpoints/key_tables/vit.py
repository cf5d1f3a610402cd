"""ViT. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

import math
from typing import Any

from anyformer.checkpoints.key_table import (
    ENCODER,
    LABELS,
    PICTURES,
    PROBLEM,
    ConfigField,
    Key,
    KeyTable,
    activation,
    each_layer,
    strip_prefix,
    vectors,
    weight_and_bias,
    weights_and_biases,
)
from anyformer.recipes.vit import ViTConfig

# Newer names of the pieces of a layer, as transformers has them in memory -> those in the files.
LAYER_ALIASES = (
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)


def aliases(prefix: str, pieces: str = "embeddings|encoder|layers|layernorm|pooler") -> tuple[tuple[str, str], ...]:
    """Names without the prefix, and newer ones."""
    return (
        (rf"^({pieces})\.", rf"{prefix}.\1."),
        (rf"^{prefix}\.layers\.", f"{prefix}.encoder.layer."),
        *LAYER_ALIASES,
    )


def vit_layer(
    block: str, theirs: str, qkv_bias: bool, up: str = "intermediate.dense", down: str = "output.dense"
) -> list[Key]:
    rows = []
    for role in ("query", "key", "value"):
        names = weight_and_bias(f"{block}.self.{role}", f"{theirs}.attention.attention.{role}")
        rows += names if qkv_bias else names[:1]
    rest = {
        "self.out": "attention.output.dense",
        "self.norm": "layernorm_before",
        "feedforward.norm": "layernorm_after",
        "feedforward.up": up,
        "feedforward.down": down,
    }
    return [*rows, *weights_and_biases(block, theirs, rest)]


def vit_layers(config: Any, theirs: str, side: str = "encoder", n_layers: int | None = None) -> list[Key]:
    n = config.n_layers if n_layers is None else n_layers
    return each_layer(n, vit_layer(f"{side}.blocks.{{i}}", f"{theirs}.{{i}}", config.qkv_bias))


def patches(theirs: str, shape: tuple[int, ...]) -> list[Key]:
    """The projection of the patches; theirs is a convolution: (width, channels, rows, columns)."""
    projection = f"{theirs}.patch_embeddings.projection"
    return [
        Key("encoder.inputs.patches.weight", f"{projection}.weight", "reshape", shape),
        Key("encoder.inputs.patches.bias", f"{projection}.bias"),
    ]


def vit_inputs(config: Any, patch: tuple[int, ...], n_cells: int, theirs: str, extra: int = 1) -> list[Key]:
    """`extra` tokens stand before the patches."""
    width = config.d_model
    return [
        vectors("encoder.inputs.class_token.weight", f"{theirs}.cls_token", 1, width),
        vectors("encoder.inputs.positions.weight", f"{theirs}.position_embeddings", n_cells + extra, width),
        *patches(theirs, (width, config.n_channels, *patch)),
    ]


def cells(config: Any) -> int:
    return math.prod(side // patch for side, patch in zip(config.image_size, config.patch_size, strict=True))


def body(config: ViTConfig, prefix: str, extra: int = 1) -> list[Key]:
    """Everything below the head."""
    return [
        *vit_inputs(config, config.patch_size, cells(config), f"{prefix}.embeddings", extra),
        *vit_layers(config, f"{prefix}.encoder.layer"),
        *weight_and_bias("encoder.final_norm", f"{prefix}.layernorm"),
    ]


def classes(config: Any) -> list[Key]:
    return weight_and_bias("classify.classes", "classifier") if config.n_labels else []


def keys(config: ViTConfig) -> list[Key]:
    rows = body(config, "vit")
    if config.head == "base":
        return [*rows, *weight_and_bias("base.pool", "vit.pooler.dense")]
    return [*rows, *classes(config)]


def ignored_keys(config: ViTConfig) -> tuple[str, ...]:
    others = r"^vit\.pooler\." if config.head == "classify" else r"^classifier\."
    return (others, r"^vit\.embeddings\.mask_token$")


FIELDS = (
    *ENCODER,
    *PICTURES,
    ConfigField("d_head", "head_dim", None),
    ConfigField("qkv_bias", "qkv_bias", True),
    ConfigField("d_pool", "pooler_output_size", None),
    activation("pooler_act", "tanh", "pool_activation"),
    LABELS,
    PROBLEM,
)
# What the Hugging Face classes cannot say otherwise.
PLAIN = {"positions": "learned", "class_token": True, "pooling": "class"}

TABLE = KeyTable(
    family="vit",
    model_type="vit",
    architectures={
        "ViTModel": {"head": "base", **PLAIN},
        "ViTForImageClassification": {"head": "classify", **PLAIN},
    },
    fields=FIELDS,
    keys=keys,
    ignored_fields=frozenset({"encoder_stride"}),
    aliases=aliases("vit"),
    ignored_keys=ignored_keys,
    rename=strip_prefix("vit."),
)
