"""Hugging Face folders: read one into a model, write a model as one."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from anyformer import registry
from anyformer.checkpoints.files import StoredTensor, check_fit, check_layers, list_tensors, read_tensors, write_tensors
from anyformer.checkpoints.hf_config import ENDS, SCHEMA, leave_out, read_config, warn_of_ids
from anyformer.checkpoints.key_table import Key, KeyTable, named_tensors
from anyformer.checkpoints.torch_file import read_torch_file, state_dict
from anyformer.config import Settings
from anyformer.core.init import materialize
from anyformer.errors import ConfigError, FolderError, WeightsError, nearest
from anyformer.jsonfile import check_inside, read_bytes, read_object
from anyformer.model import Model
from anyformer.recipes.base import SequenceConfig, TransformerConfig
from anyformer.schema import check_fields

# Small files that belong to a model and are carried along unchanged.
COMPANIONS = re.compile(
    r"(tokenizer.*\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(json|txt)|merges\.txt|.*\.(model|spm)"
    r"|chat_template\.(jinja|json)|(pre)?processor_config\.json|image_processor_config\.json|modules\.json"
    r"|normalizer\.json|README\.md|LICENSE"
    r"|sentence_bert_config\.json|config_sentence_transformers\.json|\d+_\w+/config\.json)"
)
CARD = "README.md"
SENTENCES = re.compile(r"modules\.json|(config_)?sentence_.*\.json|\d+_\w+/.*")  # how a sentence encoder makes vectors

FORMULAS = 2**24  # numbers that a file may leave to formulas (fixed positions), or as many as it holds


@dataclass(frozen=True)
class Source:
    """A model in the Hugging Face form: its config, its tensors, and the folder of the files beside them. `place` is
    what errors name: the folder, or one file."""

    place: Path
    folder: Path
    config: dict[str, Any]
    tensors: dict[str, StoredTensor]
    generation: dict[str, Any] = field(default_factory=dict)  # unless a file beside says more


def folder_source(folder: Path, config: dict[str, Any]) -> Source:
    return Source(folder, folder, config, list_tensors(folder))


def torch_source(file: Path) -> Source:
    """A .pt or .bin file, and the config in it (Whisper's) or beside it."""
    from anyformer.checkpoints.key_tables.openai_whisper import as_hf, is_openai_whisper

    content = read_torch_file(file)
    if is_openai_whisper(content):
        config, generation, tensors = as_hf(content, file)
        return Source(file, file.parent, config, tensors, generation)
    beside = file.parent / "config.json"
    if not beside.exists():
        raise FolderError(f"{file} holds tensors alone; to load it, put the config.json of its model beside it.")
    config = read_object(beside)
    if "anyformer" in config:
        raise FolderError(f"{file} is beside an anyformer config.json, whose weights are safetensors; give the folder.")
    return Source(file, file.parent, config, state_dict(content, file))


def load_hf(source: Source, device: str | torch.device, dtype: torch.dtype | None, ignore: Iterable[str] = ()) -> Model:
    table, model = load_hf_meta(source, ignore)
    found = match(table, model.config, source.tensors, source.place)
    fill(model, table.keys(model.config), found, source.place, device, dtype)
    model.origin.hf_config = source.config
    read_companions(model, source.folder)
    model.origin.generation = model.origin.generation or source.generation
    return model.eval()


def load_hf_meta(source: Source, ignore: Iterable[str] = ()) -> tuple[KeyTable, Model]:
    """The model without its weights, and the table of its family."""
    config, folder = source.config, source.folder
    table, architecture = find_table(config, folder)
    if ignore:
        config = leave_out(table, config, ignore, folder / "config.json")
    settings = read_config(table, architecture, config, folder)
    check_layers(settings, source.tensors, source.place)
    return table, registry.build_meta(registry.family(table.family), settings)


def key_tables() -> dict[str, KeyTable]:
    """Key tables by model type. They import every recipe, which `import anyformer` should not wait for."""
    from anyformer.checkpoints.key_tables import TABLES

    return TABLES


def find_table(config: dict[str, Any], folder: Path) -> tuple[KeyTable, str]:
    check_fields(config, SCHEMA, str(folder / "config.json"), error=FolderError)
    kind = config.get("model_type")
    tables = key_tables()
    known = sorted(tables)
    if kind is None:
        raise FolderError(
            f'{folder / "config.json"} does not say which family the model is of ("model_type"); anyformer knows:'
            f" {', '.join(known)}."
        )
    if kind not in tables:
        raise FolderError(
            f'{folder} is a "{kind}" model, a family that anyformer does not know.{nearest(kind, known)}'
            f" It knows: {', '.join(known)}."
        )
    table = tables[kind]
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


def match(table: KeyTable, settings: Any, stored: dict[str, StoredTensor], folder: Path) -> dict[str, StoredTensor]:
    """The file's tensor for each of `Key.theirs`; every missing or extra one is named in one error."""
    keys = table.keys(settings)
    held = {table.canonical(settings, name): tensor for name, tensor in stored.items()}
    found = {}
    for key in keys:
        names = [name for name in (key.theirs, *key.also) if name in held]
        if names:
            found[key.theirs] = held[names[0]]
    expected = {name for key in keys for name in (key.theirs, *key.also)}
    leftovers = [re.compile(pattern) for pattern in table.ignored_keys(settings)]
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
    found: dict[str, StoredTensor],
    folder: Path,
    device: str | torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Give a model on the meta device its memory and copy the file's tensors into it, one at a time."""
    shapes = named_tensors(model)
    homeless = [key.theirs for key in keys if key.ours not in shapes]
    if homeless:
        raise ConfigError(f"The config in {folder} makes a model without {homeless[0]}, which its class has.")
    wrong = [
        f"{found[key.theirs].name} is {list(found[key.theirs].shape)}, expected {list(key.expected(shapes[key.ours]))}"
        for key in keys
        if key.theirs in found and found[key.theirs].shape != key.expected(shapes[key.ours])
    ]
    check_fit(folder, wrong=wrong)
    made = sum(shapes[key.ours].numel() for key in keys if key.theirs not in found)
    held = sum(torch.Size(stored.shape).numel() for stored in found.values())
    if made > max(held, FORMULAS):
        raise WeightsError(
            f"The config in {folder} asks for tables of {made:,} numbers; its file holds {held:,} in all."
        )
    used = [found[key.theirs] for key in keys if key.theirs in found]
    materialize(model, device, dtype if dtype is not None else main_dtype(used, folder))
    places = named_tensors(model)
    by_stored: dict[StoredTensor, list[Key]] = {}
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
        if any(f"{path}.{name}" in absent for name in (*module._parameters, *module._buffers)):
            module.reset(0.0)


def main_dtype(stored: Iterable[StoredTensor], place: Path) -> torch.dtype:
    """The type that most of the weights are stored in; float32 if that would round others, which is then said."""
    sizes: Counter[torch.dtype] = Counter()
    for one in stored:
        if one.dtype.is_floating_point:
            sizes[one.dtype] += one.bytes
    if not sizes:
        return torch.float32
    main = sizes.most_common(1)[0][0]
    if main not in (torch.float16, torch.bfloat16) or len(sizes) == 1:
        return main
    kinds = sorted(str(kind).removeprefix("torch.") for kind in sizes)
    warnings.warn(
        f"{place} holds weights in {' and '.join(kinds)}; the model is float32, so that none is rounded."
        f' dtype="{str(main).removeprefix("torch.")}" takes half the memory.',
        stacklevel=2,
    )
    return torch.float32


def read_companions(model: Model, folder: Path) -> None:
    """Everything beside the weights, to be written back."""
    generation = folder / "generation_config.json"
    model.origin.generation = read_object(generation) if generation.exists() else {}
    owner: Any = model.heads["language"] if "language" in model.heads else model  # noqa: SIM401
    size = getattr(owner.config, "vocab_size", None)
    if isinstance(size, int):
        warn_of_ids(model.origin.hf_config, size, folder / "config.json")
        warn_of_ids(model.origin.generation, size, generation)
    model.origin.files = read_files(folder)


def read_files(folder: Path) -> dict[str, bytes]:
    """The small files that belong to a model."""
    inside = {str(path.relative_to(folder)): path for path in (*folder.iterdir(), *folder.glob("*/config.json"))}
    files = {name: inside[name] for name in sorted(inside) if COMPANIONS.fullmatch(name) and inside[name].is_file()}
    kept = {name: path for name, path in files.items() if _is_inside(path, folder)}
    return {name: read_bytes(path, folder=folder) for name, path in kept.items()}


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a companion lies in its folder. What a link finds elsewhere is neither read nor written into exports."""
    try:
        check_inside(path, folder)
    except FolderError as error:
        warnings.warn(f"{error} It is left aside.", stacklevel=5)
        return False
    return True


def save_hf(model: Model, folder: Path) -> None:
    table, architecture = table_for(model)
    settings: Any = model.config
    places = named_tensors(model)
    tensors = {}
    for key in table.keys(settings):
        if not key.optional:
            tensors[table.rename(settings, key.theirs)] = key.write(places[key.ours].detach()).contiguous().cpu()
    for name, source in table.duplicate_keys(settings).items():
        tensors[name] = tensors[source].clone()
    for name, tensor in table.generated_tensors(settings).items():
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
    write_files(model.origin.files, folder)
    if model.origin.generation:
        text = json.dumps(model.origin.generation, indent=2, sort_keys=True)
        (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Files by their names, some of which lie in a folder of their own (1_Pooling/config.json)."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def table_for(model: Model) -> tuple[KeyTable, str]:
    for table in key_tables().values():
        if table.family == model.family:
            for architecture, ours in table.architectures.items():
                if all(getattr(model.config, name) == value for name, value in ours.items()):
                    _check_expressible(table, architecture, model.config)
                    return table, architecture
    raise ConfigError(
        f"No Hugging Face class has the settings of this {model.family} model; save it in anyformer's own form."
    )


# Settings that only training reads, which a Hugging Face config need not have.
_TRAINING = {"init_std", "drop_path", "layer_drop", "embedding_dropout", "hidden_dropout", "head_dropout"}


def _check_expressible(table: KeyTable, architecture: str, config: Settings) -> None:
    """Raise ConfigError if a setting of a transformer that the class has no field for is not the family's default."""
    said = {entry.ours for entry in table.fields} | table.architectures[architecture].keys() | _TRAINING
    for one in dataclasses.fields(cast("Any", config)):
        value = getattr(config, one.name)
        shared = isinstance(config, SequenceConfig) and one.name in TransformerConfig.field_names()
        if shared and one.name not in said and value != one.default:
            raise ConfigError(
                f"{one.name} is {value!r}; Hugging Face's {architecture} has no setting for it, and does as"
                f" {one.default!r} says. Save the model in anyformer's own form."
            )


def _write_absent_ids(config: dict[str, Any]) -> None:
    """Say null for the tokens at the start and end of a text that the model does not have, also in the configs inside
    it: for an absent field, transformers assumes an id of the original vocabulary."""
    if "vocab_size" in config:
        for name in ENDS:
            config.setdefault(name, None)
    for value in config.values():
        if isinstance(value, dict):
            _write_absent_ids(value)


def write_config(table: KeyTable, architecture: str, model: Model) -> dict[str, Any]:
    """What the folder came with, and every field that says something else by now."""
    config = dict(model.origin.hf_config)
    today = table.upgrade_config({**config, "architectures": [architecture]}) if config else {}
    for entry in table.fields:
        ours = getattr(model.config, entry.ours)
        unsaid = entry.theirs not in today and ours is None and entry.default is None
        if not unsaid and (entry.theirs not in today or entry.read(today[entry.theirs]) != ours):
            config[entry.theirs] = entry.write(ours)
    if "id2label" in config:
        config.pop("num_labels", None)  # which they count again
        config["label2id"] = {str(label): int(index) for index, label in config["id2label"].items()}
    for name, value in table.extra_fields(model.config, today).items():
        config[name] = value
        if value is None and name not in table.nulls:  # not said at all: some versions trip over a null
            del config[name]
    config["architectures"] = [architecture]
    config["model_type"] = table.model_type
    if "model_type" not in model.origin.hf_config:  # a folder from elsewhere relies on its class's defaults
        _write_absent_ids(config)
    config.pop("torch_dtype", None)
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    return config
