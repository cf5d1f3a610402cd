"""Timestamp tokens of a transcript, <|0.00|>, <|0.02|>, …: they come in pairs around text and never decrease."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.config import Settings

NEG_INF = float("-inf")


@dataclass(frozen=True, kw_only=True)
class TimestampRules(Settings):
    timestamp_begin: int  # token id of 0.00 seconds; the last id of the vocabulary is the latest time
    no_timestamps_id: int  # token for "no timestamps"
    end: int  # end token; text tokens have smaller ids
    max_initial_timestamp: int | None = None  # latest first timestamp, in units of 0.02 seconds


def apply_timestamp_rules(scores: Tensor, history: Tensor, stamps: TimestampRules, begin: int) -> Tensor:
    """Forbid tokens that would break the order of timestamps (Radford et al. 2022, §4.5); new tokens start at `begin`.
    If the timestamps together are more probable than any text token, only timestamps are allowed.
    """
    first, new_ids = stamps.timestamp_begin, history[:, begin:]
    is_time, length = new_ids >= first, new_ids.shape[1]
    none = torch.zeros(len(new_ids), dtype=torch.bool, device=new_ids.device)
    last = is_time[:, -1] if length else none
    before = is_time[:, -2] if length > 1 else ~none
    ids = torch.arange(scores.shape[1], device=scores.device)
    banned = (ids == stamps.no_timestamps_id) | (last & before)[:, None] & (ids >= first)
    banned |= (last & ~before)[:, None] & (ids < stamps.end)
    if length:
        # Timestamps do not decrease; only a closing one may be repeated, as the next opening one.
        latest = new_ids.masked_fill(~is_time, first - 1).gather(1, _last_true(is_time)) + (~(last & ~before))[:, None]
        banned |= is_time.any(dim=1, keepdim=True) & (ids >= first) & (ids < latest)
    else:
        banned |= ids < first
        banned |= ids > first + stamps.max_initial_timestamp if stamps.max_initial_timestamp is not None else banned
    scores = scores.masked_fill(banned, NEG_INF)
    logs = scores.float().log_softmax(dim=-1)
    sure = logs[:, first:].logsumexp(dim=-1) > logs[:, :first].amax(dim=-1)
    return scores.masked_fill(sure[:, None] & (ids < first), NEG_INF)


def _last_true(flags: Tensor) -> Tensor:
    """Index of the last True in each row [R, 1]; 0 if there is none."""
    places = torch.arange(flags.shape[1], device=flags.device)
    return torch.where(flags, places, 0).amax(dim=1, keepdim=True)
