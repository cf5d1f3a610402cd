"""Any encoder with any decoder: the two families' own tables, their names behind "encoder." and "decoder."."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.checkpoints.hf_config import read_config
from anyformer.checkpoints.key_table import ConfigField, Key, KeyTable, first, weight_and_bias
from anyformer.config import Settings
from anyformer.errors import ConfigError
from anyformer.recipes.encoder_decoder import EncoderDecoderConfig, side, widths


def table_of(kind: Any) -> KeyTable:
    from anyformer.checkpoints.key_tables import TABLES  # this table is one of them

    for table in TABLES.values():
        if kind in (table.family, table.model_type):
            return table
    raise ConfigError(f'"{kind}" is a family that anyformer does not know.')


def architecture(table: KeyTable, name: str) -> str:
    """The class of a side: the bare encoder, the decoder that speaks."""
    wanted = {"encoder": ("base",), "decoder": ("masked", "language", None)}[name]
    for use in wanted:
        for theirs, ours in table.architectures.items():
            if ours.get("head") == use:
                return theirs
    raise ConfigError(f"{table.model_type} has no class for the {name}.")


def read_side(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    table = table_of(config.get("model_type"))
    settings = read_config(table, architecture(table, name), dict(config), Path(name))
    return {"family": table.family, **settings.to_json()}


def write_side(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    table, (_, settings) = table_of(given["family"]), side(given)
    said = [entry for entry in table.fields if not (getattr(settings, entry.ours) is None and entry.default is None)]
    fields = {entry.theirs: entry.write(getattr(settings, entry.ours)) for entry in said}
    fields |= table.extra_fields(settings, {})
    return {**fields, "model_type": table.model_type, "architectures": [architecture(table, name)]}


def sides(config: EncoderDecoderConfig) -> dict[str, tuple[KeyTable, Settings]]:
    given = {"encoder": config.encoder, "decoder": config.decoder}
    return {name: (table_of(values["family"]), side(values)[1]) for name, values in given.items()}


def side_keys(name: str, table: KeyTable, settings: Any) -> list[Key]:
    rows = table.keys(settings)
    stage = rows[0].ours.partition(".")[0]  # the first row is of the inputs, in the family's one stage
    swaps = ((rf"^{stage}\.", f"{name}."), (r"^(embed|base)\.pool\.", "encoder.pooler."), (r"^words\.", "language."))
    found = []
    for row in rows:
        ours = next((re.sub(old, new, row.ours) for old, new in swaps if re.search(old, row.ours)), row.ours)
        also = tuple(f"{name}.{other}" for other in row.also)
        found.append(replace(row, ours=ours, theirs=f"{name}.{row.theirs}", also=also))
    return found


def keys(config: EncoderDecoderConfig) -> list[Key]:
    both_sides = sides(config)
    found = [key for name, (table, settings) in both_sides.items() for key in side_keys(name, table, settings)]
    made, wanted = widths(both_sides["encoder"][1], both_sides["decoder"][1])
    return found + (weight_and_bias("bridge.inputs.project", "enc_to_dec_proj") if made != wanted else [])


def ignored_keys(config: EncoderDecoderConfig) -> tuple[str, ...]:
    found = []
    for name, (table, settings) in sides(config).items():
        for pattern in table.ignored_keys(settings):
            found.append(rf"^{name}\.{pattern[1:]}" if pattern.startswith("^") else rf"^{name}\..*{pattern}")
    return tuple(found)


def rename(config: EncoderDecoderConfig, name: str) -> str:
    prefix, _, rest = name.partition(".")
    if prefix not in ("encoder", "decoder"):
        return name
    table, settings = sides(config)[prefix]
    return f"{prefix}.{table.rename(settings, rest)}"


TABLE = KeyTable(
    family="encoder-decoder",
    model_type="encoder-decoder",
    architectures={"EncoderDecoderModel": {}},
    fields=(
        ConfigField("encoder", "encoder", {}, partial(read_side, "encoder"), partial(write_side, "encoder")),
        ConfigField("decoder", "decoder", {}, partial(read_side, "decoder"), partial(write_side, "decoder")),
        ConfigField("padding", "pad_token_id", None),
        ConfigField("decoder_start", "decoder_start_token_id", None),
        ConfigField("end", "eos_token_id", None, read=first),
    ),
    keys=keys,
    ignored_fields=frozenset({"tie_word_embeddings", "vocab_size", "tie_encoder_decoder"}),
    ignored_keys=ignored_keys,
    rename=rename,
    sides=sides,
)
