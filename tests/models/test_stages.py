"""models/stages.py: trainings in stages that begin with the weights of the one before."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import pretrained
from tests import shelf

MODELS = Path(__file__).parents[2] / "models"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    shelf.packer()
    monkeypatch.syspath_prepend(str(MODELS))
    return importlib.import_module("stages")


def plan(data: Path) -> dict[str, Any]:
    few = {**shelf.FEW, "tokenizer.vocab_size": 290, "task.max_target_length": 8}
    still = {"train.steps": 1, "train.lr": 1e-12, "train.weight_decay": 0.0, "train.device": "cpu"}
    first = {"recipe": "transformer-tiny", "data": ["{D}/pairs.tsv"], "settings": few}
    second = {"data": ["{D}/pairs.tsv"], "settings": still}
    return {"tiny": {"task": "translate", "valid": "{D}/pairs.tsv", "stages": [first, second]}}


def test_a_stage_begins_with_the_weights_of_the_one_before(
    stages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second stage has nearly no rate here, so it leaves what it was given: the first one's weights in bfloat16.
    The parts are as small as asked for, and hold the records that pack.py needs."""
    (tmp_path / "pairs.tsv").write_text(shelf.PAIRS)
    monkeypatch.setattr(stages, "plans", lambda: plan(tmp_path))
    monkeypatch.setattr(stages, "PART", 40_000)
    one, two = tmp_path / "one", tmp_path / "two"
    stages.main(["run", "tiny", "1", str(tmp_path), str(one), "--set", "train.steps=2"])
    stages.main(["run", "tiny", "2", str(tmp_path), str(two), "--after", str(one)])
    parts = sorted(one.iterdir())
    assert len(parts) > 1 and all(part.stat().st_size <= 40_000 for part in parts)
    folders = [stages.unpack(parts, tmp_path / f"{parts.name}-folder") for parts in (one, two)]
    first, second = (af.load(folder).state_dict() for folder in folders)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=0, atol=1e-10)
    assert all(torch.equal(value, value.bfloat16().float()) for value in first.values())
    assert {"train.json", "metrics.jsonl", "report.html", "tokenizer.json"} <= {
        file.name for file in folders[0].iterdir()
    }
    with pytest.raises(af.ConfigError, match="--after"):
        stages.main(["run", "tiny", "2", str(tmp_path), str(two)])
    (one / "other-1.tar.00").write_bytes(b"")
    with pytest.raises(af.FolderError, match="holds those of 2"):
        stages.unpack(one, tmp_path / "none")


def test_the_plans_can_be_begun(stages: ModuleType) -> None:
    """Their recipes exist, their data are prepared, and German and French have the same stages."""
    plans = stages.plans()
    known = {*af.recipes(), *(model.name for model in pretrained.models())}
    for name, one in plans.items():
        assert one["prepare"] in stages.PREPARE and one["stages"][0]["recipe"] in known
        assert all("{D}/" in path for stage in one["stages"] for path in [*stage["data"], one["valid"]])
        assert all("recipe" not in stage for stage in one["stages"][1:]), name
    assert "en-de" not in str(plans["en-fr"]) and len(plans["en-fr"]["stages"]) == len(plans["en-de"]["stages"])


def test_questions_are_asked_of_other_paragraphs(stages: ModuleType) -> None:
    """Every second one again, of a paragraph that is not its own, where it has no answer."""
    asked = [{"id": str(i), "question": f"q{i}", "answers": [{"text": "a", "answer_start": 0}]} for i in range(12)]
    parts = [{"context": f"a {i}", "qas": asked[2 * i : 2 * i + 2]} for i in range(6)]
    stages.with_negatives({"data": [{"paragraphs": parts}]}, None)
    found = {i: [one["id"] for one in part["qas"] if not one["answers"]] for i, part in enumerate(parts)}
    moved = [(int(name.removesuffix("-none")), i) for i, names in found.items() for name in names]
    assert sorted(number for number, _ in moved) == [0, 2, 4, 6, 8, 10]
    assert all(number // 2 != i for number, i in moved)
    assert sum(len(part["qas"]) for part in parts) == 12 + 6
