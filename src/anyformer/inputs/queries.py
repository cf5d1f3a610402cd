"""Learned queries (DETR's object queries, Perceiver's latents and outputs)."""

from __future__ import annotations

import torch

from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, check_shape, to_bool_mask
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens


class LearnedQueries(Input):
    """`n` learned vectors for each row of the stage `source`. With `as_pos_embed` the tokens start at zero and the
    learned vectors are their positions (DETR); with a `prefix` the caller may pass tokens and a mask."""

    def __init__(
        self, n: int, d_model: int, source: str, as_pos_embed: bool = False, prefix: str | None = None
    ) -> None:
        super().__init__()
        self.n, self.source, self.as_pos_embed, self.prefix = n, source, as_pos_embed, prefix
        self.vectors = LearnedTokens(n, d_model)
        if prefix is not None:
            self.mask_name = f"{prefix}attention_mask"
            self.names = (f"{prefix}inputs_embeds", self.mask_name)

    def forward(self, run: ForwardContext) -> Tokens:
        source = run.tokens[self.source]
        batch = source.packing.batch if source.packing is not None else source.x.shape[0]
        learned = self.vectors(batch)
        if not self.as_pos_embed:
            return Tokens(learned)
        given = run.tensor(f"{self.prefix}inputs_embeds")
        if given is not None:
            check_shape(given, f"{self.prefix}inputs_embeds", *learned.shape)
        given_mask = run.tensor(self.mask_name) if self.mask_name is not None else None
        mask = to_bool_mask(given_mask, (batch, self.n), str(self.mask_name))
        return Tokens(torch.zeros_like(learned) if given is None else given, mask, pos_embed=learned)


class PatchesAndQueries(Input):
    """The patches of the stage `source`, followed by `n` learned queries (Segmenter)."""

    def __init__(self, n: int, d_model: int, source: str, d_source: int) -> None:
        super().__init__()
        self.source = source
        self.project = Linear(d_source, d_model)
        self.vectors = LearnedTokens(n, d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        source = run.tokens[self.source].pad()
        assert source.grid is not None
        rows, columns = source.grid
        patches = self.project(source.x[:, -rows * columns :])
        return Tokens(torch.cat([patches, self.vectors(len(patches))], dim=1), grid=source.grid)


class AutoregressiveQueries(Input):
    """Learned queries decoded in order: each receives the previous answer, a position [x, y].

    In one pass (training) the answers are `places` [B, n, 2], or those of `labels`. With a cache, `places` are the
    answers so far and only the next query is decoded.
    """

    names = ("places", "labels")

    def __init__(self, n: int, d_model: int, source: str) -> None:
        super().__init__()
        self.n, self.source = n, source
        self.vectors, self.start = LearnedTokens(n, d_model), LearnedTokens(1, d_model)
        self.project = Linear(2, d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        batch = run.tokens[self.source].pad().x.shape[0]
        places, labels = run.tensor("places"), run.tensor("labels")
        places = labels[..., :2] if places is None and labels is not None else places
        wanted = self.n if run.state is None else run.state.length
        if places is None or tuple(places.shape) != (batch, wanted, 2):
            shape = None if places is None else list(places.shape)
            raise InputError(
                f"places has shape {shape}; it must be {[batch, wanted, 2]}: x and y of the keypoints decoded so far."
            )
        previous = self.project(places.to(self.project.weight.dtype))
        start, vectors = self.start(batch), self.vectors(batch)
        if run.state is not None:
            return Tokens(previous[:, -1:] if wanted else start, pos_embed=vectors[:, wanted : wanted + 1])
        return Tokens(torch.cat([start, previous[:, :-1]], dim=1), pos_embed=vectors)
