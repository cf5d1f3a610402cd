"""Each mistake ends in one clear sentence, an af.Error, and never in a silently wrong model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good Hugging Face folder."""
    af.build("gpt2-tiny").save(tmp_path / "model", format="hf")
    return tmp_path / "model"


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in {**config, **changes}.items() if v is not ...}))


def says(error: type[af.Error], *words: str) -> Callable[[Callable[[], Any]], None]:
    def check(action: Callable[[], Any]) -> None:
        with pytest.raises(error) as caught:
            action()
        message = str(caught.value)
        assert all(word in message for word in words), message
        assert "\n" not in message

    return check


def test_no_folder(tmp_path: Path) -> None:
    says(af.FolderError, "nowhere", "does not exist")(lambda: af.load(tmp_path / "nowhere"))


def test_no_config(tmp_path: Path) -> None:
    says(af.FolderError, "config.json")(lambda: af.load(tmp_path))


def test_config_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{oops")
    says(af.FolderError, "config.json", "JSON")(lambda: af.load(folder))


def test_unknown_family(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are known, and the nearest."""
    monkeypatch.setenv("ANYFORMER_ERRORS", "full")
    edit(folder, model_type="gpt3")
    says(af.FolderError, "gpt3", 'Did you mean "gpt2"?', "marian", "perceiver")(lambda: af.load(folder))


def test_no_model_type(folder: Path) -> None:
    edit(folder, model_type=...)
    says(af.FolderError, "bert")(lambda: af.load(folder))


def test_unknown_class(folder: Path) -> None:
    edit(folder, architectures=["GPT2DoubleHeadsModel"])
    says(af.FolderError, "GPT2DoubleHeadsModel", "GPT2LMHeadModel")(lambda: af.load(folder))


def test_no_class(folder: Path) -> None:
    edit(folder, architectures=None)
    says(af.FolderError, "architectures")(lambda: af.load(folder))


def test_field_of_a_wrong_type(folder: Path) -> None:
    edit(folder, n_layer="two")
    says(af.ConfigError, "n_layer")(lambda: af.load(folder))


def test_contradicting_fields(folder: Path) -> None:
    edit(folder, n_head=5)
    says(af.ConfigError, "n_head")(lambda: af.load(folder))


def test_quantized(folder: Path) -> None:
    edit(folder, quantization_config={"bits": 4})
    says(af.ConfigError, "quantization_config")(lambda: af.load(folder))


def test_unknown_field_is_said(folder: Path) -> None:
    edit(folder, frobnicate=3)
    says(af.ConfigError, "frobnicate")(lambda: af.load(folder))


def test_tensors_that_do_not_fit(folder: Path) -> None:
    """Missing, extra and wrongly shaped ones, all at once."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.wpe.weight"], tensors["transformer.ln_f.bias"]
    tensors["surprise"] = torch.zeros(1)
    save_file(tensors, folder / "model.safetensors")
    says(af.WeightsError, "transformer.wpe.weight", "transformer.ln_f.bias", "surprise")(lambda: af.load(folder))


def test_wrong_shapes(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.wpe.weight"] = torch.zeros(7, 64)
    tensors["transformer.h.0.ln_1.bias"] = torch.zeros(3)
    save_file(tensors, folder / "model.safetensors")
    says(af.WeightsError, "transformer.wpe.weight", "[7, 64]", "[128, 64]", "ln_1.bias")(lambda: af.load(folder))


@pytest.mark.parametrize("keep", [0, 5, 300, -100])
def test_cut_short(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    says(af.FolderError, "model.safetensors", "damaged")(lambda: af.load(folder))


def test_garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\xff" * 4096)
    says(af.FolderError, "model.safetensors")(lambda: af.load(folder))


def test_missing_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = list(tensors)
    (folder / "model.safetensors").unlink()
    save_file({names[0]: tensors[names[0]]}, folder / "model-00001-of-00002.safetensors")
    weight_map = {name: f"model-0000{1 if name == names[0] else 2}-of-00002.safetensors" for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    says(af.FolderError, "model-00002-of-00002.safetensors", "1 of 2")(lambda: af.load(folder))


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    says(af.FolderError, "no weights")(lambda: af.load(folder))


def test_weights_of_another_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "mine.pt")
    says(af.FolderError, "no weights", "mine.pt")(lambda: af.load(folder))


def test_unknown_recipe() -> None:
    says(af.ConfigError, "gpt2-125m", 'Did you mean "gpt2-124m"?')(lambda: af.build("gpt2-125m"))


def test_unknown_override() -> None:
    says(af.ConfigError, "n_layer", 'Did you mean "n_layers"?')(lambda: af.build("gpt2-tiny", n_layer=2))


def test_override_of_a_wrong_type() -> None:
    says(af.ConfigError, "n_layers", "'many'")(lambda: af.build("gpt2-tiny", n_layers="many"))


def test_impossible_override() -> None:
    says(af.ConfigError, "n_heads", "7")(lambda: af.build("gpt2-tiny", n_heads=7))


def test_unknown_format(tmp_path: Path) -> None:
    says(af.ConfigError, "onnx", "hf")(lambda: af.build("gpt2-tiny").save(tmp_path / "x", format="onnx"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("token", [256, -1, 100000])
def test_ids_outside_the_vocabulary(token: int) -> None:
    ids = torch.tensor([[1, token, 2]])
    says(af.InputError, str(token), "256")(lambda: af.build("gpt2-tiny")(input_ids=ids))


def test_types_outside_their_table() -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "token_type_ids": torch.full((1, 3), 2)}
    says(af.InputError, "token_type_ids", "2")(lambda: af.build("bert-tiny")(**batch))


def test_sequence_past_the_table() -> None:
    ids = torch.ones(1, 129, dtype=torch.long)
    for name in ("gpt2-tiny", "bert-tiny"):
        model = af.build(name).eval()
        says(af.InputError, "128")(lambda model=model: model(input_ids=ids))  # type: ignore[misc]


def test_positions_past_the_table() -> None:
    batch = {"input_ids": torch.ones(1, 2, dtype=torch.long), "position_ids": torch.tensor([[0, 500]])}
    says(af.InputError, "500", "128")(lambda: af.build("gpt2-tiny")(**batch))


def test_cache_past_the_table() -> None:
    """Decoding step by step hits the end of the table too."""
    model = af.build("gpt2-tiny", max_length=8).eval()
    with torch.no_grad():
        out = model(input_ids=torch.ones(1, 8, dtype=torch.long), use_cache=True)
        step = {"input_ids": torch.ones(1, 1, dtype=torch.long), "past_key_values": out.past_key_values}
        says(af.InputError, "8")(lambda: model(**step))


def test_unknown_keyword() -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    says(af.InputError, "input_id", 'Did you mean "input_ids"?')(lambda: af.build("gpt2-tiny")(input_id=ids))


def test_nothing_given() -> None:
    says(af.InputError, "input_ids", "inputs_embeds")(lambda: af.build("gpt2-tiny")())


def test_both_given() -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "inputs_embeds": torch.ones(1, 3, 64)}
    says(af.InputError, "exactly one")(lambda: af.build("gpt2-tiny")(**batch))


def test_ids_of_a_wrong_shape_or_type() -> None:
    model = af.build("gpt2-tiny").eval()
    says(af.InputError, "input_ids", "[batch, tokens]")(lambda: model(input_ids=torch.ones(3, dtype=torch.long)))
    says(af.InputError, "input_ids", "float32")(lambda: model(input_ids=torch.ones(1, 3)))
    says(af.InputError, "input_ids", "list")(lambda: model(input_ids=[[1, 2]]))


def test_mask_of_a_wrong_shape() -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 4)}
    says(af.InputError, "attention_mask", "[1, 4]", "[1, 3]")(lambda: af.build("gpt2-tiny")(**batch))


def test_labels_that_are_no_class() -> None:
    batch = {"pixel_values": torch.randn(1, 3, 32, 32), "labels": torch.tensor([10])}
    says(af.InputError, "labels", "10")(lambda: af.build("vit-tiny")(**batch))


def test_labels_of_a_wrong_shape() -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "labels": torch.ones(1, 4, dtype=torch.long)}
    says(af.InputError, "labels", "[1, 4]")(lambda: af.build("bert-tiny")(**batch))


def test_pictures_of_another_size() -> None:
    says(af.InputError, "40", "32", "interpolate")(lambda: af.build("vit-tiny")(pixel_values=torch.randn(1, 3, 40, 40)))


def test_pictures_with_other_channels() -> None:
    for name in ("vit-tiny", "mae-tiny", "detr-tiny"):
        model = af.build(name).eval()
        says(af.InputError, "pixel_values")(lambda model=model: model(pixel_values=torch.randn(1, 1, 32, 32)))  # type: ignore[misc]


def test_foreign_cache() -> None:
    batch = {"input_ids": torch.ones(1, 3, dtype=torch.long), "past_key_values": ((1, 2),)}
    says(af.InputError, "past_key_values")(lambda: af.build("gpt2-tiny")(**batch))


def test_damaged_own_folder(tmp_path: Path) -> None:
    af.build("gpt2-tiny").save(tmp_path / "own")
    edit(tmp_path / "own", model={"n_layerz": 3})
    says(af.ConfigError, "n_layerz", "n_layers")(lambda: af.load(tmp_path / "own"))
    edit(tmp_path / "own", family="nothing", model={})
    says(af.ConfigError, "nothing", "There are: ")(lambda: af.load(tmp_path / "own"))


def test_read_only_place(tmp_path: Path) -> None:
    """A folder that cannot be written leaves nothing half-written behind."""
    (tmp_path / "file").write_text("in the way")
    says(af.FolderError, "file")(lambda: af.build("gpt2-tiny").save(tmp_path / "file"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
