"""VideoMAE's hidden tubes, and its older files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from tests.weights.oracles import make_case, make_oracle, save_oracle


def test_tubes_go_through_all_frames() -> None:
    """What nobody gives is drawn: the same cells in every frame, nine of ten, others in each clip."""
    torch.manual_seed(0)
    model = af.build("videomae-tiny", head="pixels", image_size=(80, 80))
    seen = []
    model.heads["pixels"].register_forward_pre_hook(lambda head, args: seen.append(args[0].extras["hidden"]))
    out = model(pixel_values=torch.randn(2, 4, 3, 80, 80))
    hidden = seen[0].view(2, 2, 100)  # clips, tubelets in time, cells
    assert torch.equal(hidden[:, 0], hidden[:, 1]) and hidden[:, 0].sum(dim=1).tolist() == [90, 90]
    assert not torch.equal(hidden[0], hidden[1])
    assert out.logits.shape == (2, 180, 2 * 8 * 8 * 3) and bool(torch.isfinite(out.loss))


def test_masks_that_do_not_fit() -> None:
    model = af.build("videomae-tiny", head="pixels")
    pixels = torch.randn(2, 4, 3, 32, 32)
    uneven = torch.zeros(2, 32, dtype=torch.bool)
    uneven[0, :4], uneven[1, :5] = True, True
    for mask, said in ((uneven, "as many tokens in each row"), (torch.ones(2, 32), "neither none nor all")):
        with pytest.raises(af.Error, match=said):
            model(pixel_values=pixels, bool_masked_pos=mask)
    with pytest.raises(af.Error, match=r"must be \[2, 32\]"):
        model(pixel_values=pixels, bool_masked_pos=torch.ones(2, 30))
    with pytest.raises(af.Error, match=r"must be \[batch, 4, 3, 32, 32\]"):
        model(pixel_values=pixels[:, :3])


def test_older_files(tmp_path: Path) -> None:
    """q_bias and v_bias beside the matrices, as the hub has them."""
    oracle = make_oracle("VideoMAEForVideoClassification")
    save_oracle(oracle, tmp_path)
    path = tmp_path / "model.safetensors"
    older = {
        name.replace(".query.bias", ".q_bias").replace(".value.bias", ".v_bias"): value
        for name, value in load_file(path).items()
    }
    assert any(name.endswith("q_bias") for name in older)
    save_file(older, path, metadata={"format": "pt"})
    case = make_case("VideoMAEForVideoClassification")
    with torch.no_grad():
        torch.testing.assert_close(af.load(tmp_path)(**case.batch).logits, oracle(**case.batch).logits)
