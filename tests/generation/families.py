"""Six families that speak, as transformers' models in float64 and as ours from the same folder, and 100 prompts each.

Random weights of the usual size make every row say one word over and over. Here each role has its own spread, found by
trial, so that the words depend on what was read and on what was said: `test_the_words_vary` holds it to that.
"""

from __future__ import annotations

import functools
import importlib
import tempfile
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af

VOCABULARY, PAD, END, START = 1000, 2, 1, 3  # with 0 for padding, transformers' beams take it for none
ROWS, LENGTH = 100, 9
_IDS = {"pad_token_id": PAD, "eos_token_id": END, "bos_token_id": START}
_PAIR = {**_IDS, "decoder_start_token_id": START}
_SIDES = {
    f"{side}_{what}": n
    for side in ("encoder", "decoder")
    for what, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
}
# An odd activation: behind another one, strong feed-forward layers push all vectors in one direction.
_POST = {**_SIDES, **_PAIR, "d_model": 64, "vocab_size": VOCABULARY, "activation_function": "tanh"}
_GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
_LAYERS = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
_T5 = {"num_layers": 2, "d_model": 32, "num_heads": 4, "d_kv": 8, "d_ff": 64, "vocab_size": VOCABULARY}

# family -> (module, class, config, spreads of: feed-forward, attention's values, cross-attention's, queries and keys)
FAMILIES: dict[str, tuple[str, str, dict[str, Any], tuple[float, float, float, float]]] = {
    "gpt2": ("gpt2", "GPT2LMHeadModel", {**_GPT2, **_IDS}, (1, 4, 1, 1)),
    "llama": ("llama", "LlamaForCausalLM", {**_LAYERS, **_TEXT, **_IDS, "num_key_value_heads": 2}, (1, 2, 1, 3)),
    "marian": ("marian", "MarianMTModel", {**_POST, "forced_eos_token_id": None}, (6, 1, 1, 3)),
    "bart": ("bart", "BartForConditionalGeneration", {**_POST, "forced_eos_token_id": None}, (6, 1, 1, 3)),
    "t5": ("t5", "T5ForConditionalGeneration", {**_T5, **_PAIR}, (0.3, 8, 4, 1)),
    "vision-encoder-decoder": (
        "vision_encoder_decoder",
        "VisionEncoderDecoderModel",
        {
            **_PAIR,
            "encoder": {**_LAYERS, "model_type": "vit", "image_size": 24, "patch_size": 8},
            "decoder": {**_GPT2, **_IDS, "n_embd": 24, "model_type": "gpt2", "add_cross_attention": True},
        },
        (0.3, 2, 4, 3),
    ),
}
DECODERS = ("gpt2", "llama")
PAIRS = tuple(family for family in FAMILIES if family not in DECODERS)
every_family = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def models(family: str) -> tuple[Any, af.Model]:
    """transformers' and ours."""
    pytest.importorskip("transformers")
    home, name, values, spreads = FAMILIES[family]
    modeling = importlib.import_module(f"transformers.models.{home}.modeling_{home}")
    configuration = importlib.import_module(f"transformers.models.{home}.configuration_{home}")
    prefix = next(end for end in ("LMHeadModel", "MTModel", "Model", "For") if end in name)
    torch.manual_seed(3)
    theirs = getattr(modeling, name)(getattr(configuration, name.partition(prefix)[0] + "Config")(**values))
    theirs = theirs.double().eval()
    with torch.no_grad():
        for path, parameter in theirs.named_parameters():
            if parameter.dim() > 1 and parameter.requires_grad:
                parameter.normal_(std=_spread(path, parameter, *spreads))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, af.load(folder)


def _spread(path: str, parameter: Tensor, feedforward: float, own: float, cross: float, scores: float) -> float:
    if len(parameter) == VOCABULARY:
        return 1.0
    if "position" in path or "wpe" in path:
        return 0.3
    if "relative" in path:
        return 2.0
    roles = (
        (("q_proj", "k_proj", "q_attn", ".q.", ".k.", "query", "key"), scores),
        (("encoder_attn", "crossattention", "EncDecAttention"), cross),
        (("fc", "mlp", "wi", "wo"), feedforward),
    )
    gain = next((gain for words, gain in roles if any(word in path for word in words)), own)
    transposed = "c_" in path or "q_attn" in path  # GPT-2's matrices
    return float(gain * parameter.shape[0 if transposed else -1] ** -0.5)


@functools.cache
def _prompts(family: str) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(5)
    if family == "vision-encoder-decoder":
        return {"pixel_values": torch.randn(ROWS, 3, 24, 24, generator=made, dtype=torch.float64)}
    ids = torch.randint(4, VOCABULARY, (ROWS, LENGTH), generator=made)
    mask = (torch.arange(LENGTH) >= LENGTH - torch.randint(1, LENGTH + 1, (ROWS, 1), generator=made)).long()
    if family not in DECODERS:
        ids, mask = ids.flip(1), mask.flip(1)
    return {"input_ids": ids.masked_fill(mask == 0, PAD), "attention_mask": mask}


def prompts(family: str, rows: int = ROWS) -> dict[str, Tensor]:
    """Uneven rows: padded on the left for decoders, on the right for encoders; images where those are read."""
    return {name: value[:rows] for name, value in _prompts(family).items()}


def new_tokens(family: str, found: Tensor) -> Tensor:
    """Without the prompt or the start token."""
    return found[:, LENGTH if family in DECODERS else 1 :]


def compare(family: str, **options: Any) -> Tensor:
    """Both libraries' ids are equal; gives them."""
    theirs, ours = models(family)
    batch = {**prompts(family), **options}
    expected = theirs.generate(**{"do_sample": False, "num_beams": 1, **batch})
    found = ours.generate(**batch)
    assert found.tolist() == expected.tolist()
    return found
