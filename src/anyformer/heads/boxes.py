"""A class and a box per query (DETR)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext
from anyformer.heads.base import Head
from anyformer.heads.box_ops import to_xyxy
from anyformer.heads.matcher import DetectionTargets, SetCriterionConfig
from anyformer.heads.set_criterion import named_losses, set_loss, weighted_sum
from anyformer.layers.mlp import MLP


class BoxHead(Head):
    """Predicts `n_labels` classes and "no object", and boxes as center x, center y, width, height, relative to the
    image.

    With `labels`, a list of {"class_labels", "boxes"}, it returns the set loss, of every layer with `auxiliary_loss`.
    `placed`: the queries are anchor boxes that the decoder refines. `groups`: number of query groups per image in
    training, of which the first is returned.
    """

    names = ("labels",)
    may_give = ("loss_dict", "auxiliary_outputs", "intermediate_hidden_states")
    score_field = "logits"

    def __init__(
        self,
        d_model: int,
        n_labels: int,
        stage: str,
        every_layer: bool = False,
        loss: SetCriterionConfig | None = None,
        placed: bool = False,
        groups: int = 1,
    ) -> None:
        super().__init__(stage)
        self.n_labels, self.every_layer, self.groups = n_labels, every_layer, groups
        self.loss = loss if loss is not None else SetCriterionConfig()
        self.classes = Linear(d_model, n_labels + 1)
        self.boxes = None if placed else MLP(d_model, d_model, d_model, 4)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        x = run.padded(self.stage)
        last = self._place(x) if self.boxes is not None else _boxes(run.tokens[self.stage])
        fields: dict[str, Any] = {"logits": self.classes(x), "pred_boxes": last, "last_hidden_state": x}
        if self.every_layer:
            after = run.layers[self.stage][1:]  # the first is the input
            fields["intermediate_hidden_states"] = torch.stack([layer.pad().x for layer in after])
        labels = run.batch.get("labels")
        losses = {} if labels is None else self._losses(run, fields, labels)
        return {**losses, **{name: value[..., :: self._rows, :, :] for name, value in fields.items()}}

    @property
    def _rows(self) -> int:
        """Number of query rows per image."""
        return self.groups if self.training else 1

    def _losses(self, run: ForwardContext, fields: dict[str, Any], labels: Any) -> dict[str, Any]:
        logits, boxes = fields["logits"][None], fields["pred_boxes"][None]
        more: dict[str, Any] = {}
        if self.every_layer:
            before = fields["intermediate_hidden_states"][:-1]
            earlier, places = self.classes(before), self._places(run, before)
            logits, boxes = torch.cat([earlier, logits]), torch.cat([places, boxes])
            pairs = zip(earlier[:, :: self._rows], places[:, :: self._rows], strict=True)
            more["auxiliary_outputs"] = [{"logits": scores, "pred_boxes": place} for scores, place in pairs]
        targets = DetectionTargets.of(labels, self.n_labels, logits.device, rows=logits.shape[1] // self._rows)
        parts = set_loss(logits, boxes, targets, self.loss, self._rows)
        return {"loss": weighted_sum(parts, self.loss).sum(), "loss_dict": named_losses(parts), **more}

    def _places(self, run: ForwardContext, before: Tensor) -> Tensor:
        """Boxes of the layers before the last."""
        if self.boxes is not None:
            return self._place(before)
        return torch.stack([_boxes(layer) for layer in run.layers[self.stage][1:-1]])

    def postprocess(self, fields: Mapping[str, Tensor], sizes: Tensor | None) -> dict[str, Tensor]:
        """Return boxes as left, top, right, bottom."""
        corners = to_xyxy(fields["pred_boxes"])
        return {"boxes": corners if sizes is None else corners * sizes.flip(1).repeat(1, 2)[:, None]}

    def _place(self, x: Tensor) -> Tensor:
        assert self.boxes is not None
        return self.boxes(x).sigmoid()


def _boxes(tokens: Tokens) -> Tensor:
    """The boxes that a refining stack has moved its queries to."""
    assert tokens.positions is not None
    return tokens.positions.sigmoid()
