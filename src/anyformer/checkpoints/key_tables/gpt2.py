"""GPT-2. Its matrices lie transposed; files on the hub leave out the prefix and keep the causal mask as a buffer."""

from __future__ import annotations

from typing import Any

from anyformer.checkpoints.key_table import LABELS, PROBLEM, ConfigField, KeyTable, activation, decoder_classes
from anyformer.checkpoints.names import by_names, under
from anyformer.errors import ConfigError
from anyformer.recipes.gpt2 import GPT2Config

LAYER = {
    "self.norm": "ln_1",
    "self.qkv": "attn.c_attn",
    "self.out": "attn.c_proj",
    "cross.norm": "ln_cross_attn",
    "cross.query": "crossattention.q_attn",
    "cross.kv": "crossattention.c_attn",
    "cross.out": "crossattention.c_proj",
    "feedforward.norm": "ln_2",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
NAMES = {
    "decoder.inputs.words": "transformer.wte",
    "decoder.inputs.positions": "transformer.wpe",
    **under("decoder.blocks.{i}", "transformer.h.{i}", LAYER),
    "decoder.final_norm": "transformer.ln_f",
    "language.words": "lm_head",
    "classify.classes": "score",
}
BUFFERS = (r"attn\.(bias|masked_bias)$", r"crossattention\.(bias|masked_bias)$")


IDS = ("bos_token_id", "eos_token_id")
TEXT_END = 50256  # <|endoftext|> of the original vocabulary: what GPT2Config assumes if a file does not say


def _read_score(scaled: Any) -> str:
    return "scaled" if scaled else "dot"


def _write_score(score: str) -> bool:
    if score not in ("scaled", "dot"):
        raise ConfigError(f'score is "{score}"; the Hugging Face form of this family has "scaled" and "dot" only.')
    return score == "scaled"


def ids(config: GPT2Config, today: dict[str, Any]) -> dict[str, Any]:
    """How texts begin and end, always said; null for a vocabulary that does not have the original's token."""
    usual = TEXT_END if config.vocab_size > TEXT_END else None
    return {name: today.get(name, usual) for name in IDS}


TABLE = KeyTable(
    family="gpt2",
    model_type="gpt2",
    architectures=decoder_classes("GPT2", language="LMHeadModel"),
    fields=(
        ConfigField("n_layers", "n_layer", 12),
        ConfigField("d_model", "n_embd", 768),
        ConfigField("n_heads", "n_head", 12),
        ConfigField("d_hidden", "n_inner", None),
        ConfigField("vocab_size", "vocab_size", 50257),
        ConfigField("max_length", "n_positions", 1024),
        activation("activation_function", "gelu_new"),
        ConfigField("norm_eps", "layer_norm_epsilon", 1e-5),
        ConfigField("dropout", "resid_pdrop", 0.1),
        ConfigField("embedding_dropout", "embd_pdrop", 0.1),
        ConfigField("attention_dropout", "attn_pdrop", 0.1),
        ConfigField("score", "scale_attn_weights", True, _read_score, _write_score),
        ConfigField("scale_by_depth", "scale_attn_by_inverse_layer_idx", False),
        ConfigField("cross_attention", "add_cross_attention", False),
        ConfigField("tied", "tie_word_embeddings", True),
        LABELS,
        PROBLEM,
    ),
    **by_names("gpt2", NAMES, prefix="transformer", turned=True, ignored=BUFFERS),
    # reorder_and_upcast_attn raises the precision of half-precision scores; the summary fields are of another head;
    # GPT-2 is a decoder whatever is_decoder says.
    ignored_fields=frozenset(
        "is_decoder reorder_and_upcast_attn n_ctx summary_type summary_use_proj summary_activation"
        " summary_proj_to_labels summary_first_dropout".split()
    ),
    extra_fields=ids,
    nulls=frozenset(IDS),
)
