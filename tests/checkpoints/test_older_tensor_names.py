"""Folders and checkpoints whose tensors have older names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.upgrades import tensor_name


@pytest.mark.parametrize(
    ("saved", "today"),
    [
        (
            "model/stages.encoder.stack.blocks.0.sublayers.self.part.out.weight",
            "model/encoder.blocks.0.self.out.weight",
        ),
        ("optimizer/heads.language.bias/exp_avg", "optimizer/language.bias/exp_avg"),
        ("average/stages.decoder.stack.final_norm.weight", "average/decoder.final_norm.weight"),
        ("encoder.blocks.3.self.positions.weight", "encoder.block_positions.3.weight"),
        ("decoder.blocks.0.positions.first", "decoder.blocks.0.positions.first"),  # a mixer's own name
        ("encoder.blocks.1.feedforward.gain.weight", "encoder.blocks.1.feedforward.layer_scale.weight"),
        ("decoder.blocks.1.self.after.weight", "decoder.blocks.1.self.post_norm.weight"),
        ("decoder.between.boxes.2.bias", "decoder.step.2.bias"),
        ("decoder.between.code.0.weight", "decoder.place.code.0.weight"),
        ("decoder.blocks.0.self.out.weight", "decoder.blocks.0.self.out.weight"),
        ("encoder.inputs.net.stages.1.2.second.norm.bias", "encoder.inputs.net.stages.1.2.layers.1.norm.bias"),
        ("encoder.inputs.blocks.2.first.weight", "encoder.inputs.blocks.2.layers.0.filter.weight"),
        ("encoder.inputs.blocks.0.second_norm.bias", "encoder.inputs.blocks.0.layers.1.norm.bias"),
        ("model/classify.average.norm.weight", "model/classify.norm.weight"),
        ("base.pool.norm.bias", "base.norm.bias"),
        ("encoder.inputs.blocks.0.aside.weight", "encoder.inputs.blocks.0.shortcut.weight"),
    ],
)
def test_names(saved: str, today: str) -> None:
    assert tensor_name(saved) == tensor_name(today) == today


@pytest.mark.parametrize("name", ["beit-tiny", "gemma3-tiny", "transformer-xl-tiny", "detr-tiny"])
def test_a_folder_with_older_names_loads(name: str, tmp_path: Path) -> None:
    """As they were before blocks were built from modules."""
    torch.manual_seed(0)
    options = {"auxiliary_loss": True, "anchors": True} if name == "detr-tiny" else {}
    model = af.build(name, **options).eval()
    model.save(tmp_path)
    older = [
        (r"\.block_positions\.(\d+)\.", r".blocks.\1.self.positions."),
        (r"\.layer_scale\.", ".gain."),
        (r"\.post_norm\.", ".after."),
        (r"\.step\.", ".between.boxes."),
        (r"\.place\.", ".between."),
    ]
    tensors, changed = {}, 0
    for key, tensor in load_file(tmp_path / "model.safetensors").items():
        before = key
        for pattern, old in older:
            before = re.sub(pattern, old, before)
        changed += before != key
        tensors[before] = tensor
    assert changed
    save_file(tensors, tmp_path / "model.safetensors")
    again = af.load(tmp_path, optimize=False)
    pairs = zip(model.named_parameters(), again.named_parameters(), strict=True)
    assert all(one == two and torch.equal(a, b) for (one, a), (two, b) in pairs)
