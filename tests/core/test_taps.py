"""Looking inside: the layers you name, in your own layout, and nothing changes by it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import look
from anyformer.core import attention as attention_module
from anyformer.core.attend import attend, attention_weights
from anyformer.core.taps import is_watched
from anyformer.errors import InputError
from tests.batches import BATCHES, build, cast

SELF = {"bert-tiny": "encoder", "gpt2-tiny": "decoder", "transformer-tiny": "encoder", "perceiver-tiny": "latents"}


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [x for item in value for x in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _flat(out: af.Output) -> list[Tensor]:
    return [tensor for value in out.values() for tensor in _tensors(value)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", BATCHES)
def test_looking_changes_nothing(name: str, side: str, dtype: torch.dtype) -> None:
    """The output is bit for bit the same whether somebody watches every point of the model or nobody does."""
    model, batch = build(name, dtype), cast(BATCHES[name](side), dtype)
    plain = _flat(model(**batch))
    with look(model, "*") as seen:
        watched = _flat(model(**batch))
    assert set(seen) == set(model.points)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


@pytest.mark.parametrize("name", BATCHES)
def test_only_the_named_layer_is_weighed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One layer watched costs one `attention_weights`; every layer still attends on its own kernel, asked as before."""
    calls: Counter[str] = Counter()
    asked: list[tuple[tuple[int, ...], str]] = []

    def counted_attention_weights(*args: Any, **kwargs: Any) -> Tensor:
        calls["attention_weights"] += 1
        return attention_weights(*args, **kwargs)

    def counted_attend(query: Tensor, key: Tensor, value: Tensor, mask: Any, **kwargs: Any) -> Tensor:
        asked.append((tuple(query.shape), ",".join([type(part).__name__ for part in mask.parts] + sorted(kwargs))))
        return attend(query, key, value, mask, **kwargs)

    monkeypatch.setattr(attention_module, "attention_weights", counted_attention_weights)
    monkeypatch.setattr(attention_module, "attend", counted_attend)
    model, batch = build(name), cast(BATCHES[name]("right"), torch.float64)
    model(**batch)
    before, n_layers = list(asked), len(asked)
    assert calls["attention_weights"] == 0
    point = next(point for point in model.points if point.endswith(".weights"))
    asked.clear()
    with look(model, point) as seen:
        model(**batch)
    assert list(seen) == [point]
    assert calls["attention_weights"] == 1
    assert len(asked) == n_layers
    assert asked == before
    assert name == "vit-tiny" or any("Packed" in what for _, what in asked)  # uneven rows were packed all the while


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", SELF)
def test_weights_come_in_the_callers_layout(name: str, side: str) -> None:
    """[B, heads, Q, K] of the padded batch: rows sum to 1 at real queries, padded keys have weight 0."""
    model, batch = build(name), BATCHES[name](side)
    real = batch["attention_mask"].bool()
    with look(model, "*.weights") as seen:
        model(**batch)
    stage = SELF[name]
    weights = seen[f"{stage}.blocks.0.{'cross' if name == 'perceiver-tiny' else 'self'}.weights"]
    queries = torch.ones(3, 8, dtype=torch.bool) if name == "perceiver-tiny" else real
    assert weights.shape == (3, 4, queries.shape[1], real.shape[1])
    assert torch.allclose(weights.sum(-1).transpose(1, 2)[queries], torch.ones(1, dtype=torch.float64))
    assert (weights.permute(0, 3, 1, 2)[~real] == 0).all()
    if name == "gpt2-tiny":
        assert (weights.triu(1) == 0).all()
    if name == "transformer-tiny":
        cross = seen["decoder.blocks.1.cross.weights"]
        targets = batch["decoder_attention_mask"].bool()
        assert cross.shape == (3, 4, targets.shape[1], real.shape[1])
        assert torch.allclose(cross.sum(-1).transpose(1, 2)[targets], torch.ones(1, dtype=torch.float64))
        assert (cross.permute(0, 3, 1, 2)[~real] == 0).all()


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["bert-tiny", "gpt2-tiny", "transformer-tiny", "perceiver-tiny"])
def test_points_are_the_same_packed_and_padded(name: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point of a packed run has the shape, and at real tokens the values, of the padded run."""
    model, batch = build(name), BATCHES[name](side)
    with look(model, "*") as packed:
        model(**batch)
    monkeypatch.setattr("anyformer.stage.PACK_BELOW", 0.0)
    with look(model, "*") as padded:
        model(**batch)
    masks = {0: batch["attention_mask"].bool(), 1: batch.get("decoder_attention_mask", batch["attention_mask"]).bool()}
    for point, ours in packed.items():
        theirs = padded[point]
        assert ours.shape == theirs.shape, point
        decoder = name == "transformer-tiny" and point.startswith("decoder")
        keys = point.endswith((".key", ".value")) and ".cross." in point
        side_of = masks[int(decoder and not keys)]
        by_token = ours.transpose(1, 2) if point.endswith((".query", ".key", ".value", ".weights")) else ours
        as_token = theirs.transpose(1, 2) if by_token is not ours else theirs
        real = side_of if by_token.shape[:2] == side_of.shape else torch.ones(by_token.shape[:2], dtype=torch.bool)
        assert torch.allclose(by_token[real], as_token[real], atol=1e-10), point


def test_weights_times_values_are_the_output() -> None:
    """What is seen is what was used: weights · values through the output projection is the seen output."""
    model, batch = build("bert-tiny"), BATCHES["bert-tiny"]("left")
    with look(model, "encoder.blocks.1.self.*") as seen:
        model(**batch)
    at = "encoder.blocks.1.self"
    heads = (seen[f"{at}.weights"] @ seen[f"{at}.value"]).transpose(1, 2).flatten(2)
    out = model.stages["encoder"].stack.blocks[1].sublayers["self"].part.out(heads)
    real = batch["attention_mask"].bool()
    assert torch.allclose(out[real], seen[f"{at}.output"][real], atol=1e-12)


def test_a_glob_that_matches_nothing_is_an_error() -> None:
    """The message has the glob, the nearest point and how many there are; nothing keeps watching."""
    model = build("bert-tiny")
    near = "encoder.blocks.0.self.weight"
    hint = r'"encoder\.blocks\.0\.self\.weight"\. Did you mean .*self\.weights'
    with pytest.raises(InputError, match=hint), look(model, near):
        raise AssertionError("never gets here")
    with pytest.raises(InputError, match="points"), look(model, "encoder.*", "nowhere.*"):
        raise AssertionError("never gets here")
    assert not is_watched(model)


def test_watchers_leave_when_something_breaks() -> None:
    """After an exception inside the block nobody watches any more, and the next run sees nothing."""
    model, batch = build("bert-tiny"), BATCHES["bert-tiny"]("right")
    with pytest.raises(ZeroDivisionError), look(model, "*.weights") as seen:
        raise ZeroDivisionError
    model(**batch)
    assert not is_watched(model)
    assert not seen


def test_watchers_do_not_disturb_each_other() -> None:
    """Two watchers of the same points, one inside the other: each sees its own runs, and each point once a run."""
    model, batch = build("bert-tiny"), BATCHES["bert-tiny"]("right")
    with look(model, "*.self.weights") as outer:
        model(**batch)
        with look(model, "*.self.weights", "encoder.blocks.0.*") as inner:
            model(**batch)
        model(**batch)
    point = "encoder.blocks.0.self.weights"
    assert len(inner.matching(point)) == 1
    assert len(outer.matching(point)) == 3
    assert not is_watched(model)


def test_output_attentions_while_somebody_looks() -> None:
    """The ecosystem's keyword and a watcher at the same points give the same tensors."""
    model, batch = build("bert-tiny"), BATCHES["bert-tiny"]("right")
    with look(model, "encoder.blocks.*.self.weights") as seen:
        out = model(**batch, output_attentions=True)
        model(**batch)
    first = seen.matching("*.weights")[:2]
    assert len(out.attentions) == 2
    assert all(torch.equal(a, b) for a, b in zip(out.attentions, first, strict=True))
    assert len(seen.log) == 4


def test_weights_are_differentiable() -> None:
    """A penalty on the weights reaches the projections that made them, also through packed rows."""
    model, batch = build("bert-tiny"), BATCHES["bert-tiny"]("right")
    with look(model, "encoder.blocks.1.self.weights") as seen:
        model(**batch)
    part = model.stages["encoder"].stack.blocks[1].sublayers["self"].part
    seen["encoder.blocks.1.self.weights"].square().sum().backward()
    slope = part.qkv.weight.grad
    assert slope[part.qkv.slice("query")].abs().max() > 0
    assert slope[part.qkv.slice("key")].abs().max() > 0
    assert (slope[part.qkv.slice("value")] == 0).all()
