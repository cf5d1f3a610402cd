"""Data that is given as something else than paths is refused in one sentence, before anything is read or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.tasks.evaluation import evaluate_task

GIVEN: dict[str, tuple[Any, str]] = {
    "dicts": ([{"text": "fine", "label": "yes"}], "a list that contains a dict"),
    "columns": ({"text": ["fine"], "label": ["yes"]}, "of type dict"),
    "iterator": (iter(["rows.tsv"]), "of type list_iterator"),
    "nothing": (None, "of type NoneType"),
    "holes": (("rows.tsv", None), "a tuple that contains a NoneType"),
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize(("task", "recipe"), [("classify-text", "bert-tiny"), ("classify-image", "vit-tiny")])
def test_rows_in_memory_are_refused(task: str, recipe: str, given: str, tmp_path: Path) -> None:
    data, said = GIVEN[given]
    with pytest.raises(af.Error, match=rf"^data is {said}; "):
        af.train(task, recipe=recipe, data=data, out=tmp_path / "out")
    with pytest.raises(af.Error, match=rf"^data is {said}; .*\.jsonl"):
        evaluate_task(task, None, data)
    if data is not None:
        (tmp_path / "rows.tsv").write_text("text\tlabel\nfine\tyes\n")
        with pytest.raises(af.Error, match=rf"^valid is {said}; "):
            af.train(task, recipe=recipe, data=tmp_path / "rows.tsv", valid=data, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
