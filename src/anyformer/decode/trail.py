"""Where a NaN came from: a second pass over what a row had said, that watches every part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.taps import watching
from anyformer.decode.prompt import decoding_stage
from anyformer.errors import InputError

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model


class NotNumbersError(InputError):
    """Scores [R, V] that are NaN: `row` of `rows` running ones is."""

    def __init__(self, scores: Tensor) -> None:
        self.row, self.rows = int(scores.isnan().any(dim=-1).nonzero()[0]), len(scores)
        super().__init__(f"The scores of row {self.row} are NaN (not a number).")


def complaint(model: Model, batch: dict[str, Any], ids: Tensor, row: int) -> InputError | None:
    """One sentence that says at which position and in which part the first NaN arose; `batch` and `ids` are of one row.

    The shortest beginning that is broken tells the position: in an attention, NaN spreads from its place to all others.
    """
    if first_nan(model, batch, ids) is None:
        return None
    whole, broken = 0, ids.shape[1]
    while broken - whole > 1:
        middle = (whole + broken) // 2
        whole, broken = (middle, broken) if first_nan(model, batch, ids[:, :middle]) is None else (whole, middle)
    place, position = first_nan(model, batch, ids[:, :broken]) or ("", 0)
    encoders = [name for name, stage in model.stages.items() if not stage.remembers]
    position = position if place.split(".")[0] in encoders else broken - 1
    return InputError(
        f"Row {row} becomes NaN (not a number) at position {position}, in {place}; the weights or the input hold values"
        " that are not finite or that overflow this precision."
    )


def first_nan(model: Model, batch: dict[str, Any], ids: Tensor) -> tuple[str, int] | None:
    """The first part that gives NaN, and its first position that does."""
    name, mask_name = decoding_stage(model).names[:2]
    mask = batch.get(mask_name)
    if mask is not None:
        grown = torch.cat([mask, mask.new_ones(1, max(0, ids.shape[1] - mask.shape[1]))], dim=1)
        batch = {**batch, mask_name: grown[:, : ids.shape[1]]}
    with watching(model.watch, "*.input", "*.output") as seen:
        logits = model(**{**batch, name: ids}).logits
    parts = [(point.removesuffix(".output") if ".blocks." in point else point, x) for point, x in seen.log]
    for place, x in (*parts, ("the scores of the words", logits)):
        if x.dim() == 3 and bool(x.isnan().any()):
            return place, int(x.isnan().any(dim=-1)[0].nonzero()[0])
    return None
