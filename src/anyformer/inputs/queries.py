"""Learned queries (DETR's object queries, Perceiver's latents and outputs)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, to_bool_mask
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens


@dataclass(frozen=True, kw_only=True)
class LearnedQueriesConfig(Settings):
    n: int
    d_model: int
    as_pos_embed: bool = False  # DETR: tokens start at zero and the learned vectors are their positions
    source: str  # the stage that gives the batch size
    prefix: str | None = None  # lets the caller pass tokens and a mask: "decoder_"


class LearnedQueries(Input):
    def __init__(self, config: LearnedQueriesConfig) -> None:
        super().__init__()
        self.config = config
        self.vectors = LearnedTokens(config.n, config.d_model)
        if config.prefix is not None:
            self.mask_name = f"{config.prefix}attention_mask"
            self.names = (f"{config.prefix}inputs_embeds", self.mask_name)

    def forward(self, run: ForwardContext) -> Tokens:
        config = self.config
        source = run.tokens[config.source]
        batch = source.packing.batch if source.packing is not None else source.x.shape[0]
        learned = self.vectors().expand(batch, -1, -1)
        if not config.as_pos_embed:
            return Tokens(learned)
        given = run.tensor(f"{config.prefix}inputs_embeds")
        if given is not None and given.shape != learned.shape:
            shape = list(learned.shape)
            raise InputError(f"{config.prefix}inputs_embeds has shape {list(given.shape)}; it must be {shape}.")
        given_mask = run.tensor(self.mask_name) if self.mask_name is not None else None
        mask = to_bool_mask(given_mask, (batch, config.n), str(self.mask_name))
        return Tokens(torch.zeros_like(learned) if given is None else given, mask, pos_embed=learned)


@dataclass(frozen=True, kw_only=True)
class PatchesAndQueriesConfig(Settings):
    n: int
    d_model: int
    source: str  # the stage whose patches the queries follow
    d_source: int


class PatchesAndQueries(Input):
    """An image's patches followed by learned queries, which attend to each other (Segmenter)."""

    def __init__(self, config: PatchesAndQueriesConfig) -> None:
        super().__init__()
        self.config = config
        self.project = Linear(config.d_source, config.d_model)
        self.vectors = LearnedTokens(config.n, config.d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        source = run.tokens[self.config.source].pad()
        assert source.grid is not None
        rows, columns = source.grid
        patches = self.project(source.x[:, -rows * columns :])
        return Tokens(torch.cat([patches, self.vectors().expand(len(patches), -1, -1)], dim=1), grid=source.grid)


@dataclass(frozen=True, kw_only=True)
class AutoregressiveQueriesConfig(Settings):
    n: int
    d_model: int
    source: str  # the stage that gives the batch size


class AutoregressiveQueries(Input):
    """Learned queries decoded in order: each receives the previous answer, a position [x, y].

    In one pass (training) the answers are `places` [B, n, 2], or those of `labels`. With a cache, `places` are the
    answers so far and only the next query is decoded.
    """

    names = ("places", "labels")

    def __init__(self, config: AutoregressiveQueriesConfig) -> None:
        super().__init__()
        self.config = config
        self.vectors, self.start = LearnedTokens(config.n, config.d_model), LearnedTokens(1, config.d_model)
        self.project = Linear(2, config.d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        n, batch = self.config.n, run.tokens[self.config.source].pad().x.shape[0]
        places, labels = run.tensor("places"), run.tensor("labels")
        places = labels[..., :2] if places is None and labels is not None else places
        wanted = n if run.state is None else run.state.length
        if places is None or tuple(places.shape) != (batch, wanted, 2):
            shape = None if places is None else list(places.shape)
            raise InputError(
                f"places has shape {shape}; it must be {[batch, wanted, 2]}: x and y of the keypoints decoded so far."
            )
        previous = self.project(places.to(self.project.weight.dtype))
        start = self.start().expand(batch, -1, -1)
        if run.state is not None:
            x = previous[:, -1:] if wanted else start
            return Tokens(x, pos_embed=self.vectors()[wanted : wanted + 1].expand(batch, -1, -1))
        return Tokens(torch.cat([start, previous[:, :-1]], dim=1), pos_embed=self.vectors().expand(batch, -1, -1))
