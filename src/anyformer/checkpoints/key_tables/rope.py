"""How Hugging Face spells rotary positions: today `rope_parameters`, before it `rope_theta` and `rope_scaling`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from anyformer.core.rope import RopeConfig
from anyformer.errors import ConfigError

# Theirs -> ours, for each kind of rotation.
_NAMES = {
    "default": {},
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_length",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_length",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "truncate": "truncate",
        "attention_factor": "attention_factor",
    },
    "longrope": {
        "factor": "factor",
        "original_max_position_embeddings": "original_max_length",
        "attention_factor": "attention_factor",
        "short_factor": "short_factors",
        "long_factor": "long_factors",
    },
}
TRAINED = "original_max_position_embeddings"
_YARN_SCALES = ("mscale", "mscale_all_dim")


def read_rope(given: Any, share: bool = False) -> RopeConfig:
    """One dictionary of theirs; `share`: whether the family can turn a part of each head only."""
    given = dict(given or {})
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    if not isinstance(kind, str) or kind not in _NAMES:
        raise ConfigError(f"rope type {kind!r} is not one of {', '.join(_NAMES)}")
    base, part = given.pop("rope_theta", None), given.pop("partial_rotary_factor", None)
    if part not in (None, 1.0) and not share:
        raise ConfigError(f"partial_rotary_factor {part} is not supported for this family")
    ours = {name: given.pop(theirs, None) for theirs, name in _NAMES[kind].items()}
    if kind == "yarn":
        ours["attention_factor"] = _gain(ours, *(given.pop(name, None) for name in _YARN_SCALES))
    if kind == "longrope":
        ours |= {name: tuple(map(float, ours[name] or ())) for name in ("short_factors", "long_factors")}
    # Left over from another kind of rotation, a field says nothing.
    strange = set(given) - {name for names in _NAMES.values() for name in names} - set(_YARN_SCALES)
    if strange:
        raise ConfigError(f'"{min(strange)}" is not known')
    ours |= {
        "rope_type": kind,
        "theta": float(base) if type(base) is int else base,
        "partial_rotary_factor": part if share else None,
    }
    return RopeConfig(**{name: value for name, value in ours.items() if value is not None})


def _gain(ours: dict[str, Any], scale: float | None, scale_all: float | None) -> float | None:
    """DeepSeek's two scales make one gain, where none is given."""
    if ours.get("attention_factor") is not None or not (scale and scale_all):
        return ours.get("attention_factor")
    log = 0.1 * math.log(max(ours["factor"], 1.0))
    return (scale * log + 1.0) / (scale_all * log + 1.0)


def write_rope(rope: RopeConfig) -> dict[str, Any]:
    kind = rope.rope_type
    theirs = {name: getattr(rope, ours) for name, ours in _NAMES[kind].items()}
    share = {} if rope.partial_rotary_factor == 1.0 else {"partial_rotary_factor": rope.partial_rotary_factor}
    said = {name: value for name, value in theirs.items() if value is not None}
    return {"rope_type": kind, "rope_theta": rope.theta, **share, **said}


def read_ropes(given: Any) -> tuple[RopeConfig, ...]:
    return (read_rope(given),)


def write_ropes(ropes: tuple[RopeConfig, ...]) -> dict[str, Any]:
    if len(ropes) > 1:
        raise ConfigError("This family's Hugging Face form has one rotation for all layers; the model has two.")
    return write_rope(ropes[0])


def _stretch(config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Longrope's trained length may be a field of the config, and its factor follow from it (Phi-3)."""
    trained = config.pop(TRAINED, None) or rope.get(TRAINED)
    if trained:
        rope[TRAINED] = trained
        if rope.get("factor") is None and "max_position_embeddings" in config:
            rope["factor"] = max(config["max_position_embeddings"] / trained, 1.0)


def gather(theta: str = "rope_theta", share: str = "partial_rotary_factor") -> Callable[[dict[str, Any]], Any]:
    """An `adjust` that brings the older fields, under the names that the family gave them, into rope_parameters."""

    def adjust(config: dict[str, Any]) -> dict[str, Any]:
        config = dict(config)
        base, part, scaling = config.pop(theta, None), config.pop(share, None), config.pop("rope_scaling", None)
        rope = dict(scaling or config.get("rope_parameters") or {})
        older = {"rope_theta": base, "partial_rotary_factor": part}
        config["rope_parameters"] = {**{name: value for name, value in older.items() if value is not None}, **rope}
        if config["rope_parameters"].get("rope_type", rope.get("type")) == "longrope":
            _stretch(config, config["rope_parameters"])
        return config

    return adjust
