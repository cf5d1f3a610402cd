"""Answers are typed dataclasses with `to_dict()`; answers that are unsure say so; calls and `af.evaluate` are typed."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
import anyformer.tasks
from anyformer.cli.main import main
from anyformer.errors import ConfigError
from anyformer.tasks import TASKS, find
from anyformer.tasks.answer import AnswerOptions, ExtractedAnswer, best_spans
from anyformer.tasks.answers import Answer, CalibratedOptions, ImageLabel, Label, best_label
from anyformer.tasks.detect import Detection, Detections
from anyformer.tasks.tag import Entity, TaggedText
from anyformer.tasks.transcribe import Chunk, Transcript
from anyformer.tasks.written import Written
from tests.tasks.learn import begin, listed

REVIEWS = listed(*({"text": f"{word} film {i}", "label": word} for i in range(6) for word in ("good", "bad")))
draw: Any = print
CAT = Detection("cat", 0.9, (0, 1, 2, 3), 4)
LOGITS = torch.tensor([2.0, 1.0, 0.0])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text classifier that has not learned."""
    folder = tmp_path_factory.mktemp("model") / "reviews"
    begin("classify-text", "bert-tiny", REVIEWS, vocab_size=100).save(folder)
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What a command prints."""
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    assert not stop.value.code
    return capsys.readouterr().out


def classes_with_str() -> list[type]:
    """The dataclasses of tasks that print themselves."""
    modules = [f"anyformer.tasks.{one.name}" for one in pkgutil.iter_modules(anyformer.tasks.__path__)]
    members = [member for name in modules for member in vars(importlib.import_module(name)).values()]
    kinds = {one for one in members if inspect.isclass(one) and one.__module__ in modules}
    return [one for one in kinds if dataclasses.is_dataclass(one) and "__str__" in vars(one)]


def test_every_answer_has_to_dict() -> None:
    kinds = classes_with_str()
    assert len(kinds) > 15
    assert [one.__name__ for one in kinds if not issubclass(one, Answer)] == []


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Label("a", 0.5, {"a": 0.5, "b": 0.5}), {"label": "a", "score": 0.5, "scores": {"a": 0.5, "b": 0.5}}),
        (ImageLabel("a", 1.0, {"a": 1.0}, draw=draw), {"label": "a", "scores": {"a": 1.0}}),
        (ExtractedAnswer("x", 0.5, 1, 2), {"text": "x", "start": 1, "unsure": False}),
        (Detections((CAT,), draw), {"items": [{"label": "cat", "score": 0.9, "box": [0, 1, 2, 3], "query": 4}]}),
        (Transcript("hi", (Chunk(0.0, 1.0, "hi"),)), {"chunks": [{"start": 0.0, "end": 1.0, "text": "hi"}]}),
        (Written("a", "b", (1, 2), alignment=torch.eye(2)), {"ids": [1, 2], "alignment": [[1.0, 0.0], [0.0, 1.0]]}),
        (TaggedText(("a",), ("B-X",), (0.9,), (Entity("a", "X", 0, 1, 0.9),), "a"), {"tags": ["B-X"]}),
    ],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_to_dict_is_json(answer: Answer, expected: dict[str, Any]) -> None:
    made = answer.to_dict()
    assert json.loads(json.dumps(made)) == made and str(answer)
    assert {name: made[name] for name in expected} == expected
    assert "draw" not in made


def test_arrays_become_lists() -> None:
    @dataclasses.dataclass(frozen=True)
    class Grid(Answer):
        values: Any

    assert Grid(np.arange(4).reshape(2, 2)).to_dict() == {"values": [[0, 1], [2, 3]]}


def test_the_temperature_changes_probabilities_and_not_the_answer() -> None:
    flat, plain = CalibratedOptions(temperature=2.0), CalibratedOptions()
    assert torch.equal(plain.probabilities(LOGITS), LOGITS.log_softmax(-1).exp())
    assert torch.allclose(flat.probabilities(LOGITS), (LOGITS / 2).softmax(-1))
    one, other = (best_label("abc", options.probabilities(LOGITS), options) for options in (plain, flat))
    assert one.label == other.label == "a" and one.score > other.score


def test_an_answer_below_the_threshold_is_unsure() -> None:
    options = CalibratedOptions(unsure_below=0.7)  # the best class has 0.665
    label = best_label("abc", options.probabilities(LOGITS), options)
    assert label.unsure and label.to_dict()["unsure"] is True and str(label) == "a (0.67, unsure)"
    assert not best_label("abc", options.probabilities(2 * LOGITS), options).unsure
    assert str(ExtractedAnswer("Amanda", 0.2, 0, 6, unsure=True)) == "Amanda (unsure)"
    assert str(ExtractedAnswer("", 0.9, 0, 0)) == "no answer"
    entity = Entity("Rome", "LOC", 0, 1, 0.3, (0, 4), unsure=True)
    assert str(TaggedText(("Rome",), ("B-LOC",), (0.3,), (entity,), "Rome", ((0, 4),))) == "[Rome: LOC, unsure]"


def test_the_temperature_of_spans() -> None:
    start, end, inside = torch.randn(2, 6), torch.randn(2, 6), torch.ones(2, 6, dtype=torch.bool)
    plain, flat = (best_spans(start, end, inside, AnswerOptions(temperature=t)) for t in (1.0, 4.0))
    assert plain[3:] == flat[3:]
    sure = (start[0] / 4).log_softmax(0)[flat[3][0]] + (end[0] / 4).log_softmax(0)[flat[4][0]]
    assert flat[2][0] == pytest.approx(float(sure.exp()), rel=1e-5)


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"unsure_below": 1.5}])
def test_wrong_thresholds(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CalibratedOptions(**wrong)


def test_a_folder_states_its_threshold(classifier: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    work = af.task("classify-text", classifier, unsure_below=1.0, temperature=3.0)
    assert work("good film").to_dict()["unsure"] is True
    work.save(tmp_path / "calibrated")
    again = af.task("classify-text", tmp_path / "calibrated")
    assert again("good film") == work("good film")
    assert again("good film").score < af.task("classify-text", classifier)("good film").score
    assert "unsure)" in run(capsys, "run", "classify-text", "--model", tmp_path / "calibrated", "good film")


def test_evaluate_gives_the_metrics_of_the_command(classifier: Path, tmp_path: Path, capsys: Any) -> None:
    table = tmp_path / "dev.tsv"
    table.write_text("body\tstars\ngood film\tgood\nbad film\tbad\n", encoding="utf-8")
    found = af.evaluate("classify-text", model=classifier, data=table, columns="text=body,label=stars", device="cpu")
    assert isinstance(found["accuracy"], float) and {"f1", "matthews", "loss"} <= set(found)
    assert "device: cpu" in capsys.readouterr().err
    shown = run(
        capsys, "eval", "classify-text", "--model", classifier, "--data", table, "--columns", "text=body,label=stars"
    )
    assert f"{found['loss']:.4f}" in shown
    with pytest.raises(ConfigError, match=r'no setting "task.normalise"|no field "normalise"'):
        af.evaluate("classify-text", model=classifier, data=table, normalise=True)


@pytest.mark.parametrize("function", [af.task, af.evaluate, af.train], ids=lambda one: one.__name__)
def test_public_functions_are_typed(function: Any) -> None:
    signature = inspect.signature(function)
    hints = [one.annotation for one in signature.parameters.values()] + [signature.return_annotation]
    assert all(hint is not inspect.Parameter.empty and "Any" not in str(hint) for hint in hints)


@pytest.mark.parametrize("name", TASKS)
def test_calls_are_typed(name: str) -> None:
    signature = inspect.signature(find(name).__call__)
    hints = [one.annotation for one in list(signature.parameters.values())[1:]] + [signature.return_annotation]
    assert all(hint is not inspect.Parameter.empty and "Any" not in str(hint) for hint in hints)
