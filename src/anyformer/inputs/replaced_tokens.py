"""Text with some tokens replaced by samples of another model (ELECTRA's generator)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.core.tokens import Tokens
from anyformer.forward_context import ForwardContext, check_labels, check_shape
from anyformer.inputs.base import Input
from anyformer.inputs.text import TextInput


class ReplacedTokensInput(Input):
    """Where `labels` is 0 or more, replaces the token by a sample from what the language head `words` predicts on the
    stage `source`.

    No gradient goes through sampling. `noise` [B, T, vocabulary], uniform in 0…1, makes it reproducible. `gaps` [B, n]
    may give the masked positions if rows have equally many, which avoids a host synchronization. With labels it adds
    the generator's loss to the output, and `replaced` [B, T] to the batch, the labels of the discriminator.
    """

    def __init__(self, text: TextInput, words: nn.Module, source: str) -> None:
        super().__init__()
        self.text, self.source, self.words = text, source, words
        self.names = (*text.names, "labels", "noise", "gaps")
        self.mask_name = text.mask_name

    def forward(self, run: ForwardContext) -> Tokens:
        labels, ids = run.tensor("labels"), run.tensor("input_ids")
        if labels is None or ids is None:
            tokens: Tokens = self.text(run)
            return tokens
        check_shape(labels, "labels", *ids.shape)
        gaps, noise = run.tensor("gaps"), run.tensor("noise")
        places = (labels >= 0).flatten().nonzero().squeeze(1) if gaps is None else flat_indices(gaps, ids.shape[1])
        scores = self._scores(run.tokens[self.source].pad().x.flatten(0, 1)[places])  # [masked tokens, vocabulary]
        drawn = gumbel_sample(scores.detach(), None if noise is None else noise.flatten(0, 1)[places])
        filled = ids.flatten().scatter(0, places, drawn).view_as(ids)
        targets = labels.flatten()[places]
        check_labels(targets, scores.shape[-1], "labels")
        loss = F.cross_entropy(scores.float(), targets, reduction="sum") / max(len(targets), 1)
        run.batch["replaced"] = (labels >= 0) & (filled != labels)
        run.outputs |= {"loss": loss, "generator_loss": loss, "replaced": run.batch["replaced"]}
        tokens = self.text(ForwardContext({**run.batch, "input_ids": filled}, run.state, run.training))
        return tokens

    def _scores(self, x: Tensor) -> Tensor:
        """What the language head says of vectors [n, d]: [n, vocabulary]."""
        run = ForwardContext({}, None, self.training)
        run.tokens[self.source] = Tokens(x.unsqueeze(0))
        logits: Tensor = self.words(run)["logits"]
        return logits[0]


def flat_indices(places: Tensor, length: int) -> Tensor:
    """Convert positions [B, n] in rows to indices in the flattened batch."""
    return (places + length * torch.arange(len(places), device=places.device).unsqueeze(1)).flatten()


def gumbel_sample(scores: Tensor, noise: Tensor | None = None) -> Tensor:
    """Sample a token per row: the argmax of score + Gumbel noise (Maddison et al. 2014), in single precision; in half
    precision rare tokens would never be sampled.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    uniform = torch.rand_like(scores) if noise is None else noise.to(scores.dtype)
    tiny = torch.finfo(scores.dtype).tiny
    return (scores - (-uniform.clamp(min=tiny).log()).clamp(min=tiny).log()).argmax(dim=-1)
