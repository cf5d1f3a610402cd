"""Another number of words: the same model with a longer or shorter word table."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer import registry
from anyformer.errors import ConfigError
from anyformer.model import Model


def resize_vocabulary(model: Model, vocab_size: int) -> Model:
    """A copy of the model that knows `vocab_size` words. Those it had keep their numbers; each new one begins as the
    mean of all, which changes the chances of the others least (Hewitt 2021)."""
    if "vocab_size" not in model.config.names():
        raise ConfigError(f"A {model.family} model has no vocab_size to change.")
    if vocab_size < 1:
        raise ConfigError(f"vocab_size is {vocab_size}; it must be 1 or more.")
    config = model.config.replace(vocab_size=vocab_size)
    fresh = registry.build_config(registry.family(model.family), config, model.origin.recipe)
    fresh.to(device=model.device, dtype=model.dtype)
    fresh.origin = model.origin
    known = model.state_dict()
    with torch.no_grad():
        for name, target in fresh.state_dict().items():
            target.copy_(known[name] if known[name].shape == target.shape else _rows(known[name], len(target)))
    return fresh.train(model.training)


def _rows(old: Tensor, n: int) -> Tensor:
    if n <= len(old):
        return old[:n]
    return torch.cat([old, old.mean(dim=0, keepdim=True).expand(n - len(old), *old.shape[1:])])
