"""Limited span at lengths where the fast kernels are chosen: the dense masked reference's outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anyformer.core.attend import KERNELS, AttentionCall, attend, choose_kernel
from anyformer.core.masks import Causal, Dilated, Mask, Padding, Window
from anyformer.fast.attention import BLOCK
from anyformer.layers.raster import BlockLocal2D, Raster

LENGTH = 4 * BLOCK + 77
REAL = torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 300]])
CASES: dict[str, tuple[Mask, str]] = {
    "window": (Window(100), "banded"),
    "window both ways": (Window(60, 60), "banded"),
    "window, causal, padded": (Causal() & Window(50, 9) & Padding(REAL), "banded"),
    "dilated": (Dilated(4, 20), "regrouped"),
    "dilated, causal": (Dilated(7, 20) & Causal(), "regrouped"),
    "dilated, causal, padded": (Dilated(5, 30) & Causal() & Padding(REAL), "regrouped"),
    "dilated, padded": (Padding(REAL) & Dilated(3, 10), "regrouped"),
    "blocks in a line": (Causal() & BlockLocal2D(Raster(1, 128), 0, 100), "tiled"),
    "blocks": (Causal() & BlockLocal2D(Raster(4, 8, 3, 3), 4, 8), "tiled"),
    "blocks, little memory": (Causal() & BlockLocal2D(Raster(4, 8, 3, 3), 1, 2), "tiled"),
    "blocks, padded": (Causal() & BlockLocal2D(Raster(2, 16, 2, 3), 2, 5) & Padding(REAL), "tiled"),
    "blocks, far memory": (Causal() & BlockLocal2D(Raster(1, 4, 8, 3), 2, 5), "blocked"),
    "dilated by one": (Dilated(1, 40), "regrouped"),
}


@pytest.mark.parametrize(("mask", "kernel"), CASES.values(), ids=CASES.keys())
def test_equals_the_dense_reference(mask: Mask, kernel: str) -> None:
    query, key, value = (torch.randn(2, 2, LENGTH, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert choose_kernel(AttentionCall(query, key, value, mask, 0.3)).name == kernel
    results = []
    others = [name for name in KERNELS if KERNELS[name].can(AttentionCall(query, key, value, mask, 0.3))]
    assert {kernel, "reference"} < set(others)
    for name in (None, *others):
        out = attend(query, key, value, mask, scale=0.3, kernel=name)
        results.append((out, *torch.autograd.grad(out.square().sum(), (query, key, value))))
    for result in results[:-1]:  # the reference comes last
        for ours, theirs in zip(result, results[-1], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


BLOCKS = Causal() & BlockLocal2D(Raster(4, 8, 3, 3), 2, 4)


@pytest.mark.parametrize("mask", [Window(64), Dilated(4, 16) & Causal(), BLOCKS], ids=["window", "dilated", "blocks"])
def test_no_table_of_the_whole_length_is_built(mask: Mask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product of queries and keys on the way is a short one, and their sizes add up to something linear."""
    cells = 0
    real = torch.nn.functional.scaled_dot_product_attention

    def counted(query: Tensor, key: Tensor, *args: object, **options: object) -> Tensor:
        nonlocal cells
        cells += query.shape[:3].numel() * key.shape[2]
        return real(query, key, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("anyformer.core.attend.F.scaled_dot_product_attention", counted)
    counts = []
    for length in (8 * BLOCK, 32 * BLOCK):
        cells = 0
        query = torch.randn(1, 1, length, 4)
        attend(query, query, query, mask)
        counts.append(cells)
        assert cells <= length * 2 * BLOCK
    assert counts[1] <= 4.2 * counts[0]


def test_a_short_dilated_row_takes_one_call() -> None:
    query = torch.randn(1, 1, 32, 4)
    assert choose_kernel(AttentionCall(query, query, query, Dilated(3, 2), 0.5)).name == "sdpa"
    assert "regrouped" in KERNELS
