"""Adapters in the form of Hugging Face's peft: LoRA updates of a base model's matrices, read and merged into it.

adapter_config.json          the base model, and how the updates are scaled
adapter_model.safetensors    A [rank, in] and B [out, rank] for each matrix; new heads and biases whole
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from anyformer import pretrained
from anyformer.checkpoints.files import StoredTensor, check_fit, list_safetensors, list_torch, read_tensors
from anyformer.checkpoints.hf import Source, find_table, folder_source, load_hf, load_hf_meta, read_files, torch_source
from anyformer.checkpoints.hf_config import read_config
from anyformer.checkpoints.key_table import Key, KeyTable, named_tensors
from anyformer.checkpoints.peft import PREFIX, model_keys
from anyformer.checkpoints.torch_file import is_torch_file
from anyformer.errors import ConfigError, FolderError, WeightsError
from anyformer.jsonfile import read_object
from anyformer.model import Model
from anyformer.schema import Matches, Range, check_fields, shown

CONFIG, WEIGHTS, TORCH = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_PATTERN = Annotated[str, Matches(r"\^?[\w.\\]+")]  # a module's path or the end of one; no other regular expression
_ALPHA = Annotated[float, Range(-1e6, 1e6)]
SCHEMA: Mapping[str, Any] = {
    "peft_type": str,
    "base_model_name_or_path": str | None,
    "r": Annotated[int, Range(1, 2**20)],
    "lora_alpha": _ALPHA,
    "alpha_pattern": dict[str, _ALPHA] | None,
    "use_rslora": bool | None,
    "init_lora_weights": bool | str | None,
    "task_type": str | None,
}
# Fields that say how an adapter was made, or what its tensors show.
IGNORED = frozenset(
    """auto_mapping peft_version revision inference_mode target_modules exclude_modules lora_dropout fan_in_fan_out bias
    modules_to_save layers_to_transform layers_pattern rank_pattern megatron_core loftq_config eva_config
    qalora_group_size runtime_config ensure_weight_tying""".split()
)
INITS = (True, False, None, "gaussian", "eva", "orthogonal")  # others change the base model's weights
TASKS = {
    "CAUSAL_LM": "ForCausalLM",
    "SEQ_CLS": "ForSequenceClassification",
    "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
    "FEATURE_EXTRACTION": "Model",
    "SEQ_2_SEQ_LM": "ForConditionalGeneration",
}
_PART = re.compile(r"(.+)\.lora_(embedding_)?([AB])(\.weight)?")


@dataclass(frozen=True)
class Update:
    """What is added to a matrix: scale · B A."""

    name: str  # the matrix, as peft names it
    a: StoredTensor
    b: StoredTensor
    scale: float
    embedding: bool


@dataclass(frozen=True)
class Adapter:
    """A folder's adapter, not yet read: updates, and tensors that replace the base model's or are new."""

    folder: Path
    config: Mapping[str, Any]
    updates: tuple[Update, ...]
    whole: Mapping[str, StoredTensor]

    @property
    def names(self) -> set[str]:
        return {*self.whole, *(update.name for update in self.updates)}


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


def load_adapter(
    folder: Path, device: str | torch.device, dtype: torch.dtype | None, read: Callable[[Path], Model]
) -> Model:
    """The base model with the adapter merged into its weights. `read` loads a base in another form than Hugging
    Face's."""
    adapter = open_adapter(folder)
    base = base_path(adapter)
    source = _hf_source(base)
    if source is None:
        model = read(base)
        merge(model, adapter, model_keys(model), adapter.whole)
    else:
        source, table = with_adapter(source, adapter)
        model = load_hf(source, device, dtype)
        settings = model.config
        keys = {name: key for key in table.keys(settings) for name in (key.theirs, *key.also)}
        merge(model, adapter, {name: keys.get(table.canonical(settings, name)) for name in adapter.names})
    model.origin.files |= read_files(folder)
    return model


def load_adapter_meta(folder: Path, read: Callable[[Path], Model]) -> Model:
    """The model without its weights."""
    adapter = open_adapter(folder)
    source = _hf_source(base_path(adapter))
    return read(base_path(adapter)) if source is None else load_hf_meta(with_adapter(source, adapter)[0])[1]


def open_adapter(folder: Path) -> Adapter:
    config, where = read_object(folder / CONFIG), str(folder / CONFIG)
    check_fields(config, SCHEMA, where)
    if config.get("peft_type") != "LORA":
        raise ConfigError(f"{where} is of type {shown(config.get('peft_type'))}; anyformer loads LORA adapters.")
    if config.get("init_lora_weights", True) not in INITS:
        raise ConfigError(
            f'{where}: "init_lora_weights" is {shown(config["init_lora_weights"])}, which changes the base model too;'
            " save the adapter converted (path_initial_model_for_weight_conversion)."
        )
    for name, value in config.items():
        if name not in IGNORED and name not in SCHEMA and value not in (None, False, [], {}):
            raise ConfigError(f'{where}: "{name[:40]}" is {shown(value)}, which anyformer does not support.')
    if (folder / WEIGHTS).exists():
        stored = list_safetensors(folder / WEIGHTS)
    elif (folder / TORCH).exists():
        stored = list_torch(folder / TORCH)
    else:
        raise FolderError(f"{folder} has no weights: neither {WEIGHTS} nor {TORCH} is there.")
    return _sorted(folder, config, {_plain(one.name): one for one in stored})


def _plain(name: str) -> str:
    """The base model's name of a tensor."""
    return name.removeprefix(PREFIX).replace(".base_layer.", ".")


def _sorted(folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]) -> Adapter:
    """The tensors as pairs of A and B, and the others."""
    parts = {name: found for name in stored if (found := _PART.fullmatch(name)) is not None}
    strange = sorted(name for name in stored if "lora_" in name and name not in parts)
    halves: dict[str, dict[str, StoredTensor]] = {found[1]: {} for found in parts.values()}
    for name, found in parts.items():
        halves[found[1]][found[3]] = stored[name]
    missing = [f"{path}.lora_{end}" for path, pair in halves.items() for end in "AB" if end not in pair]
    check_fit(folder, missing, strange)
    embeddings = {found[1] for found in parts.values() if found[2]}
    updates = []
    for path, pair in halves.items():
        rank = pair["A"].shape[0] if pair["A"].shape else 0
        if len(pair["A"].shape) < 2 or len(pair["B"].shape) < 2 or rank == 0 or pair["B"].shape[1] != rank:
            raise WeightsError(
                f"{folder}: lora_A and lora_B of {path} have shapes {list(pair['A'].shape)} and"
                f" {list(pair['B'].shape)}; expected [rank, in] and [out, rank]."
            )
        scale = _alpha(config, path) / (math.sqrt(rank) if config.get("use_rslora") else rank)
        updates.append(Update(f"{path}.weight", pair["A"], pair["B"], scale, path in embeddings))
    if not updates:
        raise FolderError(f"{folder} has no adapters: no tensor is named lora_A.")
    return Adapter(folder, config, tuple(updates), {name: stored[name] for name in stored if name not in parts})


def _alpha(config: Mapping[str, Any], path: str) -> float:
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    check_fields({"alpha_pattern": list(patterns)}, {"alpha_pattern": list[_PATTERN]}, CONFIG)
    found = [value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", path)]
    return float(found[0] if found else config.get("lora_alpha", 8))


def base_path(adapter: Adapter) -> Path:
    """The base model's folder: as the config names it, from here or from the adapter's folder."""
    where, named = adapter.folder / CONFIG, adapter.config.get("base_model_name_or_path")
    if not named:
        raise FolderError(f'{where} does not name its base model; put its folder as "base_model_name_or_path".')
    beside = adapter.folder / named
    try:
        found = beside if beside.exists() else pretrained.complete(named)
        exists = found.exists()
    except (OSError, ValueError):  # no path at all
        exists = False
    if not exists:
        raise FolderError(
            f'{where}: the base model "{named[:100]}" is not here; put the path of its folder as'
            ' "base_model_name_or_path".'
        )
    if is_adapter(found):
        raise FolderError(f"{where}: the base model {found} is an adapter itself; a base model must be complete.")
    return found


def _hf_source(base: Path) -> Source | None:
    """The base model if it has the Hugging Face form."""
    if is_torch_file(base):
        return torch_source(base)
    if not (base / "config.json").is_file():
        return None
    config = read_object(base / "config.json")
    return None if "anyformer" in config else folder_source(base, config)


def with_adapter(source: Source, adapter: Adapter) -> tuple[Source, KeyTable]:
    """The base model's source with the tensors that the adapter has whole, as the class that has all it names: the
    base's own, or one with the head that was trained."""
    table, own = find_table(source.config, source.folder)
    wanted = TASKS.get(adapter.config.get("task_type") or "", "")
    fitting = [name for name in table.architectures if wanted and name.endswith(wanted)]
    strange: list[str] = []
    for architecture in dict.fromkeys((*fitting, own, *table.architectures)):
        config = {**source.config, "architectures": [architecture]}
        settings: Any = read_config(table, architecture, config, source.folder)
        keys = {name: key for key in table.keys(settings) for name in (key.theirs, *key.also)}
        named = {table.canonical(settings, name): name for name in adapter.names}
        extra = sorted(named[name] for name in named.keys() - keys.keys())
        if not extra:
            whole = {keys[table.canonical(settings, name)].ours: one for name, one in adapter.whole.items()}
            config |= _labels(settings, whole)
            return replace(source, config=config, tensors={**source.tensors, **adapter.whole}), table
        strange = extra if architecture == own else strange
    raise WeightsError(f"{adapter.folder} does not fit its base model {source.place}, which has no {strange[0]}.")


def _labels(settings: Any, whole: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The classes of a head that came with the adapter."""
    rows = [stored.shape[0] for ours, stored in whole.items() if ours.endswith("classes.weight") and stored.shape]
    if not rows or rows[0] == settings.n_labels:
        return {}
    return {"num_labels": rows[0], "id2label": {str(i): f"LABEL_{i}" for i in range(rows[0])}}


def merge(
    model: Model, adapter: Adapter, keys: Mapping[str, Key | None], whole: Mapping[str, StoredTensor] | None = None
) -> None:
    """Add the updates to the model's matrices, and put the tensors of `whole` in place of its own."""
    places = named_tensors(model)
    extra = sorted(name for name in adapter.names if keys.get(name) is None)
    if extra:
        raise WeightsError(f"{adapter.folder} does not fit its base model, which has no {extra[0]}.")
    for update in adapter.updates:
        _check_update(adapter.folder, update, _key(keys, update.name), places)
    with torch.no_grad():
        for update, a, b in _read(adapter.updates):
            key = _key(keys, update.name)
            place = places[key.ours]
            change = (b.flatten(1).float() @ a.flatten(1).float()) * update.scale
            change = change.T if _turned(update, key) else change
            change = change.reshape(key.expected(place))
            place.add_(key.read(change, place).to(place.device, place.dtype))
        for stored, tensor in read_tensors((whole or {}).values()):
            key = _key(keys, _plain(stored.name))
            check_fit(adapter.folder, wrong=_wrong(stored, key.expected(places[key.ours])))
            places[key.ours].copy_(key.read(tensor, places[key.ours]))


def _key(keys: Mapping[str, Key | None], name: str) -> Key:
    key = keys[name]
    assert key is not None
    return key


def _wrong(stored: StoredTensor, expected: tuple[int, ...]) -> list[str]:
    return [] if stored.shape == expected else [f"{stored.name} is {list(stored.shape)}, expected {list(expected)}"]


def _turned(update: Update, key: Key) -> bool:
    return update.embedding or key.op == "transpose"


def _check_update(folder: Path, update: Update, key: Key, places: Mapping[str, Tensor]) -> None:
    if key.also:
        raise WeightsError(f"{folder}: {update.name} is tied to {key.also[0]}; an adapter of one alone unties them.")
    expected = key.expected(places[key.ours])
    flat = (expected[0], math.prod(expected[1:]))
    made = (update.b.shape[0] * math.prod(update.b.shape[2:]), math.prod(update.a.shape[1:]))
    if made != (flat[::-1] if _turned(update, key) else flat):
        raise WeightsError(f"{folder}: the adapter of {update.name} makes {list(made)}, expected {list(flat)}.")


def _read(updates: tuple[Update, ...]) -> Iterator[tuple[Update, Tensor, Tensor]]:
    for update in updates:
        (_, a), (_, b) = ((one, tensor.clone()) for one, tensor in read_tensors([update.a, update.b]))
        yield update, a, b
