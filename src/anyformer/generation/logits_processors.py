"""Logits processors: pure functions on scores [R, V] and the ids so far, history [R, L].

Padding in a prompt is V in the history, an id outside the vocabulary. Only `suppress_tokens` writes into the scores it
is given; they belong to the search, and a copy of all scores would cost as much as the rest of a step. A new
processor is one function here and one line in `_named_processors` or `sampling_processors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.options import LogitsProcessor, StoppingCriterion
from anyformer.generation.plan import GenerationPlan
from anyformer.generation.timestamps import apply_timestamp_rules

Processor = Callable[[Tensor, Tensor], Tensor]  # (scores [R, V], history [R, L]) -> scores

NEG_INF = float("-inf")
TOP_H = 100  # tokens among which top_h chooses


def make_processors(plan: GenerationPlan) -> list[Processor]:
    """Return the processors that every search applies, in transformers' order. One of the caller's takes the place of
    the one that transformers implements by the same class.
    """
    rules = _named_processors(plan)
    if plan.timestamps is not None:
        rules["timestamps"] = partial(apply_timestamp_rules, stamps=plan.timestamps, begin=plan.prompt_length)
    for processor in plan.processors:
        rules[_key(processor, rules)] = CallersProcessor(processor)
    if rules and plan.renormalize_logits and plan.num_beams > 1 and not plan.do_sample:
        rules["LogitNormalization"] = renormalize
    return list(rules.values())


def _key(processor: LogitsProcessor, rules: Mapping[str, Processor]) -> str:
    name = type(processor).__name__
    return name if name in rules and not isinstance(rules[name], CallersProcessor) else f"{name} {len(rules)}"


def _named_processors(plan: GenerationPlan) -> dict[str, Processor]:
    """Return the processors for the options, by the names of transformers' classes."""
    rules: dict[str, Processor] = {}
    start, bans_end = plan.prompt_length, plan.eos_ids and plan.min_length > plan.prompt_length
    if plan.guidance is not None:
        rules["UnbatchedClassifierFreeGuidanceLogitsProcessor"] = plan.guidance
    if plan.biases:
        rules["SequenceBiasLogitsProcessor"] = partial(bias_sequences, biases=plan.biases)
    if plan.source is not None and plan.encoder_repetition_penalty != 1:
        rules["EncoderRepetitionPenaltyLogitsProcessor"] = partial(
            encoder_repetition_penalty, source=plan.source, penalty=1 / plan.encoder_repetition_penalty
        )
    if plan.repetition_penalty != 1:
        rules["RepetitionPenaltyLogitsProcessor"] = partial(repetition_penalty, penalty=plan.repetition_penalty)
    if plan.presence_penalty or plan.frequency_penalty:
        rules["presence and frequency"] = partial(
            presence_frequency_penalty, presence=plan.presence_penalty, frequency=plan.frequency_penalty, prompt=start
        )
    if plan.no_repeat_ngram_size:
        rules["NoRepeatNGramLogitsProcessor"] = partial(no_repeat_ngram, n=plan.no_repeat_ngram_size)
    if plan.source is not None and plan.encoder_no_repeat_ngram_size:
        rules["EncoderNoRepeatNGramLogitsProcessor"] = partial(
            no_repeat_ngram, n=plan.encoder_no_repeat_ngram_size, source=plan.source
        )
    if plan.bad_words:
        words = tuple((word, NEG_INF) for word in plan.bad_words if word not in _ends(plan))
        rules["NoBadWordsLogitsProcessor"] = partial(bias_sequences, biases=words)
    if bans_end:
        rules["MinLengthLogitsProcessor"] = partial(suppress_tokens, ids=plan.eos_ids, before=plan.min_length)
    if plan.allowed_tokens_fn is not None:
        allowed = partial(allow_tokens, allowed=plan.allowed_tokens_fn, beams=plan.num_beams)
        rules["PrefixConstrainedLogitsProcessor"] = allowed
    if plan.forced_begin is not None:
        rules["ForcedBOSTokenLogitsProcessor"] = partial(force_token, token=plan.forced_begin, at=1)
    if plan.forced_end is not None:
        rules["ForcedEOSTokenLogitsProcessor"] = partial(force_token, token=plan.forced_end, at=plan.max_length - 1)
    if plan.remove_invalid_values:
        rules["InfNanRemoveLogitsProcessor"] = make_finite
    if plan.length_decay is not None and plan.eos_ids:
        first, factor = plan.length_decay
        rules["ExponentialDecayLengthPenalty"] = partial(
            decay_length, ids=plan.eos_ids, start=start + first, factor=factor
        )
    if plan.suppress:
        rules["SuppressTokensLogitsProcessor"] = partial(suppress_tokens, ids=plan.suppress)
    if plan.begin_suppress:
        free = start if start > 1 or plan.forced_begin is None else start + 1  # the first token that is not forced
        rules["SuppressTokensAtBeginLogitsProcessor"] = partial(suppress_tokens, ids=plan.begin_suppress, at=free)
    return rules


def sampling_processors(plan: GenerationPlan) -> list[Processor]:
    """Return the processors that only sampling applies."""
    keep = 1 if plan.num_beams == 1 else max(2, len(plan.eos_ids) + 1)  # beam sampling needs a candidate besides EOS
    rules: list[Processor] = []
    if plan.temperature != 1:
        rules.append(lambda scores, history: scores / plan.temperature)
    if plan.top_h is not None:
        rules.append(partial(keep_top_h, h=plan.top_h))
    if plan.top_k:
        rules.append(lambda scores, history: keep_top_k(scores, max(plan.top_k, keep)))
    if plan.top_p < 1:
        rules.append(lambda scores, history: keep_top_p(scores, plan.top_p, keep))
    if plan.min_p:
        rules.append(lambda scores, history: keep_min_p(scores, plan.min_p, keep))
    if plan.typical_p < 1:
        rules.append(lambda scores, history: keep_typical(scores, plan.typical_p, keep))
    if plan.epsilon_cutoff:
        rules.append(lambda scores, history: keep_above(scores, plan.epsilon_cutoff, keep))
    if plan.eta_cutoff:
        rules.append(lambda scores, history: keep_above(scores, eta(scores, plan.eta_cutoff), keep))
    if plan.renormalize_logits and plan.num_beams > 1:
        rules.append(renormalize)
    return rules


class CallersProcessor:
    """A processor of the caller's. It is given the ids as they are, padding included, and must return scores."""

    def __init__(self, processor: LogitsProcessor) -> None:
        self.processor = processor

    def __call__(self, scores: Tensor, history: Tensor) -> Tensor:
        found = self.processor(history, scores)
        if not isinstance(found, Tensor) or found.shape != scores.shape:
            kind = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"The logits processor {_name(self.processor)} returned {kind}; it must return scores of shape"
                f" {list(scores.shape)}."
            )
        return found


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def meets_criteria(criteria: Sequence[StoppingCriterion], ids: Tensor, scores: Sequence[Tensor] | None) -> Tensor:
    """Whether each row of ids [R, L] meets one of the caller's stopping criteria [R]."""
    met = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for criterion in criteria:
        found = criterion(ids, None if scores is None else tuple(scores))
        value = torch.as_tensor(found, device=ids.device) if isinstance(found, (bool, Tensor)) else None
        if value is None or value.shape not in ((), met.shape):
            kind = type(found).__name__ if value is None else list(value.shape)
            raise InputError(
                f"The stopping criterion {_name(criterion)} returned {kind}; it must return True or False, for all or"
                f" for each of the {len(ids)} rows."
            )
        met = met | value.bool()
    return met


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


def encoder_repetition_penalty(scores: Tensor, history: Tensor, source: Tensor, penalty: float) -> Tensor:
    """Apply a repetition penalty to the tokens of the source [R / beams, S]; below 1 they become more likely."""
    return repetition_penalty(scores, repeat_to(source, len(scores)), penalty)


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


def no_repeat_ngram(scores: Tensor, history: Tensor, n: int, source: Tensor | None = None) -> Tensor:
    """Forbid a token that would repeat an n-gram of the history, or of the source of each row [R / beams, S]."""
    length = history.shape[1]
    if length + 1 < n:
        return scores
    past = history if source is None else repeat_to(source, len(history))
    runs = past.unfold(1, n, 1) if past.shape[1] >= n else past.new_empty(len(past), 0, n)  # [R, runs, n]
    tail = history[:, length - n + 1 :]
    again = (runs[..., :-1] == tail[:, None]).all(dim=-1)  # [R, runs]
    counts = F.pad(torch.zeros_like(scores), (0, 1)).scatter_add(1, runs[..., -1], again.to(scores.dtype))
    return scores.masked_fill(counts[:, :-1] > 0, NEG_INF)


def repeat_to(x: Tensor, rows: int) -> Tensor:
    """Repeat each row, so that there are `rows`."""
    return x if len(x) == rows else x.repeat_interleave(rows // len(x), dim=0)


def bias_sequences(scores: Tensor, history: Tensor, biases: tuple[tuple[tuple[int, ...], float], ...]) -> Tensor:
    """Add each bias to the score of the last token of its sequence, after the other tokens; -inf forbids it."""
    total = torch.zeros_like(scores)
    for word, bias in biases:
        if len(word) - 1 > history.shape[1]:
            continue
        begun = torch.tensor(word[:-1], device=history.device)
        hit = (history[:, history.shape[1] - len(begun) :] == begun).all(dim=1)
        total[:, word[-1]] += torch.where(hit, bias, 0.0)
    return scores + total


def decay_length(scores: Tensor, history: Tensor, ids: tuple[int, ...], start: int, factor: float) -> Tensor:
    """Raise the scores of the end tokens exponentially once the history is longer than `start`."""
    late = history.shape[1] - start
    if late <= 0:
        return scores
    ends = torch.tensor(ids, device=scores.device)
    values = scores[:, ends]
    gain = (values.abs() * (factor**late - 1)).masked_fill(~values.isfinite(), 0.0)
    return scores.index_add(1, ends, gain)


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


def keep_above(scores: Tensor, least: float | Tensor, keep: int = 1) -> Tensor:
    """Keep tokens whose probability is at least this one (Hewitt et al. 2022, epsilon sampling)."""
    gone = scores.log_softmax(-1).exp() < least
    best = scores.topk(min(keep, scores.shape[-1])).values[:, -1:]
    return scores.masked_fill(gone & (scores < best), NEG_INF)


def eta(scores: Tensor, epsilon: float) -> Tensor:
    """Return the least probability of eta sampling [R, 1], which falls with the entropy (Hewitt et al. 2022)."""
    return (epsilon**0.5 * (-entropy(scores)).exp()).clamp(max=epsilon)


def entropy(scores: Tensor) -> Tensor:
    """Entropy of each row [R, 1] of scores [R, V]."""
    logs = scores.log_softmax(-1)
    return -(logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)).sum(-1, keepdim=True)


def keep_top_h(scores: Tensor, history: Tensor, h: float) -> Tensor:
    """Keep the most probable of 100 tokens while their terms of the entropy add up to at most `h` of it."""
    logits, order = scores.topk(min(TOP_H, scores.shape[-1]))
    logs = logits.log_softmax(-1)
    terms = -logs.exp() * logs.clamp(min=torch.finfo(logs.dtype).min)
    stays = terms.cumsum(-1) <= h * entropy(logits)
    stays[:, 0] = True
    return scores.masked_fill(~torch.zeros_like(scores, dtype=torch.bool).scatter(1, order, stays), NEG_INF)
