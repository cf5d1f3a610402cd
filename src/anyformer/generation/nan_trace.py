"""Where a NaN came from: what was said so far, and a second pass over it that watches every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.taps import watching
from anyformer.errors import InputError
from anyformer.generation.prompt import decoding_stage

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model


class NaNTrace:
    """The way to the present scores: what was read, and each step's tokens with the rows that they continue."""

    def __init__(self, model: Model, batch: dict[str, Any], prompt: Tensor, tolerant: bool = False) -> None:
        self.model, self.batch, self.prompt = model, batch, prompt
        self.tolerant = tolerant  # a rule puts numbers in the place of NaN, so none is complained of
        self.steps: list[tuple[Tensor, Tensor | None]] = []
        self.broken: Tensor | None = None  # has a score been NaN?

    def add(self, tokens: Tensor, rows: Tensor | None) -> None:
        self.steps.append((tokens, rows))

    def check(self, scores: Tensor) -> None:
        """Remember whether a score is NaN, without looking: on a GPU that would stop the queue."""
        broken = scores.sum().isnan()  # many times faster than asking every number; also true of inf beside -inf
        self.broken = broken if self.broken is None else self.broken | broken

    def replay(self) -> tuple[Tensor, Tensor]:
        """What every present row says [R, L], and the row of the prompt that it came from [R]."""
        ids, source = self.prompt, torch.arange(len(self.prompt), device=self.prompt.device)
        for tokens, rows in self.steps:
            if rows is not None:
                ids, source = ids[rows], source[rows]
            ids = torch.cat([ids, tokens[:, None]], dim=1)
        return ids, source

    def error(self) -> InputError:
        """One sentence that says in which row, at which position and in which part the first NaN arose."""
        ids, source = self.replay()
        for row, origin in enumerate(source.tolist()):
            found = self._search(ids[row : row + 1], origin)
            if found is not None:
                return InputError(
                    f"Row {origin} becomes NaN (not a number) at position {found[1]}, in {found[0]}; the weights or the"
                    " input hold values that are not finite or that overflow this precision."
                )
        return InputError(f"The scores after {ids.shape[1]} tokens are NaN (not a number).")

    def _search(self, ids: Tensor, row: int) -> tuple[str, int] | None:
        """The shortest beginning that is broken: a NaN spreads from its position to all others in an attention."""
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
        """The first part that gives NaN, and its first position that does."""
        name, mask_name = decoding_stage(self.model).names[:2]
        batch = {key: x[row : row + 1] if isinstance(x, Tensor) else x for key, x in self.batch.items()}
        mask = batch.get(mask_name)
        if mask is not None:
            grown = torch.cat([mask, mask.new_ones(1, max(0, ids.shape[1] - mask.shape[1]))], dim=1)
            batch[mask_name] = grown[:, : ids.shape[1]]
        with watching(self.model.watch, "*.input", "*.output") as seen:
            logits = self.model(**{**batch, name: ids}).logits
        parts = [(point.removesuffix(".output") if ".blocks." in point else point, x) for point, x in seen.log]
        for place, x in (*parts, ("the scores of the words", logits)):
            if x.dim() == 3 and bool(x.isnan().any()):
                return place, int(x.isnan().any(dim=-1)[0].nonzero()[0])
        return None
