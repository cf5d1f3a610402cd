"""ViT. Files keep the older names of the layers; the newer ones, which transformers has in memory, are read too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from anyformer.checkpoints.key_table import ENCODER, LABELS, PICTURES, PROBLEM, ConfigField, KeyTable, activation
from anyformer.checkpoints.names import Name, Names, Shape, absent, batch_of_one, by_names, under

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


ROLES = ("query", "key", "value")
LAYER = {
    **{f"self.{role}": f"attention.attention.{role}" for role in ROLES},
    "self.out": "attention.output.dense",
    "self.norm": "layernorm_before",
    "feedforward.norm": "layernorm_after",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
}


def no_key_bias(layer: Mapping[str, str]) -> Names:
    """The names of a layer whose keys have no bias in files; ours makes no difference."""
    return {**layer, "self.key.bias": absent(f"{layer['self.key']}.bias")}


def _convolution(config: Any, ours: Tensor) -> tuple[int, ...]:
    return (config.d_model, config.n_channels, *config.patch_size)


def inputs(theirs: str, shape: Shape = _convolution) -> dict[str, Any]:
    """The tokens in front, the positions, and the projection of the patches; theirs is a convolution of this shape."""
    projection = f"{theirs}.patch_embeddings.projection"
    return {
        "encoder.inputs.class_token.weight": batch_of_one(f"{theirs}.cls_token"),
        "encoder.inputs.mask_token.weight": batch_of_one(f"{theirs}.mask_token"),
        "encoder.inputs.positions.weight": batch_of_one(f"{theirs}.position_embeddings"),
        "encoder.inputs.patches.weight": Name(f"{projection}.weight", shape),
        "encoder.inputs.patches.bias": f"{projection}.bias",
    }


def body(prefix: str, layer: Names = LAYER) -> dict[str, Any]:
    """Everything below the head."""
    return {
        **inputs(f"{prefix}.embeddings"),
        **under("encoder.blocks.{i}", f"{prefix}.encoder.layer.{{i}}", layer),
        "encoder.final_norm": f"{prefix}.layernorm",
    }


MASK = (r"embeddings\.mask_token$",)

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

NAMES = {**body("vit"), "base.pool": "vit.pooler.dense", "classify.classes": "classifier"}

TABLE = KeyTable(
    family="vit",
    model_type="vit",
    architectures={
        "ViTModel": {"head": "base", **PLAIN},
        "ViTForImageClassification": {"head": "classify", **PLAIN},
    },
    fields=FIELDS,
    **by_names("vit", NAMES, prefix="vit", aliases=aliases("vit"), ignored=MASK),
    ignored_fields=frozenset({"encoder_stride"}),
)
