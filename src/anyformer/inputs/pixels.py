"""Pixels of an image as a token sequence: each token holds the previous value."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.forward_context import ForwardContext
from anyformer.inputs.text import Embedding, TextInput, TextInputConfig, check_ids
from anyformer.layers.raster import RasterPositions


class PixelInput(TextInput):
    """`input_ids` are intensities 0 to n - 1, channel by channel, after the start token n. Each channel has its own
    embeddings. A token has the position of the value that it predicts.
    """

    def __init__(self, n_values: int, d_model: int, cells: RasterPositions, dropout: float = 0.0) -> None:
        config = TextInputConfig(
            vocab_size=n_values + 1, d_model=d_model, position_ids=False, embeds=False, dropout=dropout
        )
        super().__init__(config, cells)
        self.n_values, self.n_channels = n_values, cells.raster.depth
        self.words = Embedding(n_values * self.n_channels + 1, d_model)

    def _vectors(self, run: ForwardContext) -> Tensor:
        _, ids = run.require_one("input_ids")
        check_ids(ids, self.config.vocab_size, "input_ids", run.training)
        batch, length = ids.shape
        at = self._places(run, self._real(run, batch, length), length, ids.device)
        at = torch.arange(length, device=ids.device).unsqueeze(0) if at is None else at
        channel = (at - 1) % self.n_channels  # of the value that the token holds, not the one it predicts
        own = torch.where(ids < self.n_values, ids + channel * self.n_values, self.n_values * self.n_channels)
        vectors: Tensor = self.words(own)
        return vectors
