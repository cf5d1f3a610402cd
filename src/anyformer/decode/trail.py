"""Where a NaN came from: what was said so far, and a second pass over it that watches every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.taps import watching
from anyformer.decode.prompt import decoding_stage
from anyformer.errors import Error, InputError

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model


class Trail:
    """The way to the present scores: what was read, and each step's tokens with the rows that they continue."""

    def __init__(self, model: Model, batch: dict[str, Any], prompt: Tensor) -> None:
        self.model, self.batch, self.prompt = model, batch, prompt
        self.steps: list[tuple[Tensor, Tensor | None]] = []

    def add(self, tokens: Tensor, rows: Tensor | None) -> None:
        self.steps.append((tokens, rows))

    def replay(self) -> tuple[Tensor, Tensor]:
        """What every present row says [R, L], and the row of the prompt that it came from [R]."""
        ids, source = self.prompt, torch.arange(len(self.prompt), device=self.prompt.device)
        for tokens, rows in self.steps:
            if rows is not None:
                ids, source = ids[rows], source[rows]
            ids = torch.cat([ids, tokens[:, None]], dim=1)
        return ids, source

    def complain(self, row: int) -> InputError:
        """One sentence that says at which position and in which layer the first NaN of a row arose."""
        ids, source = self.replay()
        origin, ids = int(source[row]), ids[row : row + 1]
        found = first_nan(self.model, self._alone(origin, ids.shape[1]), ids)
        where = f"at position {ids.shape[1] - 1}" if found is None else f"at position {found[1]}, in {found[0]}"
        return InputError(
            f"Row {origin} became NaN (not a number) {where}; the weights or the input hold values that are not finite"
            " or that overflow this precision."
        )

    def _alone(self, row: int, length: int) -> dict[str, Any]:
        """What one row reads, its mask grown by what was said."""
        batch = {name: x[row : row + 1] if isinstance(x, Tensor) else x for name, x in self.batch.items()}
        mask_name = decoding_stage(self.model).names[1]
        mask = batch.get(mask_name)
        if mask is not None:
            batch[mask_name] = torch.cat([mask, mask.new_ones(1, length - mask.shape[1])], dim=1)
        return batch


def first_nan(model: Model, batch: dict[str, Any], ids: Tensor) -> tuple[str, int] | None:
    """The part and the position where NaN arose: in the first stage that has one, its first position, lowest part."""
    name = decoding_stage(model).names[0]
    with watching(model.watch, "*.input", "*.blocks.*.output", "*.output") as seen:
        try:
            logits = model(**{**batch, name: ids}).logits
        except Error:
            return None
    for stage in model.stages:
        log = [(point, x) for point, x in seen.log if point.startswith(f"{stage}.") and x.dim() == 3]
        broken = [(_position(x), order, point) for order, (point, x) in enumerate(log) if bool(x.isnan().any())]
        if broken:
            position, _, point = min(broken)
            return point.rpartition(".")[0] if ".blocks." in point else point, position
    return ("the scores of the words", _position(logits)) if bool(logits.isnan().any()) else None


def _position(x: Tensor) -> int:
    """The first token [1, T, d] that is not a number."""
    return int(x.isnan().any(dim=-1)[0].nonzero()[0])
