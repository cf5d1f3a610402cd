"""Attention as a part of a block, against torch.nn.MultiheadAttention and formulas written out."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.cache import Cache
from anyformer.core.init import InitConfig, initialize
from anyformer.core.masks import NO_MASK, Causal, Mask, Window
from anyformer.core.norms import NormConfig
from anyformer.core.positions import ALiBi, Positions, RelativeBuckets, RelativeXL, Rotary
from anyformer.core.score import AdditiveScore
from anyformer.core.tokens import Tokens
from anyformer.errors import ConfigError

WIDTH, HEADS, LENGTH = 12, 3, 7
RIGHT = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]]).bool()
LEFT = RIGHT.flip(1)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _make(score: nn.Module | None = None, **settings: object) -> Attention:
    torch.manual_seed(0)
    config = AttentionConfig(**{"d_query": WIDTH, "n_heads": HEADS, **settings})  # type: ignore[arg-type]
    attention = Attention(config, score)
    initialize(attention, InitConfig(std=0.5))
    for name, parameter in attention.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return attention.double().eval()


def _oracle(attention: Attention) -> nn.MultiheadAttention:
    """PyTorch's own module with the same weights."""
    config = attention.config
    context = config.d_context
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=context, vdim=context).double().eval()
    state = {"out_proj.weight": attention.out.weight, "out_proj.bias": attention.out.bias}
    if context is None:
        state |= {"in_proj_weight": attention.qkv.weight, "in_proj_bias": attention.qkv.bias}
    else:
        state |= {"in_proj_bias": torch.cat([attention.query.bias, attention.kv.bias])}
        if context == WIDTH:
            state |= {"in_proj_weight": torch.cat([attention.query.weight, attention.kv.weight])}
        else:
            key, value = attention.kv.weight.chunk(2)
            state |= {"q_proj_weight": attention.query.weight, "k_proj_weight": key, "v_proj_weight": value}
    theirs.load_state_dict(state)
    return theirs


@pytest.mark.parametrize("real", [None, RIGHT, LEFT], ids=["whole", "right", "left"])
@pytest.mark.parametrize("causal", [False, True], ids=["both ways", "causal"])
def test_self_attention_is_pytorchs(causal: bool, real: Tensor | None) -> None:
    """nn.MultiheadAttention with the same weights gives the same at every real token, padded or packed."""
    attention = _make(mask=Causal() if causal else NO_MASK)
    x = _normal(2, LENGTH, WIDTH)
    future = torch.ones(LENGTH, LENGTH).triu(1).bool() if causal else None  # True = forbidden, on their side
    expected, _ = _oracle(attention)(x, x, x, None if real is None else ~real, need_weights=False, attn_mask=future)
    there = torch.ones(2, LENGTH, dtype=torch.bool) if real is None else real
    tokens = Tokens(x, real)
    assert torch.allclose(attention(tokens)[there], expected[there], atol=1e-12)
    assert torch.allclose(attention(tokens.pack()), expected[there], atol=1e-12)


@pytest.mark.parametrize("real", [None, RIGHT, LEFT], ids=["whole", "right", "left"])
def test_cross_attention_is_pytorchs(real: Tensor | None) -> None:
    """Queries from the tokens, keys and values from a context of another length and width, padded or packed."""
    attention = _make(d_context=8)
    x, context = _normal(2, 4, WIDTH), _normal(2, LENGTH, 8, seed=1)
    expected, _ = _oracle(attention)(x, context, context, None if real is None else ~real, need_weights=False)
    keys = Tokens(context, real)
    assert torch.allclose(attention(Tokens(x), keys), expected, atol=1e-12)
    assert torch.allclose(attention(Tokens(x).pack(), keys.pack()), expected.flatten(0, 1), atol=1e-12)


def test_a_row_without_real_keys_gives_the_bias_alone() -> None:
    """Nothing to attend to is zeros out of the heads, never NaN, forwards and backwards."""
    attention = _make(d_context=WIDTH)
    x, context = _normal(2, 4, WIDTH).requires_grad_(), _normal(2, LENGTH, WIDTH, seed=1)
    real = RIGHT.clone()
    real[0] = False
    out = attention(Tokens(x), Tokens(context, real))
    assert torch.equal(out[0], attention.out.bias.expand(4, -1))
    out.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
    assert (x.grad[0] == 0).all()


@pytest.mark.parametrize("groups", [1, 2])
def test_grouped_heads_are_repeated_heads(groups: int) -> None:
    """Fewer key/value heads are the same as plain attention whose key/value heads are copies of them."""
    grouped = _make(d_query=16, n_heads=4, n_kv_heads=groups)
    plain = _make(d_query=16, n_heads=4)

    def repeat(rows: Tensor) -> Tensor:  # [groups · 4, …] -> [16, …]
        return rows.unflatten(0, (groups, 4)).repeat_interleave(4 // groups, dim=0).flatten(0, 1)

    for name in ("weight", "bias"):
        few = getattr(grouped.qkv, name)
        parts = [few[:16], repeat(few[grouped.qkv.slice("key")]), repeat(few[grouped.qkv.slice("value")])]
        getattr(plain.qkv, name).data.copy_(torch.cat(parts))
    plain.out.load_state_dict(grouped.out.state_dict())
    x = _normal(2, LENGTH, 16)
    assert torch.allclose(grouped(Tokens(x)), plain(Tokens(x)), atol=1e-12)


@pytest.mark.parametrize("kind", ["layer", "rms", "rms_offset"])
def test_query_and_key_norms(kind: Literal["layer", "rms", "rms_offset"]) -> None:
    """Each head's queries and keys are normalized before they meet; values are not."""
    attention = _make(qk_norm=NormConfig(kind=kind, eps=1e-6), mask=Causal())
    assert attention.query_norm is not None
    assert attention.key_norm is not None
    for norm in (attention.query_norm, attention.key_norm):
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    x = _normal(2, LENGTH, WIDTH)
    query, key, value = (
        part.unflatten(-1, (HEADS, 4)).transpose(1, 2)
        for part in F.linear(x, attention.qkv.weight, attention.qkv.bias).chunk(3, dim=-1)
    )

    def normalize(x: Tensor, norm: nn.Module) -> Tensor:
        centered = x - x.mean(-1, keepdim=True) if kind == "layer" else x
        shift = norm.bias if kind == "layer" else 0.0
        weight = norm.weight + (1.0 if kind == "rms_offset" else 0.0)
        return centered / (centered.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight + shift

    query, key = normalize(query, attention.query_norm), normalize(key, attention.key_norm)
    heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = F.linear(heads.transpose(1, 2).flatten(2), attention.out.weight, attention.out.bias)
    assert torch.allclose(attention(Tokens(x)), expected, atol=1e-12)


def test_all_widths_may_differ() -> None:
    """Widths of tokens, context, query/key, value and output are all free (Perceiver, TrOCR)."""
    attention = _make(d_query=10, d_context=6, n_heads=2, d_qk=8, d_value=14, d_out=5, bias=False, out_bias=False)
    x, context = _normal(3, 4, 10), _normal(3, 9, 6, seed=1)
    shapes = {name: tuple(parameter.shape) for name, parameter in attention.named_parameters()}
    assert shapes == {"query.weight": (8, 10), "kv.weight": (8 + 14, 6), "out.weight": (5, 14)}
    query = (x @ attention.query.weight.T).view(3, 4, 2, 4)
    key = (context @ attention.kv.weight[:8].T).view(3, 9, 2, 4)
    value = (context @ attention.kv.weight[8:].T).view(3, 9, 2, 7)
    weights = (torch.einsum("bqhd,bkhd->bhqk", query, key) / 2.0).softmax(-1)
    expected = torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(2) @ attention.out.weight.T
    assert torch.allclose(attention(Tokens(x), Tokens(context)), expected, atol=1e-12)


def test_settings_that_do_not_divide_are_refused() -> None:
    """Widths that the heads cannot share are an error when the config is made, not a shape error later."""
    with pytest.raises(ConfigError, match="d_qk 10 is not a multiple of n_heads 3"):
        AttentionConfig(d_query=10, n_heads=3)
    with pytest.raises(ConfigError, match="n_heads 4 is not a multiple of n_kv_heads 3"):
        AttentionConfig(d_query=8, n_heads=4, n_kv_heads=3)


@pytest.mark.parametrize("cross", [False, True])
def test_a_code_is_added_to_query_and_key_and_never_to_the_value(cross: bool) -> None:
    """DETR's positions: nn.MultiheadAttention fed x + code as query and key and x as value; packed too."""
    attention = _make(d_context=WIDTH if cross else None)
    x, code = _normal(2, 4, WIDTH), _normal(1, 4, WIDTH, seed=1)
    tokens = Tokens(x, pos_embed=code)
    context = (
        Tokens(_normal(2, LENGTH, WIDTH, seed=2), RIGHT, pos_embed=_normal(2, LENGTH, WIDTH, seed=3))
        if cross
        else tokens
    )
    assert context.pos_embed is not None
    ignore = None if context.mask is None else ~context.mask
    expected, _ = _oracle(attention)(x + code, context.x + context.pos_embed, context.x, ignore, need_weights=False)
    given = context if cross else None
    assert torch.allclose(attention(tokens, given), expected, atol=1e-12)
    packed = attention(tokens.pack(), None if given is None else given.pack())
    assert torch.allclose(packed, expected.flatten(0, 1), atol=1e-12)


def test_dropout_only_in_training() -> None:
    """Attention dropout acts while training and not in eval."""
    attention, x = _make(dropout=0.5), _normal(2, LENGTH, WIDTH)
    plain = _make()(Tokens(x))
    assert torch.equal(attention(Tokens(x)), plain)
    assert not torch.allclose(attention.train()(Tokens(x)), plain)


POSITIONS: dict[str, Positions | None] = {
    "none": None,
    "rotary": Rotary(4),
    "alibi": ALiBi(HEADS),
    "t5": RelativeBuckets(HEADS, 8, 20),
    "xl": RelativeXL(HEADS, 4, 6),
}
CHUNKS = {"token by token": [1] * LENGTH, "prefill": [4, 1, 1, 1], "chunks": [3, 4], "at once": [7]}


def _drawn(positions: Positions | None) -> Positions | None:
    if positions is not None:
        initialize(positions, InitConfig(std=0.5))
        positions.double()
    return positions


def _with(positions: Positions | None, tokens: Tokens) -> Tokens:
    """The tokens with what their positions say, as a stack hands them to its blocks."""
    return tokens if positions is None else tokens.with_encoding(positions.prepare(tokens))


def _cached(
    attention: Attention, positions: Positions | None, x: Tensor, real: Tensor | None, at: Tensor, chunks: list[int]
) -> Tensor:
    state, outputs, start = Cache(), [], 0
    for n in chunks:
        part = slice(start, start + n)
        mask = None if real is None else real[:, part]
        state.advance(mask, x.shape[0], n, x.device)
        outputs.append(attention(_with(positions, Tokens(x[:, part], mask, at[:, part])), cache=state))
        start += n
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS.keys())
@pytest.mark.parametrize("mask", [Causal(), Causal() & Window(2)], ids=["causal", "causal & window"])
@pytest.mark.parametrize("real", [None, LEFT, RIGHT], ids=["whole", "left", "right"])
@pytest.mark.parametrize("name", POSITIONS)
def test_cached_is_uncached(name: str, real: Tensor | None, mask: Mask, chunks: list[int]) -> None:
    """Step by step, in chunks or at once, with every encoding and padding: the same at each real token."""
    attention = _make(mask=mask, n_kv_heads=1)
    positions = _drawn(POSITIONS[name])
    x = _normal(2, LENGTH, WIDTH)
    at = torch.arange(LENGTH).expand(2, -1) if real is None else (real.cumsum(1) - 1).clamp(min=0)
    there = torch.ones(2, LENGTH, dtype=torch.bool) if real is None else real
    with torch.no_grad():
        whole = attention(_with(positions, Tokens(x, real, at)))
        cached = _cached(attention, positions, x, real, at, chunks)
    assert torch.allclose(cached[there], whole[there], atol=1e-12)
    with torch.enable_grad():
        assert torch.allclose(_cached(attention, positions, x, real, at, chunks)[there], whole[there], atol=1e-12)


def test_cross_attention_projects_its_context_once() -> None:
    """The encoder's keys and values are computed at the first step and reused, whatever is handed in later."""
    attention = _make(d_context=WIDTH)
    x, context = _normal(2, 4, WIDTH), Tokens(_normal(2, LENGTH, WIDTH, seed=1), RIGHT)
    whole = attention(Tokens(x), context)
    state = Cache()
    first = attention(Tokens(x[:, :1]), context, state)
    stale = context.replace(torch.full_like(context.x, 7.0))
    rest = attention(Tokens(x[:, 1:]), stale, state)
    assert torch.allclose(torch.cat([first, rest], dim=1), whole, atol=1e-12)


def test_additive_attention_as_a_part() -> None:
    """A score that is handed in replaces the dot product in the whole part, under its masks."""
    score = AdditiveScore(4, 4, 5).double()
    attention = _make(score=score, mask=Causal())
    x = _normal(1, 3, WIDTH)
    query, key, value = (
        part.view(3, HEADS, 4) for part in F.linear(x[0], attention.qkv.weight, attention.qkv.bias).chunk(3, dim=-1)
    )
    rows = []
    for i in range(3):
        heads = []
        for h in range(HEADS):
            fits = [torch.tanh(score.query @ query[i, h] + score.key @ key[j, h]) @ score.value for j in range(i + 1)]
            heads.append(torch.stack(fits).softmax(0) @ value[: i + 1, h])
        rows.append(torch.cat(heads))
    expected = F.linear(torch.stack(rows), attention.out.weight, attention.out.bias)
    assert torch.allclose(attention(Tokens(x))[0], expected, atol=1e-12)
