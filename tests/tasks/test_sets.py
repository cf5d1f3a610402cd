"""Sets and rows of tables: their order means nothing, padding neither; learned, saved, loaded; and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.classify_set import ClassifySet, TableReader
from tests.tasks.test_sounds import learn

SETS = ("set-transformer-tiny", "perceiver-set")


def rings(n: int = 24, seed: int = 0) -> tuple[list[np.ndarray], list[str]]:
    """Points on a circle, on a line, or anywhere: uneven numbers of them, turned and in any order."""
    rng = np.random.default_rng(seed)
    sets, labels = [], []
    for i in range(n):
        kind = ("ring", "line", "cloud")[i % 3]
        count = int(rng.integers(6, 14))
        angle = rng.uniform(0, 2 * np.pi, count)
        points = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        if kind != "ring":
            points = rng.uniform(-1, 1, (count, 2))
        if kind == "line":
            points[:, 1] = points[:, 0] * 0.5
        sets.append(points.astype(np.float32))
        labels.append(kind)
    return sets, labels


def packed(path: Path, n: int = 24) -> Path:
    sets, labels = rings(n)
    ends = np.cumsum([0, *(len(one) for one in sets)])
    np.savez(path, x=np.concatenate(sets), offsets=ends, y=np.array(labels))
    return path


def build(recipe: str) -> af.Model:
    torch.manual_seed(0)
    changes = {"d_item": 2} if recipe == "perceiver-set" else {}
    return af.build(recipe, **changes).eval().double()


@pytest.mark.parametrize("recipe", SETS)
def test_order_means_nothing(recipe: str) -> None:
    model, items = build(recipe), torch.randn(2, 9, 2, dtype=torch.float64)
    with torch.no_grad():
        before = model(items=items).logits
        torch.testing.assert_close(model(items=items[:, torch.randperm(9)]).logits, before, rtol=1e-9, atol=1e-9)
        assert not torch.allclose(model(items=items * 1.5).logits, before)


@pytest.mark.parametrize("recipe", SETS)
def test_padding_means_nothing(recipe: str) -> None:
    model, items = build(recipe), torch.randn(3, 9, 2, dtype=torch.float64)
    mask = torch.tensor([[1] * 9, [1] * 4 + [0] * 5, [0] * 3 + [1] * 6])
    with torch.no_grad():
        together = model(items=items, attention_mask=mask).logits
        alone = [model(items=one[None, real.bool()]).logits[0] for one, real in zip(items, mask, strict=True)]
    torch.testing.assert_close(together, torch.stack(alone), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("recipe", SETS)
def test_sets_learned_by_heart(recipe: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind = find("classify-set")
    rows = kind.read(packed(tmp_path / "x.npz"))
    small = {"n_latents": 8, "d_latents": 64, "n_layers": 2, "attention_dropout": 0.0}
    config = af.registry.recipe(recipe).config
    config = config.replace(**small) if recipe == "perceiver-set" else config
    task: Any = kind.begin(recipe, rows, setup=TaskSetup(model=config))
    assert task.labels == ("cloud", "line", "ring") and task.model.config.d_item == 2
    learn(task, rows, 120, 3e-3)
    assert task.evaluate(rows)["accuracy"] == 1.0
    task.save(tmp_path / "model")
    again = af.task("classify-set", tmp_path / "model")
    sets, labels = rings()
    assert [answer.label for answer in again(sets)] == labels
    assert again(str(sets[0].tolist())).label == "ring"  # as the command line gives it


def people(path: Path) -> Path:
    """Who is asked to pay: the old ones of the north; some cells are empty."""
    rng = np.random.default_rng(0)
    lines = ["age,income,region,label"]
    for i in range(40):
        age, region = int(rng.integers(20, 80)), ("north", "south")[i % 2]
        pays = "yes" if age > 50 and region == "north" else "no"
        lines.append(f"{age},{'' if i % 7 == 0 else rng.integers(1000, 9000)},{region},{pays}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_tables_learned_by_heart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind = find("classify-set")
    rows = kind.read(people(tmp_path / "x.csv"))
    task: Any = kind.begin("ft-transformer-tiny", rows)
    assert task.reader.numbers == ("age", "income") and task.reader.values == {"region": ["north", "south"]}
    assert task.model.config.n_numbers == 2 and task.model.config.categories == (2,)
    learn(task, rows, 120, 2e-3)
    assert task.evaluate(rows)["accuracy"] == 1.0
    task.save(tmp_path / "model")
    again = af.task("classify-set", tmp_path / "model")
    assert again({"age": 70, "income": 3000, "region": "north"}).label == "yes"
    assert again('{"age": 70, "region": "south"}').label == "no"  # income is missing
    with pytest.raises(af.Error, match=r'no column "agee".*age, income, region'):
        again({"agee": 3})
    for wrong, said in (
        ({"age": "old"}, 'the age is "old"'),
        ({"income": 1e300}, r"the income .*1e\+300"),
        ({}, "row 1: .*age, income, region"),
    ):
        with pytest.raises(af.InputError, match=said):
            again(wrong)


def test_what_is_missing_is_not_looked_at() -> None:
    """A row with a gap is as a row of a table without that column: its weights are nowhere."""
    torch.manual_seed(0)
    model = af.build("ft-transformer-tiny").eval().double()
    numbers = torch.tensor([[0.3, float("nan"), -1.0]], dtype=torch.float64)
    categories = torch.tensor([[2, -1]])
    with torch.no_grad(), af.look(model, "*.self.weights") as seen:
        logits = model(numbers=numbers, categories=categories).logits
    assert bool(torch.isfinite(logits).all())
    for weights in seen.values():
        assert not bool(weights[..., 2].any()) and not bool(weights[..., 5].any())


def test_mistakes(tmp_path: Path) -> None:
    kind = find("classify-set")
    with pytest.raises(af.Error, match=r"x\.npz, row 1, .*table"):
        kind.begin("ft-transformer-tiny", kind.read(packed(tmp_path / "x.npz")))
    with pytest.raises(af.Error, match=r"x\.csv .*\[items, numbers\]"):
        kind.begin("set-transformer-tiny", kind.read(people(tmp_path / "x.csv")))
    np.savez(tmp_path / "y.npz", x=np.zeros(3))
    with pytest.raises(af.Error, match=r"y\.npz .*x \[3\]"):
        kind.read(tmp_path / "y.npz")
    (tmp_path / "z.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(af.Error, match=r"z\.csv .*label column.*data\.columns"):
        kind.read(tmp_path / "z.csv")
    task: Any = kind.begin("set-transformer-tiny", kind.read(tmp_path / "x.npz"))
    for wrong, said in (([], r"\[0\]"), ([[1.0, 2.0, 3.0]], r"\[items, 2\]"), ([[1.0, float("nan")]], "NaN")):
        with pytest.raises(af.Error, match=said):
            task([wrong])
    with pytest.raises(af.Error, match="JSON"):
        task("not json")
    with pytest.raises(af.Error, match=r"items has shape \[1, 2\]"):
        task.model(items=torch.zeros(1, 2))
    with pytest.raises(af.Error, match="empty sets"):
        task.model(items=torch.zeros(1, 0, 2))
    with pytest.raises(af.Error, match="categories holds"):
        af.build("ft-transformer-tiny")(numbers=torch.zeros(1, 3), categories=torch.tensor([[4, 0]]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reader": "None"}, "\"reader\" is 'None'; .*'set'"),
        ({"reader": "table"}, "reader"),
        ({"reader": []}, "reader"),
        ({"stds": [1.0]}, "means and stds"),
        ({"stds": [1.0, 0]}, "stds must be above 0"),
        ({"means": "a"}, "means"),
    ],
)
def test_a_reader_that_makes_no_sense(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    model = build("set-transformer-tiny")
    held = {"reader": "set", "means": [0.0, 0.0], "stds": [1.0, 1.0], **changes}
    model.origin.files = {"preprocessor_config.json": json.dumps(held).encode()}
    with pytest.raises(af.ConfigError, match=said):
        ClassifySet.find_reader(model, None, DataSettings())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"numbers": ["age", "size"]}, "numbers and means"),
        ({"values": {}}, "values .*categories"),
        ({"values": {"job": ["cook"], "town": ["Bern"]}}, "values .*categories"),
    ],
)
def test_columns_that_make_no_sense(changes: dict[str, Any], said: str) -> None:
    held = {"numbers": ["age"], "means": [0.0], "stds": [1.0], "categories": ["job"], "values": {"job": ["cook"]}}
    assert TableReader.from_json(held).names_of() == ("age", "job")
    with pytest.raises(af.ConfigError, match=said):
        TableReader.from_json({**held, **changes})
