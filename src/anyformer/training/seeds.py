"""Chance that depends on the seed and the step alone, so that a run which continues draws what it would have drawn."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def mix_seeds(*numbers: int) -> int:
    """One seed out of several numbers; neighbors give unrelated ones."""
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(*numbers: int) -> None:
    """Dropout and whatever else draws without being handed a generator."""
    seed = mix_seeds(*numbers)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def generator(*numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(mix_seeds(*numbers))
