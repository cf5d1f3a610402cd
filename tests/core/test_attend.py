"""The conformance suite: every kernel in KERNELS against every mask, with a loop over the formula as the judge.

A new kernel needs no line here: it is found in KERNELS and asked for every question that it says it can answer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.core.attend import (
    KERNELS,
    AttentionCall,
    attend,
    attention_weights,
    choose_kernel,
)
from anyformer.core.masks import NO_MASK, Causal, Dense, Local2D, Mask, PackedMask, Padding, Window
from anyformer.core.packing import Packing
from anyformer.core.score import AdditiveScore, DotScore, GeneralScore
from anyformer.fast import attention as fast_attention
from anyformer.fast.attention import _backends_without_cudnn, _open_empty_rows
from tests.core.mask_cases import BATCH, MASKS, PACKED, PackedCase

HEADS, GROUPS, D_QK, D_VALUE = 4, 2, 3, 5  # grouped heads, and values of another width, throughout
SHAPES = {
    "self": (12, 12, 0),
    "cached": (5, 12, 7),
    "one more": (1, 12, 11),
    "two more": (2, 12, 10),
    "cross": (4, 9, 0),
    "few keys": (9, 4, 0),
}
CUDA_ONLY = {"varlen", "single", "sdpa on a GPU"}  # kernels for no other device ("single": test_triton_decode.py)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of four queries, so that twelve of them cross blocks."""
    monkeypatch.setattr(fast_attention, "BLOCK", 4)


@dataclass(frozen=True)
class Question:
    """Tensors and a mask for `attend`, and the table [B, Q, K] of what the mask allows."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    allowed: Tensor
    offset: int = 0
    bias: Tensor | None = None
    score: nn.Module | None = None

    def to(self, dtype: torch.dtype) -> Question:
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype), bias=bias)

    def call(self) -> AttentionCall:
        scale = self.query.shape[-1] ** -0.5
        return AttentionCall(
            self.query, self.key, self.value, self.mask, scale, self.bias, 0.0, self.offset, self.score
        )

    def ask(self, kernel: str | None) -> Tensor:
        return attend(
            self.query,
            self.key,
            self.value,
            self.mask,
            bias=self.bias,
            offset=self.offset,
            score=self.score,
            kernel=kernel,
        )

    def kernels(self) -> list[str | None]:
        """Every kernel that can, and None: the one that is chosen."""
        return [None, *(kernel.name for kernel in KERNELS.values() if kernel.can(self.call()))]


def brute(question: Question) -> Tensor:
    """softmax(q·k / √d + bias) V over the allowed keys alone, one query at a time. No mask value, no -inf."""
    query, key, value = question.query, question.key, question.value
    batch, n_heads, n_query, d_qk = query.shape
    share = n_heads // key.shape[1]
    rows = []
    for b in range(batch):
        for h in range(n_heads):
            for i in range(n_query):
                keys = question.allowed[b, i].nonzero().flatten()
                if len(keys) == 0:
                    rows.append(query.new_zeros(value.shape[-1]))
                    continue
                scores = key[b, h // share, keys] @ query[b, h, i] / d_qk**0.5
                if question.bias is not None:
                    scores = scores + question.bias.expand(batch, n_heads, -1, -1)[b, h, i, keys]
                powers = (scores - scores.max().detach()).exp()
                rows.append(powers @ value[b, h // share, keys] / powers.sum())
    shape = (batch, n_heads, n_query, value.shape[-1])
    return torch.stack(rows).view(shape) if rows else query.new_zeros(shape)


def _normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _question(mask: Mask, allowed: Tensor, n_query: int, n_key: int, offset: int = 0, batch: int = BATCH) -> Question:
    return Question(
        2 * _normal(batch, HEADS, n_query, D_QK, seed=1),
        _normal(batch, GROUPS, n_key, D_QK, seed=2),
        _normal(batch, GROUPS, n_key, D_VALUE, seed=3),
        mask,
        allowed,
        offset,
    )


def _packed_question(case: PackedCase) -> Question:
    table = case.table()
    return _question(case.mask, table.unsqueeze(0), *table.shape, batch=1)


PLAIN = {
    f"{case.name}: {name}": _question(case.mask, case.table(*shape), *shape)
    for case in MASKS
    for name, shape in SHAPES.items()
}
BIASED = {
    f"bias, {name}": replace(
        question, bias=_normal(1 + i % 2, HEADS, question.query.shape[2], question.key.shape[2], seed=4)
    )
    for i, (name, question) in enumerate(PLAIN.items())
    if name.endswith((": self", ": cached", ": few keys"))
}
ALL = {**PLAIN, **BIASED, **{case.name: _packed_question(case) for case in PACKED}}

every_question = pytest.mark.parametrize("question", ALL.values(), ids=ALL.keys())


def _worst(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return float((a.detach().double() - b.detach().double()).abs().max()) if a.numel() else 0.0


@every_question
def test_equals_the_formula(question: Question) -> None:
    """Every kernel gives what the formula gives, within 1e-12 in float64 and 1e-5 in float32; zeros for no keys."""
    expected = brute(question)
    blind = ~question.allowed.any(dim=-1)
    for kernel in question.kernels():
        out = question.ask(kernel)
        assert out.dtype == torch.float64
        assert _worst(out, expected) < 1e-12, kernel
        assert (out.transpose(1, 2)[blind] == 0).all(), kernel
    single = question.to(torch.float32)
    for kernel in single.kernels():
        assert _worst(single.ask(kernel), expected) < 1e-5, kernel


@every_question
def test_forbidden_weights_are_exactly_zero(question: Question) -> None:
    """With the identity as value the output is the weights: zero where forbidden, a distribution where not."""
    n_key = question.key.shape[2]
    identity = torch.eye(n_key).expand(*question.key.shape[:2], -1, -1)
    for dtype in (torch.float64, torch.float32):
        asked = replace(question, value=identity).to(dtype)
        allowed = question.allowed.unsqueeze(1).expand(-1, HEADS, -1, -1)
        for kernel in asked.kernels():
            weights = asked.ask(kernel)
            assert (weights[~allowed] == 0).all(), kernel
            assert (weights[allowed] > 0).all(), kernel
            assert _worst(weights.sum(-1), allowed.any(-1).to(dtype)) < 1e-6, kernel


@every_question
def test_changing_a_forbidden_key_changes_nothing(question: Question) -> None:
    """A key that a query may not see leaves that query's output as it was, bit for bit; the others notice."""
    n_key = question.key.shape[2]
    for dtype in (torch.float64, torch.float32):
        asked = question.to(dtype)
        for kernel in asked.kernels():
            before = asked.ask(kernel).transpose(1, 2)  # [B, Q, H, v]
            for j in {0, n_key // 2, n_key - 1} if n_key else ():
                key, value = asked.key.clone(), asked.value.clone()
                key[:, :, j] += 50.0
                value[:, :, j] -= 1000.0
                after = replace(asked, key=key, value=value).ask(kernel).transpose(1, 2)
                sees = question.allowed[:, :, j]
                assert torch.equal(after[~sees], before[~sees]), f"{kernel}: key {j} leaks"
                assert (after[sees] != before[sees]).flatten(1).any(-1).all(), f"{kernel}: key {j} is not read"


@every_question
def test_gradients_agree(question: Question) -> None:
    """Gradients of queries, keys, values and bias are those of the formula; finite where a query sees nothing."""

    def gradients(kernel: str | None, formula: bool = False) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (question.query, question.key, question.value)]
        bias = None if question.bias is None else question.bias.clone().requires_grad_()
        asked = replace(question, query=leaves[0], key=leaves[1], value=leaves[2], bias=bias)
        leaves += [] if bias is None else [bias]
        out = brute(asked) if formula else asked.ask(kernel)
        if not out.requires_grad:  # nobody saw anything
            return [torch.zeros_like(leaf) for leaf in leaves]
        found = torch.autograd.grad((out * _normal(*out.shape, seed=5)).sum(), leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]

    expected = gradients(None, formula=True)
    for kernel in question.kernels():
        for ours, theirs in zip(gradients(kernel), expected, strict=True):
            assert torch.isfinite(ours).all(), kernel
            assert _worst(ours, theirs) < 1e-11, kernel


def test_every_kernel_was_asked() -> None:
    """No kernel slips through by declining every question of this suite."""
    asked = {kernel for question in ALL.values() for kernel in question.kernels() if kernel is not None}
    assert asked == set(KERNELS) - CUDA_ONLY


def _on_gpu(name: str, dtype: torch.dtype) -> Question:
    """The same question with heads as wide as the fused kernels like them, on the GPU."""
    question, packed = ALL[name], next((case for case in PACKED if case.name == name), None)
    (batch, _, n_query, _), n_key = question.query.shape, question.key.shape[2]
    mask = _moved(question.mask) if packed is None else packed.rest & _moved(packed.packed)
    bias = None if question.bias is None else question.bias.cuda()
    heads = ((HEADS, n_query), (GROUPS, n_key), (GROUPS, n_key))
    query, key, value = (_normal(batch, n_heads, n, 16, seed=6).cuda() for n_heads, n in heads)
    return Question(query, key, value, mask, question.allowed.cuda(), question.offset, bias).to(dtype)


def _moved(mask: Any) -> Any:
    """A mask, or a part of one, with its tensors on the GPU."""
    if isinstance(mask, Tensor):
        return mask.cuda()
    if isinstance(mask, tuple):
        return tuple(_moved(part) for part in mask)
    if mask is NO_MASK or not is_dataclass(mask):
        return mask
    return type(mask)(**{field.name: _moved(getattr(mask, field.name)) for field in fields(mask)})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.005), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("name", list(ALL) if torch.cuda.is_available() else ["everything: self"])
def test_kernels_of_a_gpu(name: str, dtype: torch.dtype, tolerance: float) -> None:
    """There too: near the formula, zeros for a query without keys, no leak, finite gradients that agree."""
    question = _on_gpu(name, dtype)
    exact = replace(question, value=question.value.double()).to(torch.float64)
    leaves = [exact.query.requires_grad_(), exact.key.requires_grad_(), exact.value.requires_grad_()]
    expected = brute(exact)
    slopes = torch.autograd.grad(expected.sum(), leaves, allow_unused=True) if expected.requires_grad else ()
    blind = ~question.allowed.any(dim=-1)
    for kernel in question.kernels():
        inputs = [x.detach().clone().requires_grad_() for x in (question.query, question.key, question.value)]
        asked = replace(question, query=inputs[0], key=inputs[1], value=inputs[2])
        out = asked.ask(kernel)
        assert _worst(out, expected) < tolerance, kernel
        assert (out.transpose(1, 2)[blind] == 0).all(), kernel
        if out.requires_grad and slopes:
            found = torch.autograd.grad(out.sum(), inputs, allow_unused=True)
            for ours, theirs in zip(found, slopes, strict=True):
                if ours is not None and theirs is not None:
                    assert torch.isfinite(ours).all(), kernel
                    assert _worst(ours, theirs) < 5 * tolerance, kernel
        if question.key.shape[2]:
            wild = [x.detach().clone() for x in inputs]
            wild[1][:, :, 0] += 50.0
            wild[2][:, :, 0] -= 1000.0
            after = replace(question, query=wild[0], key=wild[1], value=wild[2]).ask(kernel).transpose(1, 2)
            sees = question.allowed[:, :, 0]
            assert torch.equal(after[~sees], out.transpose(1, 2)[~sees]), f"{kernel}: key 0 leaks"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_packed_rows_go_to_the_varlen_kernel() -> None:
    """On a GPU in half precision packed rows take one launch; causal ones too, where both sides are the same rows."""
    for name in ("packed right, alone", "packed left, causal", "packed crossed, alone"):
        assert choose_kernel(_on_gpu(name, torch.bfloat16).call()).name == "varlen"
    for name in ("packed crossed, causal", "packed right, window"):
        assert choose_kernel(_on_gpu(name, torch.bfloat16).call()).name == "repad"


def test_a_query_that_sees_nothing_is_told_to_look_everywhere() -> None:
    """What CUDA's kernels are asked, here through the reference: with its answer thrown away, the gradient is that of
    the others alone, and finite."""
    allowed = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])[None, None]
    told, sees = _open_empty_rows(allowed)
    assert told.tolist() == [[[[True, False, True], [True, True, True], [True, True, True]]]]
    leaves = [_normal(1, 2, 3, 4, seed=i).requires_grad_() for i in range(3)]
    ours = attend(*leaves, Dense(told), kernel="sdpa").masked_fill(~sees, 0.0)
    theirs = attend(*leaves, Dense(allowed), kernel="reference")
    assert _worst(ours, theirs) < 1e-12
    slopes = [torch.autograd.grad(out.square().sum(), leaves) for out in (ours, theirs)]
    for a, b in zip(*slopes, strict=True):
        assert _worst(a, b) < 1e-12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("causal", [False, True])
def test_packed_rows_of_many_sizes_have_finite_gradients(causal: bool) -> None:
    """As a batch of dialogues and summaries has them, in the half precision that they are trained in: rows of one token
    beside rows of hundreds. By the kernel for packed rows as by the one that pads them."""
    chance = torch.Generator().manual_seed(0)
    for turn in range(20):
        sizes = torch.randint(1, 512, (24,), generator=chance)
        others = sizes if causal else torch.randint(1, 60, (24,), generator=chance)
        key, query = (Packing.of((torch.arange(int(n.max())) < n[:, None]).cuda()) for n in (sizes, others))
        found = []
        for kernel in ("varlen", "repad"):
            shapes = [(4, len(query.index)), (4, len(key.index)), (4, len(key.index))]
            leaves = [_normal(1, h, n, 64, seed=turn).cuda().bfloat16().requires_grad_() for h, n in shapes]
            mask = Causal() & PackedMask(query, key) if causal else PackedMask(query, key)
            out = attend(*leaves, mask, kernel=kernel)
            found.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
        for a, b in zip(*found, strict=True):
            assert torch.isfinite(a).all() and torch.isfinite(b).all()
            assert _worst(a, b.double()) < 0.1 * float(b.abs().max())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_heads(groups: int) -> None:
    """Each run of H/G query heads reads one key/value head, in that order."""
    mask, allowed = Causal(), torch.ones(6, 6).tril().bool().expand(BATCH, -1, -1)
    key, value = _normal(BATCH, groups, 6, D_QK, seed=7), _normal(BATCH, groups, 6, D_VALUE, seed=8)
    question = Question(_normal(BATCH, HEADS, 6, D_QK, seed=9), key, value, mask, allowed)
    for kernel in question.kernels():
        assert _worst(question.ask(kernel), brute(question)) < 1e-12, kernel


def test_scale_is_one_over_the_root_of_the_heads_width() -> None:
    """The default scale is 1/√d of the query's last dimension; one that is given replaces it."""
    question = PLAIN["causal: self"]
    half = replace(question, query=question.query * 2.0)
    for kernel in half.kernels():
        args = (half.query, half.key, half.value, half.mask)
        assert _worst(attend(*args, kernel=kernel), brute(half)) < 1e-12, kernel
        given = attend(*args, scale=0.5 * D_QK**-0.5, kernel=kernel)
        assert _worst(given, brute(question)) < 1e-12, kernel


def test_dropout_keeps_the_expectation() -> None:
    """Dropout drops whole weights and scales the others up, so the mean over many draws is the plain answer."""
    rows, n_key, share = 20_000, 4, 0.25
    query, key = _normal(1, 1, 1, D_QK, seed=1).float(), _normal(1, 1, n_key, D_QK, seed=2).float()
    identity = torch.eye(n_key).view(1, 1, n_key, n_key)
    plain = attend(query, key, identity)[0, 0, 0]  # the weights
    torch.manual_seed(0)
    many = [x.expand(rows, -1, -1, -1) for x in (query, key, identity)]
    call = AttentionCall(*many, NO_MASK, D_QK**-0.5, dropout=share)
    for kernel in [name for name in KERNELS if KERNELS[name].can(call)]:
        assert torch.equal(attend(*many, dropout=0.0, kernel=kernel), attend(*many, kernel=kernel))
        dropped = attend(*many, dropout=share, kernel=kernel)[:, 0, 0]
        spread = plain * (share / (1 - share) / rows) ** 0.5  # standard error of the mean
        assert ((dropped.mean(0) - plain).abs() < 5 * spread).all(), kernel
        gone = dropped == 0
        assert abs(float(gone.float().mean()) - share) < 0.01, kernel
        assert torch.allclose(dropped, (plain / (1 - share)).expand_as(dropped).masked_fill(gone, 0.0)), kernel


@pytest.mark.parametrize(
    "name", ["everything: self", "causal & padding: self", "padding, a row of nothing else: cross"]
)
def test_additive_score(name: str) -> None:
    """Bahdanau's vᵀ tanh(W q + U k) takes the place of the dot product, under the same masks."""
    question = PLAIN[name]
    score = AdditiveScore(D_QK, D_QK, 6).double()
    out = replace(question, score=score).ask(None)
    w, u, v = score.query, score.key, score.value
    for b in range(BATCH):
        for h in range(HEADS):
            for i in range(question.query.shape[2]):
                keys = question.allowed[b, i].nonzero().flatten().tolist()
                q = question.query[b, h, i]
                fits = [v @ torch.tanh(w @ q + u @ question.key[b, h // 2, j]) for j in keys]
                powers = torch.stack(fits).exp() if fits else torch.zeros(0, dtype=torch.float64)
                content = question.value[b, h // 2, keys]
                expected = (powers[:, None] * content).sum(0) / (powers.sum() if fits else 1.0)
                assert _worst(out[b, h, i], expected) < 1e-12


def test_scores_against_their_formulas() -> None:
    """Luong's dot is unscaled, the general score is qᵀ W k, and a temperature divides either."""
    query, key = _normal(1, 1, 2, D_QK, seed=1), _normal(1, 1, 4, D_QK, seed=2)
    general = GeneralScore(D_QK, D_QK, temperature=2.0).double()
    for i in range(2):
        for j in range(4):
            q, k = query[0, 0, i], key[0, 0, j]
            assert torch.isclose(DotScore(scaled=False)(query, key)[0, 0, i, j], q.dot(k))
            assert torch.isclose(DotScore(temperature=4.0)(query, key)[0, 0, i, j], q.dot(k) / 3**0.5 / 4)
            assert torch.isclose(general(query, key)[0, 0, i, j], torch.einsum("a,ab,b", q, general.weight, k) / 2)


@pytest.mark.parametrize("name", list(PLAIN) + list(BIASED))
def test_weigh_gives_the_weights(name: str) -> None:
    """What a watcher sees is what attention used: the formula's weights, zero where forbidden, differentiable."""
    question = ALL[name]
    query = question.query.clone().requires_grad_()
    weights = attention_weights(query, question.key, question.mask, bias=question.bias, offset=question.offset)
    identity = torch.eye(question.key.shape[2], dtype=torch.float64).expand(*question.key.shape[:2], -1, -1)
    expected = brute(replace(question, value=identity))
    assert _worst(weights, expected) < 1e-12
    assert (weights[~question.allowed.unsqueeze(1).expand_as(weights)] == 0).all()
    (slope,) = torch.autograd.grad(weights.square().sum(), query)
    assert torch.isfinite(slope).all()
    if question.allowed.sum(-1).max() > 1:
        assert slope.abs().max() > 0


@pytest.mark.parametrize("case", PACKED, ids=[case.name for case in PACKED])
def test_weigh_shows_packed_rows_padded(case: PackedCase) -> None:
    """Weights of packed rows come back at the slots the caller's tokens had: [B, H, Q, K], zeros elsewhere."""
    question = _packed_question(case)
    identity = torch.eye(question.key.shape[2], dtype=torch.float64).expand(1, GROUPS, -1, -1)
    packed = brute(replace(question, value=identity))[0]  # [H, N queries, N keys]
    weights = attention_weights(question.query, question.key, question.mask)
    (batch, n_query), n_key = case.query.shape, case.key.shape[1]
    assert weights.shape == (batch, HEADS, n_query, n_key)
    expected = torch.zeros_like(weights)
    for n, (b, i) in enumerate(case.query.nonzero().tolist()):
        for m, (c, j) in enumerate(case.key.nonzero().tolist()):
            if b == c:
                expected[b, :, i, j] = packed[:, n, m]
    assert _worst(weights, expected) < 1e-12


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                # An expanded tensor costs no memory: count the cells that it really has.
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize(
    ("mask", "kernel"),
    [
        (Window(16), "banded"),
        (Causal() & Window(16, 3), "banded"),
        (Local2D(16, 1, 2), "blocked"),
        (Causal(), "sdpa"),
        (NO_MASK, "sdpa"),
    ],
    ids=["window", "causal & window", "local 2D", "causal", "everything"],
)
def test_long_rows_build_no_square(mask: Mask, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask is a description: a long window is cut into blocks and nothing of size T×T is ever made."""
    monkeypatch.setattr(fast_attention, "BLOCK", 64)
    length = 1024
    query, key, value = (torch.randn(1, 1, length, 4) for _ in range(3))
    call = AttentionCall(query, key, value, mask, 0.5)
    assert choose_kernel(call).name == kernel
    with _Largest() as largest:
        out = attend(query, key, value, mask)
    assert largest.numel < length * length // 8
    assert _worst(out, attend(query, key, value, mask, kernel="reference")) < 1e-5


def test_a_long_window_never_asks_for_the_dense_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same by the mask's own door: `dense` of the window is not called at all."""

    def refuse(*args: object, **kwargs: object) -> Tensor:
        raise AssertionError("the window was built as a matrix")

    monkeypatch.setattr(Window, "dense", refuse)
    x = torch.randn(1, 1, 64, 4)
    attend(x, x, x, Window(4))
    with pytest.raises(AssertionError, match="as a matrix"):
        attend(x, x, x, Window(4), kernel="reference")


def test_choice_of_kernel() -> None:
    """Long packed rows on a CPU are attended one by one, short ones padded; the rest goes to PyTorch."""
    x = torch.randn(1, 1, 8, 4)
    short = Packing.of(torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool())
    long = Packing.of(torch.arange(40) < torch.tensor([[30], [40]]))

    def chosen(mask: Mask, score: nn.Module | None = None, x: Tensor = x) -> str:
        return choose_kernel(AttentionCall(x, x, x, mask, 0.5, score=score)).name

    assert chosen(PackedMask(short, short)) == "repad"
    assert chosen(PackedMask(long, long), x=torch.randn(1, 1, 70, 4)) == "each"
    assert chosen(Causal() & Padding(torch.ones(1, 8, dtype=torch.bool))) == "sdpa"
    assert chosen(Dense(torch.ones(1, 1, 8, 8, dtype=torch.bool))) == "sdpa"
    assert chosen(Window(2)) == "sdpa"
    assert chosen(NO_MASK, AdditiveScore(4, 4, 4)) == "reference"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("n_queries", "n_keys"), [(64, 64), (1, 128), (192, 192), (704, 704)])
def test_gradients_are_numbers_where_scores_are_far_below_zero(n_queries: int, n_keys: int) -> None:
    query, key, value = (
        (0.1 * torch.randn(2, 2, n, 64, device="cuda")).bfloat16() for n in (n_queries, n_keys, n_keys)
    )
    query[..., 0], key[..., 0] = 1.0, -960.0  # every score is about -120
    leaves = [one.requires_grad_() for one in (query, key, value)]
    for mask in (NO_MASK, Padding(torch.ones(2, n_keys, dtype=torch.bool, device="cuda"))):
        out = attend(query, key, value, mask)
        for gradient in torch.autograd.grad(out, leaves, torch.randn_like(out)):
            assert bool(gradient.isfinite().all())


def test_leaving_cudnn_out_leaves_other_switches_as_they_are() -> None:
    with sdpa_kernel([SDPBackend.MATH]):
        assert _backends_without_cudnn() == [SDPBackend.MATH]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        assert _backends_without_cudnn() == [SDPBackend.EFFICIENT_ATTENTION]
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
        assert _backends_without_cudnn() == [SDPBackend.MATH]
