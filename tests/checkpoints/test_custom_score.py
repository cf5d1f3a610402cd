"""A score that no setting describes would be lost in a folder, so saving is refused; scores of families are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer as af
from anyformer.core.score import DotScore, GeneralScore
from tests.batches import ids, pair


class Cosine(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return 10 * F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).transpose(-1, -2)


def difference(query: Tensor, key: Tensor) -> Tensor:
    return -torch.cdist(query, key)


def _attention(model: af.Model, block: int = 1) -> Any:
    return model.stages["decoder"].stack.blocks[block].sublayers["self"].part


@pytest.mark.parametrize("format", ["anyformer", "hf"])
@pytest.mark.parametrize(
    "score",
    [Cosine(), DotScore(temperature=2.0), GeneralScore(16, 16), difference, lambda q, k: q @ k.transpose(-1, -2)],
)
def test_a_custom_score_is_refused(score: Any, format: str, tmp_path: Path) -> None:
    model = af.build("gpt2-tiny")
    row = ids()[0][None]
    before = model(row).logits
    _attention(model).score = score
    assert not torch.equal(model(row).logits, before)
    with pytest.raises(af.Error, match=r"decoder\.blocks\.1\.self\.score"):
        model.save(tmp_path / "folder", format=format)
    assert not (tmp_path / "folder").exists()
    del _attention(model).score
    _attention(model).score = None
    model.save(tmp_path / "folder", format=format)
    assert torch.equal(af.load(tmp_path / "folder")(row).logits, before)


@pytest.mark.parametrize("name", ["bahdanau-tiny", "luong-tiny", "show-attend-tell-tiny"])
def test_the_scores_of_families_are_saved(name: str, tmp_path: Path) -> None:
    af.build(name).save(tmp_path)
    assert af.load(tmp_path).family == af.build(name).family


def test_another_score_in_a_family_that_has_one(tmp_path: Path) -> None:
    """One of the same class with a setting that the folder does not hold."""
    model = af.build("luong-tiny")
    part: Any = next(part for part in model.modules() if isinstance(getattr(part, "score", None), GeneralScore))
    batch = {name: value for name, value in pair().items() if "mask" not in name}
    before = model(**batch).logits
    part.score.temperature = 0.1
    assert not torch.equal(model(**batch).logits, before)
    with pytest.raises(af.Error, match=r"\.score"):
        model.save(tmp_path / "folder")
