"""Hugging Face folders: read one into a model, write a model as one."""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer import registry
from anyformer.config import Settings
from anyformer.core.init import materialise
from anyformer.core.taps import brief
from anyformer.errors import ConfigError, FolderError, nearest
from anyformer.model import Model
from anyformer.weights.files import Stored, check_fit, list_tensors, read_json, read_tensors, write_tensors
from anyformer.weights.table import GENERAL, Key, Table, addresses
from anyformer.weights.tables import TABLES

# Small files that belong to a model and are carried along unchanged.
COMPANIONS = re.compile(
    r"(tokenizer.*\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt|.*\.(model|spm)"
    r"|chat_template\.(jinja|json)|(pre)?processor_config\.json|image_processor_config\.json|modules\.json"
    r"|normalizer\.json|README\.md|LICENSE)"
)


def load_hf(folder: Path, config: dict[str, Any], device: str | torch.device, dtype: torch.dtype | None) -> Model:
    table, model = outline_hf(folder, config)
    settings = model.config
    fill(model, table.keys(settings), match(table, settings, list_tensors(folder), folder), folder, device, dtype)
    model.origin.hf_config = config
    read_companions(model, folder)
    return model.eval()


def outline_hf(folder: Path, config: dict[str, Any]) -> tuple[Table, Model]:
    """The model without its weights, and the table of its family."""
    table, architecture = find_table(config, folder)
    settings = read_config(table, architecture, config, folder)
    return table, registry.outline(registry.family(table.family), settings)


def find_table(config: dict[str, Any], folder: Path) -> tuple[Table, str]:
    kind = config.get("model_type")
    known = sorted(TABLES)
    if kind is None:
        raise FolderError(
            f'{folder / "config.json"} does not say which family the model is of ("model_type"); anyformer knows:'
            f" {', '.join(known)}."
        )
    if not isinstance(kind, str) or kind not in TABLES:
        raise FolderError(
            f'{folder} is a "{kind}" model, a family that anyformer does not know.{nearest(str(kind), known)}'
            f" It knows: {', '.join(known)}."
        )
    table = TABLES[kind]
    named = config.get("architectures") or []
    named = [named] if isinstance(named, str) else named
    if not named:
        raise FolderError(
            f'{folder / "config.json"} does not say which class the weights are of ("architectures"); for {kind} it can'
            f" be {', '.join(table.architectures)}."
        )
    if named[0] not in table.architectures:
        raise FolderError(
            f"{folder} holds a {named[0]}, which anyformer does not load.{nearest(named[0], table.architectures)}"
            f" Of {kind} it loads: {', '.join(table.architectures)}."
        )
    return table, named[0]


def read_config(table: Table, architecture: str, config: dict[str, Any], folder: Path) -> Settings:
    """Their config as our settings. A field that changes numbers and is not supported is an error that names it."""
    where = folder / "config.json"
    try:
        config = table.adjust({**config, "architectures": [architecture]})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if config.get("quantization_config"):
        raise ConfigError(f'{where}: "quantization_config" is set; anyformer loads weights that are not quantised.')
    for name, values in table.fixed.items():
        if name in config and config[name] not in values:
            wanted = " or ".join(repr(value) for value in values)
            raise ConfigError(
                f'{where}: "{name}" is {config[name]!r}; anyformer supports only {wanted} for {architecture}.'
            )
    ours: dict[str, Any] = dict(table.architectures[architecture])
    for entry in table.fields:
        value = config.get(entry.theirs, entry.default)
        try:
            ours[entry.ours] = entry.read(value)
        except (ConfigError, TypeError, ValueError, KeyError, IndexError) as error:
            raise ConfigError(f'{where}: "{entry.theirs}" is {value!r}, which is not supported: {error}') from None
    known = {entry.theirs for entry in table.fields} | set(table.fixed) | table.inert | GENERAL
    unknown = sorted(name for name in config if name not in known and not name.startswith("_"))
    if unknown:
        warnings.warn(
            f"{where} has fields that anyformer does not know and leaves aside: {', '.join(unknown)}.", stacklevel=4
        )
    try:
        return registry.family(table.family).config(**ours)
    except ConfigError as error:
        names = {entry.ours: entry.theirs for entry in table.fields}
        hint = ", ".join(f"{o} is their {t}" for o, t in names.items() if o != t and re.search(rf"\b{o}\b", str(error)))
        raise ConfigError(f"{where}: {error}{f' ({hint})' if hint else ''}") from None


def match(table: Table, settings: Any, stored: dict[str, Stored], folder: Path) -> dict[str, Stored]:
    """The file's tensor for each of `Key.theirs`; every missing or extra one is named in one error."""
    keys = table.keys(settings)
    held = {table.canonical(settings, name): tensor for name, tensor in stored.items()}
    found = {}
    for key in keys:
        names = [name for name in (key.theirs, *key.also) if name in held]
        if names:
            found[key.theirs] = held[names[0]]
    expected = {name for key in keys for name in (key.theirs, *key.also)}
    leftovers = [re.compile(pattern) for pattern in table.leftovers(settings)]
    extra = [
        tensor.name
        for name, tensor in held.items()
        if name not in expected and not any(pattern.search(name) for pattern in leftovers)
    ]
    missing = [key.theirs for key in keys if key.theirs not in found and not key.optional]
    check_fit(folder, missing, extra)
    return found


def fill(
    model: Model,
    keys: list[Key],
    found: dict[str, Stored],
    folder: Path,
    device: str | torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Give a model on the meta device its memory and copy the file's tensors into it, one at a time."""
    shapes = addresses(model)
    wrong = [
        f"{found[key.theirs].name} is {list(found[key.theirs].shape)}, expected {list(key.expected(shapes[key.ours]))}"
        for key in keys
        if key.theirs in found and found[key.theirs].shape != key.expected(shapes[key.ours])
    ]
    check_fit(folder, wrong=wrong)
    materialise(model, device, dtype if dtype is not None else main_dtype(found))
    places = addresses(model)
    by_stored: dict[Stored, list[Key]] = {}
    for key in keys:
        if key.theirs in found:
            by_stored.setdefault(found[key.theirs], []).append(key)
    with torch.no_grad():
        for stored, tensor in read_tensors(by_stored):
            for key in by_stored[stored]:
                places[key.ours].copy_(key.read(tensor, places[key.ours]))
        absent = {key.ours for key in keys if key.theirs not in found}
        for name in absent:  # a role of a fused matrix has no formula of its own: its bias is zero
            places[name].zero_()
        _fill_formulas(model, absent)


def _fill_formulas(model: Model, absent: set[str]) -> None:
    """What the file leaves out because a formula gives it: fixed position tables, biases that are zero."""
    for path, module in model.named_modules():
        if any(brief(f"{path}.{name}") in absent for name in (*module._parameters, *module._buffers)):
            module.reset(0.0)


def main_dtype(found: dict[str, Stored]) -> torch.dtype:
    """The type that most of the weights are stored in."""
    sizes: Counter[torch.dtype] = Counter()
    for stored in found.values():
        if stored.dtype.is_floating_point:
            sizes[stored.dtype] += stored.bytes
    return sizes.most_common(1)[0][0] if sizes else torch.float32


def read_companions(model: Model, folder: Path) -> None:
    """Everything beside the weights, to be written back."""
    generation = folder / "generation_config.json"
    model.origin.generation = read_json(generation) if generation.exists() else {}
    files = sorted(path for path in folder.iterdir() if path.is_file() and COMPANIONS.fullmatch(path.name))
    model.origin.files = {path.name: path.read_bytes() for path in files}


def save_hf(model: Model, folder: Path) -> None:
    table, architecture = table_for(model)
    settings: Any = model.config
    places = addresses(model)
    tensors = {}
    for key in table.keys(settings):
        if not key.optional:
            tensors[table.rename(settings, key.theirs)] = key.write(places[key.ours].detach()).contiguous().cpu()
    for name, source in table.copies(settings).items():
        tensors[name] = tensors[source].clone()
    for name, tensor in table.made(settings).items():
        tensors[table.rename(settings, name)] = tensor.to(model.dtype)
    write_tensors(folder, _apart(tensors))
    config = write_config(table, architecture, model)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    write_companions(model, folder)


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Safetensors wants no two names for one memory."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def write_companions(model: Model, folder: Path) -> None:
    for name, content in model.origin.files.items():
        (folder / name).write_bytes(content)
    if model.origin.generation:
        text = json.dumps(model.origin.generation, indent=2, sort_keys=True)
        (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")


def table_for(model: Model) -> tuple[Table, str]:
    for table in TABLES.values():
        if table.family == model.family:
            for architecture, ours in table.architectures.items():
                if all(getattr(model.config, name) == value for name, value in ours.items()):
                    return table, architecture
    raise ConfigError(
        f"No Hugging Face class has the settings of this {model.family} model; save it in anyformer's own form."
    )


def write_config(table: Table, architecture: str, model: Model) -> dict[str, Any]:
    """What the folder came with, and every field that says something else by now."""
    config = dict(model.origin.hf_config)
    today = table.adjust({**config, "architectures": [architecture]}) if config else {}
    for entry in table.fields:
        ours = getattr(model.config, entry.ours)
        unsaid = entry.theirs not in today and ours is None and entry.default is None
        if not unsaid and (entry.theirs not in today or entry.read(today[entry.theirs]) != ours):
            config[entry.theirs] = entry.write(ours)
    if "id2label" in config:
        config["label2id"] = {label: int(index) for index, label in config["id2label"].items()}
    for name, value in table.extras(model.config, today).items():
        config[name] = value
        if value is None:  # not said at all: some versions of the class trip over a null
            del config[name]
    config["architectures"] = [architecture]
    config["model_type"] = table.model_type
    config.pop("torch_dtype", None)
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    return config
