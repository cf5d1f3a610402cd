"""How far it is from calling a model to PyTorch's attention: what a reader, or a debugger, steps through."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from tests.tiny import tiny_recipes

PACKAGE = Path(af.__file__).parent
MOST_FRAMES, MOST_FILES = 8, 6


def path_to_attention(model: af.Model, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """File and function of every frame of ours between the call and `F.scaled_dot_product_attention`, the first time
    that it is called."""
    found: list[tuple[str, str]] = []
    plain = F.scaled_dot_product_attention

    def spy(*args: Any, **options: Any) -> Any:
        if not found:
            frames = [f for f in traceback.extract_stack()[:-1] if Path(f.filename).is_relative_to(PACKAGE)]
            found.extend((str(Path(frame.filename).relative_to(PACKAGE)), frame.name) for frame in frames)
        return plain(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    with torch.no_grad():
        model(**batch)
    return found


@pytest.mark.parametrize("optimized", [False, True])
@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "bert-tiny", "vit-tiny"])
def test_eight_frames_in_six_files(name: str, optimized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = af.build(name).eval()
    if optimized:
        model.optimize()
    vit = {"pixel_values": torch.randn(2, 3, 32, 32)}
    batch = vit if name == "vit-tiny" else {"input_ids": torch.randint(5, 250, (2, 9))}
    found = path_to_attention(model, batch, monkeypatch)
    assert found and found[0] == ("model.py", "forward") and found[-1][0] == "core/attend.py", found
    assert len(found) <= MOST_FRAMES, found
    assert len({file for file, _ in found}) <= MOST_FILES, found


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny"])
def test_no_further_with_a_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = af.build(name).eval()
    with torch.no_grad():
        cache = model(torch.tensor([[7, 8, 9]]), use_cache=True).past_key_values
    found = path_to_attention(model, {"input_ids": torch.tensor([[5]]), "past_key_values": cache}, monkeypatch)
    assert len(found) <= MOST_FRAMES and len({file for file, _ in found}) <= MOST_FILES, found


def test_names_have_no_scaffold() -> None:
    """Parameters, taps and files use one short name: no level that only holds another."""
    scaffold = {"stages", "stack", "sublayers", "part", "heads", "attention", "layers_list"}
    for name in tiny_recipes():
        model = af.build(name).eval()
        for path in (*dict(model.named_parameters()), *model.points):
            if "resnet" not in path:
                assert not scaffold & set(path.split(".")), path
    decoder = af.build("gpt2-tiny").eval()
    assert "decoder.blocks.0.self.out.weight" in dict(decoder.named_parameters())
    assert decoder.get_parameter("decoder.blocks.0.self.out.weight") is decoder.decoder.blocks[0].self.out.weight
    points = {point.rsplit(".", 1)[0] for point in decoder.points}
    assert points <= {path for path, _ in decoder.named_modules()}
