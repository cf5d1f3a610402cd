"""Times in a transcript: tokens <|0.00|>, <|0.02|>, … that come in pairs around what is said, and never go back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.config import Settings

NEG_INF = float("-inf")


@dataclass(frozen=True, kw_only=True)
class TimestampRules(Settings):
    timestamp_begin: int  # the token of 0.00 seconds; the last one of the vocabulary is the latest time
    no_timestamps_id: int  # the token that would say: no times
    end: int  # of the transcript; words stand before it in the vocabulary
    max_initial_timestamp: int | None = None  # how late the first time may be, counted in stamps


def apply_timestamp_rules(scores: Tensor, history: Tensor, stamps: TimestampRules, begin: int) -> Tensor:
    """Only what keeps the times of each row in order (Radford et al. 2022, §4.5), `begin` being the first new place.
    Where some time is likelier than any one word, it is a time."""
    first, said = stamps.timestamp_begin, history[:, begin:]
    is_time, length = said >= first, said.shape[1]
    none = torch.zeros(len(said), dtype=torch.bool, device=said.device)
    last = is_time[:, -1] if length else none
    before = is_time[:, -2] if length > 1 else ~none
    ids = torch.arange(scores.shape[1], device=scores.device)
    banned = (ids == stamps.no_timestamps_id) | (last & before)[:, None] & (ids >= first)
    banned |= (last & ~before)[:, None] & (ids < stamps.end)
    if length:
        # Times do not decrease, and only a closing one, which opens the next, may repeat itself.
        latest = said.masked_fill(~is_time, first - 1).gather(1, _last_true(is_time)) + (~(last & ~before))[:, None]
        banned |= is_time.any(dim=1, keepdim=True) & (ids >= first) & (ids < latest)
    else:
        banned |= ids < first
        banned |= ids > first + stamps.max_initial_timestamp if stamps.max_initial_timestamp is not None else banned
    scores = scores.masked_fill(banned, NEG_INF)
    logs = scores.float().log_softmax(dim=-1)
    sure = logs[:, first:].logsumexp(dim=-1) > logs[:, :first].amax(dim=-1)
    return scores.masked_fill(sure[:, None] & (ids < first), NEG_INF)


def _last_true(flags: Tensor) -> Tensor:
    """[R, 1]: the last place where a flag stands; the first where none does."""
    places = torch.arange(flags.shape[1], device=flags.device)
    return torch.where(flags, places, 0).amax(dim=1, keepdim=True)
