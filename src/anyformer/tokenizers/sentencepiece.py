"""SentencePiece models (*.model, *.spm; Kudo and Richardson 2018) as a `tokenizers` pipeline with the same ids.

The file is a protocol buffer with the pieces, their scores, the trainer's settings and the normalizer. It is parsed
here, because the sentencepiece package exposes the normalizer only if protobuf is installed.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import tokenizers
from anyformer.errors import FolderError
from anyformer.jsonfile import read_bytes
from anyformer.tokenizers.components import Span, TokenizerParts, Vocabulary, add_special
from tokenizers import Regex, decoders, models, normalizers

SPACE = "▁"  # the space in pieces
UNIGRAM, BPE = 1, 2
OWN = "anyformer_normalizer"  # key in tokenizer_config.json for rules that tokenizer.json cannot express
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # piece types of the format


@dataclass
class SentencePieceModel:
    """Contents of a SentencePiece file, with the format's defaults."""

    pieces: list[tuple[str, float, int]] = field(default_factory=list)  # (text, score, kind)
    algorithm: int = UNIGRAM
    byte_fallback: bool = False
    space_at_end: bool = False
    charsmap: bytes = b""
    add_prefix: bool = True  # a space before every text
    trim: bool = True  # strip spaces around a text and merge repeated ones

    @property
    def vocabulary(self) -> Vocabulary:
        return {piece: i for i, (piece, _, _) in enumerate(self.pieces)}

    def of_kind(self, kind: int) -> list[str]:
        return [piece for piece, _, found in self.pieces if found == kind]


def read_pieces(file: Path) -> SentencePieceModel:
    try:
        found = parse(read_bytes(file))
    except (IndexError, KeyError, ValueError, struct.error, TypeError, AttributeError):
        found = SentencePieceModel()
    if not found.of_kind(UNKNOWN):
        raise FolderError(f"{file} is not a SentencePiece model.")
    return found


def parse(data: bytes) -> SentencePieceModel:
    found = SentencePieceModel()
    for number, value in messages(data):
        if number == 1:
            piece = dict(messages(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            found.pieces.append((piece[1].decode("utf-8"), score, piece.get(3, NORMAL)))
        elif number == 2:  # TrainerSpec
            trainer = dict(messages(value))
            found.algorithm = trainer.get(3, UNIGRAM)
            found.space_at_end = bool(trainer.get(24, False))
            found.byte_fallback = bool(trainer.get(35, False))
        elif number == 3:  # NormalizerSpec
            rules = dict(messages(value))
            found.charsmap = rules.get(2, b"")
            found.add_prefix, found.trim = bool(rules.get(3, True)), bool(rules.get(4, True))
    return found


def messages(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (field number, value) of a protocol buffer; a value is a number or bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = varint() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        if at + length > len(data):
            raise ValueError("cut short")
        yield key >> 3, data[at : at + length]
        at += length


def build(found: SentencePieceModel, where: str | Path) -> TokenizerParts:
    """Build the tokenizer. A piece's id is its index in the file."""
    if found.algorithm not in (UNIGRAM, BPE):
        raise FolderError(f"{where} is a word or character model; only BPE and Unigram models are supported.")
    if found.space_at_end:
        raise FolderError(f"{where} puts the space after a word (treat_whitespace_as_suffix), which is not supported.")
    engine = tokenizers.Tokenizer(_unigram(found) if found.algorithm == UNIGRAM else _bpe(found))
    own = found.of_kind(USER_DEFINED)
    rules: dict[str, Any] = {"own": own, "prefix": found.add_prefix, "trim": found.trim}
    engine.normalizer, front = make_normalizer(found.charsmap, **rules)
    engine.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if found.add_prefix else [])
    )
    add_special(engine, found.of_kind(UNKNOWN) + found.of_kind(CONTROL))
    engine.add_tokens([tokenizers.AddedToken(token, normalized=True) for token in own])
    names = {"unk_token": found.of_kind(UNKNOWN)[0]}
    if front is None:
        return TokenizerParts(engine, names)
    return TokenizerParts(engine, names, pre_tokenizer=front, config={OWN: rules}, wrapped=_wrapped(found))


def make_normalizer(
    charsmap: bytes, own: list[str], prefix: bool, trim: bool
) -> tuple[Any, PrecompiledCharsmap | None]:
    """Return the engine's normalizer and the pre-tokenizer step before it.

    With user-defined symbols, the space prefix must be added before the engine looks for them.
    """
    early = prefix and bool(own)
    steps = normalizers.Sequence(_spaces(trim and not early, prefix and not early))
    if not charsmap and not early:
        return steps, None
    return steps, PrecompiledCharsmap(charsmap, own, prefix=early, trim=trim and early)


def restore(
    state: dict[str, Any], rules: dict[str, Any]
) -> tuple[tokenizers.Tokenizer, Any, PrecompiledCharsmap | None]:
    """Restore an engine from tokenizer.json, replacing the stand-in of `_wrapped` by the exact normalizer."""
    steps = state["normalizer"]["normalizers"]
    code = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), "")
    normalizer, front = make_normalizer(base64.b64decode(code), **rules)
    plain = {**state, "normalizer": _state(normalizer)}
    return tokenizers.Tokenizer.from_str(json.dumps(plain)), state["normalizer"], front


def _unigram(found: SentencePieceModel) -> Any:
    unknown = next(i for i, (_, _, kind) in enumerate(found.pieces) if kind == UNKNOWN)
    scores = [(piece, score) for piece, score, _ in found.pieces]
    return models.Unigram(scores, unk_id=unknown, byte_fallback=found.byte_fallback)


def _bpe(found: SentencePieceModel) -> Any:
    """Return a BPE model: every split of a piece into two pieces is a merge, ordered by the piece's score."""
    scores = {piece: score for piece, score, kind in found.pieces if kind in (NORMAL, UNUSED)}
    ids = found.vocabulary
    pairs = [
        (-score, ids[piece[:cut]], ids[piece[cut:]], (piece[:cut], piece[cut:]))
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    merges = [pair for *_, pair in sorted(pairs)]
    unknown = found.of_kind(UNKNOWN)[0]
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=found.byte_fallback)


def _spaces(trim: bool, prefix: bool) -> list[Any]:
    steps: list[Any] = [normalizers.Replace(Regex(r"\A +| +\z| +(?= )"), "")] if trim else []
    if prefix:
        steps.append(normalizers.Replace(Regex(r"\A(?=[\s\S])"), " "))
    return [*steps, normalizers.Replace(" ", SPACE)]


def _wrapped(found: SentencePieceModel) -> dict[str, Any]:
    """Return the closest normalizer that the library has, for other readers of tokenizer.json."""
    steps = _spaces(found.trim, found.add_prefix)
    wrapped: list[Any] = [_state(step) for step in steps]
    if found.charsmap:
        code = base64.b64encode(found.charsmap).decode()
        wrapped.insert(0, {"type": "Precompiled", "precompiled_charsmap": code})
    return {"type": "Sequence", "normalizers": wrapped}


def _state(step: Any) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(step.__getstate__())
    return state


class PrecompiledCharsmap:
    """SentencePiece's normalizer: replaces the longest known character sequence at each position.

    The library's `Precompiled` works on single graphemes and drops what follows a match inside one ("ﬁ" with a
    tilde loses the tilde), so its ids differ from SentencePiece's on combining marks.
    """

    pieces = False

    def __init__(self, blob: bytes, own: list[str], *, prefix: bool = False, trim: bool = False) -> None:
        self.rules = Trie(blob) if blob else None
        self.own = re.compile("|".join(map(re.escape, sorted(own, key=len, reverse=True)))) if own else None
        self.prefix, self.trim = prefix, trim

    def __call__(self, text: str) -> str:
        if self.rules is not None and self.rules.may_match.search(text):
            text = "".join(new for new, _ in self._steps(text))
        if self.trim:
            text = re.sub(r"\A +| +\Z| +(?= )", "", text)
        return " " + text if self.prefix and text else text

    def _steps(self, text: str) -> Iterator[tuple[str, int]]:
        """Yield (normalized text, number of characters it replaces) from left to right; user-defined symbols stay."""
        done = 0
        for match in self.own.finditer(text) if self.own else ():
            yield from self._replace(text[done : match.start()])
            yield match.group(), match.end() - match.start()
            done = match.end()
        yield from self._replace(text[done:])

    def _replace(self, text: str) -> Iterator[tuple[str, int]]:
        done = 0
        rules = self.rules
        for match in rules.may_match.finditer(text) if rules else ():
            start = max(match.start() - 1, done)  # a combining mark belongs to the letter before it
            yield text[done:start], start - done
            yield from rules.replace(text[start : match.end()]) if rules else ()
            done = match.end()
        yield text[done:], len(text) - done

    def spans(self, text: str, encoding: Any) -> list[Span]:
        where = self.align(text)
        return [(where[start][0], where[end - 1][1]) if start < end else (0, 0) for start, end in encoding.offsets]

    def align(self, text: str) -> list[Span]:
        """Return the span of `text` for each character of the normalized text."""
        chars: list[tuple[str, Span]] = []
        done = 0
        for new, size in self._steps(text):
            same = new == text[done : done + size]
            chars += [(char, (done + i, done + i + 1) if same else (done, done + size)) for i, char in enumerate(new)]
            done += size
        where = [span for _, span in (_trimmed(chars) if self.trim else chars)]
        return [(0, 0), *where] if self.prefix and where else where


def _trimmed(chars: list[tuple[str, Span]]) -> list[tuple[str, Span]]:
    after = [char for char, _ in chars[1:]] + [" "]
    kept = [pair for pair, follows in zip(chars, after, strict=True) if pair[0] != " " or follows != " "]
    return kept[1:] if kept and kept[0][0] == " " else kept


class Trie:
    """Compiled normalization rules: a double-array trie over bytes (darts-clone) with values in a list of strings."""

    def __init__(self, blob: bytes) -> None:
        size = struct.unpack_from("<I", blob)[0]
        self.units = np.frombuffer(blob, "<u4", count=size // 4, offset=4).tolist()
        self.strings = blob[4 + size :]
        self.replace = lru_cache(maxsize=100_000)(self._replace)  # words repeat in a corpus
        ascii_ = [chr(code) for code in range(32, 127)]
        touched = [char for char in ascii_ if self.match(char.encode(), 0)[1]]
        plain = all(self.step(self.step(0, ord(a)), ord(b)) < 0 for a in ascii_ for b in ascii_)
        # Published rules leave ASCII letters unchanged unless a combining mark follows.
        chars = r"[^\x20-\x7e]" if not touched else rf"[^\x20-\x7e]|[{re.escape(''.join(touched))}]"
        self.may_match = re.compile(rf"(?:{chars})+" if plain else r"[\s\S]+")

    def step(self, node: int, byte: int) -> int:
        """Return the child node, or -1 if there is none."""
        if node < 0:
            return -1
        unit = self.units[node]
        below = node ^ ((unit >> 10) << ((unit & 0x200) >> 6)) ^ byte
        return below if below < len(self.units) and self.units[below] & 0x800000FF == byte else -1

    def match(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Return the replacement of the longest match at `at`, and its length in bytes (0: no match)."""
        node, found, size = 0, b"", 0
        for end in range(at, len(data)):
            node = self.step(node, data[end])
            if node < 0:
                break
            unit = self.units[node]
            if unit >> 8 & 1:
                start = self.units[node ^ ((unit >> 10) << ((unit & 0x200) >> 6))] & 0x7FFFFFFF
                found, size = self.strings[start : self.strings.index(b"\0", start)], end + 1 - at
        return found, size

    def _replace(self, run: str) -> list[tuple[str, int]]:
        data, at, steps = run.encode("utf-8"), 0, []
        while at < len(data):
            new, size = self.match(data, at)
            if not size:
                size = 1 + (data[at] >= 0xC0) + (data[at] >= 0xE0) + (data[at] >= 0xF0)
                new = data[at : at + size]
            steps.append((new.decode("utf-8"), len(data[at : at + size].decode("utf-8"))))
            at += size
        return steps
