"""A tokenizer with more tokens than the model has rows is refused; rows past the tokenizer's tokens are usual."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af

TEXTS = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"]
# A task, a recipe whose model does it, and the settings that make it so.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("generate", "gpt2-tiny", {}),
    ("embed", "bert-tiny", {}),
    ("fill-mask", "bert-tiny", {"head": "masked"}),
    ("classify-text", "bert-tiny", {"head": "classify"}),
    ("classify-pair", "bert-tiny", {"head": "classify"}),
    ("tag", "bert-tiny", {"head": "tag"}),
    ("answer", "bert-tiny", {"head": "span"}),
    ("translate", "transformer-tiny", {}),
    ("summarize", "bart-tiny", {}),
    ("caption", "vision-encoder-decoder-tiny", {}),
]


def make(recipe: str, folder: Path, **settings: Any) -> af.Tokenizer:
    tokenizer = af.Tokenizer.train(iter(TEXTS), kind="word", vocab_size=100, bert=True, progress=False)
    model = af.build(recipe, **settings).eval()
    model.save(folder)
    tokenizer.save(folder)
    return tokenizer


@pytest.mark.parametrize(("task", "recipe", "settings"), CASES, ids=lambda value: str(value))
def test_a_tokenizer_larger_than_the_vocabulary(task: str, recipe: str, settings: Any, tmp_path: Path) -> None:
    small = {"vocab_size": 10, "padding": 0, "end": 1, "decoder_start": 2}
    names = af.build(recipe).config.field_names()
    if recipe.startswith("vision"):
        decoder = dict(af.build(recipe).config.to_json()["decoder"])
        settings = {"decoder": {**decoder, "vocab_size": 10}, "padding": 0, "end": 1, "decoder_start": 2}
    make(recipe, tmp_path, **{**{n: v for n, v in small.items() if n in names}, **settings})
    with pytest.raises(af.Error, match="vocab_size"):
        af.task(task, tmp_path)


def test_a_target_vocabulary_that_is_too_small(tmp_path: Path) -> None:
    sizes = {"vocab_size": 100, "target_vocab_size": 10, "shared": False}
    make("transformer-tiny", tmp_path, **sizes, padding=0, end=1, decoder_start=2)
    with pytest.raises(af.Error, match="vocab_size is 10"):
        af.task("translate", tmp_path)


def test_padded_rows_are_skipped_with_one_warning(tmp_path: Path) -> None:
    """A model that only ever says ids that no token has."""
    tokenizer = make("gpt2-tiny", tmp_path, vocab_size=128, tied=False)
    assert len(tokenizer) < 120
    task: Any = af.task("generate", tmp_path)
    with torch.no_grad():
        task.model.heads["language"].words.weight.zero_()
        task.model.heads["language"].words.weight[120:] = task.model.heads["language"].words.weight.new_ones(8, 1)
    with pytest.warns(UserWarning, match="no token for the id 12"):
        answer = task("the quick", max_new_tokens=3)
    assert str(answer).strip() == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        task("the quick", max_new_tokens=3)


def test_tokens_of_the_vocabulary_do_not_warn(tmp_path: Path) -> None:
    tokenizer = af.Tokenizer.train(iter(TEXTS), kind="word", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenizer.decode(list(range(len(tokenizer))), special=True)
        tokenizer.decode(tokenizer.encode(TEXTS))
    with pytest.warns(UserWarning, match="no token"):
        assert tokenizer.decode([*tokenizer.encode(TEXTS[0]), len(tokenizer) + 5]) == TEXTS[0]
