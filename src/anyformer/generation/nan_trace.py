"""Tracing a NaN to its source: replay the ids in a second pass that watches every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.taps import watching
from anyformer.errors import InputError
from anyformer.generation.requests import decoding_stage

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model


class NaNTrace:
    """The path to the current scores: the inputs, and each step's tokens with the rows that they continue."""

    def __init__(self, model: Model, batch: dict[str, Any], prompt: Tensor, tolerant: bool = False) -> None:
        self.model, self.batch, self.prompt = model, batch, prompt
        self.tolerant = tolerant  # a processor replaces NaN, so NaN is no error
        self.steps: list[tuple[Tensor, Tensor | None]] = []
        self.broken: Tensor | None = None  # whether a score has been NaN

    def add(self, tokens: Tensor, rows: Tensor | None) -> None:
        self.steps.append((tokens, rows))

    def check(self, scores: Tensor) -> None:
        """Record whether a score is NaN, without a host synchronization."""
        broken = scores.sum().isnan()  # much faster than isnan() on every score; also true for inf beside -inf
        self.broken = broken if self.broken is None else self.broken | broken

    def replay(self) -> tuple[Tensor, Tensor]:
        """Return the ids of each current row [R, L], and the prompt row that it came from [R]."""
        ids, source = self.prompt, torch.arange(len(self.prompt), device=self.prompt.device)
        for tokens, rows in self.steps:
            if rows is not None:
                ids, source = ids[rows], source[rows]
            ids = torch.cat([ids, tokens[:, None]], dim=1)
        return ids, source

    def error(self) -> InputError:
        """Return an error that names the row, the position and the module of the first NaN."""
        ids, source = self.replay()
        vectors = self.prompt.shape[1] == 0  # a prompt without ids cannot be read again with other ids behind it
        for row, origin in enumerate([] if vectors else source.tolist()):
            found = self._search(ids[row : row + 1], origin)
            if found is not None:
                return InputError(
                    f"Row {origin} becomes NaN at position {found[1]}, in {found[0]}; the weights or the"
                    " input hold values that are not finite or overflow this precision."
                )
        return InputError(f"The scores after {ids.shape[1]} tokens are NaN.")

    def _search(self, ids: Tensor, row: int) -> tuple[str, int] | None:
        """Find the shortest prefix that is broken: attention spreads a NaN from its position to all others."""
        if self._first(ids, row) is None:
            return None
        whole, broken = 0, ids.shape[1]
        while broken - whole > 1:
            middle = (whole + broken) // 2
            if self._first(ids[:, :middle], row) is None:
                whole = middle
            else:
                broken = middle
        place, position = self._first(ids[:, :broken], row) or ("", 0)
        last = list(self.model.stages)[-1]
        return place, position if place.split(".")[0] not in (last, "the") else broken - 1

    def _first(self, ids: Tensor, row: int) -> tuple[str, int] | None:
        """Return the first module that outputs NaN, and the first position at which it does."""
        name, mask_name = decoding_stage(self.model).names[:2]
        batch = {key: x[row : row + 1] if isinstance(x, Tensor) else x for key, x in self.batch.items()}
        if name == "input_ids":  # given for the prompt alone
            batch = {key: x for key, x in batch.items() if key not in ("token_type_ids", "position_ids")}
        mask = batch.get(mask_name)
        if mask is not None:
            grown = torch.cat([mask, mask.new_ones(1, max(0, ids.shape[1] - mask.shape[1]))], dim=1)
            batch[mask_name] = grown[:, : ids.shape[1]]
        with watching(self.model.watch, "*.input", "*.output") as seen:
            logits = self.model(**{**batch, name: ids}).logits
        parts = [(point.removesuffix(".output") if ".blocks." in point else point, x) for point, x in seen.log]
        for place, x in (*parts, ("the logits", logits)):
            if x.dim() == 3 and bool(x.isnan().any()):
                return place, int(x.isnan().any(dim=-1)[0].nonzero()[0])
        return None
