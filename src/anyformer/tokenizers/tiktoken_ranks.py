"""tiktoken rank files: each line holds a token's bytes in base64 and its id, which is its merge rank."""

from __future__ import annotations

import base64
import binascii
from itertools import pairwise
from pathlib import Path

from anyformer.errors import FolderError
from anyformer.jsonfile import read_bytes
from anyformer.tokenizers.components import GPT4, TokenizerParts, add_special, byte_bpe
from tokenizers import pre_tokenizers

# A file does not contain its split pattern, so it is recognized by its number of ranks.
END = "<|endoftext|>"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_FILL = ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
KNOWN: dict[int, tuple[str, str, dict[str, int]]] = {
    50256: ("r50k_base", GPT2, {END: 50256}),
    50280: ("p50k_base", GPT2, {END: 50256}),
    100256: (
        "cl100k_base",
        GPT4,
        {END: 100257, **dict(zip(_FILL, range(100258, 100261), strict=True)), "<|endofprompt|>": 100276},
    ),
    199998: ("o200k_base", GPT4O, {END: 199999, "<|endofprompt|>": 200018}),
}


def read_ranks(file: Path, pattern: str | None = None) -> TokenizerParts:
    ranks = parse(file)
    _, found, special = KNOWN.get(len(ranks), ("", None, {}))
    pattern = pattern or found
    if pattern is None:
        known = ", ".join(f"{name} ({size:,})" for size, (name, _, _) in KNOWN.items())
        raise FolderError(
            f"{file} has {len(ranks):,} ranks; known files are {known}."
            " Pass the split pattern: Tokenizer.load(file, pattern=…)."
        )
    visible = {token: _visible(token) for token in ranks}
    vocabulary = {visible[token]: rank for token, rank in ranks.items()}
    merges = [
        (visible[first], visible[second])
        for token in sorted(ranks, key=ranks.__getitem__)
        if len(token) > 1
        for first, second in [_halves(token, ranks)]
        if first
    ]
    vocabulary.update(special)
    engine = byte_bpe(vocabulary, merges, pattern=pattern, whole_words=True)
    add_special(engine, special)
    return TokenizerParts(engine, {"eos_token": END} if special else {})


def parse(file: Path) -> dict[bytes, int]:
    ranks = {}
    for number, line in enumerate(read_bytes(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise FolderError(f"{file}, line {number}, must hold a token in base64 and its rank.") from None
    if not ranks:
        raise FolderError(f"{file} holds no ranks.")
    return ranks


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """Return the two parts of a token's last merge: merge its bytes by rank, except the last.  b"the" -> b"t", b"he"

    Empty if no merges lead to the token (tiktoken knows some tokens only as whole words).
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 2:
        pairs = [(ranks.get(a + b, limit), i) for i, (a, b) in enumerate(pairwise(parts))]
        rank, i = min(pairs)
        if rank >= limit:
            return b"", b""
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts[0], parts[1]


def _alphabet() -> list[str]:
    """Return the visible character for each byte in byte-level vocabularies (GPT-2's table).  [32] -> "Ġ" """
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    assert set(table.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    return [table[byte] for byte in range(256)]


ALPHABET = _alphabet()


def _visible(token: bytes) -> str:
    return "".join(ALPHABET[byte] for byte in token)
