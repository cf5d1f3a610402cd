"""Adapters: they change nothing at first, merge to the same numbers, train alone, and are peft's when saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.checkpoints.peft import save_adapter
from anyformer.core.lora import add_lora, lora_layers, merge_lora
from anyformer.training.adapters import fresh_heads

CASES = {
    "bert-tiny": {"head": "classify", "n_labels": 3},
    "gpt2-tiny": {},
    "llama-tiny": {},
    "gptneox-tiny": {},
}


def adapted(name: str, **overrides: object) -> tuple[af.Model, dict[str, Tensor]]:
    model = af.build(name, **overrides).eval()
    batch = {"input_ids": torch.randint(5, 200, (2, 7))}
    before = model(**batch).logits
    add_lora(model, 4, 8.0, ["*.blocks.*"], fresh_heads(model))
    torch.testing.assert_close(model(**batch).logits, before)
    for _, _, adapter in lora_layers(model):
        torch.nn.init.normal_(adapter.b, std=0.05)
    assert not torch.allclose(model(**batch).logits, before)
    return model, batch


@pytest.mark.parametrize("name", CASES)
def test_merged_is_unmerged(name: str) -> None:
    model, batch = adapted(name, **CASES[name])
    apart = model(**batch).logits
    merge_lora(model)
    assert not list(lora_layers(model))
    torch.testing.assert_close(model(**batch).logits, apart, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_adapters_and_heads_learn_and_nothing_else(name: str) -> None:
    model, batch = adapted(name, **CASES[name])
    model.train()
    model(**batch).logits.square().mean().backward()
    for path, parameter in model.named_parameters():
        learns = "parametrizations.weight.0." in path or (path.partition(".")[0] in model.heads and CASES[name] != {})
        assert (parameter.grad is not None) == learns == parameter.requires_grad, path


def test_every_matrix_has_an_adapter_by_default_and_a_wrong_name_is_said() -> None:
    model, _ = adapted("bert-tiny", **CASES["bert-tiny"])
    assert len(list(lora_layers(model))) == 2 * 4  # query, key and value as one; out; up; down
    with pytest.raises(af.ConfigError, match=r'train\.lora_targets: .*"nothing"'):
        add_lora(af.build("bert-tiny"), 4, 8.0, ["nothing"])


@pytest.mark.parametrize(
    ("name", "kind"), [("bert-tiny", "SequenceClassification"), ("gpt2-tiny", "CausalLM"), ("llama-tiny", "CausalLM")]
)
def test_peft_reads_them(name: str, kind: str, tmp_path: Path) -> None:
    """The ecosystem's own package, on the model as transformers has it, gives our numbers."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = af.build(name, **CASES[name]).eval()  # type: ignore[arg-type]
    model.save(tmp_path / "base", format="hf")
    add_lora(model, 4, 8.0, ["*.blocks.*"], fresh_heads(model))
    for _, _, adapter in lora_layers(model):
        torch.nn.init.normal_(adapter.b, std=0.05)
    for path, parameter in model.named_parameters():
        if path.partition(".")[0] in model.heads and parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    save_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    theirs = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(theirs, str(tmp_path / "adapter")).eval()
    ids = torch.randint(5, 200, (2, 7))
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=ids).logits, theirs(input_ids=ids).logits, rtol=1e-4, atol=1e-5)
