"""How well a model foresees a text, from the sum of -log p (natural) over its tokens."""

from __future__ import annotations

import math


def perplexity(total: float, tokens: int) -> float:
    """e to the mean surprise of a token; infinite where that is beyond a float."""
    mean = total / max(tokens, 1)
    return math.exp(mean) if mean < 700 else math.inf


def bits_per_character(total: float, characters: int) -> float:
    """What the text would take, compressed with the model, in bits a character; comparable across vocabularies."""
    return total / math.log(2) / max(characters, 1)
