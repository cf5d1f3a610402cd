"""What is watched stays in the autograd graph: gradients pass through it as through transformers' slow attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from tests.batches import BATCHES, build
from tests.checkpoints.compare import close, field_mask, flat
from tests.checkpoints.oracles import LABELS, Case, make_case, make_oracle, save_oracle

ORACLES = [
    "BertForSequenceClassification",
    "GPT2LMHeadModel",
    "ViTForImageClassification",
    "T5ForConditionalGeneration",
    "LlamaForCausalLM",
    "DetrForObjectDetection",
]


def maps_and_gradients(model: Any, case: Case, labels: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attention maps of each field, and the gradients of a loss by them."""
    out = model(**case.batch, **labels, output_attentions=True)
    maps = {name: value for name, value in flat(out).items() if name.endswith("attentions") and value}
    loss = out.loss if labels else sum(x.sin().sum() for x in (out["logits"], out["pred_boxes"]))
    found = iter(torch.autograd.grad(loss, [one for some in maps.values() for one in some], retain_graph=True))
    return maps, {name: [next(found) for _ in some] for name, some in maps.items()}


@pytest.mark.parametrize("architecture", ORACLES)
def test_gradients_by_attention_weights(architecture: str, tmp_path: Path) -> None:
    """Of the loss by every map, and of a function of the maps by every weight: both are transformers'."""
    oracle, case = make_oracle(architecture).double(), make_case(architecture)
    batch = {name: x.double() if x.is_floating_point() else x for name, x in case.batch.items()}
    case = Case(batch, case.masks)
    model = af.load(save_oracle(oracle, tmp_path)).double()
    oracle.set_attn_implementation("eager")
    labels = LABELS[architecture](case.batch) if architecture in LABELS else {}
    (ours, slopes), (theirs, expected) = (maps_and_gradients(one, case, labels) for one in (model, oracle))
    assert ours.keys() == theirs.keys() and theirs
    for name, some in expected.items():
        for i, (mine, other) in enumerate(zip(slopes[name], some, strict=True)):
            mask = field_mask(case, name, other.shape[0], other.shape[2])
            keep = torch.ones_like(other, dtype=torch.bool) if mask is None else mask[:, None, :, None].expand_as(other)
            keep = keep & (theirs[name][i] > 0)  # where a key is forbidden no gradient goes on
            close(torch.where(keep, mine, 0), torch.where(keep, other, 0), f"{name}[{i}]")
            assert float(mine.abs().max()) > 0
    learned = next(parameter for path, parameter in model.named_parameters() if path.endswith(".qkv.weight"))
    sum(one.square().sum() for some in ours.values() for one in some).backward()
    assert learned.grad is not None and float(learned.grad.abs().max()) > 0


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "transformer-tiny", "detr-tiny", "gptneox-tiny"])
def test_watching_changes_neither_numbers_nor_gradients(name: str) -> None:
    """On rows without padding and with, packed: outputs are bit-equal, gradients equal to rounding, and every watched
    value that somebody reads has one."""
    batch = BATCHES[name]("right")
    found: list[tuple[Tensor, dict[str, Tensor]]] = []
    for globs in ((), ("*",)):
        model = build(name)
        batch = {key: x.double() if x.is_floating_point() else x for key, x in batch.items()}
        with af.look(model, *globs) as seen:
            logits = model(**batch)[0]
        loss = logits.square().mean()
        if globs:
            blocks = [value for point, value in seen.items() if ".blocks.0." in point and point.endswith("weights")]
            slopes = torch.autograd.grad(loss, [*blocks, *seen.matching("*.blocks.0.output")], retain_graph=True)
            assert blocks and all(float(slope.abs().max()) > 0 for slope in slopes)
        loss.backward()
        found.append((logits, {path: x.grad for path, x in model.named_parameters() if x.grad is not None}))
    (plain, gradients), (watched, others) = found
    assert torch.equal(plain, watched) and gradients.keys() == others.keys()
    for path, gradient in gradients.items():
        torch.testing.assert_close(others[path], gradient, rtol=1e-9, atol=1e-12, msg=path)


def test_dropped_weights_are_those_that_count() -> None:
    """In training, with dropout: the same draws as without a watcher, and gradients by the weights."""
    outputs = []
    for globs in ((), ("*.weights",)):
        model = build("gpt2-tiny", dropout=0.3).train()
        torch.manual_seed(3)
        with af.look(model, *globs) as seen:
            outputs.append(model(torch.arange(20, 28).view(2, 4)).logits)
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-12)
    slopes = torch.autograd.grad(outputs[1].square().sum(), list(seen.values()))
    assert slopes and all(float(slope.abs().max()) > 0 for slope in slopes)
