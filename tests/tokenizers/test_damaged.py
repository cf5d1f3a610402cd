"""Tokenizer files that make no sense are one sentence that names the file and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from tests.fuzz import seeds


def vocabulary(kind: str, folder: Path, name: str, **changes: Any) -> Path:
    """A vocabulary of the fuzzer's, with some fields of a file changed."""
    seeds.write(folder, seeds.vocabularies()[kind])
    held = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
    (folder / name).write_text(json.dumps({**held, **changes}))
    return folder


@pytest.mark.parametrize(
    ("kind", "name", "changes", "said"),
    [
        ("wordpiece", "tokenizer_config.json", {"do_lower_case": [True]}, "do_lower_case"),
        ("wordpiece", "tokenizer_config.json", {"padding_side": "top"}, "padding_side"),
        ("wordpiece", "tokenizer_config.json", {"model_input_names": 3}, "model_input_names"),
        (
            "wordpiece",
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": {"content": "<x>"}}},
            "tokenizer_config|x",
        ),
        ("wordpiece", "tokenizer_config.json", {"chat_template": [3]}, "chat_template"),
        ("unigram", "tokenizer_config.json", {"extra_ids": [4]}, "extra_ids"),
        ("unigram", "tokenizer_config.json", {"extra_ids": 10**9}, "extra_ids"),
        ("unigram", "tokenizer_config.json", {"eos_token": {"id": 3}}, "content"),
        ("unigram", "tokenizer_config.json", {"eos_token": 3}, "eos_token"),
        ("unigram", "tokenizer_config.json", {"eos_token": "no such token"}, "spiece"),
        ("merges", "vocab.json", {"the": "12"}, r'vocab\.json: "the" is .12.'),
        ("merges", "vocab.json", {"the": -1}, r'vocab\.json: "the" is -1'),
        ("merges", "vocab.json", {"the": 2**30}, r'vocab\.json: "the" is 1073741824'),
        ("merges", "added_tokens.json", {"<x>": {"id": 13}}, r'added_tokens\.json: "<x>"'),
        ("marian", "vocab.json", {"s": [6]}, r'vocab\.json: "s"'),
    ],
)
def test_one_sentence(kind: str, name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(af.FolderError, match=said):
        af.Tokenizer.load(vocabulary(kind, tmp_path, name, **changes))


@pytest.mark.parametrize("kind", seeds.vocabularies())
def test_the_vocabularies_themselves_load(kind: str, tmp_path: Path) -> None:
    seeds.write(tmp_path, seeds.vocabularies()[kind])
    pattern = r"\w+|\s" if kind == "ranks" else None
    assert af.Tokenizer.load(tmp_path, pattern=pattern).encode("the cats")


@pytest.mark.parametrize("several", [False, True])
def test_frames_of_tokens_that_nobody_described(several: bool, tmp_path: Path) -> None:
    seeds.tokenizer("wordpiece", bert=True).save(tmp_path)
    held = json.loads((tmp_path / "tokenizer.json").read_text())
    del held["post_processor"]["special_tokens"]["[SEP]"]
    if several:
        held["post_processor"] = {"type": "Sequence", "processors": [held["post_processor"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    with pytest.raises(af.FolderError, match=r'tokenizer\.json: "post_processor" .*\[SEP\]'):
        af.Tokenizer.load(tmp_path)


def test_an_id_that_is_too_large_is_not_written(tmp_path: Path) -> None:
    """The library writes a list of all ids up to the last, and dies of it."""
    seeds.tokenizer().save(tmp_path)
    held = json.loads((tmp_path / "tokenizer.json").read_text())
    held["model"]["vocab"]["zzz"] = 2**32 - 2
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    words = af.Tokenizer.load(tmp_path)
    with pytest.raises(af.ConfigError, match="id 4,294,967,294"):
        words.save(tmp_path / "again")


def test_modules_stay_in_their_folder(tmp_path: Path) -> None:
    seeds.sentences(tmp_path / "model")
    file = tmp_path / "model" / "modules.json"
    good = json.loads(file.read_text())
    (tmp_path / "model" / "1_Pooling").rename(tmp_path / "outside")
    for place in ("../outside", str(tmp_path / "outside")):
        file.write_text(json.dumps([good[0], {**good[1], "path": place}]))
        with pytest.raises(af.FolderError, match="leads out of its folder"):
            af.task("embed", tmp_path / "model")


def test_the_length_of_sentences_is_a_number(tmp_path: Path) -> None:
    seeds.sentences(tmp_path / "model")
    (tmp_path / "model" / "sentence_bert_config.json").write_text('{"max_seq_length": [32]}')
    with pytest.raises(af.FolderError, match="max_seq_length"):
        af.task("embed", tmp_path / "model")
