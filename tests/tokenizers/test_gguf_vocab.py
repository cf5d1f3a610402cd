"""The tokenizer inside a GGUF file: a real one against tiktoken's algorithm, small ones against SentencePiece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anyformer as af
from anyformer.tokenizers.gguf_vocab import build_gguf
from tests.tokenizers import samples
from tests.tokenizers.test_load import as_bytes

gguf = pytest.importorskip("gguf", reason="gguf reads the files")


@pytest.fixture(scope="module")
def smollm2() -> af.Tokenizer:
    return af.Tokenizer.load(samples.smollm2())


@pytest.fixture(scope="module")
def fields() -> dict[str, Any]:
    reader = gguf.GGUFReader(samples.smollm2())
    return {name: field.contents() for name, field in reader.fields.items() if name.startswith("tokenizer.")}


def test_smollm2_has_the_ids_of_an_independent_reading(smollm2: af.Tokenizer, fields: dict[str, Any]) -> None:
    """tiktoken merges the same bytes by the same ranks, with every digit apart as the model card has it."""
    tiktoken, regex = pytest.importorskip("tiktoken"), pytest.importorskip("regex")
    tokens, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    place = {token: i for i, token in enumerate(tokens)}
    order = [place[merge.replace(" ", "")] for merge in merges]
    assert order == sorted(order), "ids do not follow the merges, so that tiktoken cannot serve as the reference"
    ranks = {as_bytes(token): i for i, token in enumerate(tokens) if fields["tokenizer.ggml.token_type"][i] == 1}
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    theirs = tiktoken.Encoding("smollm", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    for text in samples.mixed():
        wanted = [i for part in regex.split(r"(\p{N})", text) for i in theirs.encode(part)]
        assert smollm2.encode(text) == wanted, ascii(text)


def test_smollm2_knows_its_special_tokens(smollm2: af.Tokenizer) -> None:
    assert len(smollm2) == 49152
    assert smollm2.encode("<|im_start|>user\n") == [1, *smollm2.encode("user\n")]
    assert (smollm2.start_id, smollm2.end_id, smollm2.pad_id) == (1, 2, 2)
    assert smollm2.decode([1, *smollm2.encode("Hi"), 2]) == "Hi"
    smollm2.check(49152)


def test_smollm2_gives_any_text_back(smollm2: af.Tokenizer, fields: dict[str, Any]) -> None:
    """Of the bytes that its vocabulary has: a few that no assigned character needs are not in it."""
    single = {as_bytes(token) for i, token in enumerate(fields["tokenizer.ggml.tokens"]) if i > 16 and len(token) == 1}
    assert len(single) > 230

    @settings(max_examples=300, deadline=None)
    @given(st.text())
    def same(text: str) -> None:
        if all(bytes((byte,)) in single for byte in text.encode()):
            assert smollm2.decode(smollm2.encode(text, special=False), special=True) == text

    same()


def test_smollm2_chats(smollm2: af.Tokenizer) -> None:
    """Its own template, against transformers' rendering of the same."""
    theirs = pytest.importorskip("transformers.utils.chat_template_utils")
    talk = [{"role": "user", "content": "What is 2 + 2? <b>&"}, {"role": "assistant", "content": "4"}]
    for prompt in (True, False):
        wanted, _ = theirs.render_jinja_template(
            [talk], chat_template=smollm2.chat_template, add_generation_prompt=prompt
        )
        assert smollm2.chat(talk, add_generation_prompt=prompt) == wanted[0]
    assert smollm2.chat(talk).endswith("<|im_start|>assistant\n")


def test_a_saved_folder_keeps_ids_and_template(smollm2: af.Tokenizer, tmp_path: Path) -> None:
    smollm2.save(tmp_path)
    again = af.Tokenizer.load(tmp_path)
    assert again.encode(samples.TEXTS) == smollm2.encode(samples.TEXTS)
    assert again.chat_template == smollm2.chat_template and again.names == smollm2.names


def write(file: Path, **values: Any) -> Path:
    """A GGUF file with these fields and no tensors."""
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in values.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("prefix", [True, False])
def test_llama_pieces_have_the_ids_of_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    spm = pytest.importorskip("sentencepiece")
    (tmp_path / "lines.txt").write_text("The man is running in the street.\nDer Hund spielt.\n" * 20)
    spm.SentencePieceTrainer.train(
        input=str(tmp_path / "lines.txt"),
        model_prefix=str(tmp_path / "m"),
        model_type="bpe",
        vocab_size=310,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        minloglevel=2,
    )
    theirs = spm.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    count = range(theirs.get_piece_size())
    kinds = [2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 6 if theirs.is_byte(i) else 1 for i in count]
    file = write(
        tmp_path / "m.gguf",
        model="llama",
        tokens=[theirs.id_to_piece(i) for i in count],
        scores=[float(theirs.get_score(i)) for i in count],
        token_type=kinds,
        bos_token_id=theirs.bos_id(),
        eos_token_id=theirs.eos_id(),
        add_space_prefix=prefix,
    )
    tok = af.Tokenizer.load(file)
    for text in samples.mixed():
        assert tok.encode(text) == [theirs.bos_id(), *theirs.encode(text)], ascii(text)
        assert tok.decode(tok.encode(text)) == theirs.decode(theirs.encode(text))


def test_mistakes_are_explained(tmp_path: Path, fields: dict[str, Any]) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUX" + b"\0" * 60)
    with pytest.raises(af.FolderError, match=r"x\.gguf .*GGUF"):
        af.Tokenizer.load(tmp_path / "x.gguf")
    with pytest.raises(af.FolderError, match=r'kind "wpm"; .* gpt2, llama'):
        af.Tokenizer.load(write(tmp_path / "w.gguf", model="wpm", tokens=["a"]))
    with pytest.raises(af.FolderError, match='kind "None"'):
        build_gguf({}, "x.gguf")
    with pytest.raises(af.FolderError, match=r'"smollm3".*"smollm".*gpt-2'):
        build_gguf({**fields, "tokenizer.ggml.pre": "smollm3"}, "x.gguf")
    with pytest.raises(af.FolderError, match=r"x has 1 .* 2 "):
        build_gguf(
            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [1, 1]}, "x"
        )
    with pytest.raises(af.FolderError, match=r"x has 0 .* 1 "):
        build_gguf({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"]}, "x")
