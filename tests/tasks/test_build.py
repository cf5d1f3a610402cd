"""The model of a folder under other settings: which can be changed, and that nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import registry
from anyformer.checkpoints.delta import own_tensors
from anyformer.checkpoints.folder import load_meta
from anyformer.tasks.build import finetune_model, load_meta_for, with_config, with_settings

DROPS = ("dropout", "drop_path", "layer_drop")  # what names of settings that only drop something hold


def anything(config: Any) -> bool:
    return True


@pytest.mark.parametrize("form", ["anyformer", "hf"])
def test_the_outline_of_a_folder_is_its_model_without_the_numbers(form: str, tmp_path: Path) -> None:
    af.build("bert-tiny", n_layers=1, dropout=0.3).save(tmp_path / "x", format=form)
    made, model = load_meta(tmp_path / "x"), af.load(tmp_path / "x")
    assert made.family == model.family == "bert" and made.config == model.config and made.device.type == "meta"
    assert made.config.to_json()["dropout"] == 0.3
    shapes = [{name: value.shape for name, value in own_tensors(one).items()} for one in (made, model)]
    assert shapes[0] == shapes[1]


def test_what_is_no_folder_has_no_outline(tmp_path: Path) -> None:
    with pytest.raises(af.FolderError, match=r"has no config\.json"):
        load_meta(tmp_path)


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "transformer-tiny", "vit-tiny", "resnet-tiny"])
def test_weights_stay_and_dropouts_change(name: str) -> None:
    """To the bit, tied ones tied, running means with them."""
    model = af.build(name).eval()
    model.origin.settings["task"] = {"name": "kept"}
    drops = [key for key in model.config.field_names() if any(part in key for part in DROPS)]
    changed = with_settings(model, model.config.replace(**dict.fromkeys(drops, 0.25)))
    assert [getattr(changed.config, key) for key in drops] == [0.25] * len(drops)
    before, after = own_tensors(model), own_tensors(changed)
    assert list(before) == list(after) and all(torch.equal(after[key], before[key]) for key in before)
    assert not {id(value) for value in before.values()} & {id(value) for value in after.values()}
    assert changed.origin is model.origin and changed.training == model.training


def test_a_dropout_drops() -> None:
    """In training, and not when the model runs."""
    model, ids = (
        af.build("gpt2-tiny", dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0).eval(),
        torch.arange(8)[None],
    )
    changed = with_settings(model, model.config.replace(dropout=0.5))
    assert torch.equal(changed(input_ids=ids).logits, model(input_ids=ids).logits)
    runs = [one.train()(input_ids=ids).logits for one in (model, changed)]
    assert not torch.allclose(*runs, atol=1e-3)


def test_settings_as_they_are_change_nothing() -> None:
    model = af.build("gpt2-tiny").eval()
    assert with_settings(model, None) is model and with_settings(model, model.config.replace()) is model


@pytest.mark.parametrize(
    ("recipe", "changes", "says"),
    [
        ("gpt2-tiny", {"n_layers": 3}, r"^model\.n_layers .*decoder\.blocks\.2\..*\[\d+\]"),
        (
            "gpt2-tiny",
            {"n_layers": 1, "dropout": 0.5},
            r"^model\.n_layers and model\.dropout .*decoder\.blocks\.1\..*\[64\]",
        ),
        ("gpt2-tiny", {"max_length": 7}, r"^model\.max_length .* from \[\d+, 64\] to \[7, 64\]"),
        ("llama-tiny", {"tied": None}, r"^model\.tied .*\[256, 64\]"),
    ],
)
def test_what_needs_other_weights_is_refused(recipe: str, changes: dict[str, Any], says: str) -> None:
    model = af.build(recipe).eval()
    if "tied" in changes:  # the same names in a state_dict, and one tensor more
        changes = {"tied": not model.config.to_json()["tied"]}
    for one in (model, registry.build_meta(registry.family(model.family), model.config)):
        with pytest.raises(af.ConfigError, match=says):
            with_config(one, model.config.replace(**changes))


def test_an_autoencoder_is_taken_further_as_its_encoder(tmp_path: Path) -> None:
    """What can be set is what the encoder has, found without the weights; which it then keeps."""
    model = af.build("mae-tiny").eval()
    model.save(tmp_path)

    def classifies(config: Any) -> bool:
        return "n_labels" in config.field_names()

    made, single = load_meta_for(tmp_path, classifies), finetune_model(model, classifies)
    assert made.family == single.family == "vit" and made.config == single.config and made.device.type == "meta"
    assert load_meta_for(tmp_path, anything).config == model.config
    mine, theirs = own_tensors(single), own_tensors(model)
    encoder = [name for name in theirs if name.startswith("encoder.")]
    assert len(encoder) > 10 and all(torch.equal(mine[name], theirs[name]) for name in encoder)
    changed = with_settings(single, single.config.replace(drop_path=0.4))
    assert changed.config.to_json()["drop_path"] == 0.4
    assert all(torch.equal(own_tensors(changed)[name], theirs[name]) for name in encoder)
