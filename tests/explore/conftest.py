"""The models of these tests, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the explorer takes FastAPI")

from anyformer.explore.opened import Opened
from anyformer.explore.shelf import Shelf

from . import models


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
