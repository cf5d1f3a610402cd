"""The captioners against the papers' formulas in float64, and what their losses say about where they look."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer import registry
from anyformer.heads.caption import AttentionLossConfig, CaptionHead
from anyformer.heads.language import LanguageConfig
from anyformer.layers.recurrent import AttentionStep
from anyformer.recipes.captioners import CNNTransformerConfig

PIXELS = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
WORDS = torch.tensor([[0, 7, 9, 30], [0, 11, 5, 2]])


def built(name: str, **changes: Any) -> af.Model:
    torch.manual_seed(1)
    return af.build(name, **changes).eval().double()


def cell_step(cell: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    raw = cell.weight_ih_l0 @ x + cell.bias_ih_l0 + cell.weight_hh_l0 @ h + cell.bias_hh_l0
    i, f, g, o = raw.chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def apply(linear: Any, x: Tensor) -> Tensor:
    return linear.weight @ x + linear.bias


def by_hand(model: af.Model, grid: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 1 to 9 of Xu et al. for one image's cells [S, d]."""
    part = model.stages["decoder"].stack.blocks[0].sublayers["cross"].part
    states = torch.tanh(apply(part.start, grid.mean(dim=0)))
    h, c = states.chunk(2)
    logits, seen = [], []
    for vector in model.stages["decoder"].inputs.words.weight[words]:
        score = part.score
        raw = torch.stack([score.value @ torch.tanh(score.query @ h + score.key @ cell) for cell in grid])
        weights = (raw - raw.logsumexp(0)).exp()
        context = torch.sigmoid(apply(part.gate, h)) * (weights @ grid)
        h, c = cell_step(part.cell, torch.cat([vector, context]), h, c)
        out = torch.tanh(apply(part.out, torch.cat([h, vector, context])))
        head = model.heads["language"]
        logits.append(head.words.weight @ out + head.bias)
        seen.append(weights)
    return torch.stack(logits), torch.stack(seen)


def test_show_attend_and_tell() -> None:
    """Logits, weights and the doubly stochastic penalty are the paper's."""
    model = built("show-attend-tell-tiny", coverage_weight=0.7)
    labels = torch.tensor([[7, 9, 30, 1], [11, 5, 2, -100]])
    with torch.no_grad(), af.look(model, "*.cross.weights") as seen:
        out = model(pixel_values=PIXELS, decoder_input_ids=WORDS, labels=labels)
        grids = out.encoder_last_hidden_state
        expected = [by_hand(model, grid, words) for grid, words in zip(grids, WORDS, strict=True)]
    logits, weights = (torch.stack(x) for x in zip(*expected, strict=True))
    torch.testing.assert_close(out.logits, logits, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(seen["decoder.blocks.0.cross.weights"][:, 0], weights, rtol=1e-9, atol=1e-9)
    penalty = 0.7 * (1 - weights.sum(dim=1)).square().mean(dim=1).mean()
    torch.testing.assert_close(out.attention_loss, penalty, rtol=1e-9, atol=1e-9)
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(out.loss, plain + penalty, rtol=1e-6, atol=1e-6)


def test_show_and_tell_knows_the_picture_by_its_first_state() -> None:
    model = built("show-tell-tiny")
    part = model.stages["decoder"].stack.blocks[0].sublayers["recurrent"].part
    inputs = model.stages["encoder"].inputs
    with torch.no_grad():
        out = model(pixel_values=PIXELS, decoder_input_ids=WORDS)
        for row in range(2):
            states = torch.tanh(apply(inputs.states, out.encoder_last_hidden_state[row].mean(dim=0)))
            h, c = states.chunk(2)
            for t, vector in enumerate(model.stages["decoder"].inputs.words.weight[WORDS[row]]):
                h, c = cell_step(part.cell, vector, h, c)
                head = model.heads["language"]
                torch.testing.assert_close(out.logits[row, t], head.words.weight @ h + head.bias)


def test_hard_attention_looks_at_one_cell() -> None:
    """The most probable when it answers; in training a drawn one, or all by their weights."""
    model = built("show-attend-tell-tiny", hard_attention=True)
    batch = {"pixel_values": PIXELS, "decoder_input_ids": WORDS}
    with torch.no_grad(), af.look(model, "*.cross.weights") as seen:
        model(**batch)
    looked = seen["decoder.blocks.0.cross.weights"]
    assert looked.amax(dim=-1).eq(1).all() and looked.sum(dim=-1).eq(1).all()
    model.train()
    with torch.no_grad(), af.look(model, "*.cross.weights") as seen:
        model(pixel_values=PIXELS.repeat(20, 1, 1, 1), decoder_input_ids=WORDS.repeat(20, 1))
    one = seen["decoder.blocks.0.cross.weights"].amax(dim=-1).eq(1)
    assert 0.3 < one.double().mean() < 0.7


def test_reward() -> None:
    """What was drawn before a caption likelier than usual becomes likelier, and the other way round (equation 12)."""
    weights = torch.tensor([[[0.2, 0.8]], [[0.5, 0.5]]], requires_grad=True)
    taken = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    head = CaptionHead(
        LanguageConfig(d_model=2, vocab_size=2, stage="decoder"),
        AttentionLossConfig(coverage=0.0, reward=1.0, entropy=0.0),
    )
    head.reset(0.0)
    head.usual.fill_(-0.5)
    logits = torch.tensor([[[2.0, 0.0]], [[-2.0, 0.0]]])
    labels = torch.tensor([[0], [0]])
    said = F.log_softmax(logits, dim=-1)[:, 0, 0]  # one above the usual -0.5, one below
    assert said[0] > -0.5 > said[1]
    head.attention_loss(AttentionStep(weights, taken).summarize(None), logits, labels).backward()
    expected = torch.zeros_like(weights)
    expected[0, 0, 0] = -(said[0] + 0.5) / 0.2 / 2
    expected[1, 0, 1] = -(said[1] + 0.5) / 0.5 / 2
    torch.testing.assert_close(weights.grad, expected)


def test_words_that_do_not_count_are_not_noted() -> None:
    weights = torch.tensor([[[0.25, 0.75], [1.0, 0.0]]])
    note = AttentionStep(weights, weights).summarize(torch.tensor([[True, False]]))
    assert note.coverage.tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("name", ["show-tell-tiny", "show-attend-tell-tiny", "cnn-transformer-tiny"])
def test_the_picture_matters(name: str) -> None:
    model = built(name)
    with torch.no_grad():
        one, other = (model(pixel_values=x, decoder_input_ids=WORDS).logits for x in (PIXELS, PIXELS.flip(0)))
    assert not torch.allclose(one, other)


def test_a_picture_of_another_size() -> None:
    model = built("cnn-transformer-tiny")
    large = torch.randn(1, 3, 64, 48).double()
    assert model(pixel_values=large, decoder_input_ids=WORDS[:1]).logits.shape == (1, 4, 256)


@pytest.mark.parametrize("side", [32, 33, 40, 63])
@pytest.mark.parametrize(
    "net",
    [
        {},
        {"dilation": True},
        {"downsample_in_first_stage": True},
        {"dilation": True, "downsample_in_first_stage": True},
        {"stem": "small"},
        {"stem": "small", "dilation": True},
        {"n_stages": 1},
        {"n_stages": 0},
    ],
    ids=str,
)
def test_the_grid_has_a_place_for_every_cell(net: dict[str, Any], side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are those of the cells that the network makes, and none is interpolated."""
    settings = registry.recipe("cnn-transformer-tiny").config
    assert isinstance(settings, CNNTransformerConfig)
    model = built("cnn-transformer-tiny", backbone=settings.backbone.replace(**net), image_size=(side, side + 9))

    def refuse(*args: Any, **options: Any) -> Tensor:
        raise AssertionError("interpolated")

    monkeypatch.setattr(F, "interpolate", refuse)
    out = model(torch.randn(1, 3, side, side + 9).double(), decoder_input_ids=WORDS[:1])
    rows, columns = model.config.grid
    assert out.encoder_last_hidden_state.shape[1] == rows * columns
