"""Language modeling metrics, from the sum of -log p (natural) over tokens."""

from __future__ import annotations

import math


def perplexity(total: float, tokens: int) -> float:
    """Perplexity: exp of the mean loss per token; infinite on overflow."""
    mean = total / max(tokens, 1)
    return math.exp(mean) if mean < 700 else math.inf


def bits_per_character(total: float, characters: int) -> float:
    """Compressed size in bits per character; comparable across vocabularies."""
    return total / math.log(2) / max(characters, 1)
