"""Classes of pixels: linear and mask heads by formula; the pyramid's parity stands in tests/weights."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.checkpoints.key_table import named_tensors


def test_linear_head_is_a_matrix_for_each_patch() -> None:
    torch.manual_seed(0)
    model = af.build("segmenter-tiny", head="linear").eval()
    with torch.no_grad():
        out = model(pixel_values=torch.randn(2, 3, 32, 40), output_hidden_states=True)
    p = named_tensors(model)
    last = F.layer_norm(
        out.hidden_states[-1], (64,), p["encoder.final_norm.weight"], p["encoder.final_norm.bias"], 1e-6
    )
    expected = last[:, 1:] @ p["linear.classes.weight"].T + p["linear.classes.bias"]
    torch.testing.assert_close(out.logits, expected.transpose(1, 2).view(2, 5, 4, 5))


def test_mask_head_compares_patches_with_class_queries() -> None:
    """Cosines of patches and queries, normalized over the classes (Segmenter, section 3.2)."""
    torch.manual_seed(0)
    model = af.build("segmenter-tiny").eval()
    with torch.no_grad(), af.look(model, "decoder.output", "decoder.input") as seen:
        logits = model(pixel_values=torch.randn(2, 3, 32, 32)).logits
    p, x = named_tensors(model), seen["decoder.output"]
    assert seen["decoder.input"].shape == (2, 16 + 5, 64)
    assert torch.equal(seen["decoder.input"][0, 16:], p["decoder.inputs.vectors.weight"])
    patches = F.normalize(x[:, :16] @ p["mask.patch.weight"].T, dim=-1)
    queries = F.normalize(x[:, 16:] @ p["mask.query.weight"].T, dim=-1)
    scores = F.layer_norm(torch.einsum("bnd,bcd->bnc", patches, queries), (5,))
    torch.testing.assert_close(logits, scores.transpose(1, 2).view(2, 5, 4, 4))


def test_the_loss_is_at_the_labels_size_and_skips_the_ignored() -> None:
    torch.manual_seed(0)
    model = af.build("segmenter-tiny").eval()
    labels = torch.randint(0, 5, (2, 24, 17))
    labels[0, :9] = 255
    with torch.no_grad():
        out = model(pixel_values=torch.randn(2, 3, 32, 32), labels=labels)
    large = F.interpolate(out.logits, size=(24, 17), mode="bilinear").permute(0, 2, 3, 1)
    chance = large.log_softmax(-1)[labels != 255]
    torch.testing.assert_close(out.loss, -chance.gather(1, labels[labels != 255][:, None]).mean())


def test_bad_labels() -> None:
    model, pixels = af.build("segmenter-tiny").eval(), torch.randn(1, 3, 32, 32)
    with pytest.raises(af.InputError, match=r"labels holds 5; .* 0 to 4, or 255"):
        model(pixel_values=pixels, labels=torch.full((1, 32, 32), 5))
    with pytest.raises(af.InputError, match=r"\[1, height, width\]"):
        model(pixel_values=pixels, labels=torch.zeros(1, 1, 32, 32, dtype=torch.long))
