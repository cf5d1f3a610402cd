"""Real checkpoint folders of seven families load, run and save back with the numbers of Hugging Face transformers."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.checkpoints import oracles_decoders as decoders
from tests.checkpoints.compare import CACHE, compare, flat
from tests.checkpoints.oracles import ARCHITECTURES, LABELS, hf_class, make_case, make_oracle, save_oracle

EVERYTHING = {"output_hidden_states": True, "output_attentions": True}


def eager(model: Any) -> Any:
    """Only transformers' slow attention shows its weights."""
    model.set_attn_implementation("eager")
    return model


def config_of(model: Any) -> dict[str, Any]:
    return {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_outputs(architecture: str, tmp_path: Path) -> None:
    """Every output field, hidden states and attentions among them, on padded rows."""
    oracle = make_oracle(architecture)
    case = make_case(architecture)
    model = af.load(save_oracle(oracle, tmp_path))
    with torch.no_grad():
        theirs = eager(oracle)(**case.batch, **EVERYTHING)
        ours = model(**case.batch, **EVERYTHING)
    names = compare(ours, theirs, case)
    assert list(ours) == [name for name in theirs if name not in CACHE], "fields come in another order"
    attends = any(point.endswith(".weights") for point in model.points)  # Mamba has nothing to show
    assert any("attentions" in name for name in names) == attends
    assert any("hidden_states" in name for name in names)


def shapes(value: Any) -> Any:
    return [shapes(one) for one in value] if isinstance(value, (tuple, list)) else getattr(value, "shape", value)


@pytest.mark.parametrize("asked", [(), ("output_attentions",), tuple(EVERYTHING)], ids=len)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tuples(architecture: str, asked: tuple[str, ...], tmp_path: Path) -> None:
    """`return_dict=False` gives the items of transformers, in its order; nothing in it is an Output."""
    if architecture == "VisionEncoderDecoderModel":
        pytest.skip("departure: transformers' tuple also has the encoder's pooled output, which its Output has not")
    oracle, case = eager(make_oracle(architecture)), make_case(architecture)
    model = af.load(save_oracle(oracle, tmp_path))
    options = dict.fromkeys(asked, True) | {"return_dict": False}
    batch = {**case.batch, **LABELS[architecture](case.batch)} if architecture in LABELS else case.batch
    no_cache = {"use_cache": False} if "use_cache" in inspect.signature(oracle.forward).parameters else {}
    with torch.no_grad():
        theirs, ours = oracle(**batch, **options, **no_cache), model(**batch, **options)
    assert isinstance(ours, tuple)
    assert shapes(ours) == shapes(theirs)


@pytest.mark.parametrize(
    "architecture", ["GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration", "BartModel"]
)
def test_a_cache_stands_where_transformers_puts_it(architecture: str, tmp_path: Path) -> None:
    oracle, case = eager(make_oracle(architecture)), make_case(architecture)
    model = af.load(save_oracle(oracle, tmp_path))
    options = {**EVERYTHING, "use_cache": True}
    with torch.no_grad():
        assert list(model(**case.batch, **options)) == list(oracle(**case.batch, **options))


@pytest.mark.parametrize("architecture", sorted(LABELS))
def test_loss(architecture: str, tmp_path: Path) -> None:
    """Labels give the same loss."""
    oracle = make_oracle(architecture)
    case = make_case(architecture)
    batch = {**case.batch, **LABELS[architecture](case.batch)}
    model = af.load(save_oracle(oracle, tmp_path))
    with torch.no_grad():
        theirs, ours = oracle(**batch), model(**batch)
    assert theirs.loss is not None
    torch.testing.assert_close(ours.loss, theirs.loss, rtol=2e-5, atol=1e-6)
    compare(ours, theirs, case)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_back(architecture: str, tmp_path: Path) -> None:
    """The folder that anyformer writes loads in transformers without a complaint, and gives the same."""
    oracle = make_oracle(architecture)
    case = make_case(architecture)
    af.load(save_oracle(oracle, tmp_path / "theirs")).save(tmp_path / "ours", format="hf")
    back, info = hf_class(architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    expected, found = oracle.state_dict(), back.state_dict()
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    assert config_of(back) == config_of(hf_class(architecture).from_pretrained(tmp_path / "theirs"))
    with torch.no_grad():
        compare(af.load(tmp_path / "ours")(**case.batch), oracle(**case.batch), case)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_own_folder(architecture: str, tmp_path: Path) -> None:
    """anyformer's own folder holds the same model, bit for bit, and leads back to Hugging Face."""
    oracle = make_oracle(architecture)
    model = af.load(save_oracle(oracle, tmp_path / "theirs"))
    model.save(tmp_path / "own")
    again = af.load(tmp_path / "own")
    case = make_case(architecture)
    with torch.no_grad():
        found = flat(again(**case.batch))
        for name, value in flat(model(**case.batch)).items():
            assert torch.equal(value, found[name]), name
    again.save(tmp_path / "back", format="hf")
    back = hf_class(architecture).from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in oracle.state_dict().items())


@pytest.mark.parametrize(
    "architecture",
    ["GPT2LMHeadModel", "BertForMaskedLM", "ViTForImageClassification", "MambaForCausalLM", *decoders.ARCHITECTURES],
)
def test_gradients(architecture: str, tmp_path: Path) -> None:
    """Gradients agree, parameter by parameter."""
    from anyformer.checkpoints.hf import table_for
    from anyformer.checkpoints.key_table import named_tensors

    oracle = make_oracle(architecture)
    case = make_case(architecture)
    batch = {**case.batch, **LABELS[architecture](case.batch)}
    model = af.load(save_oracle(oracle, tmp_path))
    oracle(**batch).loss.backward()
    model(**batch).loss.backward()
    table, _ = table_for(model)
    theirs = {name: parameter.grad for name, parameter in oracle.named_parameters()}
    for parameter in model.parameters():  # gradients take the place of the weights, and go through the key table
        parameter.data = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
    places = named_tensors(model)
    checked = 0
    for key in table.keys(model.config):
        name = _memory_name(table.rename(model.config, key.theirs))
        expected = theirs[name]
        assert expected is not None
        found = key.write(places[key.ours])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5 * float(expected.abs().max()) + 1e-7)
        checked += 1
    assert checked == len(theirs)


def _memory_name(name: str) -> str:
    """transformers names ViT's layers one way in files and another in memory."""
    if not name.startswith("vit.encoder"):
        return name
    for old, new in (
        ("vit.encoder.layer.", "vit.layers."),
        ("attention.attention.query", "attention.q_proj"),
        ("attention.attention.key", "attention.k_proj"),
        ("attention.attention.value", "attention.v_proj"),
        ("attention.output.dense", "attention.o_proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
    ):
        name = name.replace(old, new)
    return name
