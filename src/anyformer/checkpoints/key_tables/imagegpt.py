"""ImageGPT: GPT-2's names, norms without biases, and an output without the row of the first token."""

from __future__ import annotations

from anyformer.checkpoints.key_table import LABELS, PROBLEM, Key, KeyTable, strip_prefix, with_defaults
from anyformer.checkpoints.key_tables import gpt2
from anyformer.recipes.imagegpt import ImageGPTConfig


def keys(config: ImageGPTConfig) -> list[Key]:
    rows = [
        key for key in gpt2.keys(config) if not key.ours.endswith("norm.bias") and key.ours != "language.words.weight"
    ]
    if config.head == "language":
        rows.append(Key("language.words.weight", "lm_head.weight"))
    elif config.head == "classify":
        rows.append(Key("classify.classes.weight", "score.weight"))
    return rows


def ignored_keys(config: ImageGPTConfig) -> tuple[str, ...]:
    heads = {"language": r"^lm_head\.", "classify": r"^score\."}
    others = tuple(pattern for head, pattern in heads.items() if head != config.head)
    return (r"attn\.(bias|masked_bias)$", *others)


_DEFAULTS = {"n_layer": 24, "n_embd": 512, "n_head": 8, "vocab_size": 513, "activation_function": "quick_gelu"}

TABLE = KeyTable(
    family="imagegpt",
    model_type="imagegpt",
    architectures={
        "ImageGPTForCausalImageModeling": {"head": "language"},
        "ImageGPTForImageClassification": {"head": "classify"},
        "ImageGPTModel": {"head": "base"},
    },
    fields=(
        *with_defaults(gpt2.TABLE.fields, without=("tied", "cross_attention"), **_DEFAULTS),
        LABELS,
        PROBLEM,
    ),
    keys=keys,
    required_values={"tie_word_embeddings": (False,), "add_cross_attention": (False,)},
    ignored_fields=frozenset({"is_decoder", "reorder_and_upcast_attn"}),
    aliases=gpt2.TABLE.aliases,
    ignored_keys=ignored_keys,
    rename=strip_prefix("transformer."),
)
