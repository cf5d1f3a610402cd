"""What the experiments stand on: figures over seeds, pages and their index, the one training loop."""

from __future__ import annotations

import math
import re
import statistics
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import frame
from learn import Course, learn
from models import Reader, accuracy, read_with, transformer_blocks

CLAIM = frame.Claim(
    number=99, name="a-test", title="A title", items=("003-5-02",), says="It is so.", did="We looked.", seeds=(1, 2)
)


def test_a_spread_is_the_mean_and_the_sample_deviation() -> None:
    found = frame.spread([1.0, 2.0, 4.0])
    assert (found.mean, found.deviation) == (pytest.approx(7 / 3), pytest.approx(statistics.stdev([1, 2, 4])))
    assert str(found) == "2.33 ± 1.53" and str(frame.spread([0.5])) == "0.500"
    assert str(frame.spread([1000.2, 1000.4])) == "1,000 ± 0", "no more digits of the spread than of the mean"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (1e-5, "1e-05"), (0.0, "0"), (7, "7")],
)
def test_numbers_are_shown_with_the_digits_that_matter(value: float, shown: str) -> None:
    assert frame.show(value) == shown
    assert frame.show(math.nan) == "–", "no number is shown as none"


def found(held: bool) -> frame.Found:
    with frame.plot() as (figure, (axes,)):
        axes.plot([1, 2], label="line")
    table = frame.Table("Figures", ["what", "how much"], [["one", frame.spread([1.0, 3.0])]])
    picture = frame.Picture(figure, "A line.")
    return frame.Found(tables=[table], pictures=[picture], verdict="holds", words="Yes.", exact={"it": held})


def test_a_page_says_everything_and_the_index_finds_it(tmp_path: Path) -> None:
    frame.publish(CLAIM, lambda options: found(True), frame.Options((5, 6), False, tmp_path))
    page = (tmp_path / "99-a-test.md").read_text(encoding="utf-8")
    for part in (
        "It is so.",
        "We looked.",
        "**Items of the lectures** (`python -m lectures 003-5-02` shows one): 003-5-02.",
        "99_a_test.py --seeds 5 6",
        "| one | 2.00 ± 1.41 |",
        "99-a-test.svg",
        "Yes.",
    ):
        assert part in page
    index = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^\| 99 \| \[A title\]\(99-a-test.md\) \| holds \| \d+ s \|$", index, re.M)
    first = (tmp_path / "99-a-test.svg").read_bytes()
    frame.publish(CLAIM, lambda options: found(True), frame.Options((5, 6), False, tmp_path))
    assert (tmp_path / "99-a-test.svg").read_bytes() == first, "the same numbers give the same file"


def test_what_must_be_exact_and_is_not_fails_the_command(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Should be exact and is not: it"):
        frame.main(CLAIM, lambda options: found(False), ["--out", str(tmp_path)])


def test_the_first_step_whose_last_ten_losses_are_low_enough() -> None:
    course = Course(losses=[2.0] * 10 + [1.0] * 20)
    assert course.steps_to(1.0) == 20 and course.steps_to(1.5) == 15 and course.steps_to(0.9) is None


def test_the_loop_learns_stops_when_told_and_repeats_itself() -> None:
    def draw(rows: int, chance: torch.Generator) -> dict[str, torch.Tensor]:
        letters = torch.randint(0, 6, (rows, 5), generator=chance)
        return {"input_ids": letters, "labels": (letters + 1) % 6}

    config = Reader(vocab_size=6, n_labels=6, d_model=16, blocks=transformer_blocks(1, 16, 2))
    model, again = (read_with(config, seed=3) for _ in range(2))
    course, second = (learn(one, draw, steps=200, seed=3, lr=5e-3, until=0.1) for one in (model, again))
    assert course.losses == second.losses, "the same seed, the same run"
    assert course.steps_to(0.1) == len(course.losses) < 200
    assert accuracy(model, draw(50, torch.Generator().manual_seed(0))) > 0.95
