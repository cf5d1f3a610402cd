"""Text with a prefix of another stage's tokens, which attend to each other in both directions (GIT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.core.positions import Positions
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext
from anyformer.inputs.image import LearnedTokens
from anyformer.inputs.sequences import concat
from anyformer.inputs.text import TextInput, TextInputConfig


class PrefixedTextInput(TextInput):
    """The stage `source` comes first, projected and normalized; the text's positions start at 0 after it.

    `n_frames`: consecutive rows of `source` may be frames of one video, each with its own embedding added.
    """

    def __init__(
        self,
        config: TextInputConfig,
        positions: Positions | None,
        source: str,
        d_source: int,
        norm: NormConfig,
        n_frames: int | None = None,
    ) -> None:
        super().__init__(config, positions)
        self.source = source
        self.connect = Linear(d_source, config.d_model)
        self.connect_norm = make_norm(norm, config.d_model)
        self.frames = nn.ModuleList(LearnedTokens(1, d_source) for _ in range(n_frames or 0))

    def forward(self, run: ForwardContext) -> Tokens:
        text = super().forward(run)
        if self.source not in run.tokens or (run.state is not None and run.state.length):
            return text  # no image, or the cache holds it
        before = self._before(run, run.tokens[self.source].pad().x, text.x.shape[0])
        if run.state is not None:
            run.state.uncounted = before.shape[1]
        spans = torch.zeros(before.shape[:2], dtype=torch.long, device=before.device)
        return concat([Tokens(before, spans=spans), text])

    def _before(self, run: ForwardContext, x: Tensor, batch: int) -> Tensor:
        """[rows, n, d] -> [batch, frames·n, d]."""
        pixels = run.tensor("pixel_values")
        if pixels is not None and pixels.dim() == 5:
            n = pixels.shape[1]
            if n > len(self.frames):
                raise InputError(f"pixel_values has {n} frames per row; the model allows {len(self.frames)}.")
            x = x.unflatten(0, (-1, n))
            marks = torch.stack([frame() for frame in self.frames[:n]])  # [frames, 1, d]
            x = (x + marks).flatten(1, 2)
        if batch % x.shape[0]:
            raise InputError(f"There are {batch} texts and {x.shape[0]} images; give one image per text.")
        return self.connect_norm(self.connect(x)).repeat(batch // x.shape[0], 1, 1)
