"""Our own GPU kernels against what they stand for. Without a GPU they run in Triton's interpreter, where that is asked
for: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("triton", reason="Triton comes with PyTorch for CUDA")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

import anyformer as af
from anyformer.core import rewrites
from anyformer.core.activations import ACTIVATIONS
from anyformer.core.norms import OffsetRMSNorm
from anyformer.fast import triton_decode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NORMS = {
    "none": None,
    "layer": nn.LayerNorm,
    "bare": lambda n: nn.LayerNorm(n, bias=False),
    "rms": nn.RMSNorm,
    "offset": OffsetRMSNorm,
}


@pytest.fixture(autouse=True)
def _no_gradients() -> object:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def make_norm(kind: str, width: int) -> nn.Module | None:
    maker = NORMS[kind]
    if maker is None:
        return None
    norm = maker(width).to(DEVICE)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    return norm


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("activation", triton_decode.ACTIVATIONS)
@pytest.mark.parametrize(("width", "n"), [(48, 70), (768, 96), (1500, 33), (5000, 17)])
def test_a_product_of_one_row(width: int, n: int, activation: str | None, kind: str) -> None:
    x, weight, bias, add = normal(1, 1, width), normal(n, width) / width**0.5, normal(n), normal(1, 1, n)
    norm = make_norm(kind, width)
    assert triton_decode.can_multiply(x, weight, norm, activation)
    y = F.linear(x if norm is None else norm(x), weight, bias)
    y = (y if activation is None else ACTIVATIONS[activation](y)) + add
    assert float((triton_decode.vector_linear(x, weight, bias, norm, activation, add) - y).abs().max()) < 1e-4
    bare = F.linear(x, weight)
    assert float((triton_decode.vector_linear(x, weight) - bare).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", [kind for kind in NORMS if kind != "none"])
@pytest.mark.parametrize("keep", [True, False])
def test_a_sum_and_its_norm(kind: str, keep: bool) -> None:
    x, y, norm = normal(3, 2, 700), normal(3, 2, 700), make_norm(kind, 700)
    assert norm is not None
    total, out = triton_decode.add_norm(x, y, norm, keep)
    assert float((out - norm(x + y)).abs().max()) < 1e-5
    assert not keep or torch.equal(total, x + y)


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("ancestors", [False, True])
@pytest.mark.parametrize(
    ("heads", "groups", "d", "v", "span"), [(4, 4, 16, 16, None), (6, 2, 24, 8, None), (8, 2, 16, 16, 20)]
)
def test_one_query_over_a_cache(
    heads: int, groups: int, d: int, v: int, span: int | None, ancestors: bool, rows: int
) -> None:
    """The columns from each row's first to the last, which is written on the way; or those of its ancestors' rows."""
    columns, last = 300, 290
    keys, values = normal(rows, groups, columns, d), normal(rows, groups, columns, v)
    query = normal(rows, 1, heads, d).transpose(1, 2)
    key, value = normal(rows, 1, groups, d).transpose(1, 2), normal(rows, 1, groups, v).transpose(1, 2)
    first = torch.arange(rows, device=DEVICE) * 7
    first[1] = last  # sees itself alone
    table = torch.randint(0, rows, (rows, columns), device=DEVICE, dtype=torch.int32) if ancestors else None
    column = torch.tensor([last], device=DEVICE)
    found = triton_decode.single_query(query, key, value, keys, values, first, column, span, table, 0.3)
    assert torch.equal(keys[:, :, last], key[:, :, 0]) and torch.equal(values[:, :, last], value[:, :, 0])
    source = torch.arange(rows, device=DEVICE)[:, None].expand(rows, columns).clone() if table is None else table.long()
    source[:, last] = torch.arange(rows, device=DEVICE)
    c = torch.arange(columns, device=DEVICE)
    seen_keys, seen_values = (x[source, :, c].transpose(1, 2) for x in (keys, values))
    low = first if span is None else first.clamp(min=last - span)
    mask = (c >= low[:, None]) & (c <= last)
    expected = F.scaled_dot_product_attention(
        query, seen_keys, seen_values, attn_mask=mask[:, None, None], scale=0.3, enable_gqa=True
    )
    assert float((found - expected).abs().max()) < 1e-5


def test_the_likeliest_token() -> None:
    scores = normal(5, 20_000)
    scores[2] = -1.0
    scores[2, 7] = scores[2, 9_999] = 3.0  # the first of two
    ids = torch.zeros(5, 1, dtype=torch.long, device=DEVICE)
    said = torch.zeros(5, 9, dtype=torch.long, device=DEVICE)
    triton_decode.argmax_tokens(scores, ids, said, torch.tensor([4], device=DEVICE))
    assert ids[:, 0].tolist() == [*scores[:2].argmax(1).tolist(), 7, *scores[3:].argmax(1).tolist()]
    assert torch.equal(said[:, 4], ids[:, 0]) and int(said.sum()) == int(ids.sum())


def test_the_best_few() -> None:
    scores = normal(5, 1000)
    values, places, sums = triton_decode.topk_logsumexp(scores, 8)
    expected = scores.topk(8)
    assert torch.equal(values, expected.values) and torch.equal(places, expected.indices)
    assert torch.allclose(sums, scores.logsumexp(1))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "name", ["gpt2-tiny", "gpt1-tiny", "llama-tiny", "gemma3-tiny", "gptneox-tiny", "transformer-tiny"]
)
def test_a_step_with_them(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums, norms and products of a step with a cache, made by the kernels: the plain step's numbers."""
    taken: list[str] = []
    for kernel in ("vector_linear", "add_norm"):
        plainly = getattr(triton_decode, kernel)
        monkeypatch.setattr(
            triton_decode,
            kernel,
            lambda *given, kernel=kernel, plainly=plainly, **named: taken.append(kernel) or plainly(*given, **named),
        )
    if DEVICE == "cpu":  # it asks for a GPU, which the interpreter stands for
        known = triton_decode.NORMS
        monkeypatch.setattr(triton_decode, "can_add_norm", lambda x, norm: type(norm).__name__ in known)
    model = af.build(name).eval().to(DEVICE)
    word = "decoder_input_ids" if name == "transformer-tiny" else "input_ids"
    source = {"input_ids": torch.randint(5, 60, (rows, 6), device=DEVICE)} if name == "transformer-tiny" else {}
    text = torch.randint(5, 60, (rows, 9), device=DEVICE)
    plain, found = [], []
    for kernels, logits in ((False, plain), (True, found)):
        cache = model(**source, **{word: text[:, :6]}, use_cache=True).past_key_values
        with rewrites.applied("decoding", model) if kernels else nullcontext():
            for i in range(6, 9):
                logits.append(model(**{word: text[:, i : i + 1]}, past_key_values=cache).logits)
    for ours, theirs in zip(found, plain, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max().clamp(min=1))
    whole_rows = rows == 1 and name in ("gpt2-tiny", "llama-tiny")  # norms before the parts, and nothing after them
    assert set(taken) == (set() if name == "gptneox-tiny" else {"vector_linear" if whole_rows else "add_norm"})
