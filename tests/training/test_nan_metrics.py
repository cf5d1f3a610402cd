"""Weights that give NaN, or the same vector for everything, never look good: not as a metric, not as the best
checkpoint, not in metrics.jsonl."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]

import anyformer as af
from anyformer.cli.main import main
from anyformer.metrics.classification import pearson, spearman
from anyformer.metrics.retrieval import ranks
from anyformer.tasks.match import recalls
from anyformer.training.report import MetricsFile, read_metrics
from anyformer.training.trainer import train
from tests.tasks.learn import begin, listed
from tests.training.test_trainer import Notes
from tests.training.toy import Toy, fingerprint, settings

PAIRS = [("a cat sleeps", "the kitten is asleep"), ("it rains", "the weather is wet"), ("he sings", "a man hums")]
ROWS = listed(*({"first": a, "second": b} for a, b in PAIRS))


@pytest.fixture(scope="module")
def embed() -> Any:
    return begin("embed", "bert-tiny", ROWS, vocab_size=200)


def test_vectors_that_are_all_alike_find_nothing(embed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly alike, and alike but for rounding."""
    for noise in (0.0, 1e-8):
        made = torch.ones(3, 8) + noise * torch.randn(3, 8)
        monkeypatch.setattr(embed, "_sides", lambda texts, made=made: torch.nn.functional.normalize(made, dim=1))
        assert embed.evaluate(ROWS) == {"recall_at_1": 0.0, "mrr": pytest.approx(1 / 3)}


def test_vectors_that_are_nan_find_nothing(embed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "_sides", lambda texts: torch.full((len(texts), 8), math.nan))
    with pytest.warns(UserWarning, match="6 of 6 .*NaN"):
        assert embed.evaluate(ROWS) == {"recall_at_1": 0.0, "mrr": 0.0}
    with pytest.warns(UserWarning, match="2 of 2 .*NaN"):  # alone, nothing is ahead of it
        assert embed.evaluate(listed(ROWS[0])) == {"recall_at_1": 0.0, "mrr": 0.0}
    scored = listed(*({**row, "score": str(i)} for i, row in enumerate(ROWS)))
    assert all(math.isnan(value) for value in embed.evaluate(scored).values())


def test_a_model_of_nan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command: weights that are NaN."""
    task = begin("embed", "bert-tiny", ROWS, vocab_size=200)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.fill_(math.nan)
    task.save(tmp_path / "m")
    (tmp_path / "x.tsv").write_text("first\tsecond\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    with pytest.warns(UserWarning, match="NaN"), pytest.raises(SystemExit) as stopped:
        main(["eval", "embed", "--model", str(tmp_path / "m"), "--data", str(tmp_path / "x.tsv")])
    assert not stopped.value.code and "recall_at_1  0.0000" in capsys.readouterr().out


def test_equal_texts_are_no_rivals(embed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two questions with one answer: either copy of it is right."""
    rows = listed(*({"first": a, "second": b} for a, b in zip("abc", ("yes", "yes", "no"), strict=True)))
    made = {"a": [1.0, 0.1], "b": [1.0, 0.0], "c": [0.0, 1.0], "yes": [1.0, 0.05], "no": [0.0, 1.0]}
    vectors = lambda texts: torch.nn.functional.normalize(torch.tensor([made[text] for text in texts]), dim=1)  # noqa: E731
    monkeypatch.setattr(embed, "_sides", vectors)
    assert embed.evaluate(rows) == {"recall_at_1": 1.0, "mrr": 1.0}


def test_ranks_are_those_of_scipy() -> None:
    """Without ties: the rank of the right score among all, from the largest."""
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 30)))
    right = torch.arange(20)
    rivals = torch.ones(20, 30, dtype=torch.bool)
    rivals[right, right] = False
    found = ranks(scores, scores[right, right], rivals)
    expected = [stats.rankdata(-row)[i] for i, row in enumerate(scores.numpy())]
    assert found.tolist() == expected


@pytest.mark.parametrize("value", [math.nan, 1.0])
def test_pictures_and_texts(value: float) -> None:
    """Twelve of each, so that the best ten are not all."""
    pictures, texts = torch.full((12, 4), value), torch.full((12, 4), value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figures = recalls(pictures, texts, torch.arange(12))
    assert {name: found for name, found in figures.items() if "recall" in name} == dict.fromkeys(
        [name for name in figures if "recall" in name], 0.0
    )


@pytest.mark.parametrize("found", [[math.nan] * 3, [math.nan, 1.0, 2.0], [3.0, 1.0, 2.0]])
def test_correlations_are_those_of_scipy(found: list[float]) -> None:
    wanted = [1.0, 2.0, 3.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [float(one(found, wanted)[0]) for one in (stats.pearsonr, stats.spearmanr)]
    assert [pearson(found, wanted), spearman(found, wanted)] == pytest.approx(expected, nan_ok=True)


class Broken(Toy):
    """From the third evaluation on, NaN: as the metric, or as the loss beside a metric that looks perfect."""

    metric, larger_is_better = "accuracy", True
    which = "accuracy"

    def evaluate(self) -> dict[str, float | str]:
        self.seen = [*getattr(self, "seen", []), fingerprint(self.model)]
        n = len(self.seen)
        found = {"accuracy": 0.5 + n / 10, "loss": 1 / n}
        return {**found, **({"accuracy": 1.0, self.which: math.nan} if n > 2 else {})}


@pytest.mark.parametrize("which", ["accuracy", "loss"])
def test_nan_never_is_the_best(which: str, tmp_path: Path) -> None:
    toy, notes = Broken(), Notes()
    toy.which = which
    state = train(toy, settings(steps=50), folder=tmp_path, callback=notes)
    assert len(toy.seen) > 3 and state.best == pytest.approx(0.7)
    assert fingerprint(toy.model) == toy.seen[1]
    assert any(f"{which} = nan" in said for said in notes.said)


def test_metrics_are_valid_json(tmp_path: Path) -> None:
    """As strict readers have it: NaN and infinity are null, in lines written anew on resume too."""

    class Infinite(Broken):
        def evaluate(self) -> dict[str, float | str]:
            return {**super().evaluate(), "perplexity": math.inf}

    train(Infinite(), settings(steps=30), folder=tmp_path, callback=MetricsFile(tmp_path))

    def strict(name: str) -> float:
        raise ValueError(name)

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=strict) for line in lines]
    valid = [row for row in rows if "split" in row]
    assert valid[-1]["accuracy"] is None and {row["perplexity"] for row in valid} == {None}
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n')  # of an older version
    train(Infinite(), settings(steps=30), folder=tmp_path, callback=MetricsFile(tmp_path), resume=True)
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0], parse_constant=strict)["loss"] is None
    assert read_metrics(tmp_path / "metrics.jsonl")


def test_lines_of_metrics_that_are_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    odd = [b'{"loss": 1}', b'{"step": "a"}', b"[1]", b"3", b"\xff", b"[" * 100_000, b'{"step": 1e400}', b'{"step": ']
    file.write_bytes(b"\n".join([b'{"step": 1, "loss": 2.0}', *odd]))
    assert read_metrics(file) == [{"step": 1, "loss": 2.0}]
    file.unlink()
    assert read_metrics(file) == []
    file.mkdir()
    with pytest.raises(af.FolderError, match=r"metrics\.jsonl "):
        read_metrics(file)
