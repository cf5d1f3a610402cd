"""Which fields of a model's output hold its hidden states, attention weights and caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyformer.forward_context import Output


@dataclass(frozen=True)
class OutputSpec:
    """Which values answer `output_hidden_states` and `output_attentions` of transformers.

    `hidden`: field -> (stage, index into [input, after block 1, …]; -1 is the stage's final output). `features`: the
    same for hidden states that are not tokens, field -> globs of taps. `attentions`: field -> globs of taps. `last`:
    field -> stage. A field "a.b" is the field b of the output's field a. `empty`: attention fields that transformers'
    class returns even if they are empty. `apart`: the last field, if transformers puts its last item after it in a
    tuple (Perceiver's decoder).
    """

    hidden: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attentions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cache: str = "past_key_values"  # transformers' name of the cache
    last: Mapping[str, str] = field(default_factory=dict)
    empty: tuple[str, ...] = ()
    apart: str | None = None


def put_field(out: Output, name: str, value: Any) -> None:
    """Set a field by its name; "a.b" is the field b of the output's field a."""
    *path, last = name.split(".")
    for part in path:
        out = out[part]
    out[last] = value
