"""Decoders where no other library has the class: GPT-3 against plain formulas; and settings that no folder can say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.checkpoints.key_table import named_tensors
from tests.batches import build


def gpt3_by_hand(model: af.Model, ids: Tensor, band: int) -> Tensor:
    """Brown et al. 2020, §2.1, with a dense mask for each layer."""
    p = named_tensors(model)
    length = ids.shape[1]
    x = p["decoder.inputs.words.weight"][ids] + p["decoder.inputs.positions.weight"][:length]
    i, j = torch.arange(length)[:, None], torch.arange(length)[None, :]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    for layer in range(model.config.n_layers):  # type: ignore[attr-defined]
        block = f"decoder.blocks.{layer}"
        seen = (j <= i) & (i - j < band) if layer % 2 else j <= i
        q, k, v = (
            linear(norm(x, f"{block}.self.norm"), f"{block}.self.{role}").unflatten(-1, (4, -1)).transpose(1, 2)
            for role in ("query", "key", "value")
        )
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
        x = x + linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"{block}.self.out")
        hidden = F.gelu(linear(norm(x, f"{block}.feedforward.norm"), f"{block}.feedforward.up"), approximate="tanh")
        x = x + linear(hidden, f"{block}.feedforward.down")
    return norm(x, "decoder.final_norm") @ p["decoder.inputs.words.weight"].T


@pytest.mark.parametrize("band", [1, 5, 100])
def test_gpt3_is_what_the_paper_says(band: int) -> None:
    """Every other layer sees a band; the numbers are those of the dense mask."""
    model = build("gpt3-tiny", n_layers=4, local_window=band)
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, gpt3_by_hand(model, ids, band), atol=1e-10)


def test_gpt3_with_a_wide_band_is_gpt2() -> None:
    wide, plain = build("gpt3-tiny", local_window=128), build("gpt2-tiny")
    plain.load_state_dict(wide.state_dict())
    ids = torch.randint(0, 256, (2, 30))
    with torch.no_grad():
        assert torch.allclose(wide(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-12)


def test_blocks_may_turn_differently() -> None:
    """With one rotation for the windowed layers and another for the rest, each is used where it belongs."""
    ids = torch.randint(5, 250, (1, 12))
    logits = {}
    for name in ("gemma3-tiny", "swapped", "same"):
        model = build("gemma3-tiny")
        ropes = model.config.ropes  # type: ignore[attr-defined]
        if name != "gemma3-tiny":
            model = build("gemma3-tiny", ropes=ropes[::-1] if name == "swapped" else ropes[:1])
        logits[name] = model(input_ids=ids).logits
    assert not torch.allclose(logits["gemma3-tiny"], logits["swapped"])
    assert not torch.allclose(logits["gemma3-tiny"], logits["same"])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gpt3-tiny", {}),
        ("llama-tiny", {"window": 4}),
        ("llama-tiny", {"qk_norm": True}),
        ("llama-tiny", {"qkv_bias": True}),
        ("llama-tiny", {"scale": 9.0}),
        ("mistral-tiny", {"windowed": (True, False)}),
        ("qwen2-tiny", {"out_bias": True}),
        ("qwen3-tiny", {"norm_order": "sandwich"}),
        ("gpt1-tiny", {"d_hidden": 32}),
        ("gpt1-tiny", {"activation": "mish"}),
    ],
)
def test_what_their_classes_cannot_say_is_not_written(name: str, change: dict[str, object], tmp_path: Path) -> None:
    """Rather an error than a folder that transformers would read as another model."""
    model = af.build(name, **change).eval()
    with pytest.raises(af.ConfigError, match="Hugging Face"):
        model.save(tmp_path / "folder", format="hf")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name", ["llama-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny", "gemma3-tiny"])
def test_a_fresh_model_as_a_hugging_face_folder(name: str, tmp_path: Path) -> None:
    """Settings that came from no folder are written whole: it loads back as the same model."""
    model = build(name)
    model.save(tmp_path, format="hf")
    again = af.load(tmp_path)
    ids = torch.randint(5, 250, (2, 20))
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, again(input_ids=ids).logits)


def test_bad_settings_say_why() -> None:
    for change, words in (
        ({"windowed": ()}, "windowed"),
        ({"window": 0}, "window is 0"),
        ({"n_kv_heads": 3}, "not a multiple of n_kv_heads 3"),
        ({"d_model": 65}, "not a multiple of n_heads"),
    ):
        with pytest.raises(af.ConfigError, match=words):
            af.build("llama-tiny", **change)
    with pytest.raises(af.ConfigError, match="local_window is 0"):
        af.build("gpt3-tiny", local_window=0)
