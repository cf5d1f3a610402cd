"""Log-probabilities of given continuations. The prompt is read once, and all continuations in one pass.

found = model.score(input_ids=question, continuations=[[12, 7], [12, 9, 3], [40]])     # one prompt, three answers
found.tokens, found.totals      # log-probabilities [3, 3] and their sums [3]
found.greedy                    # [3]: whether greedy search would generate the answer
found.best()                    # [1]: index of each prompt's most probable answer, as in GPT-3's multiple choice
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
from anyformer.forward_context import IGNORED, check_labels
from anyformer.generation.cache_marks import clone
from anyformer.generation.engine import prefill
from anyformer.generation.options import as_python
from anyformer.generation.plan import vocab_size
from anyformer.generation.requests import decoding_stage, encoder_decoder_prompt

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

Continuations = Tensor | Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, eq=False)
class ContinuationScores:
    """Log-probabilities with one row per continuation, in the order of the prompts."""

    tokens: Tensor  # [N, n]: the log-probability of each token; 0 for padding
    lengths: Tensor  # [N]
    counts: tuple[int, ...]  # number of continuations of each prompt
    greedy: Tensor  # [N]: whether every token is the most probable one, so that greedy search would return it

    @property
    def totals(self) -> Tensor:
        """Log-probability of each continuation [N]."""
        return self.tokens.sum(dim=1)

    @property
    def means(self) -> Tensor:
        """Mean log-probability per token of each continuation [N]."""
        return self.totals / self.lengths

    def best(self, by: str = "mean", against: ContinuationScores | None = None) -> list[int]:
        """Return the index of each prompt's most probable continuation (Brown et al. 2020, §2.4): by the mean of its
        tokens, by its "total", or by the gain in total over another prompt, `against` ("Answer:").
        """
        if by not in ("mean", "total"):
            raise InputError(f'by is "{by}"; it must be "mean" or "total".')
        values = self.means if by == "mean" else self.totals
        if against is not None:
            if against.totals.shape != self.totals.shape:
                raise InputError(
                    f"There are {len(self.totals)} continuations here and {len(against.totals)} in against; "
                    "score the same continuations."
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
    """Score continuations of a prompt (a decoder), or answers to a source (an encoder-decoder).

    `continuations` has one row of ids per prompt, or a list of rows per prompt; with a single prompt, all rows belong
    to it. A tensor is padded with -100. At most `batch_size` rows go through the model at once.
    """
    decoder = decoding_stage(model)
    prompts = batch.get("input_ids")
    if prompts is None or prompts.dim() != 2 or prompts.shape[1] == 0:
        raise InputError("score needs input_ids of shape [batch, tokens] with at least one token.")
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
        own = clone(state) if at + size < len(rows) else state
        own.reorder(owners[here])
        parts.append(score_rows(model, own, scores[owners[here]], ids[here], real[here]))
    logs, best = (torch.cat(several) for several in zip(*parts, strict=True))
    return ContinuationScores(logs, real.sum(dim=1), counts, best.all(dim=1))


def by_prompt(continuations: Continuations, prompts: int) -> tuple[list[list[int]], tuple[int, ...]]:
    """Return all rows, and the number of rows of each prompt."""
    given = as_rows(continuations)
    if all(isinstance(token, int) for row in given for token in row):
        given = [given] if prompts == 1 else [[row] for row in given]
    groups = [[[int(token) for token in row if token != IGNORED] for row in group] for group in given]
    if len(groups) != prompts:
        raise InputError(f"There are {prompts} prompts but continuations for {len(groups)}; give some for each prompt.")
    for i, group in enumerate(groups):
        if not group or not all(group):
            raise InputError(f"Prompt {i} has no continuation, or an empty one; give at least one token.")
    return [row for group in groups for row in group], tuple(len(group) for group in groups)


def as_rows(continuations: Any) -> list[Any]:
    """Return continuations as plain lists: rows of ids, or a list of rows per prompt."""
    given = as_python(continuations)
    if isinstance(given, Sequence) and not isinstance(given, str):
        rows = [as_python(row) for row in given]
        rows = [list(map(as_python, row)) if isinstance(row, (list, tuple)) else row for row in rows]
        flat = [one for row in rows for one in (row if _holds_rows(row) else [row])]
        if all(_is_row(one) for one in flat):
            return rows
    raise InputError(f"continuations is {given!r:.80}; each must be a row of ids, such as [[5, 6], [7]].")


def _holds_rows(row: Any) -> bool:
    return isinstance(row, Sequence) and any(isinstance(one, (list, tuple)) for one in row)


def _is_row(row: Any) -> bool:
    return isinstance(row, Sequence) and all(isinstance(as_python(token), int) for token in row)


def pad_rows(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of ids as [N, n], padded with zeros, and the mask of real tokens."""
    sizes = torch.tensor([len(row) for row in rows])
    real = torch.arange(int(sizes.max())) < sizes[:, None]
    ids = torch.zeros(real.shape, dtype=torch.long)
    ids[real] = torch.tensor([token for row in rows for token in row])
    return ids.to(device), real.to(device)


def score_rows(model: Model, state: Cache, first: Tensor, ids: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [R, n], and whether each token is the most probable one, as which padding counts; `first`
    [R, V] holds the scores after the prompt, where the cache ends.
    """
    tables = [first[:, None]]
    if ids.shape[1] > 1:
        name, mask_name = decoding_stage(model).names[:2]
        tables.append(model(**{name: ids[:, :-1], mask_name: real[:, :-1]}, past_key_values=state).logits)
    logs = [
        log_probability(table, part) for table, part in zip(tables, ids.split([1, ids.shape[1] - 1], 1), strict=False)
    ]
    best = torch.cat([table.argmax(dim=-1) for table in tables], dim=1)
    return torch.cat(logs, dim=1).masked_fill(~real, 0.0), (best == ids) | ~real


def log_probability(scores: Tensor, ids: Tensor) -> Tensor:
    """Log-probabilities of ids [R, n] under scores [R, n, V]."""
    flat = scores.flatten(0, 1)
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    return -F.cross_entropy(flat, ids.flatten(), reduction="none").view(ids.shape)
