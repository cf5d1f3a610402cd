"""How likely given continuations are, token by token: the prompt is read once, whatever may follow it in one pass.

found = model.score(input_ids=question, continuations=[[12, 7], [12, 9, 3], [40]])     # one prompt, three answers
found.tokens, found.totals      # log-probabilities [3, 3] and their sums [3]
found.best()                    # [1]: which answer of each prompt is the most probable, as GPT-3 answers by choice
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.errors import InputError
from anyformer.generation.engine import prefill
from anyformer.generation.options import as_python, vocab_size
from anyformer.generation.prompt import decoding_stage, encoder_decoder_prompt
from anyformer.heads.base import IGNORED, check_labels

if TYPE_CHECKING:  # the model imports this module, when it is asked to score
    from anyformer.model import Model

Continuations = Tensor | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, eq=False)
class ContinuationScores:
    """One row a continuation, those of the first prompt first."""

    tokens: Tensor  # [N, n]: the log-probability of each token; 0 where a row has no more
    lengths: Tensor  # [N]
    counts: tuple[int, ...]  # how many continuations each prompt has

    @property
    def totals(self) -> Tensor:
        """[N]: the log-probability of the whole continuation."""
        return self.tokens.sum(dim=1)

    @property
    def means(self) -> Tensor:
        """[N]: the same for each token."""
        return self.totals / self.lengths

    def best(self, by: str = "mean", against: ContinuationScores | None = None) -> list[int]:
        """The most probable continuation of each prompt, as Brown et al. 2020 choose it (§2.4): by the mean of its
        tokens, by its "total", or by how much likelier it is here than after another prompt, `against` ("Answer:").
        """
        if by not in ("mean", "total"):
            raise InputError(f'best compares by "mean" or by "total", not by "{by}".')
        values = self.means if by == "mean" else self.totals
        if against is not None:
            if against.totals.shape != self.totals.shape:
                raise InputError(
                    f"There are {len(self.totals)} continuations here and {len(against.totals)} to compare them "
                    "against; score the same ones."
                )
            values = self.totals - against.totals
        return [int(part.argmax()) for part in values.split(self.counts)]


def score(
    model: Model,
    continuations: Continuations,
    *,
    batch_size: int | None = None,
    decoder_start_token_id: int | None = None,
    **batch: Any,
) -> ContinuationScores:
    """Log-probabilities of continuations after a prompt (a decoder), or of answers to a source (an encoder-decoder).

    `continuations` has one row of ids for each prompt, or a list of rows for each; all rows belong to the prompt where
    there is only one. A tensor is filled up with -100. At most `batch_size` rows go through the model at once.
    """
    decoder = decoding_stage(model)
    prompts = batch.get("input_ids")
    if prompts is None or prompts.dim() != 2 or prompts.shape[1] == 0:
        raise InputError("score needs input_ids of shape [batch, tokens], with one token at least.")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be 1 or more.")
    rows, counts = by_prompt(continuations, prompts.shape[0])
    ids, real = pad_rows(rows, prompts.device)
    check_labels(ids, vocab_size(model), "continuations")
    owners = torch.arange(len(counts), device=prompts.device).repeat_interleave(torch.tensor(counts).to(prompts.device))
    first = model.decoder_start if decoder_start_token_id is None else decoder_start_token_id
    begin = None if decoder.attends is None else encoder_decoder_prompt(model, batch, {"decoder_start_token_id": first})
    state, scores = prefill(model, batch, begin)
    parts, size = [], batch_size or len(rows)
    for at in range(0, len(rows), size):
        here = slice(at, at + size)
        own = state.clone() if at + size < len(rows) else state
        own.reorder(owners[here])
        parts.append(score_rows(model, own, scores[owners[here]], ids[here], real[here]))
    return ContinuationScores(torch.cat(parts), real.sum(dim=1), counts)


def by_prompt(continuations: Continuations, prompts: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """All rows, and how many each prompt has."""
    given = as_rows(continuations)
    if all(isinstance(token, int) for row in given for token in row):
        given = [given] if prompts == 1 else [[row] for row in given]
    groups = [[[int(token) for token in row if token != IGNORED] for row in group] for group in given]
    if len(groups) != prompts:
        raise InputError(f"There are {prompts} prompts and continuations for {len(groups)}; give each prompt its own.")
    for i, group in enumerate(groups):
        if not group or not all(group):
            raise InputError(f"Prompt {i} has an empty continuation, or none; there is nothing to score.")
    return [row for group in groups for row in group], tuple(len(group) for group in groups)


def as_rows(continuations: Any) -> list[Any]:
    """Rows of ids, or a list of such rows for each prompt, as plain lists."""
    given = as_python(continuations)
    if isinstance(given, Sequence) and not isinstance(given, str):
        rows = [as_python(row) for row in given]
        rows = [list(map(as_python, row)) if isinstance(row, (list, tuple)) else row for row in rows]
        flat = [one for row in rows for one in (row if _holds_rows(row) else [row])]
        if all(_is_row(one) for one in flat):
            return rows
    raise InputError(f"continuations is {given!r:.80}; each is a row of ids, as in [[5, 6], [7]].")


def _holds_rows(row: Any) -> bool:
    return isinstance(row, Sequence) and any(isinstance(one, (list, tuple)) for one in row)


def _is_row(row: Any) -> bool:
    return isinstance(row, Sequence) and all(isinstance(as_python(token), int) for token in row)


def pad_rows(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows of ids as [N, n] with zeros behind them, and where they are real."""
    sizes = torch.tensor([len(row) for row in rows])
    real = torch.arange(int(sizes.max())) < sizes[:, None]
    ids = torch.zeros(real.shape, dtype=torch.long)
    ids[real] = torch.tensor([token for row in rows for token in row])
    return ids.to(device), real.to(device)


def score_rows(model: Model, state: Cache, first: Tensor, ids: Tensor, real: Tensor) -> Tensor:
    """Log-probabilities [R, n]; `first` [R, V] are the scores after the prompt, where the state is."""
    parts = [log_probability(first[:, None], ids[:, :1])]
    if ids.shape[1] > 1:
        name, mask_name = decoding_stage(model).names[:2]
        read = {name: ids[:, :-1], mask_name: real[:, :-1]}
        parts.append(log_probability(model(**read, past_key_values=state).logits, ids[:, 1:]))
    return torch.cat(parts, dim=1).masked_fill(~real, 0.0)


def log_probability(scores: Tensor, ids: Tensor) -> Tensor:
    """Of ids [R, n] under scores [R, n, V]."""
    flat = scores.flatten(0, 1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    return -F.cross_entropy(flat, ids.flatten(), reduction="none").view(ids.shape)
