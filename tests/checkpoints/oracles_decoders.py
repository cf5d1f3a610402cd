"""The decoders' oracles: tiny configs, batches and labels, for the tables in oracles.py."""

from __future__ import annotations

from typing import Any

HOMES = {
    "OpenAIGPT": "openai",
    "GPTNeoX": "gpt_neox",
    "Llama": "llama",
    "Mistral": "mistral",
    "Qwen2": "qwen2",
    "Qwen3": "qwen3",
    "Gemma3": "gemma3",
    "Gemma2": "gemma2",
    "Gemma": "gemma",
}

_LLAMA = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 24,
}
_GEMMA = {"head_dim": 12, "query_pre_attn_scalar": 10, "sliding_window": 4}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "OpenAIGPT": (
        "OpenAIGPTConfig",
        {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60, "n_positions": 24},
    ),
    "GPTNeoX": (
        "GPTNeoXConfig",
        {name: value for name, value in _LLAMA.items() if name != "num_key_value_heads"},
    ),
    "Llama": ("LlamaConfig", _LLAMA),
    "Mistral": ("MistralConfig", {**_LLAMA, "sliding_window": 4}),
    "Qwen2": ("Qwen2Config", {**_LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "Qwen3": ("Qwen3Config", {**_LLAMA, "head_dim": 12}),
    "Gemma3": (
        "Gemma3TextConfig",
        {**_LLAMA, **_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "Gemma2": (
        "Gemma2Config",
        {**_LLAMA, **_GEMMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.5},
    ),
    "Gemma": ("GemmaConfig", {**_LLAMA, "head_dim": 12}),
}

ARCHITECTURES = (
    "OpenAIGPTLMHeadModel",
    "GPTNeoXForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma3ForCausalLM",
    "Gemma2ForCausalLM",
    "GemmaForCausalLM",
)

SINGLE = ("GPTNeoX", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3", "Gemma2", "Gemma")

# For test_config_fields.py: what a field is set to where its type does not say, and what it needs beside it.
VALUES: dict[str, Any] = {
    "afn": "relu",
    "hidden_activation": "silu",
    "intermediate_size": 40,
    "num_key_value_heads": 4,
    "head_dim": 10,
    "rms_norm_eps": 0.01,
    "sliding_window": 3,
    "max_window_layers": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 7,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    "final_logit_softcapping": 5.0,
    "attn_logit_softcapping": 5.0,
}
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("Llama", "rope_parameters"): {"max_position_embeddings": 6},  # the texts are longer, which "dynamic" notices
    ("Gemma3", "num_hidden_layers"): {"layer_types": None},
    ("Gemma3", "rope_parameters"): {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 100.0},
            "sliding_attention": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0},
        }
    },
    ("GPTNeoX", "rope_parameters"): {
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    },
    ("Qwen3", "layer_types"): {"use_sliding_window": True, "sliding_window": 3},
    ("Qwen3", "use_sliding_window"): {"sliding_window": 3, "max_window_layers": 1},
}

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 12}
_LONG = {
    **{"rope_type": "longrope", "rope_theta": 100.0},
    **{"short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 3.5, 6.0]},
}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5},
    {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0},
    _LLAMA3,
    {**_LLAMA3, "low_freq_factor": 0.5, "high_freq_factor": 2.0},
    _YARN,
    {**_YARN, "truncate": False, "beta_fast": 4.0, "beta_slow": 0.5},
    {**_YARN, "attention_factor": 0.7},
    {**_YARN, "mscale": 0.8, "mscale_all_dim": 0.4},
    {**_LONG, "original_max_position_embeddings": 16},
    {**_LONG, "original_max_position_embeddings": 5},
    {**_LONG, "original_max_position_embeddings": 5, "factor": 3.0},
    {**_LONG, "original_max_position_embeddings": 5, "attention_factor": 1.3},
]
# Further values of a field whose values differ in kind.
MORE: list[tuple[str, str, Any]] = [
    *(("LlamaForCausalLM", "rope_parameters", rope) for rope in ROPES),
    *(("GPTNeoXForCausalLM", "rope_parameters", {**rope, "partial_rotary_factor": 0.5}) for rope in ROPES),
    ("LlamaForCausalLM", "eos_token_id", [4, 5]),
    ("MistralForCausalLM", "sliding_window", None),
    ("MistralForCausalLM", "sliding_window", 1),
    ("OpenAIGPTLMHeadModel", "afn", "swish"),
    ("Gemma3ForCausalLM", "use_bidirectional_attention", True),
]
