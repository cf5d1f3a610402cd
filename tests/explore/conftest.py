"""The models of these tests, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="the explorer takes FastAPI")

from anyformer.explore.opened import Opened
from anyformer.explore.shelf import Shelf

from . import models

if TYPE_CHECKING:
    from .browser import Page


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    models.save_all(root)
    return root


@pytest.fixture(scope="package")
def shelf(folder: Path) -> Shelf:
    return Shelf.of(sorted(folder.iterdir()))


@pytest.fixture(scope="package")
def opened(folder: Path) -> dict[str, Opened]:
    return {path.name: Opened.load(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def page(shelf: Shelf) -> Iterator[Page]:
    """A tab of a real browser; where there is none, a reason to skip."""
    from .browser import served

    with served(shelf) as tab:
        yield tab
