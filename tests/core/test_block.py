"""Blocks, stacks, norms and feed-forward networks against the same sums written with torch.nn.functional."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.block import Block, Sublayer
from anyformer.core.feedforward import ACTIVATIONS, FeedForward, FeedForwardConfig
from anyformer.core.init import InitConfig, initialize
from anyformer.core.norms import LayerScale, MaskedBatchNorm1d, NormConfig, apply_norm, make_norm
from anyformer.core.stack import Stack
from anyformer.core.tokens import Tokens
from anyformer.errors import ConfigError
from anyformer.layers.wrappers import ContextNorm, NoResidual, NormedStack

WIDTH = 6
SELF = AttentionConfig(d_query=WIDTH, n_heads=2)
CROSS = AttentionConfig(d_query=WIDTH, n_heads=2, d_context=4)
FORWARD = FeedForwardConfig(d_model=WIDTH, d_hidden=10)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _draw(module: nn.Module) -> nn.Module:
    """Every parameter at random, norms and biases too, so that none can be left out unnoticed."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.6)
    return module.double().eval()


def _block(*sublayers: tuple[str, Sublayer], **settings: bool) -> Block:
    block = _draw(Block(dict(sublayers), **settings))
    assert isinstance(block, Block)
    return block


def _norm(x: Tensor, norm: nn.Module) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, 1e-5)


def _sublayer(name: str, config: AttentionConfig | FeedForwardConfig, **settings: Any) -> tuple[str, Sublayer]:
    width = config.d_query if isinstance(config, AttentionConfig) else config.d_model
    part = Attention(config) if isinstance(config, AttentionConfig) else FeedForward(config)
    kind = settings.pop("kind", Sublayer)
    norm = settings.pop("norm", NormConfig())
    if settings.get("order") == "sandwich":
        settings["post_norm"] = make_norm(norm, width)
    return name, kind(part, make_norm(norm, width), **settings)


def _parts(block: Block) -> tuple[nn.Module, nn.Module, nn.ModuleDict]:
    a, f = block.sublayers["self"], block.sublayers["feedforward"]
    return a.part, f.part, block.sublayers


def test_pre_norm() -> None:
    """x + part(norm(x)), sublayer after sublayer."""
    block = _block(_sublayer("self", SELF), _sublayer("feedforward", FORWARD))
    attention, feedforward, s = _parts(block)
    x = _normal(2, 5, WIDTH)
    y = x + attention(Tokens(_norm(x, s["self"].norm)))
    expected = y + feedforward(_norm(y, s["feedforward"].norm))
    assert torch.allclose(block(Tokens(x)).x, expected, atol=1e-12)


def test_gains_scale_each_feature_of_the_branch() -> None:
    """x + gain · part(norm(x)); fresh gains all have the number that was asked for."""
    block = _block(_sublayer("feedforward", FORWARD, layer_scale=LayerScale(WIDTH, 0.3)))
    sublayer = block.sublayers["feedforward"]
    x = _normal(2, 5, WIDTH)
    expected = x + sublayer.layer_scale.weight * sublayer.part(_norm(x, sublayer.norm))
    assert torch.allclose(block(Tokens(x)).x, expected, atol=1e-12)
    initialize(block, InitConfig())
    assert torch.equal(sublayer.layer_scale.weight, torch.full((WIDTH,), 0.3, dtype=torch.float64))


def test_post_norm() -> None:
    """norm(x + part(x)), sublayer after sublayer."""
    block = _block(_sublayer("self", SELF, order="post"), _sublayer("feedforward", FORWARD, order="post"))
    attention, feedforward, s = _parts(block)
    x = _normal(2, 5, WIDTH)
    y = _norm(x + attention(Tokens(x)), s["self"].norm)
    expected = _norm(y + feedforward(y), s["feedforward"].norm)
    assert torch.allclose(block(Tokens(x)).x, expected, atol=1e-12)


def test_sandwich_norms() -> None:
    """x + post_norm(part(norm(x))): a norm on either side of the part, each with weights of its own."""
    block = _block(_sublayer("self", SELF, order="sandwich"), _sublayer("feedforward", FORWARD, order="sandwich"))
    attention, feedforward, s = _parts(block)
    x = _normal(2, 5, WIDTH)
    y = x + _norm(attention(Tokens(_norm(x, s["self"].norm))), s["self"].post_norm)
    expected = y + _norm(feedforward(_norm(y, s["feedforward"].norm)), s["feedforward"].post_norm)
    assert torch.allclose(block(Tokens(x)).x, expected, atol=1e-12)


def test_parallel_branches() -> None:
    """x + a(norm(x)) + f(norm(x)): both read the block's input."""
    block = _block(_sublayer("self", SELF), _sublayer("feedforward", FORWARD), parallel=True)
    attention, feedforward, s = _parts(block)
    x = _normal(2, 5, WIDTH)
    expected = x + attention(Tokens(_norm(x, s["self"].norm))) + feedforward(_norm(x, s["feedforward"].norm))
    assert torch.allclose(block(Tokens(x)).x, expected, atol=1e-12)
    with pytest.raises(ConfigError, match=r"(?i)parallel"):
        Block(dict([_sublayer("self", SELF, order="post")]), parallel=True)


def test_cross_attention_normalizes_its_context_only_when_asked() -> None:
    """Perceiver normalizes both sides; the original decoder takes the encoder's output as it is."""
    x, memory = _normal(2, 3, WIDTH), Tokens(_normal(2, 5, 4, seed=1), torch.tensor([[1] * 5, [1, 1, 0, 0, 0]]).bool())
    for asked in (True, False):
        attention = Attention(CROSS)
        part = ContextNorm(attention, nn.LayerNorm(4)) if asked else attention
        block = _block(("cross", Sublayer(part, nn.LayerNorm(WIDTH))))
        s = block.sublayers["cross"]
        context = memory.replace(_norm(memory.x, s.part.context_norm)) if asked else memory
        expected = x + attention(Tokens(_norm(x, s.norm)), context)
        assert torch.allclose(block(Tokens(x), memory).x, expected, atol=1e-12)


def test_a_sublayer_without_residual() -> None:
    """NoResidual returns what the part makes; ScaledResidual keeps the variance of the sum."""
    block = _block(_sublayer("feedforward", FORWARD, kind=NoResidual))
    x, s = _normal(2, 3, WIDTH), block.sublayers["feedforward"]
    assert torch.allclose(block(Tokens(x)).x, s.part(_norm(x, s.norm)), atol=1e-12)


def test_cross_attention_stands_aside_without_memory() -> None:
    """A decoder block with nothing to attend to is the block without its cross-attention."""
    block = _block(_sublayer("self", SELF), _sublayer("cross", CROSS), _sublayer("feedforward", FORWARD))
    plain = _block(_sublayer("self", SELF), _sublayer("feedforward", FORWARD))
    plain.load_state_dict({name: value for name, value in block.state_dict().items() if not name.startswith("cross.")})
    x = _normal(2, 3, WIDTH)
    assert torch.equal(block(Tokens(x)).x, plain(Tokens(x)).x)
    assert not torch.equal(block(Tokens(x), Tokens(_normal(2, 5, 4))).x, plain(Tokens(x)).x)


def test_dropout_acts_on_the_branch_and_only_in_training() -> None:
    """In eval nothing is dropped; in training the residual stays whole, the branch is scaled, the mean is kept."""
    block = _block(_sublayer("feedforward", FORWARD, dropout=0.25))
    plain = _block(_sublayer("feedforward", FORWARD))
    plain.load_state_dict(block.state_dict())
    x = _normal(1, 1, WIDTH).expand(20_000, -1, -1)
    branch = (plain(Tokens(x)).x - x)[:1]
    assert torch.equal(block(Tokens(x)).x, plain(Tokens(x)).x)
    torch.manual_seed(0)
    noisy = block.train()(Tokens(x)).x - x
    gone = noisy.abs() < 1e-12
    assert abs(float(gone.double().mean()) - 0.25) < 0.01
    assert torch.allclose(noisy[~gone], (branch / 0.75).expand_as(noisy)[~gone])


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
def test_drop_path_drops_whole_rows(packed: bool) -> None:
    """Stochastic depth: a row skips the branch as a whole or has it scaled by 1/(1-p); the mean is kept."""
    block = _block(_sublayer("feedforward", FORWARD, drop_path=0.3))
    rows, length = 4000, 3
    x = _normal(1, length, WIDTH).expand(rows, -1, -1)
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[1::2, 2] = False  # every other row is shorter
    tokens = Tokens(x, mask)
    branch = (block(tokens).x - x)[0]
    torch.manual_seed(0)
    out = block.train()(tokens.pack() if packed else tokens).pad()
    got = (out.x - x) / branch  # 0 where the row skipped, 1/(1-p) where it did not
    share = got[:, 0, 0].detach()
    real = mask.unsqueeze(-1).expand_as(got)
    assert torch.allclose(got[real], share.view(-1, 1, 1).expand_as(got)[real], atol=1e-9), "rows go as a whole"
    assert torch.allclose(share, torch.where(share.abs() < 0.5, 0.0, 1 / 0.7).double(), atol=1e-9)
    assert abs(float(share.mean()) - 1.0) < 5 * (0.3 / 0.7 / rows) ** 0.5


def test_a_stack_applies_its_blocks_in_order() -> None:
    """Each block in order; the same one may come several times and is registered once; the final norm comes last."""
    x = Tokens(_normal(2, 3, WIDTH))
    for order in (None, (0, 1, 2, 1)):
        three = [Block(dict([_sublayer("feedforward", FORWARD)])) for _ in range(3)]
        stack = _draw(Stack([three[index] for index in order or (0, 1, 2)], nn.LayerNorm(WIDTH)))
        assert len(stack.blocks) == 3
        expected, after = x, []
        for index in order or (0, 1, 2):
            expected = stack.blocks[index](expected)
            after.append(expected.x)
        last, layers = stack(x)
        assert torch.allclose(last.x, _norm(expected.x, stack.final_norm), atol=1e-12)
        assert len(layers) == len(after)
        assert all(torch.equal(layer.x, value) for layer, value in zip(layers, after, strict=True))


def test_norm_between_normalizes_after_every_block() -> None:
    """As DETR with auxiliary losses does: the norm's result is what a loss reads and what the next block gets."""
    blocks = [Block(dict([_sublayer("feedforward", FORWARD)])) for _ in range(2)]
    stack = _draw(NormedStack(blocks, nn.LayerNorm(WIDTH)))
    x = Tokens(_normal(2, 3, WIDTH))
    first = _norm(stack.blocks[0](x).x, stack.final_norm)
    second = _norm(stack.blocks[1](Tokens(first)).x, stack.final_norm)
    last, layers = stack(x)
    assert torch.allclose(layers[0].x, first, atol=1e-12)
    assert torch.allclose(layers[1].x, second, atol=1e-12)
    assert torch.allclose(last.x, _norm(second, stack.final_norm), atol=1e-12)  # twice, as the published code does


def test_layer_drop_leaves_blocks_out_in_training_only() -> None:
    """Every block runs in eval; in training each is left out with the given chance."""
    blocks = [Block(dict([_sublayer("feedforward", FORWARD)])) for _ in range(4)]
    stack = _draw(Stack(blocks, layer_drop=0.25))
    x = Tokens(_normal(1, 1, WIDTH))
    assert len(stack(x)[1]) == 4
    torch.manual_seed(0)
    stack.train()
    ran = [len(stack(x)[1]) for _ in range(250)]
    assert abs(sum(ran) / 1000 - 0.75) < 5 * (0.25 * 0.75 / 1000) ** 0.5
    assert min(ran) < 4


def test_batch_norm_ignores_padding() -> None:
    """Statistics are those of the real tokens: padding changes neither output nor running mean; packed is the same."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]]).bool()
    x = _normal(3, 4, WIDTH)
    theirs, ours, again = (nn.BatchNorm1d(WIDTH).double(), *(MaskedBatchNorm1d(WIDTH).double() for _ in range(2)))
    expected = theirs(x[mask])
    wild = x.masked_fill(~mask.unsqueeze(-1), 1e6)
    out = apply_norm(ours, wild, mask)
    assert torch.allclose(out[mask], expected, atol=1e-12)
    assert (out[~mask] == 0).all()
    assert torch.allclose(apply_norm(again, x[mask]), expected, atol=1e-12)
    for norm in (ours, again):
        assert torch.allclose(norm.running_mean, theirs.running_mean)
        assert torch.allclose(norm.running_var, theirs.running_var)
    assert torch.allclose(apply_norm(ours.eval(), x, mask)[mask], theirs.eval()(x[mask]), atol=1e-12)


def test_norms_against_their_formulas() -> None:
    """Layer norm takes each token's mean and variance over its features only; RMS norm its root mean square."""
    x = _normal(2, 3, WIDTH)
    layer = _draw(make_norm(NormConfig(eps=1e-3), WIDTH))
    rms = _draw(make_norm(NormConfig(kind="rms", eps=1e-3), WIDTH))
    mean, var = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    assert torch.allclose(layer(x), (x - mean) / (var + 1e-3).sqrt() * layer.weight + layer.bias)
    assert torch.allclose(rms(x), x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * rms.weight)
    assert make_norm(NormConfig(bias=False), WIDTH).bias is None


FORMULAS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "relu6": lambda x: x.clamp(0, 6),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "tanh": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "linear": lambda x: x,
}


def test_every_activation_has_a_formula_here() -> None:
    """A new activation without a formula in this file fails."""
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_feedforward(name: str, gated: bool, bias: bool) -> None:
    """W₂ σ(W₁ x), or W₂ (σ(W_g x) ⊙ W₁ x), with or without biases."""
    part = _draw(FeedForward(FeedForwardConfig(d_model=5, d_hidden=7, activation=name, gated=gated, bias=bias)))
    x = 2 * _normal(3, 5)
    up = part.gate_up if gated else part.up
    wide = F.linear(x, up.weight, up.bias)
    hidden = FORMULAS[name](wide[:, :7]) * wide[:, 7:] if gated else FORMULAS[name](wide)
    assert torch.allclose(part(x), F.linear(hidden, part.down.weight, part.down.bias), atol=1e-12)
    assert (up.bias is not None) == (part.down.bias is not None) == bias


def test_feedforward_dropout_is_between_the_layers() -> None:
    """Hidden features are dropped in training, and only there."""
    part = _draw(FeedForward(FeedForwardConfig(d_model=5, d_hidden=7, dropout=0.5, bias=False)))
    plain = _draw(FeedForward(FeedForwardConfig(d_model=5, d_hidden=7, bias=False)))
    x = _normal(3, 5)
    assert torch.equal(part(x), plain(x))
    torch.manual_seed(3)
    noisy = part.train()(x)
    torch.manual_seed(3)
    hidden = F.dropout(F.gelu(F.linear(x, part.up.weight)), 0.5)
    assert torch.allclose(noisy, F.linear(hidden, part.down.weight), atol=1e-12)
    assert not torch.allclose(noisy, plain(x))


def test_an_unknown_activation_is_refused_with_a_hint() -> None:
    """The error names the nearest activation."""
    with pytest.raises(ConfigError, match=r'"gelu_tan" is not one of .* Did you mean "gelu_tanh"'):
        FeedForwardConfig(d_model=4, d_hidden=4, activation="gelu_tan")


def test_fresh_weights_follow_the_init() -> None:
    """Residual projections start 1/√depth smaller (GPT-2); biases at 0, norms at 1; xavier is uniform."""
    parts = [
        _sublayer("self", AttentionConfig(d_query=128, n_heads=2)),
        _sublayer("feedforward", FeedForwardConfig(d_model=128, d_hidden=512)),
    ]
    block = Block(dict(parts))
    torch.manual_seed(0)
    block.requires_grad_(False)
    initialize(block, InitConfig(std=0.02, residual_depth=16))
    part = block.sublayers["feedforward"].part
    assert abs(float(part.up.weight.std()) / 0.02 - 1) < 0.02
    assert abs(float(part.down.weight.std()) / 0.005 - 1) < 0.02
    assert abs(float(block.sublayers["self"].part.out.weight.std()) / 0.005 - 1) < 0.03
    assert (part.up.bias == 0).all()
    assert (block.sublayers["self"].norm.weight == 1).all()
    initialize(block, InitConfig(linear="xavier"))
    bound = (6 / (128 + 512)) ** 0.5
    assert part.up.weight.abs().max() <= bound
    assert part.up.weight.abs().max() > 0.99 * bound
