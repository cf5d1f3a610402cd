"""The device that a model runs on, by name."""

from __future__ import annotations

import torch

from anyformer.errors import ConfigError, nearest


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


def read_dtype(name: str | torch.dtype) -> torch.dtype:
    """A floating-point type by name, as "bfloat16"."""
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    known = {str(kind).removeprefix("torch."): kind for kind in kinds}
    if isinstance(name, torch.dtype) and name in kinds:
        return name
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f'There is no dtype "{name}" for a model.{nearest(str(name), known)} There are: {", ".join(known)}.'
        )
    return known[name]
