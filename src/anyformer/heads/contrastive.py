"""Text and image embeddings in a shared space, and their similarity (CLIP)."""

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

OLD_END = 2  # in the first published configs this end id stands for the largest id of the vocabulary


class ProjectionHead(Head):
    """`pooler_output`: the normalized vector at a text's end token, or an image's first token; with `d_shared` also its
    projection to the shared space, as `embeds`.
    """

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
        """[B, T, d] -> [B, d]."""
        if not x.shape[1]:
            raise InputError("input_ids has no tokens at all; use a tokenizer that adds an end token.")
        if self.end is None:
            first = x[:, 0]
            return first if self.norm is None else self.norm(first)
        ids = run.tensor("input_ids")
        if ids is None:
            raise InputError("The text is pooled at its end token, so pass input_ids.")
        score = ids if self.end == OLD_END else (ids == self.end).int()
        mask = run.tensor("attention_mask")
        score = score if mask is None else score * mask
        return x[torch.arange(x.shape[0], device=x.device), score.argmax(dim=1)]

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        x = run.padded(self.stage)
        pooled = self.pool(run, x)
        if self.project is None:
            return {"last_hidden_state": x, "pooler_output": pooled}
        return {self.embeds: self.project(pooled), "last_hidden_state": x}


class ContrastiveHead(Head):
    """Cosine similarities of all texts and images, times a learned scale; with return_loss, the contrastive loss of the
    batch (Radford et al. 2021, figure 3).
    """

    names = ("return_loss",)

    def __init__(self, text: ProjectionHead, image: ProjectionHead, log_scale: float) -> None:
        super().__init__(text.stage)
        self.text, self.image, self.start = text, image, log_scale
        self.scale = nn.Parameter(torch.empty(()))

    def reset(self, std: float) -> None:
        nn.init.constant_(self.scale, self.start)

    def forward(self, run: ForwardContext) -> dict[str, Any]:
        texts, images = Output(self.text(run)), Output(self.image(run))
        texts["pooler_output"], images["pooler_output"] = texts.pop("text_embeds"), images.pop("image_embeds")
        text_embeds, image_embeds = (F.normalize(side["pooler_output"], dim=-1) for side in (texts, images))
        logits = text_embeds @ image_embeds.T * self.scale.exp()
        fields = {
            "logits_per_image": logits.T,
            "logits_per_text": logits,
            "text_embeds": text_embeds,
            "image_embeds": image_embeds,
            "text_model_output": texts,
            "vision_model_output": images,
        }
        return {"loss": contrastive_loss(logits), **fields} if run.batch.get("return_loss") else fields


def contrastive_loss(logits: Tensor) -> Tensor:
    """Mean cross entropy of rows and columns; the n-th text belongs to the n-th image."""
    if logits.shape[0] != logits.shape[1]:
        raise InputError(f"There are {logits.shape[0]} texts and {logits.shape[1]} images; return_loss needs pairs.")
    own = torch.arange(len(logits), device=logits.device)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


LOG_SCALE = math.log(1 / 0.07)  # initial value
