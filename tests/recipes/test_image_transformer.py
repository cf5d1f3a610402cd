"""Image Transformer: local attention in a line and in a plane, remembered as recomputed, and nothing else seen."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core import attention
from anyformer.core.attend import AttentionCall, choose_kernel
from anyformer.core.cache import Cache, SelfAttentionCache

LINE: dict[str, Any] = {"image_size": (16, 8), "block": (1, 16), "memory": (0, 8)}
PLANE: dict[str, Any] = {"image_size": (16, 8), "local": "2d", "block": (2, 4), "memory": (1, 2)}
WAYS = pytest.mark.parametrize("way", [LINE, PLANE], ids=["1d", "2d"])
START = 256


def model_of(way: dict[str, Any], **more: Any) -> af.Model:
    torch.manual_seed(0)
    return af.build("image-transformer-tiny", **{**way, **more}).eval().double()


def picture(length: int, rows: int = 2) -> Tensor:
    ids = torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = START
    return ids


@WAYS
def test_remembering_is_recomputing(way: dict[str, Any]) -> None:
    """All 384 values of an image, a few at a time: the scores of one pass, while most of the past is forgotten."""
    model, ids = model_of(way), picture(384)
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        state, pieces = Cache(), []
        for piece in ids.split([7, 1, 90, *[1] * 286], dim=1):
            pieces.append(model(input_ids=piece, past_key_values=state).logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-9)
    held = [layer.num_held for layer in state.layers.values() if isinstance(layer, SelfAttentionCache)]
    assert len(held) == 2 and max(held) < 240


@WAYS
def test_uneven_prompts_are_each_alone(way: dict[str, Any]) -> None:
    """Rows of which more and less is given go on side by side as they would alone, past what is forgotten."""
    model, ids = model_of(way), picture(150, 3)
    sizes = (150, 61, 100)
    mask = torch.arange(150) >= 150 - torch.tensor(sizes)[:, None]
    rows = torch.stack([row.roll(150 - n) for row, n in zip(ids, sizes, strict=True)])
    together = model.generate(input_ids=rows, attention_mask=mask.long(), max_new_tokens=200)[:, 150:]
    for row, n in enumerate(sizes):
        alone = model.generate(input_ids=ids[row : row + 1, :n], max_new_tokens=200)[:, n:]
        assert together[row].tolist() == alone[0].tolist()


@WAYS
def test_tiles_are_the_reference(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At a length where blocks are cut out, loss and gradients are those of the table of everything."""
    model, ids = model_of(way, image_size=(24, 8)), picture(576)
    chosen: list[str] = []
    run = attention.attend

    def note(*args: Any, **options: Any) -> Tensor:
        call = AttentionCall(*args[:4], 1.0)
        chosen.append(choose_kernel(call).name)
        return run(*args, **options)

    results = []
    for attend in (note, partial(run, kernel="reference")):
        monkeypatch.setattr(attention, "attend", attend)
        model.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        results.append([loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert chosen == ["tiled", "tiled"]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def seen_from(model: af.Model, place: int) -> set[int]:
    """The places whose input changes the scores at `place`."""
    ids = picture(384, 1)
    vectors = model.stages["decoder"].inputs.words
    found: list[Tensor] = []
    hook = vectors.register_forward_hook(lambda module, args, out: found.append(out.requires_grad_()))
    logits = model(input_ids=ids).logits
    hook.remove()
    (slope,) = torch.autograd.grad(logits[0, place].sum(), found[0])
    return set(slope[0].abs().sum(dim=-1).nonzero().flatten().tolist())


def test_a_layer_sees_its_line() -> None:
    """One layer, block of 16 with 8 before it: place 40 stands in the block 32 to 47."""
    assert seen_from(model_of(LINE, n_layers=1), 40) == set(range(24, 41))


def test_a_layer_sees_its_surroundings() -> None:
    """One layer, blocks of 2 x 4 pixels (24 values), two side by side, a memory of one row above and two columns aside.

    Place 24·5 + 7 stands in the second block of the third row of blocks (rows 4 and 5, columns 4 to 7).
    """
    place = 24 * 5 + 7
    own = set(range(24 * 5, place + 1))
    left = {24 * 4 + 12 * row + 3 * column + c for row in (0, 1) for column in (2, 3) for c in range(3)}
    above = {24 * 3 + 12 + 3 * column + c for column in range(4) for c in range(3)}
    corner = {24 * 2 + 12 + 3 * column + c for column in (2, 3) for c in range(3)}
    assert seen_from(model_of(PLANE, n_layers=1), place) == own | left | above | corner


def test_channels_have_vectors_of_their_own() -> None:
    """The same intensity as red and as green are two rows of the table; the first token has the last."""
    model = model_of(LINE)
    asked: list[Tensor] = []
    hook = model.stages["decoder"].inputs.words.register_forward_hook(lambda module, args, out: asked.append(args[0]))
    model(input_ids=torch.tensor([[START, 5, 5, 5, 9]]))
    hook.remove()
    assert asked[0].tolist() == [[768, 5, 256 + 5, 512 + 5, 9]]


def test_the_order_of_writing() -> None:
    """Local 1D writes row by row, local 2D block by block; the channels of a pixel follow each other."""
    line, plane = (model_of(way).config.raster for way in (LINE, PLANE))  # type: ignore[attr-defined]
    at = torch.tensor([0, 1, 3, 24, 25])
    assert [tuple(map(int, cell)) for cell in zip(*line.coordinates(at), strict=True)] == [
        *((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 0, 1))
    ]
    at = torch.tensor([0, 3, 12, 24, 36, 48])
    assert [tuple(map(int, cell)) for cell in zip(*plane.coordinates(at), strict=True)] == [
        *((0, 0, 0), (0, 1, 0), (1, 0, 0), (0, 4, 0), (1, 4, 0), (2, 0, 0))
    ]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"n_heads": 5}, "n_heads"),
        ({"block": (2, 16)}, "local 1d"),
        ({"local": "2d", "block": (3, 4), "memory": (1, 1)}, "whole blocks"),
        ({"image_size": (8, 8, 3)}, "image_size"),
    ],
)
def test_settings_that_contradict(change: dict[str, Any], word: str) -> None:
    with pytest.raises(af.ConfigError, match=word):
        af.build("image-transformer-tiny", **change)
