"""The bytes that each token of a vocabulary adds to a text; a token may be part of a character."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import tokenizers
from anyformer.errors import InputError
from anyformer.tokenizers.tokenizer import Tokenizer
from tokenizers import pre_tokenizers

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_ANCHORS = ("x", "a", "1", ".")  # tokens to put before another, so that it is not the first


def engine_of(tokenizer: Any) -> tokenizers.Tokenizer:
    """Return the library's tokenizer inside ours or inside one of transformers'."""
    found = tokenizer.engine if isinstance(tokenizer, Tokenizer) else getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(found, tokenizers.Tokenizer):
        kind = type(tokenizer).__name__
        raise InputError(f"tokenizer is a {kind}; it must be a Tokenizer, for example Tokenizer.load(folder).")
    return found


@lru_cache(maxsize=4)
def token_bytes(engine: tokenizers.Tokenizer) -> list[bytes]:
    """Return the bytes of each token inside a sentence, by id.  token_bytes(bert)[id of "dog"] -> b" dog\""""
    names = engine.get_vocab(with_added_tokens=True)
    spelled = [b""] * (max(names.values(), default=-1) + 1)
    kinds = _kinds(engine)
    table = _byte_table() if "ByteLevel" in kinds else {}
    rest = []
    for name, i in names.items():
        byte = _BYTE.fullmatch(name) if "ByteFallback" in kinds else None
        if byte is not None:
            spelled[i] = bytes([int(byte[1], 16)])
        elif table and all(char in table for char in name):
            spelled[i] = bytes(table[char] for char in name)
        elif "BPEDecoder" in kinds:  # a space after each word, which the last one loses
            spelled[i] = name.replace(kinds["BPEDecoder"]["suffix"], " ").encode()
        else:
            rest.append(i)
    for i, text in zip(rest, _between(engine, rest), strict=True):
        spelled[i] = text.encode()
    return spelled


def _kinds(engine: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the steps of the decoder by type."""
    if engine.decoder is None:
        return {}
    decoder = json.loads(engine.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {step["type"]: step for step in steps}


def _byte_table() -> dict[str, int]:
    """Map GPT-2's characters to bytes: visible bytes stand for themselves, the others begin at character 256."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    seen = [byte for byte in range(256) if chr(byte) in alphabet]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


def _between(engine: tokenizers.Tokenizer, ids: list[int]) -> list[str]:
    """Return the text that each token adds after another one."""
    if not ids:
        return []
    known = (engine.token_to_id(name) for name in _ANCHORS)
    anchor = next((i for i in known if i is not None), ids[0])
    before = len(engine.decode([anchor], skip_special_tokens=False))
    pairs = [[anchor, i] for i in ids]
    return [text[before:] for text in engine.decode_batch(pairs, skip_special_tokens=False)]
