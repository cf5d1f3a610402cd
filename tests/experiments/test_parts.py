"""What experiments 8 to 14 count with: languages, typos, growth, and the variance that slots explain."""

from __future__ import annotations

import difflib
import math
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import Generator

from tests.experiments.test_quick import ROOT, load


@pytest.fixture(scope="module")
def limits() -> object:
    return load(ROOT / "experiments" / "12_limits.py")


def test_parity_is_that_of_the_ones_so_far(limits) -> None:  # type: ignore[no-untyped-def]
    batch = limits.parity(5, 20, Generator().manual_seed(0))
    for bits, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        assert labels == [bin(int("".join(map(str, bits[: n + 1])), 2)).count("1") % 2 for n in range(20)]


def test_brackets_are_labelled_by_what_is_left_open(limits) -> None:  # type: ignore[no-untyped-def]
    """The oracle strikes out pairs that stand side by side until none is left."""
    batch = limits.brackets(20, 40, Generator().manual_seed(0))
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        for n in range(40):
            left = "".join("([)]"[i] for i in ids[: n + 1])
            while (shorter := re.sub(r"\(\)|\[\]", "", left)) != left:
                left = shorter
            assert re.fullmatch(r"[(\[]*", left) and len(left) <= limits.DEPTH, "every prefix can still be closed"
            assert labels[n] == (0 if not left else "([".index(left[-1]) + 1)


def test_a_typo_is_one_slip_inside_a_word() -> None:
    text = load(ROOT / "experiments" / "09_text.py")
    chance = random.Random(0)
    for _ in range(200):
        wrong = text.typo("wonderful", chance)
        assert wrong[0] == "w" and abs(len(wrong) - 9) <= 1
        same = sum(part.size for part in difflib.SequenceMatcher(None, "wonderful", wrong).get_matching_blocks())
        assert same >= 8, "at most one letter is out of place"


def test_growth_is_the_power_of_the_length() -> None:
    length = load(ROOT / "experiments" / "08_length.py")
    grown = length.Grown({1024: 1.0, 2048: 4.0}, {1024: 10.0, 2048: 20.0})
    assert (grown.growth(grown.seconds), grown.growth(grown.mib)) == (2.0, 1.0)
    assert math.isnan(length.Grown({1024: 1.0}).growth({1024: 1.0}))
    assert not grown.promises(4096), "16 seconds are more than are borne"


def test_slots_that_never_move_explain_everything_and_equal_ones_nothing() -> None:
    decoding = load(ROOT / "experiments" / "11_decoding.py")
    fixed = torch.rand(1, 8, 4).expand(50, -1, -1)
    alike = torch.rand(50, 1, 4).expand(-1, 8, -1)
    assert all(value == pytest.approx(1.0, abs=1e-5) for value in decoding.explained(fixed).values())
    assert all(value == pytest.approx(0.0, abs=1e-5) for value in decoding.explained(alike).values())


@pytest.mark.slow
def test_the_alignment_of_a_translation_model_is_drawn(tmp_path: Path) -> None:
    heads = load(ROOT / "experiments" / "14_heads.py")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("the area was signed\tla zone a été signée\n" * 40, encoding="utf-8")
    given = {"train.steps": 1, "tokenizer.vocab_size": 270, "data.validation_split": 0.0}
    made = sys.modules["real"].teach(
        "translate", "transformer-tiny", pairs, None, seed=0, pace=sys.modules["frame"].Pace(1), label="", **given
    )
    made.task.save(tmp_path / "model")
    picture = heads.align(str(tmp_path / "model"))
    assert len(picture.figure.axes[0].get_yticklabels()) > 0
