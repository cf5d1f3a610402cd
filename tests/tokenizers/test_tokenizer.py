"""Every kind of tokenizer: what goes in comes out, special ids are where models expect them, folders round trip."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import anyformer as af
from tests.tokenizers import samples

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


@pytest.mark.parametrize("kind", ["bpe", "byte", "gpt2"])
def test_bytes_give_any_text_back(kind: str) -> None:
    """Any Unicode text, one that spells out special tokens among it."""
    tok = af.Tokenizer.load(samples.gpt2()) if kind == "gpt2" else make(kind)
    special = [token.content for token in tok.engine.get_added_tokens_decoder().values()]

    @settings(max_examples=500, deadline=None)
    @given(st.text() | st.lists(st.sampled_from([*special, " ", "a", "🙂"])).map("".join))
    def back(text: str) -> None:
        ids = tok.encode(text)
        assert tok.decode(ids, special=True) == text
        if not any(token in text for token in special):
            assert tok.decode(ids) == text

    back()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_the_same_as_one_by_one(kind: str) -> None:
    tok = make(kind, end=True)
    rows = tok.encode(LINES[:3])
    assert rows == [tok.encode(line) for line in LINES[:3]]
    assert tok.decode(rows) == [tok.decode(row) for row in rows]
    assert tok.decode(torch.tensor(rows[0])) == tok.decode(rows[0])
    assert tok.encode([]) == [] and tok([])["input_ids"].shape == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_bert_frames_texts_and_pairs(kind: str) -> None:
    tok = make(kind, bert=True, special=["<extra>"])
    assert (tok.start_id, tok.separator_id, tok.mask_id) == (3, 4, 5) and tok.encode("<extra>", special=False) == [6]
    one, two = (tok.encode(text, special=False) for text in ("the dog", "fox"))
    batch = tok(["the dog"], ["fox"])
    assert batch["input_ids"].tolist() == [[3, *one, 4, *two, 4]]
    assert batch["token_type_ids"].tolist() == [[0] * (len(one) + 2) + [1] * (len(two) + 1)]
    assert tok.encode("the dog", special=False) == one == tok.encode("the dog")[1:-1]


def test_trained_wordpieces_and_words_point_at_their_characters() -> None:
    tok = make("wordpiece", end=True)
    text = "the lazy  fox"
    spans = tok(text, offsets=True)["offset_mapping"][0].tolist()
    assert "".join(text[start:end] for start, end in spans) == "thelazyfox" and spans[-1] == [0, 0]


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
    pieces = tok.tokens(tok.encode("the dogs"))
    assert "".join(pieces[:-1]) == "the dogs" and pieces[-1] == "</s>"


def test_files_and_texts_train_the_same(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    by_file = [af.Tokenizer.train(files, kind="word", vocab_size=300) for files in (file, str(file), [str(file)])]
    assert all(tok.engine.get_vocab() == make("word").engine.get_vocab() for tok in by_file)


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match=r'"word-piece".*"wordpiece"'):
        make("word-piece")
    with pytest.raises(af.ConfigError, match="vocab_size 259"):
        af.Tokenizer.train(iter(LINES), kind="bpe", vocab_size=100)
    for kind in ("bpe", "wordpiece", "unigram", "word", "char"):
        for nothing in ([], ["", " \n"]):
            with pytest.raises(af.InputError, match="empty"):
                af.Tokenizer.train(iter(nothing), kind=kind)  # type: ignore[arg-type]
    with pytest.raises(af.InputError, match="gave int"):
        af.Tokenizer.train(iter([1]), kind="word")  # type: ignore[list-item]
    with pytest.raises(af.InputError, match="surrogate"):
        make("bpe").encode("\ud800")
    with pytest.raises(af.InputError, match="bytes"):
        make("bpe").encode([b"a"])  # type: ignore[list-item]
    with pytest.raises(af.InputError, match=r"2 texts .*1 pair"):
        make("bpe").encode(["a", "b"], ["c"])
    with pytest.raises(af.ConfigError, match=r"end .* bert"):
        make("bpe", end=True, bert=True)
    with pytest.raises(af.InputError, match="cannot be read"):
        af.Tokenizer.train(tmp_path / "none.txt", kind="word")
    with pytest.raises(af.InputError, match=r"iter\(texts\)"):
        af.Tokenizer.train(LINES, kind="word")
    (tmp_path / "latin.txt").write_bytes("one\ntwo\nfünf".encode("latin-1"))
    with pytest.raises(af.InputError, match=r"latin\.txt, line 3, .*0xfc"):
        af.Tokenizer.train([tmp_path / "latin.txt"], kind="word")
    with pytest.raises(af.FolderError, match=r"no tokenizer\.json"):
        af.Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(af.FolderError, match="cannot be read"):
        af.Tokenizer.load(tmp_path)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "word", "char", "byte"])
def test_the_same_texts_give_the_same_vocabulary(kind: str) -> None:
    """Equally frequent pairs, of which there are many here, are merged in the same order every time."""
    words = ["".join(chr(97 + (i * k) % 26) for k in range(1, 7)) for i in range(1, 40)]
    files = {
        af.Tokenizer.train(iter(words), kind=kind, vocab_size=400, progress=False).engine.to_str() for _ in range(4)
    }
    assert len(files) == 1


@pytest.mark.parametrize("ids", [[-1], [[3], [-1]], 5, None, "12", ["a"], [2**40], torch.tensor(5), [1.5]], ids=str)
def test_what_are_no_ids(ids: Any) -> None:
    with pytest.raises(af.InputError, match="ids is"):
        make("char").decode(ids)


@pytest.mark.parametrize("text", [None, 5, [None], b"ab"], ids=str)
def test_what_is_no_text(text: Any) -> None:
    with pytest.raises(af.InputError, match="A tokenizer takes"):
        make("char").encode(text)
