"""The models of these tests, made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="the explorer takes FastAPI")

from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.model_list import ModelList
from tests.explorer import models

if TYPE_CHECKING:
    from tests.explorer.browser import Page


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    models.save_all(root)
    return root


@pytest.fixture(scope="package")
def shelf(folder: Path) -> ModelList:
    return ModelList.of(sorted(folder.iterdir()))


@pytest.fixture(scope="package")
def opened(folder: Path) -> dict[str, LoadedModel]:
    return {path.name: LoadedModel.load(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def page(shelf: ModelList) -> Iterator[Page]:
    """A tab of a real browser; where there is none, a reason to skip."""
    from tests.explorer.browser import served

    with served(shelf) as tab:
        yield tab
