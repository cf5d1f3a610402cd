"""Any encoder with any decoder: the two families' own tables, their names behind "encoder." and "decoder."."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from anyformer.errors import ConfigError
from anyformer.recipes.encoder_decoder import EncoderDecoder, side
from anyformer.weights.table import Field, Key, Table


def table_of(kind: Any) -> Table:
    from anyformer.weights.tables import TABLES  # this table is one of them

    for table in TABLES.values():
        if kind in (table.family, table.model_type):
            return table
    raise ConfigError(f'"{kind}" is a family that anyformer does not know.')


def architecture(table: Table, name: str) -> str:
    """The class of a side: the bare encoder, the decoder that speaks."""
    wanted = {"encoder": ("base",), "decoder": ("masked", None)}[name]
    for use in wanted:
        for theirs, ours in table.architectures.items():
            if ours.get("head") == use:
                return theirs
    raise ConfigError(f"{table.model_type} has no class for the {name}.")


def read_side(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    from anyformer.weights.hf import read_config  # which reads this table too

    table = table_of(config.get("model_type"))
    settings = read_config(table, architecture(table, name), dict(config), Path(name))
    return {"family": table.family, **settings.to_json()}


def write_side(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    table, (_, settings) = table_of(given["family"]), side(given)
    fields = {entry.theirs: entry.write(getattr(settings, entry.ours)) for entry in table.fields}
    fields |= table.extras(settings, {})
    return {**fields, "model_type": table.model_type, "architectures": [architecture(table, name)]}


def side_keys(name: str, given: Mapping[str, Any]) -> list[Key]:
    table, (_, settings) = table_of(given["family"]), side(given)
    rows = table.keys(settings)
    stage = rows[0].ours.partition(".")[0]  # the first row is the word table, in the family's one stage
    spell: Callable[[str], str] = lambda theirs: f"{name}.{table.rename(settings, theirs)}"  # noqa: E731
    swaps = ((rf"^{stage}\.", f"{name}."), (r"^embed\.pool\.", "encoder.pooler."), (r"^words\.", "language."))
    found = []
    for row in rows:
        ours = next((re.sub(old, new, row.ours) for old, new in swaps if re.search(old, row.ours)), row.ours)
        also = tuple(spell(other) for other in row.also)
        found.append(Key(ours, spell(row.theirs), row.op, row.shape, optional=row.optional, also=also))
    return found


def keys(config: EncoderDecoder) -> list[Key]:
    return [*side_keys("encoder", config.encoder), *side_keys("decoder", config.decoder)]


def leftovers(config: EncoderDecoder) -> tuple[str, ...]:
    found = []
    for name, given in (("encoder", config.encoder), ("decoder", config.decoder)):
        table, (_, settings) = table_of(given["family"]), side(given)
        for pattern in table.leftovers(settings):
            found.append(rf"^{name}\.{pattern[1:]}" if pattern.startswith("^") else rf"^{name}\..*{pattern}")
    return tuple(found)


TABLE = Table(
    family="encoder-decoder",
    model_type="encoder-decoder",
    architectures={"EncoderDecoderModel": {}},
    fields=(
        Field("encoder", "encoder", {}, partial(read_side, "encoder"), partial(write_side, "encoder")),
        Field("decoder", "decoder", {}, partial(read_side, "decoder"), partial(write_side, "decoder")),
        Field("padding", "pad_token_id", None),
        Field("decoder_start", "decoder_start_token_id", None),
        Field("end", "eos_token_id", None, read=lambda value: value[0] if isinstance(value, list) else value),
    ),
    keys=keys,
    inert=frozenset({"tie_word_embeddings", "vocab_size", "tie_encoder_decoder"}),
    leftovers=leftovers,
)
