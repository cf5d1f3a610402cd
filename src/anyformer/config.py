"""Settings: frozen, keyword-only dataclasses, checked when they are made, to JSON and back.

@dataclass(frozen=True, kw_only=True)
class GPT2(Settings):
    n_layers: int = 12

GPT2(n_layers=2).replace(n_heads=4).to_json()
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self

from anyformer.errors import ConfigError, nearest, training_setting
from anyformer.jsonfile import parse_json
from anyformer.schema import Length, Range, fits, is_union, shown, spell
from anyformer.upgrades import fields_of, renamed, upgrade, upgrade_value

_WIDTH, _LENGTH, _SIDE = 2**24, 2**31 - 1, 2**16
# Allowed values of the numbers of settings, by field name; the first pattern that matches applies. Within these bounds
# float32 does not overflow in a model of usual depth. All numbers must be finite.
NUMBERS = (
    (r".*(dropout|drop_path|layer_drop)", Range(least=0, below=1)),
    (r"mask_ratio", Range(least=0, below=1)),
    (r"(.*_)?eps", Range(0, 1)),
    (r"(init|embedding)_std", Range(0, 100)),
    (r"(.*_)?std", Range(0, 1e6)),
    (r"scale|layer_scale|attention_factor|beta_(fast|slow)|factor", Range(0, 1e6)),
    (r"log_scale", Range(-30, 30)),
    (r"(.*_)?(weight|cost)|coverage|entropy|reward", Range(0, 1e6)),
    (r"(score|logit)_cap|(short|long)_factors", Range(above=0, most=1e6)),
    (r"theta", Range(above=0, most=1e12)),
    (r"(low|high)_freq_factor|(.*_)?sigma", Range(above=0, most=1e6)),
    (r"partial_rotary_factor", Range(above=0, most=1)),
    (r"n_(.*_)?layers|n_blocks|n_sets|n_repeats|depths|layers?", Range(0, 10_000)),
    (r"n_(.*_)?heads|n_channels", Range(1, _SIDE)),
    (r"n_(buckets|queries|keypoints)", Range(1, _WIDTH)),
    (r"n(_.*)?|d_features", Range(0, _WIDTH)),  # a backbone's features are counted from its layers
    (r"d_.*|widths|rank", Range(1, _WIDTH)),
    (r"(target_)?vocab_size", Range(1, 2**28)),
    (r"categories", Range(0, 2**28)),
    (r"(image|patch|audio_patch|tubelet)_size|(.*_)?stride", Range(1, _SIDE)),
    (r"kernel|dilation|expand|groups|bands|pools|resolution|mlp_ratio|(.*_)?widening_factor", Range(1, _SIDE)),
    (r"(max|source|text|original_max)_length|(local_)?window|block|max_distance", Range(1, _LENGTH)),
    (r"first_position|mem_len|memory", Range(0, _LENGTH)),
    (r"decoder_start|begin|end|padding", Range(-1, _LENGTH)),  # token ids; -1 is none
    (r"ignore", Range(-_LENGTH, _LENGTH)),  # the class of pixels that do not count
)


# How many numbers a field has if it is a list.
LENGTHS = ((r"image_size|patch_size", Length(2, 2)),)  # rows, columns


class Settings:
    """Base of every configuration. Subclasses are frozen dataclasses; their own rules stand in `check`.

    Other libraries may write further attributes, such as `use_cache`; they mean nothing here and are not saved.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.field_names():
            raise ConfigError(f"{type(self).__name__}.{name} cannot be changed; `replace({name}=…)` makes a copy.")
        object.__setattr__(self, name, value)

    def get_text_config(self) -> Self:
        """The settings themselves, which are not nested by modality."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """All settings, and what other libraries wrote."""
        return {**vars(self), **self.to_json()}

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            if not fits(value, hint):
                raise ConfigError(
                    f"{type(self).__name__}.{name} is {shown(value)}; it takes {spell(hint)}."
                    f"{self.renamed_value(name, value)}"
                )
            wrong = out_of_range(name, value)
            self.require(wrong is None, f"{name} is {shown(value)}; it must be {wrong}.")
        self.check()

    @classmethod
    def renamed_value(cls, name: str, value: Any) -> str:
        """The hint for an old value of a field; empty if the value is none."""
        return renamed(str(value), str(upgrade_value(cls, name, value)))

    def check(self) -> None:
        """Raise ConfigError for values that contradict each other."""

    @classmethod
    def field_names(cls) -> list[str]:
        return list(_hints(cls))

    @classmethod
    def field_type(cls, name: str) -> Any:
        """The type of a field."""
        return _hints(cls)[name]

    @classmethod
    def coerce(cls, name: str, value: Any) -> Any:
        """What JSON gives, in the form that a field wants; ValueError, with what it takes, where it does not fit."""
        shaped = _shape(value, cls.field_type(name))
        if not fits(shaped, cls.field_type(name)):
            raise ValueError(spell(cls.field_type(name)))
        return shaped

    def replace(self, **overrides: object) -> Self:
        """A copy with some fields changed; a name that no field has is an error with the nearest one."""
        for name in overrides:
            if name not in self.field_names():
                today = fields_of(type(self)).get(name, name)
                hint = nearest(name, self.field_names()) or training_setting(name)
                known = f"{hint} It has: {', '.join(self.field_names())}."
                raise ConfigError(f'{type(self).__name__} has no field "{name}".{renamed(name, today) or known}')
        fields = {name: getattr(self, name) for name in self.field_names()}
        return type(self)(**{**fields, **{n: _shape(v, _hints(type(self))[n]) for n, v in overrides.items()}})

    def to_json(self) -> dict[str, Any]:
        return {name: plain(getattr(self, name)) for name in self.field_names()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        if not isinstance(data, Mapping):
            raise ConfigError(
                f"{cls.__name__} is {shown(data)}; it takes an object with {', '.join(cls.field_names())}."
            )
        data = upgrade(cls, data)
        unknown = [name for name in data if name not in cls.field_names()]
        if unknown:
            raise ConfigError(
                f'{cls.__name__} has no field "{unknown[0]}".{nearest(unknown[0], cls.field_names())}'
                f" It has: {', '.join(cls.field_names())}."
            )
        missing = [name for name in _required(cls) if name not in data]
        if missing:
            raise ConfigError(f'{cls.__name__} needs "{missing[0]}", which is not given.')
        return cls(**{name: _shape(value, _hints(cls)[name]) for name, value in data.items()})

    def require(self, holds: bool, why: str) -> None:
        if not holds:
            raise ConfigError(f"{type(self).__name__}: {why}")


_LAYERS = re.compile(r"n_(.*_)?layers|n_blocks|depths")


def count_layers(settings: Settings | Mapping[str, Any]) -> int:
    """How many layers settings ask for, of all stacks together: what takes time to build."""
    given = settings.to_json() if isinstance(settings, Settings) else settings
    total = sum(count_layers(value) for value in given.values() if isinstance(value, Mapping))
    for name, value in given.items():
        if _LAYERS.fullmatch(name):
            counts = value if isinstance(value, (list, tuple)) else [value]
            total += sum(one for one in counts if type(one) is int)
    return total * (given.get("n_sets") or 1)


def out_of_range(name: str, value: Any) -> Range | Length | None:
    """The rule for fields of this name that the value breaks, if any."""
    numbers = value if isinstance(value, tuple) else (value,)
    length = next((rule for pattern, rule in LENGTHS if re.fullmatch(pattern, name)), None)
    if isinstance(value, tuple) and length is not None and not length.holds(value):
        return length
    found = next((bounds for pattern, bounds in NUMBERS if re.fullmatch(pattern, name)), None)
    if found is None or all(found.holds(one) for one in numbers if type(one) in (int, float)):
        return None
    return found


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    """The types of a class's fields, looked up once."""
    if cls not in _HINTS:
        for one in cls.__mro__:  # a frozen dataclass refuses every attribute; `Settings` only its fields
            if "__setattr__" in vars(one) and "__dataclass_params__" in vars(one):
                del one.__setattr__
        types_of = typing.get_type_hints(cls)
        _HINTS[cls] = {field.name: types_of[field.name] for field in dataclasses.fields(cls)}
    return _HINTS[cls]


def plain(value: Any) -> Any:
    """A field's value as JSON holds it: settings become objects, tuples lists, however deep they are nested."""
    if isinstance(value, Settings):
        return value.to_json()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def _required(cls: Any) -> list[str]:
    """The fields that have no default."""
    nothing = dataclasses.MISSING
    fields = dataclasses.fields(cls)
    return [field.name for field in fields if field.default is nothing and field.default_factory is nothing]


def _shape(value: Any, hint: Any) -> Any:
    """What JSON gives, in the form that the field wants: lists become tuples, objects become Settings."""
    options = typing.get_args(hint) if is_union(hint) else (hint,)
    for option in options:
        if isinstance(value, Mapping) and _of_settings(option):
            return option.from_json(value)
        if isinstance(value, list) and typing.get_origin(option) is tuple:
            return tuple(_shape(item, typing.get_args(option)[0]) for item in value)
        if option is float and type(value) is int:
            return float(value)
    return value


def parse(text: str, hint: Any) -> Any:
    """A value typed as text, as the field's type wants it; ValueError, with what it takes, where it cannot be.

    parse("20_000", int) -> 20000;  parse("none", int | None) -> None;  parse("a,b", tuple[str, ...]) -> ("a", "b")
    """
    options = sorted(typing.get_args(hint), key=lambda one: one is not type(None)) if is_union(hint) else [hint]
    for option in options:
        try:
            value = _parse_one(text, option)
        except ValueError:
            continue
        if fits(value, option):
            return value
    raise ValueError(spell(hint))


def _parse_one(text: str, hint: Any) -> Any:
    if hint is type(None):
        return None if text.lower() in ("none", "null", "") else text
    if hint is bool:
        return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(
            text.lower(), text
        )
    if hint is int:
        return int(float(text)) if float(text).is_integer() and "e" in text.lower() else int(text)  # 1e6 is whole
    if hint is float:
        return float(text)
    if typing.get_origin(hint) is tuple and _of_settings(typing.get_args(hint)[0]):
        return _shape(_json(text), hint)
    if typing.get_origin(hint) is tuple:
        pieces = [piece.strip() for piece in text.strip("[]()").split(",")]
        return tuple(parse(piece.strip("'\""), typing.get_args(hint)[0]) for piece in pieces if piece)
    if typing.get_origin(hint) is dict or _of_settings(hint):
        return _shape(_json(text), hint)
    if typing.get_origin(hint) is Literal:
        return next((value for value in typing.get_args(hint) if str(value) == text), text)
    return text


def _json(text: str) -> Any:
    try:
        return parse_json(text, "it", error=ConfigError)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def _of_settings(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Settings)
