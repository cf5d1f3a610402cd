"""Settings for training small sizes on few rows, which several families share."""

from __future__ import annotations

from typing import Any

# Some ten thousands of sentences, such as Multi30k.
SMALL_PARALLEL_DATA: dict[str, Any] = {
    "train.steps": 6000,
    "train.lr": 1e-3,
    "train.schedule": "cosine",
    "train.warmup_steps": 200,
    "train.eval_every": 2000,
}

# A few million words, such as WikiText-2.
SMALL_TEXT_DATA: dict[str, Any] = {"train.batch_size": 32, "train.steps": 5000, "data.max_length": 128}
