"""The decoders' published configs, for test_sizes.py: recipe -> (class, config class, config)."""

from __future__ import annotations

from typing import Any


def _llama(
    layers: int, width: int, heads: int, groups: int, hidden: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": hidden,
        "vocab_size": vocabulary,
        **more,
    }


def _pythia(layers: int, width: int, heads: int, vocabulary: int = 50304) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "vocab_size": vocabulary,
    }


def _gpt3(layers: int, width: int, heads: int) -> tuple[str, str, dict[str, Any]]:
    """The band has no parameters, so the count is that of a GPT-2 of this size."""
    config = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": 2048}
    return "GPT2LMHeadModel", "GPT2Config", config


TIED = {"tie_word_embeddings": True}
LLAMA = {
    "llama2-7b": _llama(32, 4096, 32, 32, 11008, 32000),
    "llama3-8b": _llama(32, 4096, 32, 8, 14336, 128256),
    "llama3.2-1b": _llama(16, 2048, 32, 8, 8192, 128256, **TIED),
    "smollm2-135m": _llama(30, 576, 9, 3, 1536, 49152, **TIED),
    "smollm2-360m": _llama(32, 960, 15, 5, 2560, 49152, **TIED),
    "smollm2-1.7b": _llama(24, 2048, 32, 32, 8192, 49152, **TIED),
}
PYTHIA = {
    "gptneox-20b": {},
    "pythia-70m": _pythia(6, 512, 8),
    "pythia-160m": _pythia(12, 768, 12),
    "pythia-410m": _pythia(24, 1024, 16),
    "pythia-1b": _pythia(16, 2048, 8),
    "pythia-1.4b": _pythia(24, 2048, 16),
    "pythia-2.8b": _pythia(32, 2560, 32),
    "pythia-6.9b": _pythia(32, 4096, 32, 50432),
    "pythia-12b": _pythia(36, 5120, 40, 50688),
}
GEMMA = {
    "gemma3-270m": _llama(18, 640, 4, 1, 2048, 262144, head_dim=256),
    "gemma3-1b": _llama(26, 1152, 4, 1, 6912, 262144, head_dim=256),
}

GEMMA1 = {
    "gemma-2b": _llama(18, 2048, 8, 1, 16384, 256000, head_dim=256),
    "gemma-7b": {},
}
GEMMA2 = {
    "gemma2-2b": {},
    "gemma2-9b": _llama(42, 3584, 16, 8, 14336, 256000, head_dim=256),
    "gemma2-27b": _llama(46, 4608, 32, 16, 36864, 256000, head_dim=128),
}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt1": ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {}),
    "gpt3-small": _gpt3(12, 768, 12),
    "gpt3-medium": _gpt3(24, 1024, 16),
    "gpt3-large": _gpt3(24, 1536, 16),
    "gpt3-xl": _gpt3(24, 2048, 16),
    "gpt3-2.7b": _gpt3(32, 2560, 32),
    "gpt3-6.7b": _gpt3(32, 4096, 32),
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12288, 96),
    **{name: ("LlamaForCausalLM", "LlamaConfig", config) for name, config in LLAMA.items()},
    "mistral-7b": ("MistralForCausalLM", "MistralConfig", {}),
    "qwen2-0.5b": ("Qwen2ForCausalLM", "Qwen2Config", _llama(24, 896, 14, 2, 4864, 151936, **TIED)),
    "qwen2-7b": ("Qwen2ForCausalLM", "Qwen2Config", _llama(28, 3584, 28, 4, 18944, 152064)),
    "qwen3-0.6b": ("Qwen3ForCausalLM", "Qwen3Config", _llama(28, 1024, 16, 8, 3072, 151936, **TIED)),
    "qwen3-8b": ("Qwen3ForCausalLM", "Qwen3Config", _llama(36, 4096, 32, 8, 12288, 151936)),
    **{name: ("Gemma3ForCausalLM", "Gemma3TextConfig", config) for name, config in GEMMA.items()},
    **{name: ("GemmaForCausalLM", "GemmaConfig", config) for name, config in GEMMA1.items()},
    **{name: ("Gemma2ForCausalLM", "Gemma2Config", config) for name, config in GEMMA2.items()},
    **{name: ("GPTNeoXForCausalLM", "GPTNeoXConfig", config) for name, config in PYTHIA.items()},
}

# The counts that papers and model cards print.
FIGURES = {
    "gpt1": 117e6,
    "gpt3-small": 125e6,
    "gpt3-medium": 350e6,
    "gpt3-large": 760e6,
    "gpt3-xl": 1.3e9,
    "gpt3-2.7b": 2.7e9,
    "gpt3-6.7b": 6.7e9,
    "gpt3-13b": 13.0e9,
    "gpt3-175b": 175e9,
    "llama2-7b": 6.74e9,
    "llama3-8b": 8.03e9,
    "llama3.2-1b": 1.23e9,
    "mistral-7b": 7.24e9,
    "qwen2-0.5b": 0.494e9,
    "qwen3-0.6b": 0.6e9,
    "smollm2-135m": 135e6,
    "smollm2-360m": 360e6,
    "smollm2-1.7b": 1.7e9,
    "gemma3-270m": 268e6,
    "gemma3-1b": 1.0e9,
    "gemma-2b": 2.51e9,
    "gemma-7b": 8.54e9,
    "gemma2-2b": 2.61e9,
    "gemma2-9b": 9.24e9,
    "gemma2-27b": 27.2e9,
    "gptneox-20b": 20.6e9,
    "pythia-70m": 70e6,
    "pythia-12b": 11.8e9,
}
