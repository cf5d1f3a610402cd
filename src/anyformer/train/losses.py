"""What training makes small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import InputError
from anyformer.heads.base import IGNORED
from anyformer.model import Model
from anyformer.tasks.base import Loss


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Loss:
    """Cross entropy against labels that give `smoothing` of their weight to all words alike (Vaswani 2017, §5.4).

    logits [..., vocabulary], labels [...]; summed over the labels that count (-100 does not). With smoothing 0 it is
    the plain cross entropy.
    """
    flat, wanted = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1)
    total = F.cross_entropy(flat, wanted, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum")
    return Loss(total, (wanted != IGNORED).sum())


def next_token_loss(model: Model, batch: Mapping[str, Any], smoothing: float = 0.0) -> Loss:
    """Teacher forcing: an encoder-decoder reads `decoder_input_ids` and must say `labels`, place by place."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits: Tensor = model(**inputs).logits
    if logits.shape[:-1] != batch["labels"].shape:
        raise InputError(f"labels have shape {list(batch['labels'].shape)}; they must be {list(logits.shape[:-1])}.")
    return smoothed_cross_entropy(logits, batch["labels"], smoothing)
