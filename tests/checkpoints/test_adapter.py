"""peft's adapter folders load: merged into their base, with the outputs of peft itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.checkpoints.folder import load_meta
from anyformer.checkpoints.peft import save_adapter
from anyformer.core.lora import add_lora, lora_layers
from anyformer.training.adapters import fresh_heads
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import hf_class, make_case, make_oracle, save_oracle

peft = pytest.importorskip("peft")

# Class of the adapter's model; class of the base folder; options of peft.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "transposed": (
        "GPT2LMHeadModel",
        "GPT2LMHeadModel",
        {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    ),
    "roles apart": (
        "LlamaForCausalLM",
        "LlamaForCausalLM",
        {
            **{"target_modules": ["q_proj", "v_proj", "down_proj"], "rank_pattern": {"v_proj": 2}},
            **{"alpha_pattern": {"layers.1.self_attn.q_proj": 3}, "use_rslora": True},
        },
    ),
    "embedding": ("LlamaForCausalLM", "LlamaForCausalLM", {"target_modules": ["embed_tokens", "o_proj"]}),
    "rows reordered": ("GPTNeoXForCausalLM", "GPTNeoXForCausalLM", {"target_modules": ["query_key_value"]}),
    "new head": (
        "BertForSequenceClassification",
        "BertModel",
        {"target_modules": ["query"], "task_type": "SEQ_CLS"},
    ),
    "biases": ("BertForMaskedLM", "BertForMaskedLM", {"target_modules": ["query", "dense"], "bias": "all"}),
    "newer names": (
        "ViTForImageClassification",
        "ViTForImageClassification",
        {"target_modules": ["q_proj", "projection"]},
    ),
    "two stacks": ("T5ForConditionalGeneration", "T5ForConditionalGeneration", {"target_modules": ["q", "wi"]}),
}


def made(name: str, folder: Path) -> tuple[Any, Path]:
    """A model of peft's, and the folder of its adapter."""
    kind, base, options = CASES[name]
    below = make_oracle(base)
    save_oracle(below, folder / "base")
    oracle = below if kind == base else hf_class(kind).from_pretrained(folder / "base", num_labels=3)
    adapted = peft.get_peft_model(oracle, peft.LoraConfig(r=4, lora_alpha=6, init_lora_weights=True, **options))
    adapted.base_model.model.name_or_path = str(folder / "base")
    torch.manual_seed(1)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.peft_config["default"].base_model_name_or_path = str(folder / "base")
    adapted.save_pretrained(folder / "adapter", save_embedding_layers=False)
    return adapted.eval(), folder / "adapter"


@pytest.mark.parametrize("name", CASES)
def test_outputs(name: str, tmp_path: Path) -> None:
    theirs, folder = made(name, tmp_path)
    case = make_case(CASES[name][0])
    model = af.load(folder)
    assert load_meta(folder).config == model.config
    with torch.no_grad():
        compare(model(**case.batch), theirs(**case.batch), case)
        assert compare(model(**case.batch), theirs.merge_and_unload()(**case.batch), case)


def test_merged_model_saved(tmp_path: Path) -> None:
    """A loaded adapter is a model like any other: transformers reads what it is saved as."""
    theirs, folder = made("new head", tmp_path)
    af.load(folder).save(tmp_path / "hf", format="hf")
    back = hf_class("BertForSequenceClassification").from_pretrained(tmp_path / "hf").eval()
    case = make_case("BertForSequenceClassification")
    with torch.no_grad():
        compare(back(**case.batch), theirs(**case.batch), case)


@pytest.mark.parametrize("form", ["hf", "anyformer"])
@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "llama-tiny"])
def test_our_own(name: str, form: str, tmp_path: Path) -> None:
    """What save_adapter writes loads again, on a base of either form."""
    model = af.build(name, **({"head": "classify", "n_labels": 3} if name == "bert-tiny" else {}))
    model.save(tmp_path / "base", format=form)
    add_lora(model, 4, 8.0, ["*.blocks.*"], fresh_heads(model))
    for _, _, adapter in lora_layers(model):
        torch.nn.init.normal_(adapter.b, std=0.05)
    model.eval()
    save_adapter(model, tmp_path / "adapter", "../base")
    batch = {"input_ids": torch.randint(5, 200, (2, 7))}
    with torch.no_grad():
        torch.testing.assert_close(
            af.load(tmp_path / "adapter")(**batch).logits, model(**batch).logits, rtol=1e-4, atol=1e-5
        )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made("roles apart", tmp_path_factory.mktemp("adapter"))[1]


def test_older_file(whole: Path, tmp_path: Path) -> None:
    """adapter_model.bin, as older versions of peft wrote it."""
    (tmp_path / "adapter_config.json").write_bytes((whole / "adapter_config.json").read_bytes())
    torch.save(load_file(whole / "adapter_model.safetensors"), tmp_path / "adapter_model.bin")
    batch = {"input_ids": torch.randint(1, 60, (2, 7))}
    assert torch.equal(af.load(tmp_path)(**batch).logits, af.load(whole)(**batch).logits)


def changed(**fields: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda config, tensors: config.update(fields)


def renamed(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"] = torch.zeros(4, 32)
    tensors["base_model.model.model.layers.7.mlp.up_proj.lora_B.weight"] = torch.zeros(48, 4)


def half(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    del tensors[sorted(tensors)[0]]


def reshaped(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    name = sorted(name for name in tensors if "lora_B" in name)[0]
    tensors[name] = torch.zeros(7, tensors[name].shape[1])


def widened(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    name = sorted(name for name in tensors if "lora_B" in name)[0]
    tensors[name] = torch.zeros(32, 9)


def directed(config: dict[str, Any], tensors: dict[str, Any]) -> None:
    tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] = torch.zeros(32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (changed(peft_type="IA3"), "'IA3'.*LORA"),
        (changed(use_dora=True), "use_dora"),
        (changed(init_lora_weights="pissa"), "pissa"),
        (changed(alora_invocation_tokens=[1, 2]), "alora_invocation_tokens"),
        (changed(alpha_pattern={"(a+)+b": 1}), "alpha_pattern"),
        (changed(lora_alpha="much"), "lora_alpha"),
        (changed(base_model_name_or_path=None), "base_model_name_or_path"),
        (changed(base_model_name_or_path="meta/unknown-1b"), "meta/unknown-1b.*not here"),
        (renamed, r"no .*layers\.7"),
        (half, "Missing"),
        (reshaped, "makes"),
        (widened, r"\[rank, in\]"),
        (directed, "lora_magnitude_vector"),
        (lambda config, tensors: tensors.clear(), "no adapters"),
    ],
)
def test_refused(damage: Any, message: str, whole: Path, tmp_path: Path) -> None:
    config = json.loads((whole / "adapter_config.json").read_text())
    tensors = load_file(whole / "adapter_model.safetensors")
    damage(config, tensors)
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    with pytest.raises(af.Error, match=message) as caught:
        af.load(tmp_path)
    assert len(str(caught.value)) < 400


def test_tied_words(tmp_path: Path) -> None:
    """GPT-2's table is its output too; peft's adapter of the table alone leaves the output as it is."""
    save_oracle(make_oracle("GPT2LMHeadModel"), tmp_path / "base")
    theirs = peft.get_peft_model(make_oracle("GPT2LMHeadModel"), peft.LoraConfig(target_modules=["wte"]))
    theirs.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    theirs.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    with pytest.raises(af.Error, match=r"wte\.weight is tied"):
        af.load(tmp_path / "adapter")


def test_chain(whole: Path, tmp_path: Path) -> None:
    config = json.loads((whole / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(whole)}))
    save_file(load_file(whole / "adapter_model.safetensors"), tmp_path / "adapter_model.safetensors")
    with pytest.raises(af.Error, match="adapter itself"):
        af.load(tmp_path)
