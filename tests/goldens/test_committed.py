"""Every tiny recipe, loaded from a folder as it was saved in the past, computes what it computed then."""

from __future__ import annotations

import pytest

from tests.goldens import committed, folders
from tests.tiny import tiny_recipes


def test_every_recipe_is_here() -> None:
    assert {folders.recipe(name) for name in folders.table()} == set(tiny_recipes())
    assert set(committed.table()) == set(folders.table())


@pytest.mark.parametrize("name", folders.table())
def test_outputs_are_those_of_the_past(name: str) -> None:
    now, before = committed.found(name), committed.table()[name]
    wrong = {path: committed.difference(now.get(path), row) for path, row in before.items()}
    assert not {path: text for path, text in wrong.items() if text}
