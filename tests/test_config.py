"""Settings: checked when they are made, to JSON and back, with hints for near misses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import anyformer as af
from anyformer import registry
from anyformer.config import Settings
from anyformer.errors import ConfigError, nearest
from anyformer.registry import Family, Recipe, recipe, register
from anyformer.upgrades import FIELDS


@dataclass(frozen=True, kw_only=True)
class Inner(Settings):
    width: int = 4
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, kw_only=True)
class Outer(Settings):
    n_layers: int = 2
    rate: float = 0.5
    name: str = "x"
    flag: bool = False
    sizes: tuple[int, ...] = (1, 2)
    inner: Inner = Inner()
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    limit: int | None = None

    def check(self) -> None:
        self.require(self.n_layers > 0, f"n_layers is {self.n_layers}; it must be 1 or more.")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_layers", "2"),
        ("n_layers", 2.0),
        ("n_layers", True),
        ("n_layers", None),
        ("rate", "0.5"),
        ("rate", True),
        ("name", 3),
        ("flag", 1),
        ("sizes", [1, 2]),
        ("sizes", (1, "2")),
        ("inner", {"width": 4}),
        ("inner", None),
        ("many", (Inner(), 3)),
        ("limit", 1.5),
    ],
)
def test_a_value_of_another_type_is_refused(field: str, value: Any) -> None:
    """The error names the settings and the field, and shows the value."""
    with pytest.raises(ConfigError, match=rf"Outer\.{field} is "):
        Outer(**{field: value})


def test_values_of_the_right_type_are_taken() -> None:
    """Whole numbers pass as floats; None where it is an option; nested settings as they are."""
    made = Outer(rate=1, limit=None, maybe=Inner(width=2), many=(Inner(), Inner(kind="b")))
    assert made.rate == 1
    assert made.maybe == Inner(width=2)


def test_a_choice_outside_the_list_is_refused() -> None:
    """The error lists what may be chosen."""
    with pytest.raises(ConfigError, match=r"Inner\.kind is 'c'; .*'a', 'b'"):
        Inner(kind="c")  # type: ignore[arg-type]


def test_its_own_rules_are_checked() -> None:
    """`check` runs when settings are made and when a copy is."""
    with pytest.raises(ConfigError, match="Outer: n_layers is 0"):
        Outer(n_layers=0)
    with pytest.raises(ConfigError, match="n_layers is -1"):
        Outer().replace(n_layers=-1)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("roberta-tiny", "padding is -5"),
        ("line-reader-tiny", "padding is -5"),
    ],
)
def test_a_padding_that_leads_out_of_a_table(recipe: str, said: str) -> None:
    with pytest.raises(af.ConfigError, match=said):
        af.build(recipe, padding=-5)


def test_settings_do_not_change() -> None:
    """Frozen: `replace` gives a copy and leaves the original."""
    made = Outer()
    with pytest.raises(ConfigError, match=r"n_layers cannot be changed; `replace"):
        made.n_layers = 3  # type: ignore[misc]
    assert made.replace(n_layers=3).n_layers == 3
    assert made.n_layers == 2


def test_a_near_miss_gets_a_hint() -> None:
    """A name that no field has is an error with the nearest one, from code and from JSON."""
    with pytest.raises(ConfigError, match=r'"n_layer".*"n_layers"'):
        Outer().replace(n_layer=3)
    with pytest.raises(ConfigError, match=r'"siezs".*"sizes"'):
        Outer.from_json({"siezs": [1]})
    with pytest.raises(ConfigError, match=r'Inner .*"widht".*"width"'):
        Outer.from_json({"inner": {"widht": 1}})
    assert nearest("zzz", ["width"]) == ""


def test_nested_settings_survive_json() -> None:
    """Text and back gives equal settings: tuples, nested ones, several of them, and None."""
    made = Outer(sizes=(3,), inner=Inner(kind="b"), maybe=Inner(width=9), many=(Inner(width=1), Inner()), limit=5)
    for settings in (made, Outer()):
        assert Outer.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_json_may_leave_fields_out() -> None:
    """What is not said keeps its default; 1 is taken for 1.0; a wrong type is still an error."""
    assert Outer.from_json({"rate": 1, "inner": {"width": 8}}) == Outer(rate=1.0, inner=Inner(width=8))
    assert isinstance(Outer.from_json({"rate": 1}).rate, float)
    with pytest.raises(ConfigError, match=r"Outer\.n_layers is '2'"):
        Outer.from_json({"n_layers": "2"})


@pytest.mark.parametrize("name", af.recipes())
def test_every_recipe_survives_json(name: str) -> None:
    """Each registered config, written as JSON text and read again, is equal."""
    found: Recipe = recipe(name)
    again = found.family.config.from_json(json.loads(json.dumps(found.config.to_json())))
    assert again == found.config
    assert type(again) is type(found.config)


def test_an_unknown_recipe_or_override_gets_a_hint() -> None:
    """`build` explains itself before it builds anything."""
    with pytest.raises(ConfigError, match=r'"gpt2-tinny".*"gpt2-tiny"'):
        af.build("gpt2-tinny")
    with pytest.raises(ConfigError, match=r'"n_layer".*"n_layers"'):
        af.build("gpt2-tiny", n_layer=3)
    with pytest.raises(ConfigError, match=r"GPT2Config\.n_layers is '3'"):
        af.build("gpt2-tiny", n_layers="3")


@pytest.mark.parametrize(
    ("recipe", "overrides", "today"),
    [
        ("beit-tiny", {"gain": 0.1}, "layer_scale"),
        ("beit-tiny", {"helper": True}, "auxiliary"),
        ("perceiver-tiny", {"n_rounds": 2}, "n_repeats"),
        ("joints-96", {}, "keypoint-detr-96"),
        ("joints-tiny", {}, "keypoint-detr-tiny"),
    ],
)
def test_an_old_name_is_an_error_with_the_name_of_today(recipe: str, overrides: dict[str, Any], today: str) -> None:
    with pytest.raises(ConfigError, match=f'"{next(iter(overrides), recipe)}" .*"{today}"'):
        af.build(recipe, **overrides)


def test_no_old_name_is_the_name_of_a_field() -> None:
    """Otherwise a setting given under its name of today would be taken for another."""
    kinds = {kind.__name__: kind for kind in subclasses(Settings)}
    for name in FIELDS.keys() & kinds.keys():
        assert not FIELDS[name].keys() & set(kinds[name].field_names())
        assert set(FIELDS[name].values()) <= set(kinds[name].field_names())


def subclasses(kind: type[Settings]) -> Iterator[type[Settings]]:
    for found in kind.__subclasses__():
        yield from (found, *subclasses(found))


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family or a recipe whose name is taken is an error, not a replacement."""
    for table in ("FAMILIES", "RECIPES"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    found = recipe("gpt2-tiny")
    with pytest.raises(ConfigError, match="these names: gpt2;"):
        register(found.family, {})
    other = Family("another", found.family.config, found.family.build, found.family.init, "")
    with pytest.raises(ConfigError, match="these names: gpt2-tiny;"):
        register(other, {"gpt2-tiny": found.config})
