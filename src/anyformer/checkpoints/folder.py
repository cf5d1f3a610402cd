"""A model folder, whichever form it has: af.load and model.save."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import torch

from anyformer import plugins, pretrained, registry
from anyformer.checkpoints.adapter import is_adapter, load_adapter, load_adapter_meta
from anyformer.checkpoints.delta import apply_delta, own_tensors
from anyformer.checkpoints.edits import check_edits
from anyformer.checkpoints.files import WEIGHT_FILES, check_fit, check_layers, list_own, write_tensors
from anyformer.checkpoints.hf import (
    fill,
    folder_source,
    load_hf,
    load_hf_meta,
    read_companions,
    save_hf,
    torch_source,
    write_companions,
)
from anyformer.checkpoints.key_table import Key, named_tensors
from anyformer.checkpoints.low_precision import dequantize, scales_of
from anyformer.checkpoints.torch_file import is_torch_file
from anyformer.core import rewrites
from anyformer.device import choose_device, read_dtype
from anyformer.errors import ConfigError, FolderError, WeightsError, nearest
from anyformer.jsonfile import read_object
from anyformer.model import Model
from anyformer.saving import whole_folder
from anyformer.schema import Length, Range, check_fields
from anyformer.upgrades import FAMILIES
from anyformer.version import __version__

FORMATS = ("anyformer", "hf")
SECTIONS = ("task", "data", "tokenizer", "train")  # of config.json, beside the model's own

SCHEMA: Mapping[str, Any] = {
    **{"family": str, "model": dict[str, Any], "recipe": str | None, "dtype": str, "base": str | None},
    **dict.fromkeys(("hf", *SECTIONS), dict[str, Any]),
    "plugins": dict[str, list[str]],  # module -> what it registered
}

# What tasks write into their section, beside their options.
TASK: Mapping[str, Any] = {
    **{"name": str, "labels": list[str], "meaning": dict[str, str], "runs_on": bool, "commonest": str},
    "max_length": Annotated[int, Range(1)] | None,
    "ids": list[Annotated[int, Range(0, 2**24)]],  # of classes in masks
    "bones": list[Annotated[list[int], Length(2, 2)]],
    "mean_pose": list[Annotated[list[float], Length(2, 2)]] | None,
}

WORDS = re.compile(r"tokenizer|vocab|merges|special_tokens|added_tokens")  # the files of a tokenizer


def load(
    folder: str | PathLike[str],
    device: str | torch.device = "auto",
    dtype: torch.dtype | str | None = None,
    weights: str | None = None,
    ignore: Collection[str] = (),
    optimize: bool = True,
) -> Model:
    """A model in eval mode, from an anyformer folder, a Hugging Face one, a .gguf or a .pt file, or one that ships.

    It has the type that it was saved in, or `dtype` ("bfloat16"). device="auto": cuda, mps or cpu, the first that there
    is. weights="int8" rounds the matrices to 8 bits, which a CPU runs faster.

    A Hugging Face config with fields that anyformer does not know is an error; `ignore` names those that make no
    difference to the numbers you want.

    The model runs with faster modules of equal numbers, but for rounding. On a CPU, matrices in float32 are packed when
    they are first used, which takes memory for a copy (`model.packed_bytes`); `optimize=False` leaves plain modules."""
    if isinstance(ignore, str):
        raise ConfigError(f'ignore is a list of field names, such as ["{ignore}"].')
    if dtype is not None:
        dtype = read_dtype(dtype)
    device = choose_device(device)
    path = pretrained.resolve_path(_place(folder))
    if weights is not None:
        return read(path, device, torch.float32 if dtype is None else dtype, ignore).quantize(weights)
    model = read(path, device, dtype, ignore)
    model.auto_optimize = optimize
    if optimize:
        rewrites.apply("optimize_on_use", model)
    return model


def load_meta(folder: str | PathLike[str]) -> Model:
    """A folder's model without its weights, on the meta device: its settings, and the names and shapes of its tensors.
    What `load` warns of is not said."""
    path = pretrained.resolve_path(_place(folder))
    if _is_gguf(path):
        from anyformer.checkpoints.gguf import load_gguf_meta

        return load_gguf_meta(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_torch_file(path):
            return load_hf_meta(torch_source(path))[1]
        if is_adapter(path):
            return load_adapter_meta(path, load_meta)
        config = _config(path)
        own = "anyformer" in config
        return _outline_own(path, config) if own else load_hf_meta(folder_source(path, config))[1]


def read(path: Path, device: str | torch.device, dtype: torch.dtype | None, ignore: Collection[str] = ()) -> Model:
    """Whichever form it has."""
    if is_torch_file(path):
        return load_hf(torch_source(path), device, dtype, ignore)
    if is_adapter(path):
        return load_adapter(path, device, dtype, lambda base: read(base, device, dtype))
    if ignore and (_is_gguf(path) or "anyformer" in _config(path)):
        raise ConfigError(f"ignore is for the config of a Hugging Face folder, and {path} is none.")
    if _is_gguf(path):
        from anyformer.checkpoints.gguf import load_gguf

        return load_gguf(path, device, dtype)
    config = _config(path)
    if "anyformer" in config:
        return load_own(path, config, device, dtype)
    return load_hf(folder_source(path, config), device, dtype, ignore)


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
        hint = pretrained.hint(path)
        if str(path) in registry.recipes():
            hint = f' "{path}" is a recipe: af.build makes a new model of it, and anyformer train trains one.'
        raise FolderError(
            f"{path} {what}; give a model folder (config.json and safetensors), a .gguf or a .pt file.{hint}"
        )
    if not (path / "config.json").exists() and (path / "train.json").exists():
        raise FolderError(f"The run in {path} is not finished; the command that began it goes on with --resume.")
    if not (path / "config.json").exists():
        raise FolderError(f"{path} has no config.json, so it is no model folder.")
    return read_object(path / "config.json")


def save(model: Model, folder: str | PathLike[str], format: str = "anyformer") -> None:
    if format not in FORMATS:
        raise ConfigError(f'There is no format "{format}".{nearest(format, FORMATS)} There are: {", ".join(FORMATS)}.')
    if model.is_quantized:
        raise WeightsError("The weights of this model are rounded to int8; load it again without that to save it.")
    check_edits(model)
    with whole_folder(Path(_place(folder)), replaces=WEIGHT_FILES) as draft:
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
        **needed_plugins(model),
    }


def needed_plugins(model: Model) -> dict[str, Any]:
    """The plugins that a folder of the model needs, if any."""
    settings = model.config.to_json()
    found = plugins.needed(
        {
            "family": [model.family],
            "score": [str(settings.get("score"))],
            "positions": str(settings.get("positions")).split("+"),
            "task": [str(model.origin.settings.get("task", {}).get("name"))],
        }
    )
    return {"plugins": found} if found else {}


def load_own(folder: Path, config: dict[str, Any], device: str | torch.device, dtype: torch.dtype | None) -> Model:
    model = _outline_own(folder, config)
    if dtype is None and "dtype" in config:
        dtype = read_dtype(str(config["dtype"]))
    base = None if config.get("base") is None else read(pretrained.complete(str(config["base"])), "cpu", torch.float32)
    if base is None:
        fill_own(model, folder, device, dtype)
    else:
        apply_delta(model, base, folder, device, dtype if dtype is not None else torch.float32)
    model.origin.recipe = config.get("recipe")
    model.origin.hf_config = config.get("hf", {})
    model.origin.settings = {name: config[name] for name in SECTIONS if name in config}
    read_companions(model, folder)
    if base is not None:
        words = {name: content for name, content in base.origin.files.items() if WORDS.match(name)}
        model.origin.files = {**words, **model.origin.files}
    return model.eval()


def _outline_own(folder: Path, config: dict[str, Any]) -> Model:
    check_fields(config, SCHEMA, str(folder / "config.json"))
    check_fields(config.get("task", {}), TASK, f'{folder / "config.json"}, "task"')
    if config.get("plugins"):
        registry.load_recipes()
        plugins.check(folder, config["plugins"])
    saved = str(config.get("family"))
    family = registry.family(FAMILIES.get(saved, saved))
    try:
        settings = family.config.from_json(config.get("model", {}))
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
        raise ConfigError(f'{folder / "config.json"}: "model" makes no {family.name}: {str(error)[:200]}.') from None
    check_layers(settings, _tensors(folder, config), folder)
    return registry.build_meta(family, settings)


def _tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a folder stores, with what the model that it is built on does."""
    base = None if config.get("base") is None else pretrained.complete(config["base"])
    return {**(list_own(base) if base is not None and base.is_dir() else {}), **list_own(folder)}


def fill_own(model: Model, folder: Path, device: str | torch.device, dtype: torch.dtype | None) -> None:
    stored = list_own(folder)
    scales = scales_of(stored)
    beside = {one.name for one in scales.values()}
    stored = {name: one for name, one in stored.items() if one.name not in beside}
    own = {path for path, _ in (*model.named_parameters(), *model.named_buffers())}
    keys = [Key(name, name) for name in named_tensors(model) if name in own]
    check_fit(folder, sorted(own - set(stored)), sorted(set(stored) - own))
    fill(model, keys, stored, folder, device, dtype)
    dequantize(named_tensors(model), scales)
