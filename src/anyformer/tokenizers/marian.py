"""Marian's tokenizer: two SentencePiece models (source.spm, target.spm) with one vocabulary (vocab.json)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tokenizers
from anyformer.errors import FolderError
from anyformer.jsonfile import read_bytes, read_object
from anyformer.tokenizers.components import Span, TokenizerParts, Vocabulary, add_frame, add_special, check_vocabulary
from anyformer.tokenizers.sentencepiece import SPACE, build, read_pieces
from tokenizers import decoders, models

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
LANGUAGE = re.compile(r">>[^<]*<<")  # >>fra<< before a text sets the target language


class MarianPreTokenizer:
    """Splits text by SentencePiece; the engine then looks up each piece in the shared vocabulary."""

    pieces = True

    def __init__(self, cutter: TokenizerParts) -> None:
        self.cutter = cutter

    def __call__(self, text: str) -> list[str]:
        code, text = self._language(text)
        return [code, *self._cut(text).tokens] if code else self._cut(text).tokens

    def _language(self, text: str) -> tuple[str, str]:
        found = LANGUAGE.match(text)
        return (found.group(), text[found.end() :]) if found else ("", text)

    def _cut(self, text: str) -> Any:
        front = self.cutter.pre_tokenizer
        return self.cutter.engine.encode(front(text) if front else text, add_special_tokens=False)

    def spans(self, text: str, encoding: Any) -> list[Span]:
        code, rest = self._language(text)
        cut = self._cut(rest)
        found = self.cutter.pre_tokenizer.spans(rest, cut) if self.cutter.pre_tokenizer else cut.offsets
        words = [(0, len(code))] * bool(code) + [(start + len(code), end + len(code)) for start, end in found]
        return [words[word] if word is not None else (0, 0) for word in encoding.word_ids]


def read_marian(folder: Path, names: dict[str, str]) -> TokenizerParts:
    files = [file for file in (SOURCE, TARGET, VOCABULARY) if not (folder / file).is_file()]
    if files:
        raise FolderError(f"{folder} has no {' and no '.join(files)}; Marian's tokenizer needs all three files.")
    vocabulary = check_vocabulary(read_object(folder / VOCABULARY), folder / VOCABULARY)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", **names}
    missing = [name for name in names.values() if name not in vocabulary]
    if missing:
        raise FolderError(f"{folder / VOCABULARY} has no {missing[0]}, which Marian's tokenizer needs.")
    source, target = (_side(folder / file, vocabulary, names) for file in (SOURCE, TARGET))
    source.target = target
    source.files = {file: read_bytes(folder / file) for file in (SOURCE, TARGET, VOCABULARY)}
    return source


def _side(file: Path, vocabulary: Vocabulary, names: dict[str, str]) -> TokenizerParts:
    cutter = build(read_pieces(file), file)
    engine = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=names["unk_token"]))
    engine.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    add_special(engine, [names[role] for role in ("pad_token", "eos_token", "unk_token")])
    add_frame(engine, end=names["eos_token"])
    return TokenizerParts(engine, names, pre_tokenizer=MarianPreTokenizer(cutter), takes_type_ids=False)
