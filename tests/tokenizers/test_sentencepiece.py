"""SentencePiece models give SentencePiece's own ids, on text with marks, widths and spaces of every kind."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyformer as af
from tests.tokenizers import samples

spm = pytest.importorskip("sentencepiece", reason="sentencepiece is the reference of these tests")

LINES = [
    f"{who} {what} {where} {number}."
    for who in ("The man", "A woman", "Der Hund", "Une fille", "Ein Kind")
    for what in ("is running", "rides a bicycle", "spielt", "mange", "looks at the café")
    for where in ("in the street", "auf der Straße", "près de la mer", "日本で", "at home")
    for number in ("once", "2 times", "½ hour")
]
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
CASES: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram"},  # T5's and Marian's kind
    "unigram-plain": {"model_type": "unigram", **PLAIN},
    "unigram-trimmed": {"model_type": "unigram", "normalization_rule_name": "identity"},
    "unigram-own-trimmed": {
        "model_type": "unigram",
        "normalization_rule_name": "identity",
        "user_defined_symbols": ["<x>"],
    },
    "unigram-bytes": {"model_type": "unigram", "byte_fallback": True, "vocab_size": 420},
    "unigram-folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram-own": {"model_type": "unigram", "user_defined_symbols": ["<x>", "ﬁ"]},
    "bpe": {"model_type": "bpe"},
    "bpe-bytes": {"model_type": "bpe", "byte_fallback": True, "vocab_size": 460, **PLAIN},  # Llama 2's kind
    "bpe-own": {  # Gemma's kind
        "model_type": "bpe",
        "byte_fallback": True,
        "vocab_size": 460,
        "add_dummy_prefix": False,
        "user_defined_symbols": ["\n", "▁▁", "▁▁▁", "<x>"],
        **PLAIN,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("pieces")
    (place / "lines.txt").write_text("\n".join(LINES), encoding="utf-8")
    return place


def model(folder: Path, case: str) -> Path:
    file = folder / case / "spiece.model"
    if not file.exists():
        file.parent.mkdir()
        options = {"vocab_size": 200, "minloglevel": 2, "num_threads": 1, **CASES[case]}
        spm.SentencePieceTrainer.train(
            input=str(folder / "lines.txt"), model_prefix=str(file.with_suffix("")), hard_vocab_limit=False, **options
        )
    return file


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_sentencepiece(folder: Path, case: str) -> None:
    file = model(folder, case)
    tok, theirs = af.Tokenizer.load(file), spm.SentencePieceProcessor(model_file=str(file))
    for text in [*LINES, *samples.mixed(1000), "a<x>b", "<x>", "  <x>  ", "ﬁ\u0303", " a \n b \n", "\n a\n "]:
        assert tok.encode(text) == theirs.encode(text), ascii(text)
    assert len(tok) == theirs.get_piece_size()
    for text in LINES:
        assert tok.decode(tok.encode(text)) == theirs.decode(theirs.encode(text))


@pytest.mark.parametrize("case", ["unigram", "unigram-own", "bpe-bytes", "bpe-own"])
def test_any_text_has_the_ids_of_sentencepiece(folder: Path, case: str) -> None:
    file = model(folder, case)
    tok, theirs = af.Tokenizer.load(file), spm.SentencePieceProcessor(model_file=str(file))
    special = {theirs.id_to_piece(i) for i in range(3)}

    @settings(max_examples=300, deadline=None)
    @given(st.text())
    def same(text: str) -> None:
        if not any(token in text for token in special):
            assert tok.encode(text) == theirs.encode(text)

    same()


@pytest.mark.parametrize("case", CASES)
def test_a_saved_folder_gives_the_same_ids(folder: Path, case: str, tmp_path: Path) -> None:
    tok = af.Tokenizer.load(model(folder, case))
    tok.save(tmp_path)
    again = af.Tokenizer.load(tmp_path)
    assert again.encode(samples.mixed()) == tok.encode(samples.mixed()) and again.names == tok.names
    again.save(tmp_path / "twice")
    assert af.Tokenizer.load(tmp_path / "twice").encode(samples.mixed()) == tok.encode(samples.mixed())


def test_transformers_reads_a_saved_folder(folder: Path, tmp_path: Path) -> None:
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto").AutoTokenizer
    for case in ("unigram", "bpe-bytes"):
        tok = af.Tokenizer.load(model(folder, case))
        tok.save(tmp_path / case)
        assert auto.from_pretrained(tmp_path / case)(LINES)["input_ids"] == tok.encode(LINES)


def test_offsets_go_back_through_the_normalization(folder: Path) -> None:
    """A circled digit becomes a digit, a letter and its mark one letter, the space in front is no character."""
    file = model(folder, "unigram")
    tok, theirs = af.Tokenizer.load(file), spm.SentencePieceProcessor(model_file=str(file))
    for text in ["The man is running ② times", "Une fille  mange", "cafe\u0301 ② home", "a 日本 b", "②" * 3]:
        spans = tok(text, offsets=True)["offset_mapping"][0].tolist()
        surfaces = [unicodedata.normalize("NFKC", text[start:end]).strip() for start, end in spans]
        assert surfaces == [piece.replace("▁", "") for piece in theirs.encode(text, out_type=str)]


@pytest.mark.parametrize("case", CASES)
def test_offsets_cover_the_text(folder: Path, case: str) -> None:
    tok = af.Tokenizer.load(model(folder, case))
    for text in [*LINES[:20], "e\u0301 café ① a<x>b", "  ½  hour "]:
        spans = tok(text, offsets=True)["offset_mapping"][0].tolist()
        covered = {i for start, end in spans for i in range(start, end)}
        assert covered >= {i for i, char in enumerate(text) if not char.isspace()}
        assert spans == sorted(spans) and all(end <= len(text) for _, end in spans)


def test_the_class_in_the_config_frames_the_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(model(folder, "unigram").read_bytes())
    theirs = spm.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    bare = theirs.encode("The man")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 3}))
    t5, size = af.Tokenizer.load(tmp_path), theirs.get_piece_size()
    assert t5.encode("The man") == [*bare, theirs.eos_id()]
    assert t5.encode("<extra_id_0>", special=False)[-1] == size + 2 and len(t5) == size + 3
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    assert af.Tokenizer.load(tmp_path).encode("The man") == [theirs.bos_id(), *bare]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": True, "add_eos_token": True}))
    assert af.Tokenizer.load(tmp_path).encode("The man") == [theirs.bos_id(), *bare, theirs.eos_id()]


@pytest.fixture(scope="module")
def marian(folder: Path) -> Path:
    """Two models over one vocabulary, some pieces of either missing from it."""
    place = folder / "marian"
    place.mkdir()
    for name, case in (("source.spm", "unigram"), ("target.spm", "unigram-plain")):
        (place / name).write_bytes(model(folder, case).read_bytes())
    pieces: list[str] = []
    for name in ("source.spm", "target.spm"):
        one = spm.SentencePieceProcessor(model_file=str(place / name))
        pieces += [one.id_to_piece(i) for i in range(3, one.get_piece_size()) if i % 9]
    table = dict.fromkeys(["</s>", "<unk>", ">>fra<<", *sorted(set(pieces)), "<pad>"])
    (place / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}), encoding="utf-8")
    (place / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "fra"}))
    return place


def test_marian_has_the_ids_of_transformers(marian: Path, tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.marian.tokenization_marian").MarianTokenizer
    there = theirs.from_pretrained(marian)
    there.punc_normalizer = lambda text: text  # of sacremoses, where it is installed
    loaded = af.Tokenizer.load(marian)
    loaded.save(tmp_path)
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto").AutoTokenizer
    assert auto.from_pretrained(tmp_path)(LINES)["input_ids"] == there(LINES)["input_ids"]
    texts = [text for text in [*LINES, *samples.mixed(200)] if text == text.strip()]
    coded = [*texts, ">>fra<< The man is running", ">>fra<<The man"]
    for tok in (loaded, af.Tokenizer.load(tmp_path)):
        for text in coded:
            assert tok.encode(text) == there(text)["input_ids"], ascii(text)
        for text in texts:
            assert tok.target.encode(text) == there(text_target=text)["input_ids"], ascii(text)
        ids = tok.encode(LINES[0])
        assert tok.decode(ids) == there.decode(ids, skip_special_tokens=True)
        assert (tok.end_id, tok.unknown_id, tok.pad_id) == (0, 1, len(tok) - 1)


def test_marian_offsets_and_batches(marian: Path) -> None:
    tok = af.Tokenizer.load(marian)
    text = ">>fra<<The man ① rides"
    batch = tok([text, "A woman"], offsets=True, max_length=12)
    row = [text[start:end] for start, end in batch["offset_mapping"][0].tolist()]
    assert row[0] == ">>fra<<" and "".join(row[1:]).replace(" ", "") in text.replace(" ", "")
    assert batch["input_ids"].shape[1] <= 12 and batch["attention_mask"][1].sum() == len(tok.encode("A woman"))


def test_half_a_pair_is_explained(marian: Path, tmp_path: Path) -> None:
    (tmp_path / "source.spm").write_bytes((marian / "source.spm").read_bytes())
    with pytest.raises(af.FolderError, match=r"target\.spm .*vocab\.json"):
        af.Tokenizer.load(tmp_path)
    (tmp_path / "target.spm").write_bytes(b"")
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(af.FolderError, match=r"vocab\.json .*<pad>"):
        af.Tokenizer.load(tmp_path)
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1, "<pad>": 2}')
    with pytest.raises(af.FolderError, match=r"target\.spm .*SentencePiece"):
        af.Tokenizer.load(tmp_path)


def test_what_is_not_supported_is_said(folder: Path, tmp_path: Path) -> None:
    for option, says in (
        ({"model_type": "char"}, "word or character"),
        (
            {"treat_whitespace_as_suffix": True},
            "treat_whitespace_as_suffix",
        ),
    ):
        spm.SentencePieceTrainer.train(
            input=str(folder / "lines.txt"),
            model_prefix=str(tmp_path / "m"),
            vocab_size=100,
            hard_vocab_limit=False,
            minloglevel=2,
            **option,
        )
        with pytest.raises(af.FolderError, match=says):
            af.Tokenizer.load(tmp_path / "m.model")


@pytest.mark.parametrize("size", [0, 1, 10, 500])
def test_a_file_cut_short_is_explained(folder: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "x.model").write_bytes(model(folder, "unigram").read_bytes()[:size])
    with pytest.raises(af.FolderError, match="not a SentencePiece model"):
        af.Tokenizer.load(tmp_path / "x.model")
