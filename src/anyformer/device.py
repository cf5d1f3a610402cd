"""The device that a model runs on, by name."""

from __future__ import annotations

import torch

from anyformer.errors import ConfigError


def choose_device(name: str | torch.device) -> torch.device:
    """The device of a name. "auto" is cuda if PyTorch finds a GPU, else mps (Apple), else cpu."""
    if isinstance(name, str) and name == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        )
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ConfigError(
            f'There is no device "{name}"; use auto, cpu, cuda, cuda:1 for the second GPU, or mps.'
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f'The device is "{name}", but PyTorch finds no GPU; use auto or cpu.')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f'The device is "{name}", but PyTorch finds {torch.cuda.device_count()} GPUs.')
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError('The device is "mps", but PyTorch finds no Apple GPU; use auto or cpu.')
    return device
