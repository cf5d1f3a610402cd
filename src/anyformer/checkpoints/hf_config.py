"""A Hugging Face config.json as our settings. A field that may change numbers and is not supported is an error."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from anyformer import registry
from anyformer.checkpoints.key_table import GENERAL, USUAL, KeyTable
from anyformer.config import Settings, out_of_range
from anyformer.errors import ConfigError, nearest
from anyformer.schema import Matches, Range, check_fields, shown

_WRONG = (ConfigError, TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, ArithmeticError)
SHOWN = 5  # unknown fields that an error names

LAYERS = Annotated[int, Range(0, 10_000)]

# What every family's config may say, before anything is made of it.
SCHEMA: Mapping[str, Any] = {
    "model_type": str | None,
    "architectures": list[str] | str | None,
    "id2label": dict[Annotated[str, Matches(r"\d+")], str | int | float | bool] | None,
    "num_labels": Annotated[int, Range(0, 2**24)] | None,
    "problem_type": str | None,
    "tie_word_embeddings": bool | None,
    "is_decoder": bool | None,
}
# Ids of tokens, which every config may name, and the configs inside it. Those that end or fill a text may lie past the
# vocabulary, as in folders that transformers writes of a model with fewer tokens than usual; -1 is none.
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "mask_token_id")
ENDS = ("bos_token_id", "eos_token_id")
WRITTEN_IDS = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id")  # which the model must have
TOKEN_ID = Annotated[int, Range(-1, 2**31 - 1)]
# Fields of rotary positions and activations, checked whether the model uses them or not.
SHARE = Annotated[float, Range(above=0, most=1)] | None
BASE = Annotated[float, Range(above=0, most=1e12)] | None
COMMON: Mapping[str, Any] = {
    **dict.fromkeys(("rope_scaling", "rope_parameters"), dict[str, Any] | None),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq", "rotary_emb_base"), BASE),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), SHARE),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function", "dense_act_fn"), str | None),
}
VOCABULARIES = ("vocab_size", "decoder_vocab_size", "target_vocab_size")


def read_config(table: KeyTable, architecture: str, config: dict[str, Any], folder: Path) -> Settings:
    """Their config as our settings."""
    where = folder / "config.json"
    check_fields(config, SCHEMA, str(where))
    _check_numbers(table, config, where)
    _check_labels(config, where)
    config = _adjust(table, architecture, config, where)
    if config.get("quantization_config"):
        raise ConfigError(f'{where}: "quantization_config" is set; anyformer loads weights that are not quantized.')
    for name, values in table.required_values.items():
        if name in config and config[name] not in values:
            wanted = " or ".join(repr(value) for value in values)
            raise ConfigError(
                f'{where}: "{name}" is {shown(config[name])}; anyformer supports only {wanted} for {architecture}.'
            )
    check_known(table, config, where)
    return _settings(table, {**table.architectures[architecture], **_mapped(table, config, where)}, where)


def _check_numbers(table: KeyTable, config: Mapping[str, Any], where: Path) -> None:
    """Whole numbers, before anything is computed from them: some families make a list with an entry a layer."""
    for entry in table.fields:
        value = config.get(entry.theirs)
        bounds = out_of_range(entry.ours, value) if type(value) is int else None
        if bounds is not None:
            raise ConfigError(f'{where}: "{entry.theirs}" is {shown(value)}; it must be {bounds}.')
    _check_values(config, str(where))


def _check_labels(config: Mapping[str, Any], where: Path) -> None:
    """Every class from 0 on has one name."""
    names = config.get("id2label") or {}
    absent = next((str(i) for i in range(len(names)) if str(i) not in names), None)
    if absent is not None:
        raise ConfigError(
            f'{where}: "id2label" has {len(names)} labels, but none for "{absent}"; its keys must be "0" to'
            f' "{len(names) - 1}".'
        )


def warn_of_ids(config: Mapping[str, Any], size: int, where: Path) -> None:
    """Warn of ids at or past the end of the vocabulary, which are ignored."""
    for name in TOKEN_IDS:
        value = config.get(name)
        if any(type(one) is int and one >= size for one in (value if isinstance(value, list) else [value])):
            warnings.warn(
                f'{where}: "{name}" is {shown(value)}, and the vocabulary has {size:,} tokens; an id past its end is'
                " ignored.",
                stacklevel=2,
            )


def _check_values(config: Mapping[str, Any], where: str) -> None:
    """Numbers are finite and ids are those of tokens, whether the model uses them or not; also in the configs inside
    it."""
    sizes = [size for name in VOCABULARIES if type(size := config.get(name)) is int]
    written = Annotated[int, Range(0, max(sizes, default=2**31) - 1)]
    check_fields(config, dict.fromkeys(TOKEN_IDS, TOKEN_ID | list[TOKEN_ID] | None), where)
    check_fields(config, dict.fromkeys(WRITTEN_IDS, written | list[written] | None), where)
    check_fields(config, COMMON, where)
    for name, value in config.items():
        if not _is_finite(value):
            raise ConfigError(f'{where}: "{name}" is {shown(value)}; numbers must be finite.')
        if isinstance(value, dict):
            inside = f'{where}: "{name}"'
            check_fields(value, {"num_hidden_layers": LAYERS, "depths": list[LAYERS] | None}, inside)
            _check_values(value, inside)


def _is_finite(value: Any) -> bool:
    """Whether all numbers of a value are; those of a config inside it are checked by themselves."""
    if isinstance(value, list):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _adjust(table: KeyTable, architecture: str, config: dict[str, Any], where: Path) -> dict[str, Any]:
    """Their config in today's form. `num_labels` alone counts labels that have no names."""
    try:
        config = table.upgrade_config({**config, "architectures": [architecture]})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except _WRONG as error:
        raise ConfigError(f"{where} has a field of another kind than its family's: {str(error)[:200]}.") from None
    if config.get("id2label") is None and config.get("num_labels") is not None:
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(config["num_labels"])}
    return config


def _mapped(table: KeyTable, config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    ours = {}
    for entry in table.fields:
        value = config.get(entry.theirs, entry.default)
        try:
            ours[entry.ours] = entry.read(value)
        except _WRONG as error:
            raise ConfigError(f'{where}: "{entry.theirs}" is {shown(value)}, which is not supported: {error}') from None
    return ours


def _settings(table: KeyTable, ours: Mapping[str, Any], where: Path) -> Settings:
    try:
        return registry.family(table.family).config(**ours)
    except ConfigError as error:
        names = {entry.ours: entry.theirs for entry in table.fields}
        hint = ", ".join(f"{o} is their {t}" for o, t in names.items() if o != t and re.search(rf"\b{o}\b", str(error)))
        raise ConfigError(f"{where}: {error}{f' ({hint})' if hint else ''}") from None
    except _WRONG as error:
        raise ConfigError(f"{where} has a field of another kind than its family's: {str(error)[:200]}.") from None


def known_fields(table: KeyTable) -> set[str]:
    return {entry.theirs for entry in table.fields} | set(table.required_values) | table.ignored_fields | GENERAL


def check_known(table: KeyTable, config: Mapping[str, Any], where: Path) -> None:
    """An error that names the fields that nobody here knows, but for those that ask for nothing."""
    known = known_fields(table)
    unknown = [n for n, value in config.items() if n not in known and n[:1] != "_" and not _asks_nothing(n, value)]
    if unknown:
        some = ", ".join(f'"{name[:40]}" ({shown(config[name])[:40]})' for name in unknown[:SHOWN])
        more = f" and {len(unknown) - SHOWN} more" if len(unknown) > SHOWN else ""
        raise ConfigError(
            f"{where} has fields that anyformer does not know and that may change numbers: {some}{more}. Where they do"
            f" not, remove them from the file or name them in af.load(folder, ignore={unknown[:1]})."
        )


def _asks_nothing(name: str, value: Any) -> bool:
    return value is None or value is False or (name in USUAL and value == USUAL[name])


def leave_out(table: KeyTable, config: dict[str, Any], names: Iterable[str], where: Path) -> dict[str, Any]:
    """A config without the fields that the caller wants to be ignored, also in the configs inside it."""
    there = set(_names(config))
    for name in names:
        if name not in there:
            raise ConfigError(f'ignore names "{name}", which {where} does not have.{nearest(name, there)}')
        if name in known_fields(table):
            raise ConfigError(f'ignore names "{name}", a field that anyformer knows; change it in {where} instead.')
    return _without(config, set(names))


def _names(config: Mapping[str, Any]) -> Iterable[str]:
    for name, value in config.items():
        yield name
        if isinstance(value, dict):
            yield from _names(value)


def _without(config: dict[str, Any], names: set[str]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if name not in names}
    return {name: _without(value, names) if isinstance(value, dict) else value for name, value in kept.items()}
