"""A masked autoencoder that hides nothing (mask_ratio=0): features of every patch, and no loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

import anyformer as af

PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def oracle() -> ViTMAEForPreTraining:
    torch.manual_seed(0)
    config = ViTMAEConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=32,
        image_size=32,
        patch_size=8,
        mask_ratio=0.0,
    )
    return ViTMAEForPreTraining(config).eval()


def test_nothing_hidden_is_as_in_transformers(oracle: ViTMAEForPreTraining, tmp_path: Path) -> None:
    oracle.save_pretrained(tmp_path)
    model, noise = af.load(tmp_path), torch.rand(2, 16, generator=torch.Generator().manual_seed(1))
    assert model.config.mask_ratio == 0
    with torch.no_grad():
        theirs = oracle(PIXELS, noise=noise, output_hidden_states=True)
        ours = model(PIXELS, noise=noise, output_hidden_states=True)
    torch.testing.assert_close(ours.logits, theirs.logits, atol=1e-5, rtol=0)
    assert torch.equal(ours.ids_restore, theirs.ids_restore) and torch.equal(ours.mask, theirs.mask)
    for mine, other in zip(ours.hidden_states, theirs.hidden_states, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
    assert theirs.loss.isnan() and ours.loss is None  # of no patch at all


def test_without_noise_patches_keep_their_order(tmp_path: Path) -> None:
    """So that features of patch 5 are token 6, behind the class token; transformers shuffles them all the same."""
    torch.manual_seed(0)
    model = af.build("mae-tiny", mask_ratio=0.0).eval()
    with torch.no_grad():
        one, two = (model(PIXELS, output_hidden_states=True) for _ in range(2))
        order = torch.arange(16.0).expand(2, -1)
        given = model(PIXELS, noise=order, output_hidden_states=True)
    assert torch.equal(one.hidden_states[-1], two.hidden_states[-1])
    assert torch.equal(one.hidden_states[-1], given.hidden_states[-1])
    assert torch.equal(one.ids_restore, order.long()) and not one.mask.any() and one.hidden_states[-1].shape[1] == 17


def test_there_is_nothing_to_learn_from(tmp_path: Path) -> None:
    model = af.build("mae-tiny", mask_ratio=0.0).eval()
    model.save(tmp_path / "mae")
    with pytest.raises(af.Error, match=r"mask_ratio is 0"):
        af.task("reconstruct", tmp_path / "mae")
    with pytest.raises(af.Error, match="mask_ratio"):
        af.build("videomae-tiny", head="pixels", mask_ratio=0.0)(torch.randn(1, 4, 3, 32, 32))


def test_ratios_above_zero_still_hide() -> None:
    out = af.build("mae-tiny", mask_ratio=0.5).eval()(PIXELS)
    assert out.mask.sum(dim=1).tolist() == [8, 8] and out.loss > 0
