"""A class and a box from each query (DETR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.linear import Linear
from anyformer.errors import InputError
from anyformer.heads.base import Head
from anyformer.run import Run


class BoxHead(Head):
    """`n_labels` classes and "no object"; boxes as centre x, centre y, width, height in 0…1."""

    names = ("labels",)
    set_scores = "logits"

    def __init__(self, d_model: int, n_labels: int, reads: str, every_layer: bool = False) -> None:
        super().__init__(reads)
        self.every_layer = every_layer
        self.classes = Linear(d_model, n_labels + 1)
        self.boxes = nn.ModuleList([Linear(d_model, d_model), Linear(d_model, d_model), Linear(d_model, 4)])

    def forward(self, run: Run) -> dict[str, Any]:
        if run.batch.get("labels") is not None:
            raise InputError("DETR's set loss (labels=…) is not in this version of anyformer; leave labels out.")
        x = run.padded(self.reads)
        fields: dict[str, Any] = {"logits": self.classes(x), "pred_boxes": self._place(x), "last_hidden_state": x}
        if self.every_layer:
            after = run.layers[self.reads][1:]  # the first is what came in
            fields["intermediate_hidden_states"] = torch.stack([layer.pad().x for layer in after])
        return fields

    def set_values(self, fields: Mapping[str, Tensor], sizes: Tensor | None) -> dict[str, Tensor]:
        """Boxes as left, top, right, bottom."""
        centre, size = fields["pred_boxes"].split(2, dim=-1)
        corners = torch.cat([centre - size / 2, centre + size / 2], dim=-1)
        return {"boxes": corners if sizes is None else corners * sizes.flip(1).repeat(1, 2)[:, None]}

    def _place(self, x: Tensor) -> Tensor:
        for layer in self.boxes[:-1]:
            x = F.relu(layer(x))
        return self.boxes[-1](x).sigmoid()
