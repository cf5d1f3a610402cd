"""Numbers outside their range are refused when a model is built or loaded, whatever field they are given for."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import registry
from anyformer.config import NUMBERS as RANGES
from anyformer.config import Settings
from anyformer.core.rope import RopeConfig
from anyformer.registry import recipe
from tests.checkpoints.compare import flat
from tests.recipes.batches import training_batch
from tests.tiny import tiny_recipes

NUMBERS = (-1, 0, 1.5, 10**12, 1e300)


def numeric_fields(config: Settings) -> Iterator[tuple[str, Any]]:
    """Each field that holds a number or a list of numbers, and its value."""
    for name in config.field_names():
        hint, value = config.field_type(name), getattr(config, name)
        options = [hint, *typing.get_args(hint)]
        if int in options or float in options:
            yield name, value


def nested(config: Settings) -> Iterator[Settings]:
    """The settings, and the settings inside them."""
    yield config
    for name in config.field_names():
        value = getattr(config, name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Settings):
                yield from nested(one)


def outcome(name: str, field: str, value: Any) -> str | None:
    """None if the model is refused or answers with finite numbers; otherwise what happened."""
    try:
        model = af.build(name, **{field: value}).eval()
        with torch.no_grad():
            out = flat(model(**training_batch(name)))
    except af.Error:
        return None
    except Exception as error:
        return f"{field}={value!r}: {type(error).__name__}: {str(error)[:80]}"
    wrong = [key for key, one in out.items() if isinstance(one, Tensor) and not bool(torch.isfinite(one).all())]
    return f"{field}={value!r}: {', '.join(wrong)} not finite" if wrong else None


def test_every_number_has_a_range() -> None:
    without = {
        f"{type(settings).__name__}.{field}"
        for name in tiny_recipes()
        for settings in nested(recipe(name).config)
        for field, _ in numeric_fields(settings)
        if not any(re.fullmatch(pattern, field) for pattern, _ in RANGES)
    }
    assert not without


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_number_is_in_range_or_refused(name: str) -> None:
    found: list[str | None] = []
    values: list[Any]
    for field, usual in numeric_fields(recipe(name).config):
        if isinstance(usual, tuple):
            values = [(number,) * max(len(usual), 1) for number in NUMBERS] + [usual[:1], (*usual, *usual[-1:])]
        else:
            values = list(NUMBERS)
        found += [outcome(name, field, value) for value in values]
    assert not list(filter(None, found))


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
def test_every_number_of_a_rope_is_in_range_or_refused(kind: str) -> None:
    usual, found = RopeConfig().to_json(), []
    for field, _ in numeric_fields(RopeConfig()):
        for number in NUMBERS:
            found.append(outcome("gptneox-tiny", "rope", {**usual, "rope_type": kind, field: number}))
    assert not list(filter(None, found))


@pytest.mark.parametrize("changes", [{"n_buckets": n} for n in range(4)] + [{"max_distance": n} for n in (-1, 0, 16)])
def test_buckets_that_hold_no_distance(changes: dict[str, int]) -> None:
    with pytest.raises(af.ConfigError, match=next(iter(changes))):
        af.build("t5-tiny", **changes)


@pytest.mark.parametrize("value", [0, -1])
def test_a_folder_with_a_wrong_number(tmp_path: Path, value: int) -> None:
    af.build("t5-tiny").save(tmp_path, format="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    config["relative_attention_max_distance"] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(af.ConfigError, match="relative_attention_max_distance"):
        af.load(tmp_path)


def test_weights_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with pytest.raises(af.ConfigError, match=r"17,592.2 GB of memory"):
        af.build("gpt2-tiny", vocab_size=2**28, d_model=2**14, n_layers=0)
    monkeypatch.setattr(registry, "materialize", full)
    with pytest.raises(af.ConfigError, match="GB of memory"):
        af.build("gpt2-tiny")
