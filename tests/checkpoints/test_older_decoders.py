"""Folders as older versions of transformers wrote them: other fields for rotation and windows, other tensor names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import edit_config, hf_class, make_case, make_oracle, save_oracle

Config = dict[str, Any]


def _rope(theta: float, scaling: Config | None) -> Callable[[Config], None]:
    def change(config: Config) -> None:
        del config["rope_parameters"]
        config.update(rope_theta=theta, rope_scaling=scaling, torch_dtype=config.pop("dtype"))

    return change


def _gemma(config: Config) -> None:
    del config["rope_parameters"], config["layer_types"]
    config.update(rope_theta=900.0, rope_local_base_freq=40.0, sliding_window_pattern=2)
    config["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}


def _neox(config: Config) -> None:
    del config["rope_parameters"]
    config.update(rotary_pct=0.5, rotary_emb_base=200)


def _qwen(config: Config) -> None:
    del config["rope_parameters"], config["layer_types"]
    config.update(rope_theta=77.0, use_sliding_window=True, sliding_window=3, max_window_layers=2)


def _qwen_off(config: Config) -> None:
    """As most of Qwen's folders have it: a window that is not used."""
    del config["layer_types"]
    config.update(use_sliding_window=False, sliding_window=3, max_window_layers=1)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_type": "llama3",
}
OLDER: dict[str, tuple[str, Callable[[Config], None]]] = {
    "llama 2": ("LlamaForCausalLM", _rope(500.0, None)),
    "llama, linear": ("LlamaForCausalLM", _rope(500.0, {"type": "linear", "factor": 2.0})),
    "llama, dynamic": ("LlamaForCausalLM", _rope(500.0, {"type": "dynamic", "factor": 2.0})),
    "llama 3.1": ("LlamaForCausalLM", _rope(500.0, LLAMA3)),
    "mistral": ("MistralForCausalLM", _rope(70.0, None)),
    "gemma": ("Gemma3ForCausalLM", _gemma),
    "pythia": ("GPTNeoXForCausalLM", _neox),
    "qwen": ("Qwen2ForCausalLM", _qwen),
    "qwen without windows": ("Qwen2ForCausalLM", _qwen_off),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_fields(name: str, tmp_path: Path) -> None:
    """Read as transformers reads them, and still so after we have written the folder again."""
    architecture, change = OLDER[name]
    save_oracle(make_oracle(architecture), tmp_path / "old")
    edit_config(tmp_path / "old", change)
    oracle = hf_class(architecture).from_pretrained(tmp_path / "old").eval()
    case = make_case(architecture)
    model = af.load(tmp_path / "old")
    model.save(tmp_path / "new", format="hf")
    with torch.no_grad():
        expected = oracle(**case.batch)
        compare(model(**case.batch), expected, case)
        compare(af.load(tmp_path / "new")(**case.batch), expected, case)
        back = hf_class(architecture).from_pretrained(tmp_path / "new").eval()(**case.batch)
    assert torch.equal(back.logits, expected.logits)


def test_older_tensor_names(tmp_path: Path) -> None:
    """Pythia's files say embed_out and keep the causal mask; old Llama files keep the angles."""
    for architecture, rename, extra in (
        ("GPTNeoXForCausalLM", {"lm_head.weight": "embed_out.weight"}, "gpt_neox.layers.0.attention.masked_bias"),
        ("LlamaForCausalLM", {}, "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ):
        oracle, folder = make_oracle(architecture), tmp_path / architecture
        file = save_oracle(oracle, folder) / "model.safetensors"
        tensors = {rename.get(name, name): tensor for name, tensor in load_file(file).items()}
        save_file({**tensors, extra: torch.zeros(4)}, file, {"format": "pt"})
        case = make_case(architecture)
        with torch.no_grad():
            compare(af.load(folder)(**case.batch), oracle(**case.batch), case)


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope_parameters.*longrope.* short_factors"),
        ({"rope_type": "proportional"}, "rope_parameters.*proportional.* is not o"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_type": "default", "mrope_section": [1, 2]}, '"mrope_section" is not known'),
        ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5"),
    ],
)
def test_rotations_that_are_not_supported_are_named(rope: Config, words: str, tmp_path: Path) -> None:
    save_oracle(make_oracle("LlamaForCausalLM"), tmp_path)
    edit_config(tmp_path, lambda config: config.update(rope_parameters={"rope_theta": 100.0, **rope}))
    with pytest.raises(af.ConfigError, match=words):
        af.load(tmp_path)
