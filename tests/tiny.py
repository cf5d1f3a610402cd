"""The smallest recipe of each family, quick enough to be trained in a test."""

from __future__ import annotations

import anyformer as af

TOYS = {"whisper-tiny": "whisper-toy"}  # where "tiny" is the name of a published size


def tiny_recipes() -> list[str]:
    return [TOYS.get(name, name) for name in af.recipes() if name.endswith("-tiny")]


def family_of(name: str) -> str:
    return name.removesuffix("-tiny").removesuffix("-toy")
