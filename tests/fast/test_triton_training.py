"""Our own kernels for training on a GPU against what they stand for, values and gradients. Without a GPU they run in
Triton's interpreter, where that is asked for: TRITON_INTERPRET=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor.compile_fx import compile_fx

pytest.importorskip("triton", reason="Triton comes with PyTorch for CUDA")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

import anyformer as af
from anyformer.core import rewrites
from anyformer.fast import rewrite, triton_training
from anyformer.fast.compiled_training import GELUS
from anyformer.forward_context import IGNORED
from anyformer.heads import cross_entropy
from anyformer.heads.cross_entropy import token_loss
from tests.recipes.batches import training_batch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter's bfloat16 truncates
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def gradients(made: Tensor | tuple[Tensor, ...], of: list[Tensor], above: list[Tensor]) -> list[Tensor]:
    some = (made,) if isinstance(made, Tensor) else made
    return list(torch.autograd.grad(some, of, [one.to(a.dtype) for one, a in zip(above, some, strict=True)]))


def close(ours: Tensor, theirs: Tensor, much: float = 1.0) -> None:
    """Within the rounding of the half precision, measured against the largest."""
    limit = much * torch.finfo(HALF).eps * theirs.detach().double().abs().max().item()
    assert (ours.detach().double() - theirs.detach().double()).abs().max().item() <= limit


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "words"), [(5, 33), (7, 5000), (3, 20000)])
def test_cross_entropy(rows: int, words: int, smoothing: float) -> None:
    logits = (3 * torch.randn(rows, words, device=DEVICE)).to(HALF).requires_grad_()
    labels = torch.randint(0, words, (rows,), device=DEVICE)
    labels[1] = IGNORED
    wide = logits.detach().double().requires_grad_()
    theirs = F.cross_entropy(wide, labels, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
    ours = triton_training.summed_entropy(logits, labels, smoothing)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5)
    (ours / 3).backward()
    (theirs / 3).backward()
    assert logits.grad is not None and wide.grad is not None and logits.grad.dtype == HALF
    close(logits.grad, wide.grad)
    assert (logits.grad[1] == 0).all()


def test_cross_entropy_of_words_that_cannot_come() -> None:
    logits = torch.randn(2, 9000, device=DEVICE).to(HALF)
    logits[:, :8500] = -float("inf")  # the whole of what is read first
    labels = torch.tensor([8600, 8999], device=DEVICE)
    theirs = F.cross_entropy(logits.double(), labels, reduction="sum")
    assert triton_training.summed_entropy(logits, labels, 0.0).item() == pytest.approx(theirs.item(), rel=1e-5)


def test_labels_that_are_no_words() -> None:
    logits = torch.randn(4, 33, device=DEVICE).to(HALF)
    for label in (-1, 33, 40):
        labels = torch.tensor([0, 1, 2, label], device=DEVICE)
        assert triton_training.summed_entropy(logits, labels, 0.0).isnan()


def test_logits_among_others() -> None:
    """As an output of more words than there are leaves them: rows further apart than they are long."""
    room = (3 * torch.randn(5, 64, device=DEVICE)).to(HALF)
    labels = torch.tensor([0, 49, 3, -100, 5], device=DEVICE)
    logits = room[:, :50].detach().requires_grad_()
    triton_training.summed_entropy(logits, labels, 0.0).backward()
    wide = room[:, :50].double().requires_grad_()
    F.cross_entropy(wide, labels, reduction="sum").backward()
    assert logits.grad is not None and wide.grad is not None
    close(logits.grad, wide.grad)


def test_a_frozen_matrix_changes_nothing_for_the_others() -> None:
    x, weight, bias = normal(6, 16, dtype=HALF), normal(20, 16, dtype=HALF), normal(20)

    def learned(matrix: Tensor) -> list[Tensor]:
        bent = triton_training.linear_gelu(x, matrix, bias, False)
        first, second = triton_training.linear_parts(x, matrix, bias, [12, 8])
        return list(torch.autograd.grad(bent.float().sum() + first.float().sum() - second.float().sum(), [x, bias]))

    for ours, theirs in zip(learned(weight.detach()), learned(weight), strict=True):
        assert torch.equal(ours, theirs) and ours.abs().sum() > 0


@pytest.mark.parametrize("activation", GELUS)
@pytest.mark.parametrize(("rows", "width", "n"), [(3, 16, 20), (300, 64, 130)])
def test_a_product_and_gelu(rows: int, width: int, n: int, activation: str) -> None:
    x, weight, bias = normal(rows, width, dtype=HALF), normal(n, width, dtype=HALF), normal(n)
    above = torch.randn(rows, n, device=DEVICE)
    ours = triton_training.linear_gelu(x, weight, bias, GELUS[activation])
    assert ours.dtype == HALF
    wide = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    given = F.linear(*wide)
    given = given + (F.linear(x, weight, bias.to(HALF)).double() - given).detach()  # rounded as ours is
    theirs = F.gelu(given, approximate="tanh" if activation == "gelu_tanh" else "none")
    close(ours, theirs)
    pairs = zip(gradients(ours, [x, weight, bias], [above]), gradients(theirs, wide, [above]), strict=True)
    for our, their in pairs:
        close(our, their, 3)


@pytest.mark.parametrize("widths", [[20, 20, 20], [48, 16, 8], [1100]])
def test_a_product_in_parts(widths: list[int]) -> None:
    x, weight, bias = normal(5, 14, 16, dtype=HALF), normal(sum(widths), 16, dtype=HALF), normal(sum(widths))
    above = [torch.randn(5, 14, width, device=DEVICE) for width in widths]
    ours = triton_training.linear_parts(x, weight, bias, widths)
    wide = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    theirs = F.linear(*wide).split_with_sizes(widths, dim=-1)
    for our, their in zip(ours, theirs, strict=True):
        close(our, their)
    pairs = zip(gradients(ours, [x, weight, bias], above), gradients(theirs, wide, above), strict=True)
    for our, their in pairs:
        close(our, their, 2)


@pytest.mark.parametrize("activation", GELUS)
def test_gelu_far_from_nought(activation: str) -> None:
    x = torch.linspace(-30, 30, 4001, device=DEVICE).to(HALF)
    theirs = F.gelu(x.double(), approximate="tanh" if activation == "gelu_tanh" else "none")
    ours = triton_training.gelu_forward(x, GELUS[activation]).double()
    spacing = torch.finfo(HALF).eps * theirs.abs() + 1e-6
    assert ((ours - theirs).abs() <= spacing).all()


@pytest.mark.parametrize("kind", ["layer", "bare", "rms"])
@pytest.mark.parametrize("stream", [torch.float32, HALF])
@pytest.mark.parametrize(("rows", "width"), [(3, 48), (600, 100), (5, 1500)])
def test_a_sum_and_its_norm(rows: int, width: int, stream: torch.dtype, kind: str) -> None:
    norm = nn.RMSNorm(width, eps=1e-6) if kind == "rms" else nn.LayerNorm(width, bias=kind == "layer")
    norm = norm.to(DEVICE)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    x, y = normal(rows, width, dtype=stream), normal(rows, width, dtype=HALF)
    above = [torch.randn(rows, width, device=DEVICE) for _ in range(2)]
    with torch.autocast(DEVICE, HALF, enabled=DEVICE == "cuda"):
        total, normed = triton_training.sum_norm(x, y, norm)
    assert total.dtype == stream
    ours = gradients((total, normed), [x, y, *norm.parameters()], above)
    wide = [one.detach().double().requires_grad_() for one in (x, y)]
    summed = wide[0] + wide[1]
    rounded = summed + (summed.to(stream).double() - summed).detach()
    theirs = norm.double()(rounded)
    close(total, rounded, 0.01)
    close(normed, theirs)
    above = [one.to(dtype).double() for one, dtype in zip(above, (total.dtype, normed.dtype), strict=True)]
    wanted = gradients((rounded, theirs), [*wide, *norm.parameters()], above)
    for our, their in zip(ours, wanted, strict=True):
        close(our, their, 2)


def test_a_sum_of_rows_among_others() -> None:
    """The first tokens of every row, as the last block of a classifier reads them; and a table that all rows share."""
    norm = nn.LayerNorm(48).to(DEVICE)
    tokens, more = normal(5, 7, 48), normal(5, 1, 48, dtype=HALF)
    total, normed = triton_training.sum_norm(tokens[:, :1], more, norm)
    close(total, tokens[:, :1] + more, 0.01)
    close(normed, norm(tokens[:, :1] + more))
    shared = normal(1, 7, 48)
    total, _ = triton_training.sum_norm(tokens, shared, norm)
    assert torch.equal(total, tokens + shared)
    (gradient,) = torch.autograd.grad(total.sum(), shared)
    assert torch.equal(gradient, torch.full_like(shared, 5.0))


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["gpt2-tiny", "llama-tiny", "bert-tiny", "vit-tiny"])
def test_a_compiled_step_learns_the_same_with_them(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the same step without them, about as closely as that does when it is not compiled; and they are taken."""
    torch.manual_seed(0)
    quiet = dict.fromkeys(("dropout", "embedding_dropout", "attention_dropout"), 0.0)
    known = af.build(recipe).config.field_names()
    more = {"head": "masked"} if recipe == "bert-tiny" else {}
    model = af.build(recipe, **more, **{k: v for k, v in quiet.items() if k in known}).to("cuda").train()
    taken: set[str] = set()
    has_kernel = cross_entropy._has_kernel
    if "pixel_values" in model.names:
        labels = torch.arange(6, device="cuda") % model.config.n_labels
        batch = ("pixel_values", torch.randn(6, 3, *model.config.image_size, device="cuda"), labels)
    else:
        ids = torch.randint(5, 200, (8, 64), device="cuda")
        batch = ("input_ids", ids, ids.roll(-1, 1))

    def learn(compiled: bool, kernels: bool) -> tuple[float, dict[str, Tensor]]:
        monkeypatch.setattr(rewrite, "HAS_TRITON", kernels)
        monkeypatch.setattr(cross_entropy, "_has_kernel", has_kernel if kernels else lambda logits: False)
        model.zero_grad()
        torch._dynamo.reset()
        step = torch.compile(loss_of, backend=noting(taken), fullgraph=True) if compiled else loss_of
        with rewrites.applied("training", model, compiled):  # as the trainer does
            value = step(model, *batch)
            value.backward()
        return value.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain, eager = learn(True, False), learn(False, False)
    assert not taken
    ours = learn(True, True)
    wanted = {
        "gpt2-tiny": {"entropy", "sum_norm", "gelu_forward", "join"},
        "bert-tiny": {"entropy", "gelu_forward", "join"},
        "vit-tiny": {"entropy", "sum_norm", "gelu_forward", "join"},
    }
    assert taken >= wanted.get(recipe, {"entropy", "sum_norm"})
    assert ours[0] == pytest.approx(plain[0], rel=1e-3)
    assert ours[1].keys() == plain[1].keys()

    def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
        return {name: float((one[name] - other[name]).norm() / other[name].norm().clamp(min=1e-6)) for name in one}

    usual, found = apart(eager[1], plain[1]), apart(ours[1], plain[1])
    assert {name: value for name, value in found.items() if value > 2 * max(usual[name], 4e-3)} == {}


def loss_of(model: af.Model, name: str, given: Tensor, labels: Tensor) -> Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        total, count = token_loss(model(**{name: given}).logits, labels)
    return total / count


def noting(found: set[str]) -> Callable[..., Any]:
    """The usual compiler, which notes the operations of ours in what it is given."""

    def compiler(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        for part in graph.modules():
            if isinstance(part, torch.fx.GraphModule):
                names = [str(node.target) for node in part.graph.nodes if node.op == "call_function"]
                found.update(name.split(".")[1] for name in names if name.startswith("anyformer."))
        return compile_fx(graph, inputs)

    return compiler


@needs_gpu
@pytest.mark.slow
def test_rows_in_any_number_are_not_compiled_each() -> None:
    """Two graphs will do for six numbers of rows: the kernels hold none of them fast."""
    torch._dynamo.reset()
    weight, bias = normal(60, 32, dtype=HALF), normal(60)
    norm = nn.LayerNorm(60).to(DEVICE)

    @torch.compile(dynamic=True)
    def step(x: Tensor, labels: Tensor) -> Tensor:
        bent = triton_training.linear_gelu(x, weight, bias, False)
        first, second = triton_training.linear_parts(x, weight, bias, [40, 20])
        _, normed = triton_training.sum_norm(bent, torch.cat([first, second], dim=-1), norm)
        return triton_training.summed_entropy(normed.to(HALF), labels, 0.0)

    counts = []
    for rows in (40, 56, 72, 88, 104, 200):
        step(normal(rows, 32, dtype=HALF), torch.randint(0, 60, (rows,), device=DEVICE)).backward()
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[-1] <= counts[0] + 1


@pytest.mark.parametrize("recipe", ["gpt2-tiny", "gpt1-tiny", "llama-tiny", "vit-tiny"])
def test_a_step_with_them(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `training` swaps, here without a compiler around it: the plain step's loss and gradients."""
    model, batch = af.build(recipe).to(DEVICE).eval(), training_batch(recipe)
    batch = {name: value.to(DEVICE) if isinstance(value, Tensor) else value for name, value in batch.items()}
    taken: set[str] = set()

    def learn() -> list[Tensor]:
        loss = model(**batch).loss
        return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]

    expected = learn()
    monkeypatch.setattr(rewrite, "HAS_TRITON", True)
    monkeypatch.setattr(triton_training, "pays", lambda x: True)
    for kernel in ("linear_gelu", "linear_parts", "sum_norm"):
        plainly = getattr(triton_training, kernel)
        monkeypatch.setattr(
            triton_training,
            kernel,
            lambda *given, kernel=kernel, plainly=plainly: (taken.add(kernel), plainly(*given))[1],
        )
    with rewrites.applied("training", model, True):
        found = learn()
    assert taken == ({"sum_norm"} if recipe == "llama-tiny" else {"linear_gelu", "linear_parts", "sum_norm"})
    for ours, theirs in zip(found, expected, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max().clamp(min=1e-2))
