"""The convolutional parts: their formulas in float64, and no word that sees the future."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.tokens import Tokens
from anyformer.layers.convolution import (
    DilatedConvBlock,
    DilatedConvBlockConfig,
    DotAttention,
    DotAttentionConfig,
    GatedConvolution,
    GatedConvolutionConfig,
    TokenMixing,
    TokenMixingConfig,
)
from tests.batches import build, ids, padded


def _drawn(part: Any) -> Any:
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return part.double().eval()


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _taps(x: Tensor, weight: Tensor, bias: Tensor, t: int, dilation: int, causal: bool) -> Tensor:
    """One output of a convolution, tap by tap; nothing lies outside the row."""
    kernel = weight.shape[2]
    total = bias.clone()
    for k in range(kernel):
        at = t + (k - (kernel - 1 if causal else kernel // 2)) * dilation
        if 0 <= at < len(x):
            total = total + weight[:, :, k] @ x[at]
    return total


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_gated_convolution_is_its_formula(kernel: int, causal: bool) -> None:
    part = _drawn(GatedConvolution(GatedConvolutionConfig(d_model=4, kernel=kernel, causal=causal)))
    x = _normal(1, 6, 4)
    for t in range(6):
        y = _taps(x[0], part.conv.weight, part.conv.bias, t, 1, causal)
        torch.testing.assert_close(part(Tokens(x))[0, t], y[:4] * torch.sigmoid(y[4:]))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dilation", [1, 2, 4])
def test_bottleneck_is_its_formula(dilation: int, causal: bool) -> None:
    config = DilatedConvBlockConfig(d_model=6, d_inner=3, kernel=3, dilation=dilation, causal=causal)
    part = _drawn(DilatedConvBlock(config))
    x = _normal(1, 9, 6)

    def norm(layer: Any, v: Tensor) -> Tensor:
        centered = v - v.mean()
        return centered / (centered.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias

    narrow = [norm(part.norm_before, part.narrow.weight @ v.relu() + part.narrow.bias).relu() for v in x[0]]
    for t in range(9):
        y = _taps(torch.stack(narrow), part.conv.weight, part.conv.bias, t, dilation, causal)
        y = part.widen.weight @ norm(part.norm_after, y).relu() + part.widen.bias
        torch.testing.assert_close(part(Tokens(x))[0, t], y)


def test_lookup_is_its_formula() -> None:
    """d = W h + b + g; weights from d·z; the average of z + e, times √m; padded source words aside."""
    part = _drawn(DotAttention(DotAttentionConfig(d_model=5, d_context=4)))
    h, g, z, e = _normal(1, 3, 5), _normal(1, 3, 4), _normal(1, 6, 4), _normal(1, 6, 4)
    real = torch.tensor([[True, True, True, True, False, False]])
    out = part(Tokens(h, pos_embed=g), Tokens(z, real, pos_embed=e))
    for i in range(3):
        d = part.query.weight @ h[0, i] + part.query.bias + g[0, i]
        chance = torch.stack([(d @ z[0, j]).exp() for j in range(4)])
        c = sum(p * (z[0, j] + e[0, j]) for j, p in enumerate(chance / chance.sum())) * 2.0  # √4
        torch.testing.assert_close(out[0, i], part.out.weight @ c + part.out.bias)


@pytest.mark.parametrize("causal", [True, False])
def test_position_mix_is_its_formula(causal: bool) -> None:
    part = _drawn(TokenMixing(TokenMixingConfig(d_model=3, length=7, causal=causal)))
    x = _normal(1, 7, 3)
    hidden = []
    for t in range(7):
        sees = range(t + 1) if causal else range(7)
        hidden.append(torch.nn.functional.gelu(sum(part.first[t, s] * x[0, s] for s in sees) + part.first_bias[t]))
    for t in range(7):
        sees = range(t + 1) if causal else range(7)
        y = sum(part.second[t, s] * hidden[s] for s in sees) + part.second_bias[t]
        torch.testing.assert_close(part(Tokens(x))[0, t], y)


def test_a_text_longer_than_the_network_is_an_error() -> None:
    model = build("mlp-mixer-tiny", max_length=6)
    with pytest.raises(af.InputError, match="at most 6"):
        model(input_ids=torch.ones(1, 7, dtype=torch.long))
    state = model(input_ids=torch.ones(1, 6, dtype=torch.long), use_cache=True).past_key_values
    with pytest.raises(af.InputError, match="at most 6"):
        model(input_ids=torch.ones(1, 1, dtype=torch.long), past_key_values=state)


@pytest.mark.parametrize(
    "name", ["bytenet-tiny", "convs2s-tiny", "mlp-mixer-tiny", "mamba-tiny", "luong-tiny", "transformer-xl-tiny"]
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_nobody_sees_the_future(name: str, side: str) -> None:
    """The logits at t have a gradient of exactly zero at every later word, and of more at the word itself."""
    model = build(name)
    source, source_mask = padded(ids(), side)
    _, mask = padded(ids(1, (8, 5, 6)), side)
    translates = "decoder_inputs_embeds" in model.names
    prefix = "decoder_" if translates else ""
    vectors = torch.randn(3, 8, model.config.d_model, dtype=torch.float64).requires_grad_()
    given = {"input_ids": source, "attention_mask": source_mask} if translates else {}
    logits = model(**given, **{f"{prefix}inputs_embeds": vectors, f"{prefix}attention_mask": mask}).logits
    for t in range(8):
        (grad,) = torch.autograd.grad(logits[:, t].square().sum(), vectors, retain_graph=True)
        assert bool((grad[:, t + 1 :] == 0).all())
        real = mask[:, t].bool()
        assert bool((grad[real, t] != 0).any(dim=-1).all())
        assert bool((grad[~real] == 0).all())
