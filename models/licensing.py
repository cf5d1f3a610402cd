"""Licenses of the models: what their cards and the metadata of the two packages say.

`license` in notes/NAME.toml is an SPDX expression of everything that a model was made from: our weights, its data, its
base. LicenseRef names stand for terms without an SPDX name; models/licenses.toml says what their sources state. A model
with such a name, or with non-commercial terms, is in the package of `models-research`, the others in that of `models`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from anyformer import pretrained

HERE = Path(__file__).parent
NOTES, RESEARCH = HERE / "notes", HERE.parent / "models-research"
OWN = "Apache-2.0"
OPEN = {
    "MIT": "MIT (LICENSES/MIT.txt)",
    "CC-BY-2.0": "CC BY 2.0 (creativecommons.org/licenses/by/2.0)",
    "CC-BY-SA-4.0": "CC BY-SA 4.0 (creativecommons.org/licenses/by-sa/4.0)",
    "CC-BY-NC-ND-4.0": (
        "CC BY-NC-ND 4.0 (creativecommons.org/licenses/by-nc-nd/4.0): not for commercial use, adaptations may not be"
        " shared; whether weights are adaptations is not settled"
    ),
    "CDLA-Sharing-1.0": "CDLA-Sharing-1.0 (cdla.dev/sharing-1-0)",
}
COPYRIGHT = "anyformer's authors, and the authors of the data that the model's card names"


def terms() -> dict[str, str]:
    """What is stated of each license name."""
    return OPEN | tomllib.loads((HERE / "licenses.toml").read_text(encoding="utf-8"))


def names(expressions: Iterable[str]) -> list[str]:
    """The license names of expressions, each once and sorted."""
    return sorted({name for one in expressions for name in re.split(r" AND ", one)})


def license_lines(notes: Mapping[str, Any]) -> list[str]:
    """The License section of a card."""
    expression, stated = str(notes["license"]), terms()
    package = "`models-research` (anyformer-models-research)" if pretrained.is_restricted(expression) else "`models`"
    what = "The weights are ours, under Apache-2.0; what they were trained on has these terms of its own:"
    return [
        f"`{expression}`, in the package {package}. {what}",
        "",
        *(f"- {stated[name]}" for name in names([expression]) if name != OWN),
    ]


def all_notes(folder: Path = NOTES) -> dict[str, dict[str, Any]]:
    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}


def write_licenses() -> None:
    """Write REUSE.toml of both packages, with an expression for each file, and the notice of models-research."""
    said = all_notes()
    restricted = {name: one for name, one in said.items() if pretrained.is_restricted(one["license"])}
    unrestricted = {name: one for name, one in said.items() if name not in restricted}
    for package, models, folder in (
        (pretrained.PACKAGE, unrestricted, HERE),
        (pretrained.RESEARCH, restricted, RESEARCH),
    ):
        (folder / "REUSE.toml").write_text(reuse(package, models), encoding="utf-8")
    (RESEARCH / "NOTICE.md").write_text(notice(restricted), encoding="utf-8")


def reuse(package: str, models: Mapping[str, Mapping[str, Any]]) -> str:
    """Annotations in the format of reuse.software: a later one replaces an earlier one."""
    rows = [("**", OWN)]
    for name, notes in models.items():
        rows.append((f"**/{package}/{name}/**", notes["license"]))
        if "example_file" in notes:
            suffix = Path(notes["example_file"]).suffix
            rows.append((f"**/{package}/{name}/example{suffix}", notes.get("example_license", OWN)))
    parts = [
        f'[[annotations]]\npath = "{path}"\nSPDX-FileCopyrightText = "{COPYRIGHT}"\n'
        f'SPDX-License-Identifier = "{expression}"\n'
        for path, expression in rows
    ]
    return "\n".join(["# Written by models/pack.py --cards.\nversion = 1\n", *parts])


def notice(models: Mapping[str, Mapping[str, Any]]) -> str:
    """What whoever uses or passes on these models should know."""
    stated = terms()
    rows = [f"| {name} | {notes['description']} | {notes['license']} |" for name, notes in models.items()]
    return "\n".join(
        [
            "# Notice",
            "",
            "The models of this package were trained on data that forbid commercial use or redistribution, or whose",
            "sources state no terms. The weights are ours and Apache-2.0, but that may not be enough: whether you may",
            "use or pass on a model depends on the terms of its data, and is for you to judge. They are meant for",
            "research and teaching. Models whose data have clear terms are in the other package, `models`.",
            "",
            "| model | what it does | license expression |",
            "|---|---|---|",
            *rows,
            "",
            "What the names stand for:",
            "",
            *(
                f"- `{name}`: {stated[name]}"
                for name in names(one["license"] for one in models.values())
                if name != OWN
            ),
            "",
        ]
    )
