"""ViT's choices: how a patch knows its place, what is classified, other sizes; hybrid and DeiT beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core import rewrites
from anyformer.core.positions import sinusoids, sinusoids_2d
from anyformer.data.images.attention_maps import class_attention
from anyformer.inputs.patches import patchify

PLACES = ("learned", "learned-2d", "sinusoidal", "sinusoidal-2d", "none")


def build(name: str = "vit-tiny", **changes: Any) -> af.Model:
    """With weights that are large enough to matter."""
    torch.manual_seed(0)
    model = af.build(name, **changes).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def pictures(rows: int = 32, columns: int = 32) -> Tensor:
    return torch.randn(2, 3, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def turned(pixels: Tensor, patch: int = 8) -> Tensor:
    """The same patches in reverse order."""
    n = pixels.shape[2] // patch
    cut = patchify(pixels, (patch, patch)).flip(1)
    return cut.view(-1, n, n, 3, patch, patch).permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("vit-tiny", {"positions": "learned-2d", "d_model": 65, "n_heads": 5}, "multiple of 2, not 65"),
        ("vit-tiny", {"positions": "sinusoidal-2d", "d_model": 65, "n_heads": 5}, "multiple of 2, not 65"),
        ("mae-tiny", {"d_model": 65, "n_heads": 5}, "multiple of 2, not 65"),
        ("detr-tiny", {"d_model": 66, "n_heads": 6, "n_decoder_heads": 6}, "multiple of 4, not 66"),
        ("llama-tiny", {"d_model": 60, "n_heads": 4, "n_kv_heads": 4}, "multiple of 2, not 15"),
        ("roformer-tiny", {"d_model": 65, "n_heads": 5}, "multiple of 2, not 13"),
    ],
    ids=str,
)
def test_a_width_that_positions_cannot_fill_is_refused(name: str, settings: dict[str, Any], said: str) -> None:
    """When the model is built, and not at its first pass."""
    with pytest.raises(af.Error, match=said):
        af.build(name, **settings)


@pytest.mark.parametrize("positions", PLACES)
def test_only_without_positions_the_order_of_patches_is_nothing(positions: str) -> None:
    model = build(positions=positions, pooling="mean", class_token=False)
    with torch.no_grad():
        one, other = model(pixel_values=pictures()).logits, model(pixel_values=turned(pictures())).logits
    assert torch.allclose(one, other, atol=1e-10) == (positions == "none")


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("positions", PLACES)
def test_what_is_added(positions: str, class_token: bool) -> None:
    """Tokens at the bottom are the patches' products plus the vectors that the name of the encoding promises."""
    model = build(positions=positions, class_token=class_token, pooling="class" if class_token else "mean")
    inputs: Any = model.stages["encoder"].inputs
    with torch.no_grad(), af.look(model, "encoder.input") as seen:
        model(pixel_values=pictures())
    cells = seen["encoder.input"][:, int(class_token) :] - inputs.patches(patchify(pictures(), (8, 8)))
    places = inputs.positions
    expected = {
        "none": lambda: torch.zeros(16, 64),
        "sinusoidal": lambda: sinusoids(torch.arange(16), 64, "halves"),
        "sinusoidal-2d": lambda: sinusoids_2d(4, 4, 64),
        "learned": lambda: places.weight[int(class_token) :],
        # cell (row, column): the column's half, then the row's
        "learned-2d": lambda: torch.stack(
            [torch.cat([places.column[c], places.row[r]]) for r in range(4) for c in range(4)]
        ),
    }[positions]()
    torch.testing.assert_close(cells, expected.detach().double().expand(2, -1, -1), rtol=1e-6, atol=1e-7)
    learns = any("positions" in name and p.requires_grad for name, p in model.named_parameters())
    assert learns == positions.startswith("learned")


@pytest.mark.parametrize("positions", PLACES)
def test_another_size_of_picture(positions: str) -> None:
    """Any size runs, where it is asked for."""
    model = build(positions=positions)
    with torch.no_grad():
        out = model(pixel_values=pictures(48, 16), interpolate_pos_encoding=True)
    assert out.logits.shape == (2, 10)
    with pytest.raises(af.InputError, match="interpolate_pos_encoding"):
        model(pixel_values=pictures(48, 16))


@pytest.mark.parametrize("class_token", [True, False])
def test_pooling(class_token: bool) -> None:
    """Of the patches alone, also where a class token is there; attention weighs by a softmax that a tap shows."""
    for pooling in ("mean", "attention"):
        model = build(pooling=pooling, class_token=class_token)
        head: Any = model.heads["classify"]
        points = [point for point in model.points if point == "classify.gather.weights"]
        with torch.no_grad(), af.look(model, "encoder.output", *points) as seen:
            out = model(pixel_values=pictures())
        patches = seen["encoder.output"][:, int(class_token) :]
        weights = torch.full((2, 16), 1 / 16, dtype=torch.float64)
        if pooling == "attention":
            scores = (patches @ head.gather.query[0]).exp()
            weights = scores / scores.sum(dim=1, keepdim=True)
            torch.testing.assert_close(seen["classify.gather.weights"][:, 0, 0], weights)
        torch.testing.assert_close(out.logits, head.classes((weights.unsqueeze(-1) * patches).sum(dim=1)).detach())


def test_what_hugging_face_cannot_say(tmp_path: Path) -> None:
    for changes in ({"positions": "sinusoidal-2d"}, {"pooling": "mean"}, {"pooling": "mean", "class_token": False}):
        with pytest.raises(af.ConfigError, match="anyformer's own"):
            build(**changes).save(tmp_path / "folder", format="hf")
    with pytest.raises(af.ConfigError, match="small stem"):
        build("resnet-tiny").save(tmp_path / "folder", format="hf")
    build().save(tmp_path / "folder", format="hf")


def test_a_class_token_must_be_there_to_be_read() -> None:
    with pytest.raises(af.ConfigError, match="class_token"):
        build(class_token=False)


def test_hybrid_cuts_features() -> None:
    """Its tokens are products of 2 x 2 cells of what the residual network gives."""
    model = build("hybrid-tiny", positions="none")
    inputs: Any = model.stages["encoder"].inputs
    with torch.no_grad(), af.look(model, "encoder.input", "*.features") as seen:
        model(pixel_values=pictures())
    cells = seen["encoder.inputs.resnet.features"]
    assert cells.shape == (2, 16, 16, 16)
    torch.testing.assert_close(seen["encoder.input"][:, 1:], inputs.patches(patchify(cells, (2, 2))).detach())


def test_deit_answers_with_both_tokens() -> None:
    model = build("deit-tiny")
    with torch.no_grad(), af.look(model, "encoder.output") as seen:
        out = model(pixel_values=pictures(), labels=torch.tensor([1, 2]))
    head: Any = model.heads["distill"]
    own, taught = head.classes(seen["encoder.output"][:, 0]), head.taught(seen["encoder.output"][:, 1])
    torch.testing.assert_close(out.logits, ((own + taught) / 2).detach())
    losses = [torch.nn.functional.cross_entropy(x, torch.tensor([1, 2])) for x in (own, taught)]
    torch.testing.assert_close(out.loss, (sum(losses) / 2).detach())  # type: ignore[union-attr]


def test_deeper_blocks_are_left_out_more_often() -> None:
    blocks: Any = af.build("vit-tiny", n_layers=4, drop_path=0.2).stages["encoder"].stack.blocks  # type: ignore[union-attr]
    for name in ("self", "feedforward"):
        assert [block.sublayers[name].drop_path for block in blocks] == pytest.approx([0, 0.2 / 3, 0.4 / 3, 0.2])


def widths_of_the_last_block(model: af.Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens its network is given at each pass; without a hook, which would make it compute all."""
    widths: list[int] = []
    part: Any = model.stages["encoder"].stack.blocks[-1].sublayers["feedforward"].part  # type: ignore[union-attr]
    plain = part.hidden

    def hidden(x: Tensor) -> Tensor:
        widths.append(x.shape[1])
        return plain(x)  # type: ignore[no-any-return]

    monkeypatch.setattr(part, "hidden", hidden)
    return widths


@pytest.mark.parametrize(("name", "changes"), [("vit-tiny", {}), ("deit-tiny", {}), ("vit-tiny", {"drop_path": 0.5})])
def test_the_last_block_does_only_what_is_read(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a class token alone is read, the last block's other tokens are left out: numbers and gradients are those
    of the whole, which looking on brings back."""
    model = build(name, **changes).train()
    widths = widths_of_the_last_block(model, monkeypatch)
    found = []
    for watched in ((), ("encoder.output",)):
        torch.manual_seed(3)
        model.zero_grad()
        with rewrites.applied("training", model, False), af.look(model, *watched):
            out = model(pixel_values=pictures(), labels=torch.tensor([1, 2]))
        out.loss.backward()
        found.append(
            (out.loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        )
    few = 2 if name == "deit-tiny" else 1
    assert widths == [few, 16 + few]
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for path, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][path], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.1}, {"attention_dropout": 0.1}, {"pooling": "mean"}, {"head": "base"}]
)
def test_where_more_is_read_or_drawn_all_of_it_is_done(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(**changes).train()
    widths = widths_of_the_last_block(model, monkeypatch)
    with rewrites.applied("training", model, False):
        model(pixel_values=pictures())
    assert widths == [17]


def test_a_hook_in_the_last_block_sees_all_tokens() -> None:
    """Without it the block is narrowed by `optimize`; whoever hooks a module of it sees what the plain model does."""
    model = build().optimize()
    up: Any = model.stages["encoder"].stack.blocks[-1].sublayers["feedforward"].part.up  # type: ignore[union-attr]
    given: list[Tensor] = []
    handle = up.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    with torch.no_grad():
        hooked = model(pixel_values=pictures()).logits
        handle.remove()
        narrow = model(pixel_values=pictures()).logits
    assert [x.shape[1] for x in given] == [17]
    torch.testing.assert_close(narrow, hooked)


@pytest.mark.parametrize("class_token", [True, False])
def test_what_a_pool_looked_at(class_token: bool) -> None:
    """The map of a model that weighs its patches is those weights, and through all layers still sums to what patches
    have of the answer: all of it where no class token takes a part."""
    model = build(pooling="attention", class_token=class_token)
    batch = {"pixel_values": pictures()}
    with torch.no_grad():
        found = class_attention(model, batch, (32, 32))
        with af.look(model, "classify.gather.weights") as seen:
            model(**batch)
    assert found is not None
    last, rolled = found
    torch.testing.assert_close(last.flatten(1), seen["classify.gather.weights"][:, 0, 0].float())
    sums = rolled.flatten(1).sum(dim=1)
    assert bool((sums < 1 - 1e-3).all()) if class_token else torch.allclose(sums, torch.ones(2), atol=1e-5)
