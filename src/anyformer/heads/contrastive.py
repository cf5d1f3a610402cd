"""Texts and images as vectors of one space, and how well each text fits each image (CLIP)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.linear import Linear
from anyformer.core.norms import NormConfig, make_norm
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, Output
from anyformer.heads.base import Head

OLD_END = 2  # configs of the first published models say this, and mean the largest id of the vocabulary


class ProjectionHead(Head):
    """`pooler_output`: the vector at a text's end token, or an image's first one, normalized; with `d_shared`, what
    it becomes in the shared space, under the name `embeds`."""

    def __init__(
        self,
        stage: str,
        d_model: int,
        *,
        end: int | None = None,
        norm: NormConfig | None = None,
        d_shared: int | None = None,
        embeds: str = "",
    ) -> None:
        super().__init__(stage)
        self.end, self.embeds = end, embeds
        self.norm = make_norm(norm, d_model) if norm is not None else None
        self.project = Linear(d_model, d_shared, bias=False) if d_shared is not None else None

    def pool(self, run: ForwardContext, x: Tensor) -> Tensor:
        """[B, T, d] -> [B, d]"""
        if not x.shape[1]:
            raise InputError("Texts of no tokens at all cannot be summed up; a tokenizer that adds an end makes one.")
        if self.end is None:
            first = x[:, 0]
            return first if self.norm is None else self.norm(first)
        ids = run.tensor("input_ids")
        if ids is None:
            raise InputError("A text is summed up at its end token, so it must come as input_ids.")
        score = ids if self.end == OLD_END else (ids == self.end).int()
        mask = run.tensor("attention_mask")
        score = score if mask is None else score * mask
        return x[torch.arange(len(x), device=x.device), score.argmax(dim=1)]

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        x = run.padded(self.stage)
        pooled = self.pool(run, x)
        if self.project is None:
            return {"last_hidden_state": x, "pooler_output": pooled}
        return {self.embeds: self.project(pooled), "last_hidden_state": x}


class ContrastiveHead(Head):
    """Cosines of all texts with all images, times a learned factor; with return_loss, how badly each text tells its
    own image among those of the batch, and each image its text (Radford et al. 2021, figure 3)."""

    names = ("return_loss",)

    def __init__(self, text: ProjectionHead, image: ProjectionHead, log_scale: float) -> None:
        super().__init__(text.stage)
        self.text, self.image, self.start = text, image, log_scale
        self.scale = nn.Parameter(torch.empty(()))

    def reset(self, std: float) -> None:
        nn.init.constant_(self.scale, self.start)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        texts, pictures = Output(self.text(run)), Output(self.image(run))
        texts["pooler_output"], pictures["pooler_output"] = texts.pop("text_embeds"), pictures.pop("image_embeds")
        text_embeds, image_embeds = (F.normalize(side["pooler_output"], dim=-1) for side in (texts, pictures))
        logits = text_embeds @ image_embeds.T * self.scale.exp()
        fields = {
            "logits_per_image": logits.T,
            "logits_per_text": logits,
            "text_embeds": text_embeds,
            "image_embeds": image_embeds,
            "text_model_output": texts,
            "vision_model_output": pictures,
        }
        return {"loss": contrastive_loss(logits), **fields} if run.batch.get("return_loss") else fields


def contrastive_loss(logits: Tensor) -> Tensor:
    """The mean cross entropy of rows and of columns, the n-th text being the n-th image's."""
    if logits.shape[0] != logits.shape[1]:
        raise InputError(f"There are {logits.shape[0]} texts and {logits.shape[1]} images; the loss needs pairs.")
    own = torch.arange(len(logits), device=logits.device)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


LOG_SCALE = math.log(1 / 0.07)  # of the factor at the start
