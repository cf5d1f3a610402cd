"""`forward` says what a model takes, in transformers' order, and models take it so."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_outputs import CausalLMOutput

import anyformer as af
from anyformer import registry
from anyformer.checkpoints.key_tables import TABLES
from anyformer.forward_arguments import ARGUMENTS
from tests.checkpoints.oracles import SMALL, hf_class
from tests.tiny import tiny_recipes

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]])
CLASSES = [
    (table.family, name, ours)
    for table in TABLES.values()
    for name, ours in table.architectures.items()
    if name != "PerceiverForImageClassificationFourier"  # whose widths do not fit the others'
]


def hf_config(name: str) -> Any:
    family = next(prefix for prefix in sorted(SMALL, key=len, reverse=True) if name.startswith(prefix))
    config, settings = SMALL[family]
    return hf_class(config)(**settings)


def meta_model(family: str, ours: dict[str, Any]) -> af.Model:
    af.recipes()
    found = registry.FAMILIES[family]
    size = next(recipe.config for recipe in registry.RECIPES.values() if recipe.family is found)
    return registry.build_meta(found, size.replace(**ours))


@pytest.mark.parametrize(("family", "name", "ours"), CLASSES, ids=[name for _, name, _ in CLASSES])
def test_the_order_by_position_is_that_of_transformers(family: str, name: str, ours: dict[str, Any]) -> None:
    model = meta_model(family, ours)
    shown = inspect.signature(model.forward).parameters
    by_position = [one.name for one in shown.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    theirs = [
        one.name
        for one in inspect.signature(getattr(transformers, name).forward).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "self"
    ]
    assert list(shown)[: len(by_position)] == by_position and set(shown) == set(model.names)
    n = min(len(by_position), len(theirs))
    assert n and by_position[:n] == theirs[:n]
    ended = (
        n == len(theirs)
        or theirs[n] not in model.names
        or {"labels", "use_cache", "output_attentions"} & set(by_position)
    )
    assert ended, f"by position it could take {theirs[n]} too"


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_argument_has_a_meaning(name: str) -> None:
    model = af.build(name, device="meta")
    assert set(model.names) <= set(ARGUMENTS)
    told = inspect.getdoc(model.forward) or ""
    assert all(f"{argument}: {ARGUMENTS[argument]}" in told for argument in model.names)


def test_inputs_by_position() -> None:
    model = af.build("bert-tiny").eval()
    mask, types = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]), torch.ones_like(IDS)
    named = model(input_ids=IDS, attention_mask=mask, token_type_ids=types)
    assert torch.equal(model(IDS, mask, types)[0], named[0])
    assert torch.equal(model(IDS, None, types)[0], model(input_ids=IDS, token_type_ids=types)[0])
    with pytest.raises(af.InputError, match="by position and by name"):
        model(IDS, input_ids=IDS)
    with pytest.raises(af.InputError, match=r"11|12"):
        model(*[IDS] * 12)


def test_copies_and_pickles() -> None:
    model = af.build("gpt2-tiny").eval()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again) is type(model) and inspect.signature(again.forward) == inspect.signature(model.forward)
        assert torch.equal(again(IDS)[0], model(IDS)[0])


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "vit-tiny", "detr-tiny", "mamba-tiny", "whisper-toy"])
def test_models_pickle(name: str) -> None:
    model = af.build(name)
    again = pickle.loads(pickle.dumps(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_output_is_used_as_a_model_output() -> None:
    model = af.build("gpt2-tiny").eval()
    ours = model(IDS, labels=IDS, output_hidden_states=True)

    theirs = CausalLMOutput(**ours)
    assert list(ours) == list(theirs) == ["loss", "logits", "hidden_states"]
    assert [*ours.keys()] == [*theirs.keys()] and len(ours) == len(theirs)
    loss, logits = ours[:2]
    assert loss is ours.loss is ours["loss"] is ours[0] and logits is ours.to_tuple()[1]
    assert dict(**ours).keys() == theirs.keys()
    ours.logits = logits * 2
    assert torch.equal(ours["logits"], logits * 2)


def test_hasattr_tells_the_truth() -> None:
    out = af.build("gpt2-tiny").eval()(IDS)
    assert out.loss is None and out.hidden_states is None and out.past_key_values is None and "loss" not in out
    assert hasattr(out, "attentions") and not hasattr(out, "decoder_attentions") and not hasattr(out, "pred_boxes")
    again = torch.utils._pytree.tree_map(lambda x: x + 1, out)
    assert type(again) is af.Output and again.loss is None and torch.equal(again.logits, out.logits + 1)
    assert not hasattr(af.build("vit-tiny", head="base").eval()(torch.zeros(1, 3, 32, 32)), "loss")


def test_num_items_in_batch() -> None:
    """The mean over what a batch is a part of: Trainer's gradient accumulation."""
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    labels = IDS.masked_fill(mask == 0, -100)
    small = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 60, "n_positions": 16}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small)).eval()
    ours = af.build("gpt2-tiny").eval()
    batch = {"input_ids": IDS, "attention_mask": mask, "labels": labels}
    for n in (7, torch.tensor(11)):
        found = ours(**batch, num_items_in_batch=n).loss / ours(**batch).loss
        wanted = theirs(**batch, num_items_in_batch=n).loss / theirs(**batch).loss
        torch.testing.assert_close(found, wanted)
    image = af.build("vit-tiny").eval()
    batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    torch.testing.assert_close(image(**batch, num_items_in_batch=8).loss, image(**batch).loss / 4)


def test_config_takes_what_libraries_write() -> None:
    model, other = af.build("gpt2-tiny"), af.build("gpt2-tiny")
    model.config.use_cache = False  # type: ignore[attr-defined]
    told = model.config.to_dict()
    assert told["use_cache"] is False and told["n_layers"] == 2 and told["model_type"] == "anyformer-gpt2"
    assert not hasattr(other.config, "use_cache") and model.config == other.config
    assert "use_cache" not in model.config.to_json()
    with pytest.raises(af.ConfigError, match="n_layers"):
        model.config.n_layers = 3  # type: ignore[attr-defined]


def test_methods_that_libraries_call() -> None:
    torch.manual_seed(0)
    model = af.build("gpt2-tiny").eval()
    before = model(IDS).logits
    assert model.num_parameters() == sum(p.numel() for p in model.parameters())
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight  # type: ignore[union-attr]
    assert model.can_generate() and not af.build("bert-tiny").can_generate()
    layer = model.stages["decoder"].stack.blocks[0]  # type: ignore[union-attr]
    kept = layer.get_submodule("self.out").weight
    table = model.resize_token_embeddings(300)
    assert table.weight.shape[0] == 300 and model.config.vocab_size == 300  # type: ignore[attr-defined]
    after = model(IDS).logits
    torch.testing.assert_close(after[..., :256], before)
    layer = model.stages["decoder"].stack.blocks[0]  # type: ignore[union-attr]
    assert after.shape[-1] == 300 and layer.get_submodule("self.out").weight is kept


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = af.build("gpt2-tiny", dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0)
    gradients = []
    for enable in (model.gradient_checkpointing_disable, model.gradient_checkpointing_enable):
        enable()
        model.zero_grad()
        model(IDS, labels=IDS).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert model.is_gradient_checkpointing
    torch.testing.assert_close(gradients[0], gradients[1])


def test_tied_weights_are_saved_by_plain_tools(tmp_path: Any) -> None:
    from safetensors.torch import load_file, save_file

    model, other = af.build("gpt2-tiny").eval(), af.build("gpt2-tiny").eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(model(IDS).logits, other(IDS).logits)
    assert other.get_input_embeddings().weight is other.get_output_embeddings().weight  # type: ignore[union-attr]


SQUARE = torch.ones(4, 4, dtype=torch.bool).tril().expand(2, 1, 4, 4).clone()
SQUARE[1, 0, 3, 1] = False


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BertForMaskedLM"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_queries_and_keys(name: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = hf_class(name)(hf_config(name)).eval()
    theirs.save_pretrained(tmp_path)
    ours = af.load(tmp_path)
    mask = SQUARE if kind == "bool" else torch.zeros(2, 1, 4, 4).masked_fill(~SQUARE, torch.finfo(torch.float32).min)
    places = torch.arange(4).expand(2, 4)
    with torch.no_grad():
        found = ours(IDS, attention_mask=mask, position_ids=places).logits
        torch.testing.assert_close(found, theirs(IDS, attention_mask=mask, position_ids=places).logits)
        assert not torch.equal(found, ours(IDS, position_ids=places).logits)


def test_masks_of_queries_and_keys_with_a_cache() -> None:
    model = af.build("llama-tiny").eval()
    with torch.no_grad():
        whole = model(IDS, attention_mask=SQUARE).logits
        cache = model(IDS[:, :3], attention_mask=SQUARE[:, :, :3, :3], use_cache=True).past_key_values
        last = model(IDS[:, 3:], attention_mask=SQUARE[:, :, 3:], past_key_values=cache).logits
    torch.testing.assert_close(last, whole[:, 3:])


@pytest.mark.parametrize(
    ("name", "batch", "says"),
    [
        ("gpt2-tiny", {"input_ids": IDS, "attention_mask": SQUARE[:, :, :3]}, r"\[2, 1, 4, 4\]"),
        ("gpt2-tiny", {"input_ids": IDS, "attention_mask": SQUARE.expand(2, 4, 4, 4)}, r"\[2, 1, 4, 4\]"),
        ("gpt2-tiny", {"input_ids": IDS, "attention_mask": SQUARE.float()}, "other numbers"),
        ("gpt2-tiny", {"input_ids": IDS, "attention_mask": SQUARE[:, 0]}, "batch, tokens"),
        ("mamba-tiny", {"input_ids": IDS, "attention_mask": SQUARE}, "not all layers are attention"),
        ("gpt2-tiny", {"input_ids": IDS, "inputs_embeds": torch.zeros(2, 4, 64)}, "more than one"),
    ],
)
def test_masks_and_inputs_that_are_refused(name: str, batch: dict[str, Any], says: str) -> None:
    with pytest.raises(af.InputError, match=says) as error:
        af.build(name)(**batch)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)
