"""Every kind of tokenizer: what goes in comes out, special ids are where models expect them, folders round trip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af

LINES = ["the quick brown fox jumps over the lazy dog", "fünf Boxkämpfer jagen Viktor", "the dog and the fox"] * 20
KINDS = ["bpe", "wordpiece", "unigram", "word", "char", "byte"]


def make(kind: Any, **options: Any) -> af.Tokenizer:
    return af.Tokenizer.train(iter(LINES), kind=kind, vocab_size=300, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_back(kind: str) -> None:
    tok = make(kind)
    assert tok.decode(tok.encode(LINES[0])) == LINES[0]
    assert tok.decode(tok.encode(LINES[1])) == LINES[1]


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_fixed_ids_and_are_not_shown(kind: str) -> None:
    tok = make(kind, end=True)
    assert (tok.pad_id, tok.end_id, tok.unknown_id) == (0, 1, 2)
    ids = tok.encode("the dog")
    assert ids[-1] == tok.end_id and tok.encode("the dog").count(1) == 1
    assert tok.decode([*ids, 0, 0]) == "the dog"


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_bytes_know_every_character_and_every_space(kind: str) -> None:
    tok = make(kind)
    for text in ("日本語 🙂", "  two  spaces\n\ttab ", "ß\x00é"):
        assert tok.decode(tok.encode(text)) == text
    assert tok.unknown_id not in tok.encode("日本語 🙂")


def test_byte_has_one_token_a_byte() -> None:
    tok = make("byte")
    assert len(tok) == 259 and len(tok.encode("für")) == len("für".encode())


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "word", "char"])
def test_a_new_character_is_unknown(kind: str) -> None:
    tok = make(kind)
    assert tok.unknown_id in tok.encode("日")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_the_same_tokenizer(kind: str, tmp_path: Path) -> None:
    tok = make(kind, end=True)
    tok.save(tmp_path)
    again = af.Tokenizer.load(tmp_path)
    assert [again.encode(line) for line in LINES] == [tok.encode(line) for line in LINES]
    assert (len(again), again.pad_id, again.end_id) == (len(tok), 0, 1)


def test_transformers_reads_the_folder(tmp_path: Path) -> None:
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto").AutoTokenizer
    tok = make("bpe", end=True)
    tok.save(tmp_path)
    theirs = auto.from_pretrained(tmp_path)
    assert theirs(LINES[1])["input_ids"] == tok.encode(LINES[1])
    assert (theirs.pad_token_id, theirs.eos_token_id) == (0, 1)


def test_special_names_come_from_the_folder(tmp_path: Path) -> None:
    make("bpe").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<unk>"}, "pad_token": "</s>"}')
    tok = af.Tokenizer.load(tmp_path)
    assert (tok.end_id, tok.pad_id) == (2, 1)


def test_a_batch_is_padded_on_the_side_asked_for() -> None:
    tok = make("word")
    long, short = tok.encode("the lazy dog"), tok.encode("fox")
    right, left = tok(["the lazy dog", "fox"]), tok(["the lazy dog", "fox"], side="left")
    assert right["input_ids"].tolist() == [long, [*short, 0, 0]]
    assert left["input_ids"].tolist() == [long, [0, 0, *short]]
    assert left["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert tok("fox")["input_ids"].tolist() == [short]
    assert right["input_ids"].dtype == torch.long


def test_pieces_are_readable() -> None:
    tok = make("bpe", end=True)
    pieces = tok.pieces(tok.encode("the dogs"))
    assert "".join(pieces[:-1]) == "the dogs" and pieces[-1] == "</s>"


def test_files_and_texts_train_the_same(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    by_file = [af.Tokenizer.train(files, kind="word", vocab_size=300) for files in (file, str(file), [str(file)])]
    assert all(tok.engine.get_vocab() == make("word").engine.get_vocab() for tok in by_file)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match='Did you mean "wordpiece"'):
        make("word-piece")
    with pytest.raises(af.ConfigError, match="259 entries or more"):
        af.Tokenizer.train(iter(LINES), kind="bpe", vocab_size=100)
    with pytest.raises(af.InputError, match="empty"):
        af.Tokenizer.train(iter([]), kind="word")
    with pytest.raises(af.InputError, match="cannot be read"):
        af.Tokenizer.train(tmp_path / "none.txt", kind="word")
    with pytest.raises(af.InputError, match=r"give texts themselves as iter\(texts\)"):
        af.Tokenizer.train(LINES, kind="word")
    (tmp_path / "latin.txt").write_bytes("fünf".encode("latin-1"))
    with pytest.raises(af.InputError, match="not UTF-8"):
        af.Tokenizer.train([tmp_path / "latin.txt"], kind="word")
    with pytest.raises(af.FolderError, match=r"no tokenizer\.json"):
        af.Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(af.FolderError, match="cannot be read"):
        af.Tokenizer.load(tmp_path)
