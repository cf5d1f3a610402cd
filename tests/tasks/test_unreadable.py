"""Files that cannot be read: an evaluation leaves those rows out, counts them, and says so; no other row answers for
them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.audio.audio_file import Audio
from anyformer.data.images.image_file import ImageFile
from anyformer.data.rows import ListRows, Rows
from anyformer.data.settings import TokenizerSettings
from anyformer.data.video.clips import Clip
from anyformer.tasks import TASKS, find
from anyformer.tasks.base import TaskSetup
from tests.training import picture_files as files
from tests.training.test_every_task import CASES

BAD = (0, 3, 5)  # the first, the last, and one in between
FILES = {
    "image": ImageFile.of(b"no image at all", "bad.png"),
    "mask": ImageFile.of(b"no image at all", "bad.png"),
    "audio": Audio("bad.wav", lambda: b"RIFFxxxx"),
    "clip": Clip.array(np.zeros((0, 4, 4, 3), dtype=np.uint8), "bad.npz"),
}
OF_FILES = [name for name in TASKS if find(name).reads == "files"]


@dataclass
class Case:
    task: Any
    rows: list[dict[str, Any]]
    about: Any

    def listed(self, chosen: Iterable[int], bad: tuple[int, ...] = (), column: str | None = None) -> Rows:
        """Some of the rows; those that are `bad` with a file that nobody can read."""
        made = [dict(self.rows[i]) for i in chosen]
        for i in bad:
            made[i][column or next(name for name in FILES if name in made[i])] = FILES[column or self.column]
        rows = ListRows(made)
        rows.metadata = self.about
        return rows

    @property
    def column(self) -> str:
        return next(name for name in ("image", "audio", "clip") if name in self.rows[0])


def make(name: str, folder: Path) -> Case:
    recipe, file, content, _, more = CASES[name]
    for path, inside in content.items():
        (folder / path).write_bytes(inside)
    kind = find(name)
    rows = kind.read(folder / file)
    words = TokenizerSettings(vocab_size=290, kind="char" if name == "transcribe" else None)
    own = {key.removeprefix("task."): value for key, value in more.items() if key.startswith("task.")}
    task: Any = kind.begin(recipe, rows, None, TaskSetup(tokenizer=words, task=kind.options_class(**own)))
    task.model.eval()
    return Case(task, [rows[i] for i in range(6)], rows.metadata)


@pytest.mark.parametrize("name", OF_FILES)
def test_metrics_are_those_of_the_others(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = make(name, tmp_path)
    expected = case.task.evaluate(case.listed((1, 2, 4)))
    figures = case.task.evaluate(case.listed(range(6), BAD))
    assert figures.pop("skipped") == 3 and "skipped" not in expected
    assert figures.keys() == expected.keys()
    for key, value in expected.items():
        assert figures[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-4, nan_ok=True)), key
    assert capsys.readouterr().err.count("Skipped a file") == 3
    with pytest.raises(af.Error, match=r"the rows given .*bad\."):
        case.task.evaluate(case.listed(range(6), tuple(range(6))))


def test_a_mask_that_cannot_be_read(tmp_path: Path) -> None:
    case = make("segment", tmp_path)
    shape = (32, 32)
    for i, row in enumerate(case.rows):
        row["mask"] = ImageFile.of(files.encode(np.full(shape, i % 3 + 1, dtype=np.uint8)), f"{i}.png")
        del row["segments"], row["classes"]
    case.task.ids = (1, 2, 3, 4)[: len(case.task.labels)]
    expected = case.task.evaluate(case.listed((1, 2, 4)))
    figures = case.task.evaluate(case.listed(range(6), BAD, "mask"))
    assert figures == {**expected, "skipped": 3.0}
    rows = case.listed(range(6), BAD, "mask")
    assert find("segment").find_labels(rows, None, TaskSetup()) == ("2", "3")


def test_training_goes_on_with_the_rows_that_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example that takes a row's place has its own target with it, and says which row it is."""
    case = make("classify-image", tmp_path)
    examples = case.task.prepare(case.listed(range(6), BAD))
    assert [one["row"] for one in examples.take(range(6))] == [1, 1, 2, 4, 4, 1]
    assert [one["labels"] for one in examples.take(range(6))] == [1, 1, 2, 1, 1, 1]


def test_an_input_to_answer_is_not_skipped(tmp_path: Path) -> None:
    """Whoever asks about a file gets an answer about that file, or an error."""
    case = make("classify-audio", tmp_path)
    good = case.rows[0]["audio"]
    with pytest.raises(af.Error, match=r"bad\.wav"):
        case.task([good, FILES["audio"], good])


def test_eval_says_so_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = make("classify-image", tmp_path)
    case.task.save(tmp_path / "m")
    for i, (label, pixels) in enumerate(files.labeled(6)):
        (tmp_path / "d" / label).mkdir(parents=True, exist_ok=True)
        content = b"\x89PNG\r\n\x1a\nnothing" if i in BAD else files.encode(pixels)
        (tmp_path / "d" / label / f"{i}.png").write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        main(["eval", "classify-image", "--model", str(tmp_path / "m"), "--data", str(tmp_path / "d")])
    shown = capsys.readouterr()
    assert stopped.value.code == 3
    assert f"3 of 6 rows of {tmp_path / 'd'}" in shown.out and "accuracy" in shown.out
    assert "3 of 6 rows" in shown.err.splitlines()[-1] and "red/0.png" in shown.err
