"""Adapters in the form that Hugging Face's peft reads: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from anyformer.checkpoints.files import write_safetensors
from anyformer.checkpoints.hf import table_for
from anyformer.checkpoints.key_table import Key
from anyformer.core.linear import FusedLinear
from anyformer.core.lora import LoRA, lora_layers
from anyformer.errors import ConfigError
from anyformer.model import Model
from anyformer.saving import whole_folder

PREFIX = "base_model.model."


def save_adapter(model: Model, folder: Path, base: str | None = None) -> None:
    """Write the adapters alone, with the head where that learned too, under the names of the ecosystem; under our own
    where a family has none there."""
    keys = _our_names(model)
    tensors: dict[str, Tensor] = {}
    modules: list[str] = []
    for name, (a, b) in _by_name(model):
        if f"{name}.weight" in keys:  # a fused matrix has a name there, or its roles have, not both
            key = keys[f"{name}.weight"]
            modules.append(key.theirs.removesuffix(".weight"))
            tensors[f"{PREFIX}{modules[-1]}.lora_A.weight"] = a
            tensors[f"{PREFIX}{modules[-1]}.lora_B.weight"] = _rows(key, b)
    if not modules:
        raise ConfigError("This model has no adapters to save.")
    heads = {keys[name].theirs: keys[name].write(value) for name, value in _heads(model) if name in keys}
    tensors |= {PREFIX + name: value for name, value in heads.items()}
    _, _, first = next(lora_layers(model))
    saved = sorted({name.rpartition(".")[0] for name in heads})
    config = _config(first, modules, saved, base, any(key.op == "transpose" for key in keys.values()))
    with whole_folder(folder) as draft:
        plain = {name: value.detach().contiguous().cpu().clone() for name, value in tensors.items()}
        write_safetensors(plain, draft / "adapter_model.safetensors")
        (draft / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def model_keys(model: Model) -> dict[str, Key | None]:
    """The ecosystem's names -> how it stores that tensor."""
    return {key.theirs: key for key in _our_names(model).values()}


def _our_names(model: Model) -> dict[str, Key]:
    """Our names -> how the ecosystem stores that tensor."""
    settings: Any = model.config
    try:
        table, _ = table_for(model)
    except ConfigError:
        own = [name.replace("parametrizations.weight.original", "weight") for name, _ in model.named_parameters()]
        return {name: Key(name, name) for name in own}
    return {key.ours: replace(key, theirs=table.rename(settings, key.theirs)) for key in table.keys(settings)}


def _by_name(model: Model) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """Brief name -> A and B; a fused matrix also by its roles, which share A and have their own rows of B."""
    for path, module, adapter in lora_layers(model):
        yield path, (adapter.a, adapter.b)
        if isinstance(module, FusedLinear):
            for role in module.roles:
                yield f"{path.rpartition('.')[0]}.{role}", (adapter.a, adapter.b[module.slice(role)])


def _rows(key: Key, b: Tensor) -> Tensor:
    """Their order of rows; a matrix that they store transposed has its adapter as everybody's."""
    if key.op == "reshape":
        raise ConfigError(f"{key.theirs} is stored in another shape, which peft has no adapter for.")
    return key.write(b.detach()) if key.op == "rows" else b


def _heads(model: Model) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if name.partition(".")[0] in model.heads and parameter.requires_grad:
            yield name, parameter.detach()


def _config(adapter: LoRA, modules: list[str], saved: list[str], base: str | None, transposed: bool) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        "target_modules": modules,
        "modules_to_save": saved or None,
        "task_type": None,
    }
