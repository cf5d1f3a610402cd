"""Logits processors: pure functions on scores [R, V] and the ids so far, history [R, L].

Padding in a prompt is V in the history, an id outside the vocabulary. Only `suppress_tokens` writes into the scores it
is given; they belong to the search, and a copy of all scores would cost as much as the rest of a step. A new
processor is one function here and one line in `make_processors` or `sampling_processors`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.options import GenerationPlan
from anyformer.generation.timestamps import apply_timestamp_rules

Processor = Callable[[Tensor, Tensor], Tensor]  # (scores [R, V], history [R, L]) -> scores

NEG_INF = float("-inf")


def make_processors(plan: GenerationPlan) -> list[Processor]:
    """Return the processors that every search applies, in transformers' order."""
    rules: list[Processor] = []
    if plan.repetition_penalty != 1:
        rules.append(partial(repetition_penalty, penalty=plan.repetition_penalty))
    if plan.presence_penalty or plan.frequency_penalty:
        rules.append(
            partial(
                presence_frequency_penalty,
                presence=plan.presence_penalty,
                frequency=plan.frequency_penalty,
                prompt=plan.prompt_length,
            )
        )
    if plan.no_repeat_ngram_size:
        rules.append(partial(no_repeat_ngram, n=plan.no_repeat_ngram_size))
    if plan.bad_words:
        rules.append(partial(no_bad_words, words=tuple(word for word in plan.bad_words if word not in _ends(plan))))
    if plan.eos_ids and plan.min_length > plan.prompt_length:
        rules.append(partial(suppress_tokens, ids=plan.eos_ids, before=plan.min_length))
    if plan.allowed_tokens_fn is not None:
        rules.append(partial(allow_tokens, allowed=plan.allowed_tokens_fn, beams=plan.num_beams))
    if plan.forced_begin is not None:
        rules.append(partial(force_token, token=plan.forced_begin, at=1))
    if plan.forced_end is not None:
        rules.append(partial(force_token, token=plan.forced_end, at=plan.max_length - 1))
    if plan.remove_invalid_values:
        rules.append(make_finite)
    if plan.suppress:
        rules.append(partial(suppress_tokens, ids=plan.suppress))
    if plan.begin_suppress:
        free = (
            plan.prompt_length if plan.prompt_length > 1 or plan.forced_begin is None else plan.prompt_length + 1
        )  # position of the first token that is not forced
        rules.append(partial(suppress_tokens, ids=plan.begin_suppress, at=free))
    if plan.timestamps is not None:
        rules.append(partial(apply_timestamp_rules, stamps=plan.timestamps, begin=plan.prompt_length))
    if rules and plan.renormalize_logits and plan.num_beams > 1 and not plan.do_sample:
        rules.append(renormalize)
    return rules


def sampling_processors(plan: GenerationPlan) -> list[Processor]:
    """Return the processors that only sampling applies."""
    keep = 1 if plan.num_beams == 1 else max(2, len(plan.eos_ids) + 1)  # beam sampling needs a candidate besides EOS
    rules: list[Processor] = []
    if plan.temperature != 1:
        rules.append(lambda scores, history: scores / plan.temperature)
    if plan.top_k:
        rules.append(lambda scores, history: keep_top_k(scores, max(plan.top_k, keep)))
    if plan.top_p < 1:
        rules.append(lambda scores, history: keep_top_p(scores, plan.top_p, keep))
    if plan.min_p:
        rules.append(lambda scores, history: keep_min_p(scores, plan.min_p, keep))
    if plan.typical_p < 1:
        rules.append(lambda scores, history: keep_typical(scores, plan.typical_p, keep))
    if plan.renormalize_logits and plan.num_beams > 1:
        rules.append(renormalize)
    return rules


def _ends(plan: GenerationPlan) -> set[tuple[int, ...]]:
    return {(token,) for token in plan.eos_ids}


def renormalize(scores: Tensor, history: Tensor) -> Tensor:
    """Normalize scores to log-probabilities after the other processors; matters only for beams, which sum them."""
    return scores.log_softmax(dim=-1)


def make_finite(scores: Tensor, history: Tensor) -> Tensor:
    """Replace NaN by 0 and infinite scores, including those of forbidden tokens, by the largest finite numbers."""
    return scores.nan_to_num(0.0)


def repetition_penalty(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Make tokens of the history less likely, whatever the sign of their score (Keskar et al. 2019)."""
    wide = F.pad(scores, (0, 1))  # a column for the id of padding
    seen = wide.gather(1, history)
    return wide.scatter(1, history, torch.where(seen < 0, seen * penalty, seen / penalty))[:, :-1]


def presence_frequency_penalty(
    scores: Tensor, history: Tensor, presence: float, frequency: float, prompt: int
) -> Tensor:
    """Subtract `presence` once, and `frequency` per occurrence, from generated tokens. The prompt does not count."""
    new = history[:, prompt:]
    counts = torch.zeros_like(scores).scatter_add(1, new, torch.ones_like(new, dtype=scores.dtype))
    return scores - presence * (counts > 0) - frequency * counts


def suppress_tokens(
    scores: Tensor, history: Tensor, ids: tuple[int, ...], before: int | None = None, at: int | None = None
) -> Tensor:
    """Forbid these tokens: always, only `before` a length, or only `at` a length of the history."""
    length = history.shape[1]
    if (before is not None and length >= before) or (at is not None and length != at):
        return scores
    return scores.index_fill_(1, torch.tensor(ids, device=scores.device), NEG_INF)


def force_token(scores: Tensor, history: Tensor, token: int, at: int) -> Tensor:
    """Allow only this token when the history has length `at`."""
    if history.shape[1] != at:
        return scores
    only = torch.full_like(scores, NEG_INF)
    only[:, token] = 0.0
    return only


def allow_tokens(
    scores: Tensor, history: Tensor, allowed: Callable[[int, Tensor], Sequence[int]], beams: int = 1
) -> Tensor:
    """Allow only the tokens that the caller's function returns for each row (De Cao et al. 2021)."""
    closed = torch.full_like(scores, NEG_INF)
    for row, row_ids in enumerate(history):
        row_ids = row_ids[row_ids < scores.shape[1]]
        ids = list(allowed(row // beams, row_ids))
        if not ids:
            raise InputError(
                f"prefix_allowed_tokens_fn allows no token after position {len(row_ids) - 1} of row {row}."
            )
        closed[row, ids] = scores[row, ids]
    return closed


def no_repeat_ngram(scores: Tensor, history: Tensor, n: int) -> Tensor:
    """Forbid a token that would repeat an n-gram of the history."""
    length = history.shape[1]
    if length + 1 < n:
        return scores
    runs = history.unfold(1, n, 1) if length >= n else history.new_empty(history.shape[0], 0, n)  # [R, runs, n]
    tail = history[:, length - n + 1 :]
    again = (runs[..., :-1] == tail[:, None]).all(dim=-1)  # [R, runs]
    counts = F.pad(torch.zeros_like(scores), (0, 1)).scatter_add(1, runs[..., -1], again.to(scores.dtype))
    return scores.masked_fill(counts[:, :-1] > 0, NEG_INF)


def no_bad_words(scores: Tensor, history: Tensor, words: tuple[tuple[int, ...], ...]) -> Tensor:
    """Forbid the last token of a word after its other tokens."""
    for word in words:
        if len(word) - 1 > history.shape[1]:
            continue
        begun = torch.tensor(word[:-1], device=history.device)
        hit = (history[:, history.shape[1] - len(begun) :] == begun).all(dim=1)
        column = scores[:, word[-1]].masked_fill(hit, NEG_INF)
        scores = scores.index_copy(1, torch.tensor([word[-1]], device=scores.device), column[:, None])
    return scores


def keep_top_k(scores: Tensor, k: int) -> Tensor:
    lowest = scores.topk(min(k, scores.shape[-1])).values[:, -1:]
    return scores.masked_fill(scores < lowest, NEG_INF)


def keep_top_p(scores: Tensor, p: float, keep: int = 1) -> Tensor:
    """Keep the most probable tokens whose probabilities sum to p (Holtzman et al. 2020)."""
    ordered, order = scores.sort(descending=False)
    gone = ordered.log_softmax(-1).exp().cumsum(-1) <= 1 - p
    gone[:, -keep:] = False
    return scores.masked_fill(gone.scatter(1, order, gone), NEG_INF)


def keep_min_p(scores: Tensor, p: float, keep: int = 1) -> Tensor:
    """Keep tokens at least p times as probable as the most probable one."""
    likely = scores.log_softmax(-1).exp()
    gone = likely < p * likely.amax(dim=-1, keepdim=True)
    order = scores.argsort(descending=True)
    return scores.masked_fill(gone.scatter(1, order[:, :keep], False), NEG_INF)


def keep_typical(scores: Tensor, p: float, keep: int = 1) -> Tensor:
    """Keep tokens whose information is closest to the entropy, up to probability p (Meister et al. 2022)."""
    logs = scores.log_softmax(-1)
    expected = -(logs.exp() * logs).nansum(-1, keepdim=True)
    far, order = (-logs - expected).abs().sort(descending=False)
    last = (logs.gather(-1, order).exp().cumsum(dim=-1) < p).sum(dim=1).clamp(max=far.shape[-1] - 1)
    gone = far > far.gather(1, last[:, None])
    gone[:, :keep] = False
    return scores.masked_fill(gone.scatter(1, order, gone), NEG_INF)
