"""Cross entropy piece by piece is the plain one: value, gradient, smoothing, labels that do not count."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from anyformer.heads import cross_entropy
from anyformer.heads.cross_entropy import summed_cross_entropy


@pytest.fixture(params=["piecewise", "at once"])
def _how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "piecewise":
        monkeypatch.setattr(cross_entropy, "ALL_AT_ONCE", 0)
        monkeypatch.setattr(cross_entropy, "PIECE", 3 * 50)  # three rows


def case(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    logits = (torch.randn(11, 50, dtype=torch.float64) * 3).to(dtype).requires_grad_()
    labels = torch.randint(0, 50, (11,))
    labels[[2, 5]] = -100
    return logits, labels


@pytest.mark.usefixtures("_how")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_it_is_the_cross_entropy_of_smoothed_labels(smoothing: float) -> None:
    """Against PyTorch's form for labels that are distributions, in float64; the gradient too."""
    logits, labels = case(torch.float64)
    real = labels != -100
    wanted = F.one_hot(labels[real], 50).double() * (1 - smoothing) + smoothing / 50
    expected = F.cross_entropy(logits[real], wanted, reduction="sum")
    (gradient,) = torch.autograd.grad(2.5 * expected, logits)
    found = summed_cross_entropy(logits, labels, smoothing)
    (ours,) = torch.autograd.grad(2.5 * found, logits)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("_how")
def test_half_precision_is_computed_in_float32() -> None:
    logits, labels = case(torch.bfloat16)
    wide = logits.detach().float().requires_grad_()
    expected = F.cross_entropy(wide, labels, reduction="sum")
    expected.backward()
    found = summed_cross_entropy(logits, labels)
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.dtype == torch.float32 and logits.grad is not None and logits.grad.dtype == torch.bfloat16
    torch.testing.assert_close(logits.grad.float(), wide.grad, rtol=1e-2, atol=1e-3)


def test_no_copy_of_all_logits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in float32 is as large as the logits, forwards or backwards."""
    monkeypatch.setattr(cross_entropy, "ALL_AT_ONCE", 0)
    monkeypatch.setattr(cross_entropy, "PIECE", 2 * 50)
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.dtype == torch.float32:
                sizes.append(result.numel())
            return result

    logits, labels = case(torch.bfloat16)
    with Watch():
        summed_cross_entropy(logits, labels).backward()
    assert sizes and max(sizes) <= 2 * 50 < logits.numel()
