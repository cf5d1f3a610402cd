"""Rotary angles: how fast each pair of features turns, and the ways of stretching that to texts longer than those seen
in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from anyformer.config import Settings


@dataclass(frozen=True, kw_only=True)
class RopeConfig(Settings):
    """The rotation of one kind of layer. Pair i of `width` features turns by position / base^(2i/width).

    `rope_type` stretches it `factor` times. "linear": every position is divided by it. "dynamic": the base grows with
    the length of the text, past the trained one. "llama3": slow pairs are divided, fast ones kept, those between
    blended (Llama 3.1). "yarn": the same idea with another ramp, and a gain on the result (Peng et al. 2023).
    "longrope": each pair is divided by a factor of its own, another one past the trained length, and a gain again (Ding
    et al. 2024).
    """

    theta: float = 10_000.0
    partial_rotary_factor: float = 1.0  # of a head's features that turn, the first ones
    rope_type: Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"] = "default"
    factor: float = 1.0
    original_max_length: int | None = None  # the length before stretching; None: the model's max_length
    low_freq_factor: float = 1.0  # blend: turns in the trained length below which a pair is slow
    high_freq_factor: float = 4.0  # and above which it is fast
    beta_fast: float = 32.0  # yarn: the same two bounds
    beta_slow: float = 1.0
    truncate: bool = True  # yarn: the ramp begins and ends at whole pairs
    # yarn and longrope: a gain on queries and keys; None: 1 + ln(factor) / 10, √(1 + ln(factor) / ln(trained length))
    attention_factor: float | None = None
    short_factors: tuple[float, ...] = ()  # longrope: of each pair, for texts up to the trained length
    long_factors: tuple[float, ...] = ()  # and for longer ones

    def check(self) -> None:
        self.require(self.factor >= 1, f"factor is {self.factor}; it must be 1 or more.")
        self.require(
            self.rope_type != "llama3" or self.low_freq_factor < self.high_freq_factor,
            f"low_freq_factor is {self.low_freq_factor}; it must be below high_freq_factor {self.high_freq_factor}.",
        )
        self.require(
            self.rope_type != "yarn" or (self.theta > 1 and min(self.beta_fast, self.beta_slow) > 0),
            f"theta is {self.theta}, beta_fast {self.beta_fast}, beta_slow {self.beta_slow}; yarn needs theta above 1,"
            " the other two above 0.",
        )

        factors = (*self.short_factors, *self.long_factors)
        self.require(
            (self.rope_type == "longrope") == bool(factors) and all(factor > 0 for factor in factors),
            "longrope needs short_factors and long_factors, which are above 0; no other rope_type takes them.",
        )
        self.require(
            len(self.short_factors) == len(self.long_factors),
            f"short_factors has {len(self.short_factors)} entries, long_factors {len(self.long_factors)}; both have one"
            " for each pair of features.",
        )

    def width(self, d_head: int) -> int:
        return int(d_head * self.partial_rotary_factor)

    @property
    def by_length(self) -> bool:
        """Whether the rates depend on the length of the text."""
        return self.rope_type == "dynamic" or self.short_factors != self.long_factors

    def amplitude(self, trained: int) -> float:
        """What sines and cosines are multiplied by."""
        if self.rope_type not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.rope_type == "yarn":
            return 0.1 * math.log(self.factor) + 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_length(trained)))

    def trained_length(self, trained: int) -> int:
        return self.original_max_length if self.original_max_length is not None else trained

    def rates(self, d_head: int, trained: int, highest: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Angle a position for each pair [width / 2]; `highest` is the last position, which matters if `by_length`."""
        width = self.width(d_head)
        trained = self.trained_length(trained)
        base = self.theta
        if self.rope_type == "dynamic":
            length = max(highest + 1, trained)
            base *= (self.factor * length / trained - (self.factor - 1)) ** (width / (width - 2))
        rates = 1.0 / base ** (torch.arange(0, width, 2, dtype=dtype, device=device) / width)
        if self.rope_type == "linear":
            return rates / self.factor
        if self.rope_type == "longrope":
            factors = self.long_factors if highest + 1 > trained else self.short_factors
            return rates / torch.tensor(factors, dtype=dtype, device=device)
        if self.rope_type == "llama3":
            return self._blend(
                rates,
                ((trained * rates / (2 * math.pi)) - self.low_freq_factor)
                / (self.high_freq_factor - self.low_freq_factor),
            )
        if self.rope_type == "yarn":
            return self._blend(rates, 1 - self._ramp(width, trained, dtype, device))
        return rates

    def _blend(self, rates: Tensor, keep: Tensor) -> Tensor:
        """`keep` 1: as trained; 0: divided by the factor; between: a mixture."""
        keep = keep.clamp(0, 1)
        return keep * rates + (1 - keep) * rates / self.factor

    def _ramp(self, width: int, trained: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """From 0 at the last pair that is fast to 1 at the first that is slow."""

        def pair(turns: float) -> float:
            return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, width - 1)
        last = last + 0.001 if first == last else last  # a step, not a division by nothing
        return (torch.arange(width // 2, dtype=dtype, device=device) - first) / (last - first)
