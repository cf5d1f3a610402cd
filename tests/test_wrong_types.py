"""Values of a wrong type are refused in one sentence, by tasks, by af.plot and by path_length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.explorer.path_length import path_length
from anyformer.tasks.generate import TextGenerator
from tests.shelf import TEXT, WORDS
from tests.tasks.learn import begin, listed

NO_TEXTS: tuple[Any, ...] = (3, None, 3.5, {"a": 1}, {"text": "x"}, {"a"}, b"x", object(), [3], [None], [{"a": 1}])
ROWS = {
    "embed": listed(*({"first": f"one {word}", "second": f"a {word}"} for word in WORDS)),
    "tag": listed(*({"tokens": ["one", word], "tags": ["B-X", "O"]} for word in WORDS)),
    "generate": listed(*({"text": line} for line in TEXT.splitlines() if line)),
}
RECIPES = {"embed": "bert-tiny", "tag": "bert-tiny", "generate": "gpt2-tiny"}


@pytest.mark.parametrize("name", ROWS)
def test_tasks_that_take_texts(name: str) -> None:
    task = begin(name, RECIPES[name], ROWS[name], vocab_size=290)
    ready = TextGenerator(task.model, task.tokenizer, max_new_tokens=1) if name == "generate" else task
    for value in NO_TEXTS:
        with pytest.raises(af.InputError, match=f"{name} takes a text"):
            ready(value)
    assert len(ready(["a cat", "a dog"])) == 2


WEIGHTS, SCORES, BOXES = torch.ones(1, 2, 2) / 2, torch.ones(2), torch.rand(3, 2, 4)
SEEN = {"encoder.blocks.0.self.weights": WEIGHTS[None]}
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("alignment", (None, ["a"], ["b"]), {}, "weights"),
    ("alignment", ([[1.0]], ["a"], ["b"]), {}, "weights"),
    ("alignment", (WEIGHTS, None, ["a", "b"]), {}, "source_tokens"),
    ("alignment", (WEIGHTS, ["a", "b"], [1, 2]), {}, "target_tokens"),
    ("alignment", (WEIGHTS, ["a", "b"], ["a", "b"], 3), {}, "path"),
    ("temperature", (None, ["a"]), {}, "scores"),
    ("temperature", (SCORES, 2), {}, "labels"),
    ("temperature", (SCORES, ["a", "b"], "x"), {}, "temperatures"),
    ("temperature", (SCORES, ["a", "b"], 1.0), {}, "temperatures"),
    ("heads", (None,), {}, "seen"),
    ("heads", ({"x.weights": 3},), {}, "seen"),
    ("heads", (SEEN,), {"row": "0"}, "row"),
    ("rollout", (WEIGHTS,), {}, "seen"),
    ("rollout", (SEEN, 3), {}, "tokens"),
    ("overlay", (None, "x.png"), {}, "maps"),
    ("overlay", (WEIGHTS, "x.png"), {"names": 3}, "names"),
    ("query_boxes", (None,), {}, "boxes"),
    ("query_boxes", (BOXES,), {"n": 0}, "n is"),
]


@pytest.mark.parametrize(("name", "given", "options", "said"), CALLS)
def test_plots(name: str, given: tuple[Any, ...], options: dict[str, Any], said: str) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(af.InputError, match=said):
        getattr(af.plot, name)(*given, **options)


def test_path_length_of_a_name() -> None:
    with pytest.raises(af.InputError, match="bert-tiny"):
        path_length("bert-tiny", 0, 3)  # type: ignore[arg-type]


def test_plots_still_draw(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    af.plot.alignment(WEIGHTS, ("a", "b"), ["c", "d"], tmp_path / "a.png")
    af.plot.heads(SEEN)
    af.plot.query_boxes(BOXES, n=1)
    assert (tmp_path / "a.png").exists()
