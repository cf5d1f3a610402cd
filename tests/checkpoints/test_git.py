"""GIT beyond one image and one text: films, texts alone, words written greedily and by beams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.checkpoints.cases import ids
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import Case, make_oracle, save_oracle

ENDS = [4, 9, 17, 23]


def test_a_film(tmp_path: Path) -> None:
    """Two frames of three that the model knows, and one image in its place."""
    oracle = make_oracle("GitForCausalLM", num_image_with_embedding=3)
    model = af.load(save_oracle(oracle, tmp_path))
    for pixels in (torch.randn(2, 2, 3, 24, 24), torch.randn(2, 3, 24, 24)):
        batch = {"input_ids": ids(2, 5), "pixel_values": pixels}
        with torch.no_grad():
            compare(model(**batch), oracle(**batch), Case(batch, {}))
    model.save(tmp_path / "back", format="hf")
    back = type(oracle).from_pretrained(tmp_path / "back")
    assert all(torch.equal(x, back.state_dict()[name]) for name, x in oracle.state_dict().items())
    with pytest.raises(af.InputError, match="4 frames"):
        model(input_ids=ids(2, 5), pixel_values=torch.randn(2, 4, 3, 24, 24))


def test_text_alone_is_causal(tmp_path: Path) -> None:
    oracle = make_oracle("GitForCausalLM")
    model = af.load(save_oracle(oracle, tmp_path))
    batch = {"input_ids": ids(2, 12)}
    with torch.no_grad():
        compare(model(**batch), oracle(**batch), Case(batch, {}))


@pytest.mark.parametrize("beams", [1, 4])
def test_what_is_written(beams: int, tmp_path: Path) -> None:
    """From an image alone, and after words of uneven length."""
    oracle = make_oracle("GitForCausalLM", pad_token_id=2)  # transformers' beams take 0 for no id at all
    model = af.load(save_oracle(oracle, tmp_path))
    pixels = torch.randn(6, 3, 24, 24)
    options: dict[str, Any] = {"max_new_tokens": 9, "num_beams": beams, "eos_token_id": ENDS}
    expected = oracle.generate(pixel_values=pixels, do_sample=False, **options)
    assert model.generate(pixel_values=pixels, **options).tolist() == expected.tolist()
    assert len({tuple(row) for row in expected.tolist()}) > 1
    words = torch.tensor([[3, 8, 9], [3, 5, 6], [2, 3, 7], [2, 2, 3], [3, 9, 9], [2, 3, 40]])
    text = {"input_ids": words, "attention_mask": (words != 2).long()}
    expected = oracle.generate(pixel_values=pixels, **text, do_sample=False, **options)
    assert model.generate(pixel_values=pixels, **text, **options).tolist() == expected.tolist()


def test_padding_changes_nothing() -> None:
    """A row padded on either side, as alone, with its memory as without."""
    model = af.build("git-tiny").eval().double()
    pixels = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    words = torch.tensor([[1, 8, 9, 10], [1, 5, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    turned = {"input_ids": torch.tensor([[1, 8, 9, 10], [0, 0, 1, 5]]), "attention_mask": mask.flip(1)}
    turned["attention_mask"][0] = 1
    options: dict[str, Any] = {"max_new_tokens": 6, "eos_token_id": None}
    right = model.generate(input_ids=words, attention_mask=mask, pixel_values=pixels, **options)[:, 4:]
    left = model.generate(**turned, pixel_values=pixels, **options)[:, 4:]
    alone = model.generate(input_ids=words[1:, :2], pixel_values=pixels[1:], **options)[:, 2:]
    assert left.tolist() == right.tolist() and left[1:].tolist() == alone.tolist()
    whole = torch.cat([words[1:, :2], alone], dim=1)
    with torch.no_grad():
        logits = model(input_ids=whole, pixel_values=pixels[1:]).logits[:, 16 + 1 :]
    assert logits[:, 1:-1].argmax(dim=-1).tolist() == alone.tolist()


def test_mistakes() -> None:
    model = af.build("git-tiny").eval()
    with pytest.raises(af.InputError, match=r"3 texts .*2 images"):
        model(input_ids=ids(3, 4), pixel_values=torch.randn(2, 3, 32, 32))
    with pytest.raises(af.InputError, match="bos_token_id"):
        model.generate(pixel_values=torch.randn(2, 3, 32, 32), bos_token_id=None)
