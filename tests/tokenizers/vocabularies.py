"""Small vocabularies of every kind that decodes by its own rules, for tests of text that comes token by token."""

from __future__ import annotations

from functools import cache

import tokenizers
from anyformer.tokenizers.components import add_special
from anyformer.tokenizers.tokenizer import Tokenizer
from tokenizers import decoders, models

TEXTS = [
    "the cat sat on the mat, and the dog didn't.",
    "naïve café: 日本語の文章 🙂 👩‍👩‍👧 done!",
    "a stop, two stops; a full stop. No 'quotes' here?",
    "abcdef",  # the word that transformers puts before every token, to see what it adds
]
KINDS = ("bpe", "byte", "wordpiece", "unigram", "word", "char", "sentencepiece", "no-prefix", "suffix", "metaspace-bpe")


@cache
def make(kind: str) -> Tokenizer:
    if kind == "sentencepiece":
        return _pieces(decoders.Strip(" ", 1, 0))
    if kind == "no-prefix":
        return _pieces()
    if kind == "suffix":
        return _suffixed()
    if kind == "metaspace-bpe":
        tokenizer = _pieces()
        tokenizer.engine.decoder = decoders.Metaspace()
        return tokenizer
    size = {"bpe": 300, "unigram": 120, "wordpiece": 120}.get(kind, 400)
    return Tokenizer.train(iter(TEXTS * 4), kind=kind, vocab_size=size)  # type: ignore[arg-type]


def _pieces(*last: object) -> Tokenizer:
    """As Llama's and T5's: ▁ for a space, and a token a byte for what has none."""
    words = ["▁", "▁▁", "▁the", "▁cat", "s", "top", "▁s", "a", "é", "中", ",", "▁st", "op", ".", "\n", "🙂"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {name: i for i, name in enumerate(names)}
    engine = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    engine.decoder = decoders.Sequence(steps)
    add_special(engine, ["<unk>", "<s>", "</s>"])
    add_special(engine, ["<tool call>"], special=False)
    return Tokenizer(engine)


def _suffixed() -> Tokenizer:
    """As GPT-1's: the end of a word is marked."""
    words = ["<unk>", "the</w>", "cat</w>", "s", "top</w>", "st", "op", ".</w>", "op</w>", "x"]
    engine = tokenizers.Tokenizer(models.BPE({name: i for i, name in enumerate(words)}, [], unk_token="<unk>"))
    engine.decoder = decoders.BPEDecoder(suffix="</w>")
    return Tokenizer(engine)
