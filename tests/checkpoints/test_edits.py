"""What is set by hand on a built model would be lost in a folder, so saving is refused; what families set is saved."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anyformer as af
from anyformer.checkpoints.edits import check_edits
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import ALiBi
from anyformer.core.score import DotScore, GeneralScore
from tests.batches import ids, pair
from tests.tiny import tiny_recipes


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
    model = af.build("gpt2-tiny").eval()
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
    model = af.build("luong-tiny").eval()
    part: Any = next(part for part in model.modules() if isinstance(getattr(part, "score", None), GeneralScore))
    batch = {name: value for name, value in pair().items() if "mask" not in name}
    before = model(**batch).logits
    part.score.temperature = 0.1
    assert not torch.equal(model(**batch).logits, before)
    with pytest.raises(af.Error, match=r"\.score"):
        model.save(tmp_path / "folder")


def _block(model: af.Model) -> Any:
    return model.stages["decoder"].stack.blocks[1]


def _part(model: af.Model, name: str) -> Any:
    return _block(model).sublayers[name].part


def _eps(model: af.Model) -> None:
    _block(model).sublayers["self"].norm.eps = 0.1


def _norm(model: af.Model) -> None:
    _block(model).sublayers["self"].norm = make_norm(NormConfig(kind="rms"), model.config.to_json()["d_model"])


def _scale(model: af.Model) -> None:
    _part(model, "self").config = _part(model, "self").config.replace(scale=2.0)


def _positions(model: af.Model) -> None:
    _part(model, "self").positions = ALiBi(n_heads=_part(model, "self").config.n_heads)


def _activation(model: af.Model) -> None:
    part = _part(model, "feedforward")
    part.config, part.activation = part.config.replace(activation="relu"), ACTIVATIONS["relu"]


def _order(model: af.Model) -> None:
    model.stages["decoder"].stack.order = (1, 0)


def _config(model: af.Model) -> None:
    model.config = model.config.replace(activation="relu")


@pytest.mark.parametrize("format", ["anyformer", "hf"])
@pytest.mark.parametrize("edit", [_eps, _norm, _scale, _positions, _activation, _order, _config])
def test_what_a_folder_cannot_hold_is_refused(edit: Any, format: str, tmp_path: Path) -> None:
    """With the place and both values, and nothing is written."""
    model = af.build("gpt2-tiny").eval()
    edit(model)
    with pytest.raises(af.ConfigError, match=r"decoder\."):
        model.save(tmp_path / "folder", format=format)
    assert not (tmp_path / "folder").exists()


def test_both_values_are_said(tmp_path: Path) -> None:
    model = af.build("gpt2-tiny").eval()
    _eps(model)
    with pytest.raises(af.ConfigError, match=r"decoder\.blocks\.1\.self\.norm\.eps is 0\.1.*1e-05"):
        model.save(tmp_path)


def _untie(model: af.Model) -> None:
    words: Any = model.heads["language"].words
    words.weight = nn.Parameter(words.weight.detach() + 1)


def _tie(model: af.Model) -> None:
    _block(model).sublayers["self"].norm.bias = _block(model).sublayers["self"].norm.weight


def _add(model: af.Model) -> None:
    _block(model).register_parameter("zz", nn.Parameter(torch.ones(3)))


def _add_buffer(model: af.Model) -> None:
    _block(model).register_buffer("zz", torch.ones(3))


def _remove(model: af.Model) -> None:
    _block(model).sublayers["self"].norm.bias = None


def _resize(model: af.Model) -> None:
    _block(model).sublayers["self"].norm.weight = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize("format", ["anyformer", "hf"])
@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (_untie, r"language\.words\.weight"),
        (_tie, r"self\.norm\.bias"),
        (_add, r"blocks\.1\.zz"),
        (_add_buffer, r"blocks\.1\.zz"),
        (_remove, r"self\.norm\.bias"),
        (_resize, r"self\.norm\.weight"),
    ],
)
def test_tensors_that_settings_do_not_build_are_refused(edit: Any, name: str, format: str, tmp_path: Path) -> None:
    """Other names, shapes or ties: loading would fail or give other numbers."""
    model = af.build("gpt2-tiny").eval()
    edit(model)
    with pytest.raises(af.ConfigError, match=name):
        model.save(tmp_path / "folder", format=format)
    assert not (tmp_path / "folder").exists()


@pytest.mark.parametrize("name", tiny_recipes())
def test_a_model_is_what_its_settings_build(name: str, tmp_path: Path) -> None:
    """Of every family, as built and as loaded again."""
    model = af.build(name).eval()
    model.save(tmp_path / "first")
    af.load(tmp_path / "first").save(tmp_path / "again")


def test_how_a_model_is_run_is_no_edit(tmp_path: Path) -> None:
    """Dropout, devices, copies made for speed, watching, recorded state."""
    model = af.build("gpt2-tiny").eval()
    _part(model, "self").config = _part(model, "self").config.replace(dropout=0.5)
    model.train().eval().to(torch.float64)
    with af.look(model, "*.self.weights"):
        model(ids()[0][None]).logits.sum().backward()
    model.eval().float().optimize()
    model.generate(ids()[0][None], max_new_tokens=3, eos_token_id=None)
    model.save(tmp_path)


def test_checking_costs_little() -> None:
    model, counts = af.build("gpt2-tiny").eval(), []
    for _ in range(5):
        start = time.perf_counter()
        check_edits(model)
        counts.append(time.perf_counter() - start)
    assert min(counts) < 0.05
