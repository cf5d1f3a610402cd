"""Vocabularies that came with models give the ids of the reference implementations, whichever files they are in."""

from __future__ import annotations

import base64
import json
import shutil
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.tokenizers.tiktoken_ranks import KNOWN
from tests.tokenizers import samples


def gpt2_files(folder: Path) -> Path:
    """GPT-2's vocabulary under the names of Hugging Face folders."""
    shutil.copy(samples.gpt2() / "encoder.json", folder / "vocab.json")
    shutil.copy(samples.gpt2() / "vocab.bpe", folder / "merges.txt")
    return folder


@cache
def unseen_bytes() -> dict[str, int]:
    """GPT-2's visible characters as bytes, by the rule of its paper's code."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table, extra = {chr(byte): byte for byte in kept}, 0
    for byte in range(256):
        if byte not in kept:
            table[chr(256 + extra)] = byte
            extra += 1
    return table


def as_bytes(token: str) -> bytes:
    return bytes(unseen_bytes()[char] for char in token)


@pytest.fixture(scope="module")
def gpt2_ranks() -> dict[bytes, int]:
    vocabulary = json.loads((samples.gpt2() / "encoder.json").read_text(encoding="utf-8"))
    table = unseen_bytes()
    return {bytes(table[c] for c in token): i for token, i in vocabulary.items() if token != "<|endoftext|>"}


def tiktoken_gpt2(ranks: dict[bytes, int]) -> Any:
    tiktoken = pytest.importorskip("tiktoken")
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    return tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})


def test_gpt2_has_the_ids_of_tiktoken(tmp_path: Path, gpt2_ranks: dict[bytes, int]) -> None:
    """Both sets of file names; tiktoken is another implementation of the same algorithm."""
    theirs = tiktoken_gpt2(gpt2_ranks)
    for tok in (af.Tokenizer.load(samples.gpt2()), af.Tokenizer.load(gpt2_files(tmp_path))):
        for text in samples.mixed():
            ids = tok.encode(text)
            assert ids == theirs.encode(text), ascii(text)
            assert tok.decode(ids) == text
        assert tok.end_id == 50256 and tok.encode("a<|endoftext|>") == [64, 50256] and len(tok) == 50257


def test_gpt2_has_the_ids_of_transformers(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.gpt2.tokenization_gpt2").GPT2Tokenizer
    there = theirs.from_pretrained(gpt2_files(tmp_path))
    tok = af.Tokenizer.load(tmp_path)
    assert tok.encode(samples.mixed()) == there(samples.mixed())["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    spaced = theirs.from_pretrained(tmp_path, add_prefix_space=True)
    assert af.Tokenizer.load(tmp_path).encode(samples.TEXTS) == spaced(samples.TEXTS)["input_ids"]


def test_a_file_of_ranks_has_the_ids_of_tiktoken(tmp_path: Path, gpt2_ranks: dict[bytes, int]) -> None:
    """Under tiktoken's name, under Llama 3's, and one that is known by no number of ranks, with its pattern."""
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in gpt2_ranks.items()]
    for name in ("r50k_base.tiktoken", "tokenizer.model"):
        (tmp_path / name).write_bytes(b"".join(lines))
        tok, theirs = af.Tokenizer.load(tmp_path / name), tiktoken_gpt2(gpt2_ranks)
        for text in samples.mixed(100):
            assert tok.encode(text) == theirs.encode(text), ascii(text)
        assert tok.encode("a<|endoftext|>")[-1] == 50256
    few = {token: rank for token, rank in gpt2_ranks.items() if rank < 2000}
    (tmp_path / "few.tiktoken").write_bytes(b"".join(lines[:2000]))
    with pytest.raises(af.FolderError, match=r"2,000 ranks.*pattern="):
        af.Tokenizer.load(tmp_path / "few.tiktoken")
    theirs = pytest.importorskip("tiktoken").Encoding("few", pat_str=r"\s+|\S+", mergeable_ranks=few, special_tokens={})
    tok = af.Tokenizer.load(tmp_path / "few.tiktoken", pattern=r"\s+|\S+")
    assert tok.encode(samples.TEXTS) == [theirs.encode(text) for text in samples.TEXTS]


@pytest.mark.parametrize("name", [name for name, _, _ in KNOWN.values()])
def test_published_ranks_cut_text_as_tiktoken_does(
    name: str, tmp_path: Path, gpt2_ranks: dict[bytes, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published encodings' patterns and special tokens, on GPT-2's ranks, since the files are not at hand."""
    tiktoken, published = pytest.importorskip("tiktoken"), pytest.importorskip("tiktoken_ext.openai_public")
    for reader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch.setattr(published, reader, lambda *_, **__: gpt2_ranks)
    said = getattr(published, name)()
    [(pattern, special)] = [(pattern, special) for known, pattern, special in KNOWN.values() if known == name]
    assert special == said["special_tokens"]
    theirs = tiktoken.Encoding(name, pat_str=said["pat_str"], mergeable_ranks=gpt2_ranks, special_tokens={})
    lines = [base64.b64encode(token) + b" %d\n" % rank for token, rank in gpt2_ranks.items()]
    (tmp_path / "x.tiktoken").write_bytes(b"".join(lines))
    tok = af.Tokenizer.load(tmp_path / "x.tiktoken", pattern=pattern)
    for text in samples.mixed(1000):
        assert tok.encode(text) == theirs.encode(text), ascii(text)


def test_qwen2_cuts_text_as_the_reference(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.qwen2.tokenization_qwen2").Qwen2Tokenizer
    (gpt2_files(tmp_path) / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    there = theirs.from_pretrained(tmp_path)
    assert af.Tokenizer.load(tmp_path).encode(samples.mixed()) == there(samples.mixed())["input_ids"]


@pytest.mark.parametrize("lower", [True, False])
def test_bert_has_the_ids_of_the_reference(tmp_path: Path, lower: bool) -> None:
    """Against transformers' plain Python BertTokenizer, cleaning, accents and Chinese characters among it."""
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy").BertTokenizerLegacy
    shutil.copy(samples.minilm() / "vocab.txt", tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    tok, theirs = af.Tokenizer.load(tmp_path), legacy(str(tmp_path / "vocab.txt"), do_lower_case=lower)
    for text in samples.mixed():
        composed = unicodedata.normalize(
            "NFC", text
        )  # theirs composes jamo first, which Google's and the fast one do not
        assert tok.encode(composed) == theirs.encode(composed), ascii(text)
    fast = pytest.importorskip("transformers.models.bert.tokenization_bert").BertTokenizer
    assert (
        tok.encode(samples.mixed()) == fast.from_pretrained(tmp_path, do_lower_case=lower)(samples.mixed())["input_ids"]
    )
    assert (tok.pad_id, tok.start_id, tok.separator_id, tok.mask_id, tok.unknown_id) == (0, 101, 102, 103, 100)


def test_bert_from_each_of_its_files() -> None:
    folder = samples.minilm()
    by_words, by_json, by_folder = (af.Tokenizer.load(folder / name) for name in ("vocab.txt", "tokenizer.json", ""))
    assert by_words.encode(samples.mixed()) == by_json.encode(samples.mixed()) == by_folder.encode(samples.mixed())


def test_pairs_have_the_types_of_the_reference() -> None:
    theirs = pytest.importorskip("transformers.models.bert.tokenization_bert").BertTokenizer
    there = theirs.from_pretrained(samples.minilm())
    tok = af.Tokenizer.load(samples.minilm())
    firsts, seconds = samples.TEXTS, samples.TEXTS[::-1]
    for longest in (None, 8, 9, 20):
        wanted = there(
            firsts, seconds, padding=True, return_tensors="pt", truncation=longest is not None, max_length=longest
        )
        batch = tok(firsts, seconds, max_length=longest)
        assert batch.keys() == wanted.keys()
        assert all(batch[name].equal(wanted[name]) for name in batch), longest
    assert "token_type_ids" not in tok(firsts)


def test_a_text_is_cut_as_the_reference_cuts_it() -> None:
    theirs = pytest.importorskip("transformers.models.bert.tokenization_bert").BertTokenizer
    there = theirs.from_pretrained(samples.minilm())
    tok = af.Tokenizer.load(samples.minilm())
    wanted = there(samples.TEXTS, truncation=True, max_length=7)["input_ids"]
    assert tok.encode(samples.TEXTS, max_length=7) == wanted
    bare = there(samples.TEXTS, truncation=True, max_length=7, add_special_tokens=False)["input_ids"]
    assert tok.encode(samples.TEXTS, max_length=7, special=False) == bare
    with pytest.raises(af.InputError, match=r"max_length is .* 2 special tokens"):
        tok.encode("a", max_length=2)


def roberta_files(folder: Path, name: str) -> Path:
    """GPT-2's merges with RoBERTa's special tokens: enough to see how the class frames and cuts."""
    gpt2_files(folder)
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    first = ["<s>", "<pad>", "</s>", "<unk>"]
    moved = {token: i + 4 for token, i in vocabulary.items()}
    table = {token: i for i, token in enumerate(first)} | moved | {"<mask>": len(moved) + 4}
    (folder / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    return folder


def test_roberta_frames_and_masks_as_the_reference(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.roberta.tokenization_roberta").RobertaTokenizer
    mask = pytest.importorskip("tokenizers").AddedToken("<mask>", lstrip=True, special=True)  # as published folders say
    there = theirs.from_pretrained(roberta_files(tmp_path, "RobertaTokenizer"), mask_token=mask)
    tok = af.Tokenizer.load(tmp_path)
    texts = [*samples.TEXTS, "fill <mask> in", "<mask>"]
    assert tok.encode(texts) == there(texts)["input_ids"]
    batch, wanted = tok(texts, texts[::-1]), there(texts, texts[::-1], padding=True, return_tensors="pt")
    assert batch.keys() == {"input_ids", "attention_mask"} and batch["input_ids"].equal(wanted["input_ids"])


def test_mpnet_frames_as_the_reference(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.mpnet.tokenization_mpnet").MPNetTokenizer
    words = (samples.minilm() / "vocab.txt").read_text(encoding="utf-8").split("\n")
    kept = [word for word in words if word not in ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "")]
    (tmp_path / "vocab.txt").write_text("\n".join(["<s>", "<pad>", "</s>", *kept, "<mask>"]) + "\n", encoding="utf-8")
    there, tok = theirs.from_pretrained(tmp_path), af.Tokenizer.load(tmp_path)
    texts = [*samples.TEXTS, "fill <mask> in"]
    assert tok.encode(texts) == there(texts)["input_ids"]
    assert tok.encode(texts, texts[::-1]) == there(texts, texts[::-1])["input_ids"]


def test_gpt1_ends_its_words_as_the_reference(tmp_path: Path) -> None:
    theirs = pytest.importorskip("transformers.models.openai.tokenization_openai").OpenAIGPTTokenizer
    letters = "abcdefghijklmnopqrstuvwxyz.,!'"
    merges = ["t h", "th e</w>", "i n", "in g</w>", "h e", "l o</w>"]
    pieces = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *(m.replace(" ", "") for m in merges)]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    there, tok = theirs.from_pretrained(tmp_path), af.Tokenizer.load(tmp_path)
    texts = ["The thing, hello!", "Café in the bath ing", "日本 the"]
    assert tok.encode(texts) == there(texts)["input_ids"]
    assert tok.decode(tok.encode("the thing")) == "the thing"


def test_offsets_point_at_the_characters() -> None:
    tok = af.Tokenizer.load(samples.minilm())
    text, pair = "Café au milk 🙂, naïvely", "日本 two"
    batch = tok([text], [pair], offsets=True)
    spans, types = batch["offset_mapping"][0].tolist(), batch["token_type_ids"][0].tolist()
    words = [(text, pair)[kind][start:end] for (start, end), kind in zip(spans, types, strict=True)]
    assert words == ["", "Café", "au", "milk", "🙂", ",", "naïve", "ly", "", "日", "本", "two", ""]
    left = tok(["one two three", "one"], side="left", offsets=True)
    assert left["offset_mapping"][1, -2].tolist() == [0, 3] and left["offset_mapping"][1, 0].tolist() == [0, 0]


def test_a_byte_level_offset_covers_its_whole_character() -> None:
    tok = af.Tokenizer.load(samples.gpt2())
    spans = tok("a日🙂", offsets=True)["offset_mapping"][0].tolist()
    assert spans[0] == [0, 1] and {tuple(span) for span in spans[1:]} == {(1, 2), (2, 3)}


def test_a_saved_folder_is_read_by_transformers(tmp_path: Path) -> None:
    auto = pytest.importorskip("transformers.models.auto.tokenization_auto").AutoTokenizer
    for name, folder in (("bert", samples.minilm()), ("gpt2", samples.gpt2())):
        tok = af.Tokenizer.load(folder)
        tok.save(tmp_path / name)
        again, theirs = af.Tokenizer.load(tmp_path / name), auto.from_pretrained(tmp_path / name)
        assert again.encode(samples.TEXTS) == tok.encode(samples.TEXTS) == theirs(samples.TEXTS)["input_ids"]
        assert again.names == tok.names


def test_special_tokens_can_be_left_out_and_shown() -> None:
    tok = af.Tokenizer.load(samples.minilm())
    assert tok.encode("hello world", special=False) == [7592, 2088]
    assert tok.decode([[101, 7592, 102], [101, 2088, 102]]) == ["hello", "world"]
    assert tok.decode([101, 7592, 102], special=True) == "[CLS] hello [SEP]"
    assert tok.decode(tok(["hello", "hello world"])["input_ids"]) == ["hello", "hello world"]


def test_tokens_added_later_are_found(tmp_path: Path) -> None:
    gpt2_files(tmp_path)
    added = {"50257": {"content": "<|new|>", "special": True}, "50256": {"content": "<|endoftext|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tok = af.Tokenizer.load(tmp_path)
    assert tok.encode("a<|new|>") == [64, 50257] and tok.decode([64, 50257]) == "a"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"60000": added["50257"]}}))
    with pytest.raises(af.FolderError, match=r"<\|new\|> .*60000"):
        af.Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "added_tokens.json").write_text('{"<|new|>": 50257}')  # older folders
    assert af.Tokenizer.load(tmp_path).encode("a<|new|>") == [64, 50257]


def test_a_model_and_a_vocabulary_that_disagree() -> None:
    tok = af.Tokenizer.load(samples.gpt2())
    tok.check(50257)
    tok.check(50304)  # a table rounded up is no mistake
    with pytest.raises(af.ConfigError, match=r"50,256.* vocab_size is 30,522"):
        tok.check(30522)


def test_files_that_cannot_be_read_are_explained(tmp_path: Path) -> None:
    def says(pattern: str, path: Path = tmp_path) -> None:
        with pytest.raises(af.FolderError, match=pattern):
            af.Tokenizer.load(path)

    says("does not exist", tmp_path / "none")
    says(r"tokenizer\.json, .*vocab\.txt")
    (tmp_path / "vocab.txt").write_bytes(b"one\ntw\xff\n")
    says(r"vocab\.txt, line 2, .*UTF-8")
    (tmp_path / "vocab.txt").write_text("one\ntwo\n")
    says(r"vocab\.txt .*\[UNK\], \[CLS\], \[SEP\]")
    (tmp_path / "tokenizer_config.json").write_text("{")
    says("not valid JSON")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    says("must hold a JSON object")
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1}')
    says(r"merges\.txt .*No such file")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    says(r"merges\.txt, line 2")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    says(r'"ab".* vocab\.json')
    (tmp_path / "x.tiktoken").write_text("YQ== 0\n???\n")
    says(r"x\.tiktoken, line 2", tmp_path / "x.tiktoken")
    (tmp_path / "x.model").write_bytes(b"\x00\x01nonsense")
    says("not a SentencePiece model", tmp_path / "x.model")
    (tmp_path / "x.bin").write_bytes(b"")
    says(r"x\.bin", tmp_path / "x.bin")
