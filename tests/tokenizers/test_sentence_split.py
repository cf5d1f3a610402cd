"""Texts cut into lines and sentences."""

from __future__ import annotations

import time

import pytest

from anyformer.tokenizers.sentence_split import split_lines_and_sentences, split_sentences


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("It rains. Stay here! Why? 3 men came… Good.", ["It rains.", "Stay here!", "Why?", "3 men came…", "Good."]),
        ('"Stop!" he said. "Go home." He went.', ['"Stop!" he said.', '"Go home."', "He went."]),
        ("Mr. Hill met Dr. J. K. Lee. They sat.", ["Mr. Hill met Dr. J. K. Lee.", "They sat."]),
        ("He likes fruit, e.g. Apples. So do I. She left.", ["He likes fruit, e.g. Apples.", "So do I.", "She left."]),
        ("In the U.S. Army, No. 5 is red. No. It is blue.", ["In the U.S. Army, No. 5 is red.", "No.", "It is blue."]),
        ("1. Sit down. 2. Eat.", ["1. Sit down.", "2. Eat."]),
        ("It was 1999. He won 3.5 points etc. and left.", ["It was 1999.", "He won 3.5 points etc. and left."]),
        ("hello. how are you?", ["hello.", "how are you?"]),
        ("no stop at all", ["no stop at all"]),
        (" \t ", []),
    ],
)
def test_sentences(line: str, expected: list[str]) -> None:
    assert split_sentences(line) == expected


def test_lines_stay_lines() -> None:
    assert split_lines_and_sentences("\n One. Two.\r\n\nThree \n") == [["One.", "Two."], [], ["Three"]]
    assert split_lines_and_sentences(" \n ") == []


@pytest.mark.parametrize("text", ["A. " * 100_000, "." * 200_000, '."' * 100_000, "It rains. " * 30_000])
def test_long_texts_take_no_time(text: str) -> None:
    started = time.perf_counter()
    split_lines_and_sentences(text)
    assert time.perf_counter() - started < 5
