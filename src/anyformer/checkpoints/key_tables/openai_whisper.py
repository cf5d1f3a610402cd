"""Whisper as OpenAI publishes it: one .pt file with the settings, `dims`, and a state dict under names of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from anyformer.checkpoints.files import StoredTensor
from anyformer.checkpoints.torch_file import state_dict
from anyformer.errors import ConfigError
from anyformer.schema import Range, check_fields, shown
from anyformer.tokenizers.languages import NAMES

VOCABULARIES = {51864: 50256, 51865: 50257, 51866: 50257}  # size -> the id that ends a text: English, v1 and v2, v3
SPACE = 220  # an answer does not begin with it

_DIMS = {
    "n_mels": ("num_mel_bins",),
    "n_vocab": ("vocab_size",),
    "n_audio_ctx": ("max_source_positions",),
    "n_audio_state": ("d_model",),
    "n_audio_head": ("encoder_attention_heads",),
    "n_audio_layer": ("encoder_layers", "num_hidden_layers"),
    "n_text_ctx": ("max_target_positions",),
    "n_text_state": ("d_model",),
    "n_text_head": ("decoder_attention_heads",),
    "n_text_layer": ("decoder_layers",),
}
_SPELLINGS = (
    (r"^", "model."),
    (r"positional_embedding$", "embed_positions.weight"),
    (r"token_embedding", "embed_tokens"),
    (r"\.(ln|ln_post)\.", ".layer_norm."),
    (r"\.blocks\.", ".layers."),
    (r"\.cross_attn(_ln)?\.", lambda m: f".encoder_attn{'_layer_norm' if m[1] else ''}."),
    (r"\.attn(_ln)?\.", lambda m: f".self_attn{'_layer_norm' if m[1] else ''}."),
    (r"\.(query|key|value)\.", lambda m: f".{m[1][0]}_proj."),
    (r"\.out\.", ".out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
)


def is_openai_whisper(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("dims"), dict) and "model_state_dict" in content


def as_hf(content: Mapping[str, Any], file: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, StoredTensor]]:
    """The file's config, generation config and tensors as Hugging Face spells them."""
    dims, where = content["dims"], f'{file}, "dims"'
    absent = sorted(set(_DIMS) - set(dims))
    if absent:
        raise ConfigError(f"{where} has no {absent[0]}.")
    check_fields(dims, dict.fromkeys(_DIMS, Annotated[int, Range(1, 2**24)]), where)
    if dims["n_vocab"] not in VOCABULARIES:
        known = ", ".join(map(str, VOCABULARIES))
        raise ConfigError(f"{where} has n_vocab {shown(dims['n_vocab'])}; the vocabularies of Whisper have {known}.")
    if dims["n_audio_state"] != dims["n_text_state"]:
        raise ConfigError(f"{where} has other widths for audio and text (n_audio_state, n_text_state), not supported.")
    config = {theirs: dims[name] for name, others in _DIMS.items() for theirs in others}
    config |= {f"{side}_ffn_dim": 4 * config["d_model"] for side in ("encoder", "decoder")}
    end = VOCABULARIES[dims["n_vocab"]]
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": end + 1}
    config |= {**ids, "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}
    tensors = {_rename(name): tensor for name, tensor in state_dict(dict(content), file).items()}
    return config, {**ids, **_generation(dims["n_vocab"], end)}, tensors


def _rename(name: str) -> str:
    """decoder.blocks.3.cross_attn.query.weight -> model.decoder.layers.3.encoder_attn.q_proj.weight"""
    for pattern, replacement in _SPELLINGS:
        name = re.sub(pattern, replacement, name)
    return name


def _generation(n_vocab: int, end: int) -> dict[str, Any]:
    """The special tokens, which stand in one order after the texts: start, languages, translate, transcribe, start of
    a language model, start of the previous text, no speech, no timestamps, then 1,501 timestamps."""
    multilingual = end > min(VOCABULARIES.values())
    after = end + 2 + n_vocab - 51765 - multilingual  # the first id after those of the languages
    languages = {f"<|{code}|>": end + 2 + i for i, code in enumerate(NAMES) if end + 2 + i < after}
    spoken = {"lang_to_id": languages, "task_to_id": {"translate": after, "transcribe": after + 1}}
    return {
        "is_multilingual": multilingual,
        "prev_sot_token_id": after + 3,
        "no_timestamps_token_id": after + 5,
        "max_initial_timestamp_index": 50,  # one second
        "begin_suppress_tokens": [SPACE, end],
        "return_timestamps": False,
        **(spoken if multilingual else {}),
    }
