"""Dotted keys: the same settings in --set, in a file given with --config, in Python and in a folder's config.json.

sections = {"train": TrainSettings(), "model": GPT2()}
resolve(sections, {"train.lr": "3e-4", "n_layers": 2})     # a new dict of sections, types checked
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

from anyformer.config import Settings, parse, plain
from anyformer.errors import ConfigError, nearest
from anyformer.jsonfile import parse_json
from anyformer.upgrades import fields_of, renamed, upgrade_value

Sections = dict[str, Settings]

# Options of `anyformer train` and arguments of `af.train`, and the settings that they stand for.
SHORTCUTS = {
    "epochs": "train.epochs",
    "steps": "train.steps",
    "lr": "train.lr",
    "batch_size": "train.batch_size",
    "seed": "train.seed",
    "device": "train.device",
    "precision": "train.precision",
    "max_length": "data.max_length",
    "image_size": "data.image_size",
    "lora": "train.lora",
}


def flatten(sections: Mapping[str, Settings]) -> dict[str, Any]:
    """Every key with its value as JSON holds it, in order.  {"train.steps": 10000, …}"""
    return {key: value for name, settings in sections.items() for key, value in _walk(name, settings)}


def _walk(prefix: str, settings: Settings) -> Iterator[tuple[str, Any]]:
    for name in settings.field_names():
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from _walk(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", plain(value)


def upgrade_keys(sections: Mapping[str, Settings], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Saved keys and values under today's names (upgrades.py)."""
    names, owners = _old_keys(sections), _owners(sections)
    upgraded = {names.get(key, key): value for key, value in saved.items()}
    return {key: _upgrade_value(owners, key, value) for key, value in upgraded.items()}


def upgrade_resumed(
    sections: Mapping[str, Settings], given: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[str, Any]:
    """What the user gives to continue a run, under today's names: of old names and values, those that the run saved."""
    known, names, owners = flatten(sections), _old_keys(sections), _owners(sections)
    upgraded = {}
    for key, value in _unnest(given, known):
        old = [one for one in names if key in (one, one.partition(".")[2]) and one in saved]
        today = names[old[0]] if len(old) == 1 else key
        whole = next((one for one in known if today in (one, one.partition(".")[2])), today)
        same = value == saved.get(old[0] if old else whole)
        upgraded[today] = _upgrade_value(owners, whole, value) if same else value
    return upgraded


def _old_keys(sections: Mapping[str, Settings]) -> dict[str, str]:
    """Old key -> today's key, of the keys that were renamed."""
    return {old: new for old, new, _ in _fields(sections) if old != new}


def _owners(sections: Mapping[str, Settings]) -> dict[str, type[Settings]]:
    """Key -> the class of settings that has its field."""
    return {key: owner for _, key, owner in _fields(sections)}


def _fields(sections: Mapping[str, Settings]) -> Iterator[tuple[str, str, type[Settings]]]:
    """The old key, today's key and the class of every field."""
    for name, settings in sections.items():
        yield from _walk_fields(name, name, settings)


def _walk_fields(old: str, new: str, settings: Settings) -> Iterator[tuple[str, str, type[Settings]]]:
    before = {today: past for past, today in fields_of(type(settings)).items()}
    for name in settings.field_names():
        value = getattr(settings, name)
        keys = f"{old}.{before.get(name, name)}", f"{new}.{name}"
        if isinstance(value, Settings):
            yield from _walk_fields(*keys, value)
        else:
            yield *keys, type(settings)


def _upgrade_value(owners: Mapping[str, type[Settings]], key: str, value: Any) -> Any:
    return upgrade_value(owners[key], key.rpartition(".")[2], value) if key in owners else value


def resolve(sections: Mapping[str, Settings], given: Mapping[str, Any]) -> Sections:
    """The sections with what was given put in; a text is read as the key's type wants it."""
    whole = expand_keys(sections, given)
    return {
        name: _change(
            settings, {k.removeprefix(f"{name}."): v for k, v in whole.items() if k.startswith(f"{name}.")}, name
        )
        for name, settings in sections.items()
    }


def expand_keys(sections: Mapping[str, Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by whole keys."""
    known, old = flatten(sections), _old_keys(sections)
    return {_full(key, known, old): value for key, value in _unnest(given, known)}


def _unnest(given: Mapping[str, Any], known: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"train": {"steps": 5}} -> train.steps: 5; what is itself a key keeps its mapping."""
    for key, value in given.items():
        if isinstance(value, Mapping) and f"{prefix}{key}" not in known:
            yield from _unnest(value, known, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _full(key: str, known: Collection[str], old: Mapping[str, str]) -> str:
    """The whole key; one without its section is enough where only one section has it.  n_layers -> model.n_layers"""
    if key in known:
        return key
    if SHORTCUTS.get(key) in known:
        return SHORTCUTS[key]
    ends = [whole for whole in known if whole.partition(".")[2] == key]
    if len(ends) == 1:
        return ends[0]
    if len(ends) > 1:
        raise ConfigError(f'"{key}" is ambiguous: {" or ".join(ends)}. Give the full key.')
    today = " or ".join(new for was, new in old.items() if key in (was, was.partition(".")[2]))
    if today:
        raise ConfigError(f'There is no setting "{key}".{renamed(key, today)}')
    alone = len({whole.partition(".")[0] for whole in known}) < 2
    see = f"There are: {', '.join(known) or 'none'}." if alone else "See all of them with --dry-run."
    raise ConfigError(f'There is no setting "{key}".{nearest(key, known)} {see}')


def _change(settings: Settings, changes: Mapping[str, Any], prefix: str) -> Settings:
    direct: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        name, _, rest = key.partition(".")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            direct[name] = _read(settings, name, value, f"{prefix}.{name}")
    for name, some in inner.items():
        direct[name] = _change(getattr(settings, name), some, f"{prefix}.{name}")
    try:
        return settings.replace(**direct) if direct else settings
    except ConfigError as error:  # says it by the class; the user knows the key
        raise ConfigError(
            re.sub(rf"^{type(settings).__name__}: (?=\w+ (is|are)\b)", f"{prefix}.", str(error))
        ) from None


def _read(settings: Settings, name: str, value: Any, key: str) -> Any:
    try:
        return parse(value, settings.field_type(name)) if isinstance(value, str) else settings.coerce(name, value)
    except ValueError as error:
        raise ConfigError(f"{key} is {value!r}; it takes {error}.{settings.renamed_value(name, value)}") from None


def task_options(kind: type[Settings], given: Mapping[str, str]) -> dict[str, Any]:
    """What was given of a task's own settings, by their names.  {"task.lowercase": "true"} -> {"lowercase": True}"""
    usual = {"task": kind()}
    chosen = resolve(usual, given)["task"]
    named = [key.split(".")[1] for key in expand_keys(usual, given)]
    return {name: getattr(chosen, name) for name in named}


def parse_assignments(texts: Sequence[str]) -> dict[str, str]:
    """["train.lr=3e-4"] -> {"train.lr": "3e-4"}"""
    pairs = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f'"{text}" is not a setting; write --set KEY=VALUE, such as --set train.lr=3e-4.')
        pairs[key.strip()] = value.strip()
    return pairs


def with_shortcuts(given: Mapping[str, str], shortcuts: Mapping[str, str | None]) -> dict[str, str]:
    """The settings of --set and those of shortcuts (None: not given), together; both for one setting is an error."""
    chosen = {name: value for name, value in shortcuts.items() if value is not None}
    for name in chosen:
        if (twice := next((key for key in given if key in (name, SHORTCUTS[name])), None)) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} and --set {twice} give the same setting; leave one out.")
    return {**given, **{SHORTCUTS[name]: value for name, value in chosen.items()}}


def read_config(path: str | PathLike[str]) -> dict[str, Any]:
    """The keys of a YAML or JSON file: dotted, or nested by section, or both."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"The settings in {path} cannot be read: {why}.") from None
    data = parse_json(text, str(path), error=ConfigError) if path.suffix == ".json" else _yaml(path, text)
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must contain settings, such as train.steps: 1000.")
    return {str(key): value for key, value in data.items()}


def _yaml(path: Path, text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
        """YAML 1.1 reads 1e-12 as a string, but --dry-run prints floats in that form."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), "-+0123456789"
    )
    try:
        return yaml.load(text, Loader)  # a SafeLoader: it makes plain values only
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}," if where is not None else ""
        raise ConfigError(f"{path}{line} is not valid YAML: {getattr(error, 'problem', error)}.") from None


def show(sections: Mapping[str, Settings], follows: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Every key as a line of YAML, so that the list is itself a file for --config. Keys that `follows` names have the
    value that it gives, as comments: they are not to be chosen."""
    lines = {key: f"{key}: {json.dumps(value)}" for key, value in flatten(sections).items()}
    lines |= {
        key: f"# {key}: {json.dumps(value)} (follows from the task and the data)" for key, value in follows.items()
    }
    return "\n".join(lines.values())
