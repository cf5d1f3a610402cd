"""VideoMAE's hidden tubes, and its older files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.heads.pixels import VideoPixelHead
from anyformer.inputs.patches import dropped
from tests.checkpoints.oracles import make_case, make_oracle, save_oracle


def test_tubes_go_through_all_frames() -> None:
    """What nobody gives is drawn: the same cells in every frame, nine of ten, others in each clip."""
    torch.manual_seed(0)
    model = af.build("videomae-tiny", head="pixels", image_size=(80, 80)).eval()
    seen = []
    model.heads["pixels"].register_forward_pre_hook(
        lambda head, args: seen.append(dropped(args[0].tokens["encoder"], 200))
    )
    out = model(pixel_values=torch.randn(2, 4, 3, 80, 80))
    hidden = seen[0].view(2, 2, 100)  # clips, tubelets in time, cells
    assert torch.equal(hidden[:, 0], hidden[:, 1]) and hidden[:, 0].sum(dim=1).tolist() == [90, 90]
    assert not torch.equal(hidden[0], hidden[1])
    assert out.logits.shape == (2, 180, 2 * 8 * 8 * 3) and bool(torch.isfinite(out.loss))


@pytest.mark.parametrize("normalize", [True, False])
def test_a_perfect_prediction_is_the_clip(normalize: bool) -> None:
    """What the loss wants at the hidden tubelets, laid back, is the clip as it was before it was normalized."""
    torch.manual_seed(0)
    head = VideoPixelHead(8, (2, 8, 4), 3, normalize, "decoder", "encoder")
    plain = torch.rand(2, 4, 3, 16, 12)
    mean, std = (torch.tensor(one).view(1, 1, 3, 1, 1) for one in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    pixels = (plain - mean) / std
    hidden = torch.rand(2, 12).argsort(dim=1) < 5
    wanted = head.target(pixels)[hidden].view(2, 5, -1)
    torch.testing.assert_close(head.reconstruct(wanted, pixels, hidden), plain, atol=1e-5, rtol=0)
    changed = head.reconstruct(wanted + 1, pixels, hidden) - plain
    assert bool((changed.abs() > 1e-4).any()) and not bool((changed.abs() > 1e-4).all())


def test_masks_that_do_not_fit() -> None:
    model = af.build("videomae-tiny", head="pixels").eval()
    pixels = torch.randn(2, 4, 3, 32, 32)
    uneven = torch.zeros(2, 32, dtype=torch.bool)
    uneven[0, :4], uneven[1, :5] = True, True
    for mask in (uneven, torch.ones(2, 32)):
        with pytest.raises(af.Error, match="bool_masked_pos must mask"):
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
