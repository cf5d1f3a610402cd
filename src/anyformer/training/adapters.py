"""Adapters instead of weights: what learns beside them, and what becomes of them at the end."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from anyformer.checkpoints.peft import save_adapter
from anyformer.core.lora import add_lora, merge_lora
from anyformer.errors import ConfigError
from anyformer.heads.language import LanguageHead
from anyformer.model import Model
from anyformer.training.distributed import Devices
from anyformer.training.optim import freeze
from anyformer.training.settings import TrainSettings

FOLDER = "adapter"


def fresh_heads(model: Model) -> list[nn.Module]:
    """Heads that know nothing yet must learn as they are; one that says words came with the model."""
    return [head for head in model.heads.values() if not isinstance(head, LanguageHead)]


def add_adapters(model: Model, settings: TrainSettings) -> None:
    alpha = settings.lora_alpha if settings.lora_alpha is not None else 2.0 * settings.lora
    add_lora(model, settings.lora, alpha, settings.lora_targets, fresh_heads(model))


def narrow(model: Model, settings: TrainSettings, devices: Devices) -> None:
    """Put adapters on the model, and freeze what the settings name."""
    if settings.lora:
        if devices.sharded:
            raise ConfigError("train.lora does not support train.parallel=fsdp; use ddp.")
        add_adapters(model, settings)
    freeze(model, settings.freeze)


def merge_adapters(model: Model, folder: Path) -> None:
    """Keep the adapters apart, then make them part of the weights, so that the folder runs like any other."""
    save_adapter(model, folder / FOLDER, model.origin.recipe)
    merge_lora(model)
