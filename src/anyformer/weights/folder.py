"""A model folder, whichever form it has: af.load and model.save."""

from __future__ import annotations

import json
import os
import re
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from anyformer import registry, shipped
from anyformer.core.linear import quantised
from anyformer.core.taps import brief
from anyformer.errors import ConfigError, FolderError, WeightsError, nearest
from anyformer.model import Model
from anyformer.version import __version__
from anyformer.weights.difference import complete, own_tensors
from anyformer.weights.files import check_fit, list_tensors, read_json, whole_folder, write_tensors
from anyformer.weights.hf import fill, load_hf, outline_hf, read_companions, save_hf, write_companions
from anyformer.weights.rounded import rescale, scales_of
from anyformer.weights.table import Key, addresses

FORMATS = ("anyformer", "hf")
SECTIONS = ("task", "data", "tokenizer", "train")  # of config.json, beside the model's own

WORDS = re.compile(r"tokenizer|vocab|merges|special_tokens|added_tokens")  # the files of a tokenizer


def load(
    folder: str | PathLike[str],
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    weights: str | None = None,
) -> Model:
    """A model from an anyformer folder, a Hugging Face one or a .gguf file, or one that ships, by name; on `device`, as
    it was saved or as `dtype` ("bfloat16"). weights="int8" rounds its matrices to 8 bits, which a CPU runs faster."""
    if dtype is not None:
        dtype = read_dtype(dtype)
    if isinstance(device, str):
        device = read_device(device)
    path = shipped.place(_place(folder))
    if weights is None:
        return read(path, device, dtype)
    return read(path, device, torch.float32 if dtype is None else dtype).quantise(weights)


def outline(folder: str | PathLike[str]) -> Model:
    """A folder's model without its weights, on the meta device: its settings, and the names and shapes of its tensors.
    What `load` warns of is not said."""
    path = shipped.place(_place(folder))
    if _is_gguf(path):
        from anyformer.weights.gguf import outline_gguf

        return outline_gguf(path)
    config = _config(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _outline_own(path, config) if "anyformer" in config else outline_hf(path, config)[1]


def read(path: Path, device: str | torch.device, dtype: torch.dtype | None) -> Model:
    """Whichever form it has."""
    if _is_gguf(path):
        from anyformer.weights.gguf import load_gguf

        return load_gguf(path, device, dtype)
    config = _config(path)
    if "anyformer" in config:
        return load_own(path, config, device, dtype)
    return load_hf(path, config, device, dtype)


def _place(folder: Any) -> str | PathLike[str]:
    """A path as somebody gives it; "~" is their home."""
    if not isinstance(folder, (str, PathLike)) or not os.fspath(folder):
        raise FolderError(f"A model folder is given by its path, and not as {folder!r}.")
    text = os.fspath(folder)
    return os.path.expanduser(folder) if isinstance(text, str) and text.startswith("~") else folder


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf" and path.is_file()


def _config(path: Path) -> dict[str, Any]:
    """A model folder's config.json."""
    if not path.is_dir():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        hint = shipped.hint(path)
        if str(path) in registry.recipes():
            hint = f' "{path}" is a recipe: af.build("{path}") makes a new model of it.'
        raise FolderError(f"{path} {what}; give a model folder (config.json and safetensors) or a .gguf file.{hint}")
    if not (path / "config.json").exists() and (path / "train.json").exists():
        raise FolderError(f"The run in {path} is not finished; the command that began it goes on with --resume.")
    if not (path / "config.json").exists():
        raise FolderError(f"{path} has no config.json, so it is no model folder.")
    return read_json(path / "config.json")


def read_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f'There is no device "{name}"; say cpu, cuda, or cuda:1 for the second GPU.') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'The device is "{name}", but PyTorch finds no GPU here; say cpu.')
    return device


def read_dtype(name: str | torch.dtype) -> torch.dtype:
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    known = {str(kind).removeprefix("torch."): kind for kind in kinds}
    if isinstance(name, torch.dtype) and name in kinds:
        return name
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f'There is no dtype "{name}" for a model.{nearest(str(name), known)} There are: {", ".join(known)}.'
        )
    return known[name]


def save(model: Model, folder: str | PathLike[str], format: str = "anyformer") -> None:
    if format not in FORMATS:
        raise ConfigError(f'There is no format "{format}".{nearest(format, FORMATS)} There are: {", ".join(FORMATS)}.')
    if quantised(model):
        raise WeightsError("The weights of this model are rounded to int8; load it again without that to save it.")
    with whole_folder(Path(_place(folder))) as draft:
        if format == "hf":
            save_hf(model, draft)
        else:
            save_own(model, draft)


def save_own(model: Model, folder: Path) -> None:
    write_tensors(folder, {name: tensor.contiguous().cpu() for name, tensor in own_tensors(model).items()})
    config = own_config(model)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_companions(model, folder)


def own_config(model: Model) -> dict[str, Any]:
    """`dtype` is what the model computes in; the file may hold it in fewer bits."""
    return {
        "anyformer": __version__,
        "family": model.family,
        "recipe": model.origin.recipe,
        "model": model.config.to_json(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "hf": model.origin.hf_config,
        **model.origin.settings,
    }


def load_own(folder: Path, config: dict[str, Any], device: str | torch.device, dtype: torch.dtype | None) -> Model:
    model = _outline_own(folder, config)
    if dtype is None and "dtype" in config:
        dtype = read_dtype(str(config["dtype"]))
    base = None if config.get("base") is None else read(shipped.place(str(config["base"])), "cpu", torch.float32)
    if base is None:
        fill_own(model, folder, device, dtype)
    else:
        complete(model, base, folder, device, dtype if dtype is not None else torch.float32)
    model.origin.recipe = config.get("recipe")
    model.origin.hf_config = config.get("hf", {})
    model.origin.settings = {name: config[name] for name in SECTIONS if name in config}
    read_companions(model, folder)
    if base is not None:
        words = {name: content for name, content in base.origin.files.items() if WORDS.match(name)}
        model.origin.files = {**words, **model.origin.files}
    return model.eval()


def _outline_own(folder: Path, config: dict[str, Any]) -> Model:
    family = registry.family(str(config.get("family")))
    try:
        settings = family.config.from_json(config.get("model", {}))
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from None
    return registry.outline(family, settings)


def fill_own(model: Model, folder: Path, device: str | torch.device, dtype: torch.dtype | None) -> None:
    stored = list_tensors(folder)
    scales = scales_of(stored)
    beside = {one.name for one in scales.values()}
    stored = {name: one for name, one in stored.items() if name not in beside}
    own = {brief(path) for path, _ in (*model.named_parameters(), *model.named_buffers())}
    keys = [Key(name, name) for name in addresses(model) if name in own]
    check_fit(folder, sorted(own - set(stored)), sorted(set(stored) - own))
    fill(model, keys, stored, folder, device, dtype)
    rescale(addresses(model), scales)
