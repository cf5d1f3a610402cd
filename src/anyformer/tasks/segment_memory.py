"""Streams of text with segment-level recurrence (Transformer-XL; Dai et al. 2019, §3.2): each row of a batch continues
the same row of the previous batch, with the layers' memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from anyformer.core.cache import PAST, Cache, RecurrentState
from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.errors import ConfigError, DataError
from anyformer.layers.wrappers import SegmentRecurrence
from anyformer.model import Model

FILLED = "filled"
CONTINUES = "goes_on"  # of a batch: whether each row goes on from the batch before it


class MemoryStreams:
    """The text split into equal streams; each batch takes a window of every stream. An epoch begins at a random offset
    below one window, the first at 0."""

    def __init__(self, tokens: int, size: int, settings: BatchConfig, seed: int) -> None:
        if not settings.shuffle:  # a text to evaluate on may be shorter than a window
            size = max(min(size, tokens), 1)
        if tokens < size:
            raise DataError(
                f"The text has {tokens:,} tokens, fewer than one window of {size:,}; give more text, or a smaller"
                " data.max_length."
            )
        wanted = settings.rows if settings.tokens is None else max(settings.tokens // size, 1)
        self.tokens, self.size, self.seed, self.moves = tokens, size, seed, settings.shuffle
        self.rows = min(wanted, tokens // size)

    padding = 0.0

    def global_batches(self, n: int) -> Sequence[Index]:
        """Batch t is where each stream's window t begins; what is left over at the end is not read this time."""
        spare = self.tokens - self.rows * self.size  # at least one window of each stream must fit
        chance = np.random.default_rng((self.seed, n))
        shift = int(chance.integers(min(self.size, spare + 1))) if n and self.moves else 0
        windows = (self.tokens - shift) // (self.rows * self.size)
        starts = shift + windows * self.size * np.arange(self.rows)
        return [starts + self.size * t for t in range(windows)]


class SegmentMemory:
    """The memory of every layer and stream at fixed addresses: [rows, tokens, d], the newest last, and its padding
    mask. A step reads it without gradient and writes the memory of the next step in place."""

    def __init__(self, model: Model, rows: int) -> None:
        parts = memory_layers(model)
        self.length = max(part.length for part in parts)
        like = next(model.parameters())
        shapes = {
            part.attention.taps.name(part.attention): (rows, part.length, part.attention.config.d_query)
            for part in parts
        }
        self.tensors = {
            path: torch.zeros(shape, dtype=like.dtype, device=like.device) for path, shape in shapes.items()
        }
        self.tensors[FILLED] = torch.zeros(rows, self.length, dtype=torch.uint8, device=like.device)

    def open(self, goes_on: Tensor) -> Cache:
        """A state to go on from; rows that begin anew see nothing before them."""
        state = Cache()
        for path, past in self.tensors.items():
            if path != FILLED:
                state.layers[path] = RecurrentState({PAST: past})
        state.real, state.length = self.tensors[FILLED].bool() & goes_on[:, None], self.length
        return state

    @torch.no_grad()
    def close(self, state: Cache) -> None:
        """Keep what the step left."""
        for path, past in self.tensors.items():
            if path != FILLED:
                past.copy_(state.recurrent(path)[PAST])
        assert state.real is not None
        self.tensors[FILLED].copy_(state.real[:, -self.length :])


def memory_layers(model: Model) -> list[SegmentRecurrence]:
    """The parts of a model that remember what they read; an error where there are none."""
    parts = [part for part in model.modules() if isinstance(part, SegmentRecurrence) and part.length]
    if not parts:
        raise ConfigError(
            "task.carry_memory needs a model with memory, such as transformer-xl-mini;"
            f" this is a {model.family} model, or its mem_len is 0."
        )
    return parts
