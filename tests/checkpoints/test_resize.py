"""A model with more words says the same about those it had; one for larger images sees what it saw."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.checkpoints.resize import resize_images, resize_vocabulary, select_vocabulary


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "transformer-tiny", "llama-tiny", "t5-tiny"])
def test_old_words_keep_their_scores(name: str) -> None:
    model = af.build(name).eval()
    words = model.config.vocab_size  # type: ignore[attr-defined]
    batch = {"input_ids": torch.randint(2, words, (2, 6))}
    if "decoder_input_ids" in model.names:
        batch["decoder_input_ids"] = torch.randint(2, words, (2, 5))
    field = "prediction_logits" if name == "bert-tiny" else "logits"
    larger = resize_vocabulary(model, words + 7)
    before, after = model(**batch)[field], larger(**batch)[field]
    assert after.shape[-1] == words + 7
    torch.testing.assert_close(after[..., :words], before)
    torch.testing.assert_close(after[..., words:], before.mean(dim=-1, keepdim=True).expand_as(after[..., words:]))
    back = resize_vocabulary(larger, words)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True))


def test_tied_tables_stay_tied() -> None:
    larger = resize_vocabulary(af.build("gpt2-tiny").eval(), 300)
    assert larger.heads["language"].words.weight is larger.stages["decoder"].inputs.words.weight  # type: ignore[union-attr]
    larger(input_ids=torch.tensor([[299]]))


def test_what_cannot_be() -> None:
    with pytest.raises(af.ConfigError, match="no vocab_size"):
        resize_vocabulary(af.build("vit-tiny"), 10)
    with pytest.raises(af.ConfigError, match="vocab_size is 0"):
        resize_vocabulary(af.build("gpt2-tiny"), 0)
    with pytest.raises(af.ConfigError, match="no image_size"):
        resize_images(af.build("gpt2-tiny"), 64)
    with pytest.raises(af.ConfigError, match=r"mae .*patch_size"):
        resize_images(af.build("mae-tiny"), patch_size=4)


def test_an_autoencoder_of_wide_images() -> None:
    model = resize_images(af.build("mae-tiny"), (32, 64))
    out = model(pixel_values=torch.randn(2, 3, 32, 64))
    assert out.logits.shape == (2, 4 * 8, 3 * 8 * 8) and bool(out.logits.isfinite().all())


@pytest.mark.parametrize("positions", ["learned", "learned-2d", "sinusoidal", "sinusoidal-2d", "none"])
def test_larger_pictures_are_what_interpolation_gives(positions: str, tmp_path: Path) -> None:
    """The same numbers as interpolating at run time; and so after saving and loading."""
    model = af.build("vit-tiny", positions=positions).eval()
    larger = resize_images(model, (48, 40))
    assert larger.config.image_size == (48, 40)  # type: ignore[attr-defined]
    pixels = torch.randn(2, 3, 48, 40)
    with torch.no_grad():
        expected = model(pixel_values=pixels, interpolate_pos_encoding=True).logits
        torch.testing.assert_close(larger(pixel_values=pixels).logits, expected)
        larger.save(tmp_path / "folder")
        again = af.load(tmp_path / "folder", optimize=False)
        assert torch.equal(again(pixel_values=pixels).logits, larger(pixel_values=pixels).logits)


@pytest.mark.parametrize("patch", [(16, 16), (8, 16), (12, 12)])
def test_enlarged_patches_give_the_same_tokens(patch: tuple[int, int]) -> None:
    """FlexiViT's promise: an image whose patches are enlarged one by one is to the resized model what it was."""
    model = af.build("vit-tiny").eval().double()
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    cut = pixels.unfold(2, 8, 8).unfold(3, 8, 8)  # [B, C, rows, columns, 8, 8]
    grown = F.interpolate(cut.flatten(0, 3).unsqueeze(1), size=patch, mode="bilinear").view(*cut.shape[:4], *patch)
    picture = grown.permute(0, 1, 2, 4, 3, 5).flatten(4).flatten(2, 3)
    resized = resize_images(model, tuple(picture.shape[2:]), patch)
    with torch.no_grad():
        torch.testing.assert_close(resized(pixel_values=picture).logits, model(pixel_values=pixels).logits)


def test_smaller_patches_and_mae() -> None:
    smaller = resize_images(af.build("vit-tiny").eval(), patch_size=4)
    assert smaller(pixel_values=torch.randn(1, 3, 32, 32)).logits.shape == (1, 10)
    mae = resize_images(af.build("mae-tiny").eval(), 64)
    assert mae(pixel_values=torch.randn(1, 3, 64, 64)).logits.shape == (1, 64, 8 * 8 * 3)


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama-tiny", "mamba-tiny"])
def test_only_words_are_moved(name: str) -> None:
    """Other tensors have as many rows by chance; word i is what word 255 - i was."""
    model = af.build(name, vocab_size=256).eval()
    others = [key for key, value in model.state_dict().items() if value.dim() and len(value) == 256]
    turned = select_vocabulary(model, model.config, list(range(255, -1, -1)))
    old, new = model.state_dict(), turned.state_dict()
    moved = {key for key in old if not torch.equal(old[key], new[key])}
    assert moved and moved < set(others) and all("words" in key or "language" in key for key in moved)
    assert all(torch.equal(new[key], old[key].flip(0)) for key in moved)


def test_captioners_have_words_too() -> None:
    assert resize_vocabulary(af.build("show-tell-tiny").eval(), 300).config.to_json()["vocab_size"] == 300
