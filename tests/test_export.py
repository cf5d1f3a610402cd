"""torch.export and torch.compile take models as they are, with batches and texts of any size."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.export import Dim

import anyformer as af

TEXT = "gpt2-tiny llama-tiny gemma3-tiny bert-tiny t5-tiny transformer-tiny".split()
NAMES = [*TEXT, "vit-tiny", "detr-tiny"]


def batch_of(name: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    if name in TEXT:
        ids = torch.randint(5, 250, (rows, length), generator=generator)
        return {
            "input_ids": ids,
            **({"decoder_input_ids": ids.clone()} if name in ("t5-tiny", "transformer-tiny") else {}),
        }
    size = 64 if name == "detr-tiny" else 32
    return {"pixel_values": torch.randn(rows, 3, size, size, generator=generator)}


def tensors(output: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}


class Positional(torch.nn.Module):
    """A model whose inputs have no names, since torch.export has no sizes for **keywords."""

    def __init__(self, model: af.Model, names: Iterable[str]) -> None:
        super().__init__()
        self.model, self.names = model, tuple(names)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.model(**dict(zip(self.names, inputs, strict=True)))


def test_a_bare_model_is_exported() -> None:
    model, batch = af.build("bert-tiny").eval(), batch_of("bert-tiny", 3, 9)
    program = torch.export.export(model, (), batch)
    with torch.no_grad():
        ours, theirs = program.module()(**batch), model(**batch)
    assert type(ours) is af.Output and ours.keys() == theirs.keys()
    assert torch.equal(ours.prediction_logits, theirs.prediction_logits)


@pytest.mark.parametrize("name", NAMES)
def test_export(name: str) -> None:
    """One program for all sizes, with the numbers of the model."""
    torch.manual_seed(0)
    model, batch = af.build(name).eval(), batch_of(name, 3, 9)
    rows, tokens = Dim("rows", min=2, max=64), Dim("tokens", min=2, max=64)
    sizes = tuple({0: rows, **({1: tokens} if name in TEXT else {})} for _ in batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Positional(model, batch), tuple(batch.values()), dynamic_shapes=(sizes,))
    for other in (batch, batch_of(name, 5, 14)):
        with torch.no_grad():
            ours, theirs = tensors(program.module()(*other.values())), tensors(model(**other))
        assert ours.keys() == theirs.keys() and ours
        for key, value in theirs.items():
            torch.testing.assert_close(ours[key], value, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("optimized", [False, True])
def test_compile_makes_one_graph(name: str, optimized: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, batch = af.build(name).eval(), batch_of(name, 3, 9)
    model = model.optimize() if optimized else model
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        ours, theirs = tensors(compiled(**batch)), tensors(model(**batch))
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, atol=1e-5, rtol=1e-4)
