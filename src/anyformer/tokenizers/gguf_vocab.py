"""The tokenizer in a GGUF file: llama.cpp's fields tokenizer.ggml.*."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.errors import FolderError, nearest
from anyformer.gguf import GGUFArray, open_gguf
from anyformer.schema import check_fields
from anyformer.tokenizers.components import GPT4, QWEN2, TokenizerParts, add_frame, add_special, byte_bpe
from anyformer.tokenizers.sentencepiece import BPE, CONTROL, UNKNOWN, USER_DEFINED, SentencePieceModel, build
from tokenizers import normalizers

Fields = Mapping[str, Any]

# How text is split into words before byte merges, by llama.cpp's name in tokenizer.ggml.pre.
CUTS: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "olmo": {},
    "smollm": {"digits": True},
    "starcoder": {"digits": True},
    "llama-bpe": {"pattern": GPT4, "whole_words": True},
    "qwen2": {"pattern": QWEN2},
}
ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
}

_LISTS = {"tokens": list[str], "merges": list[str], "token_type": list[int], "scores": list[float]}
_FLAGS = dict.fromkeys(("add_bos_token", "add_eos_token", "add_space_prefix"), bool)
SCHEMA = {
    **{f"tokenizer.ggml.{name}": hint for name, hint in (_LISTS | _FLAGS | {"model": str, "pre": str}).items()},
    **{f"tokenizer.ggml.{name}_token_id": int for name in ROLES.values()},
    "tokenizer.chat_template": str,
}


def read_gguf(file: Path) -> TokenizerParts:
    return build_gguf(read_fields(file), file)


def read_fields(file: Path) -> dict[str, Any]:
    """Return the tokenizer fields as {name: value}; arrays become lists."""
    fields = {name: value for name, value in open_gguf(file).fields.items() if name.startswith("tokenizer.")}
    found = {name: value.values if isinstance(value, GGUFArray) else value for name, value in fields.items()}
    check_fields(found, SCHEMA, str(file), error=FolderError)
    return found


def build_gguf(fields: Fields, where: str | Path) -> TokenizerParts:
    """Build the tokenizer that a file's fields describe."""
    builders = {"gpt2": _bytes, "llama": _pieces}
    kind = fields.get("tokenizer.ggml.model")
    if kind not in builders:
        raise FolderError(f'{where} has a tokenizer of kind "{kind}"; supported are {", ".join(builders)}.')
    tokens = fields.get("tokenizer.ggml.tokens", [])
    kinds = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not tokens or len(kinds) != len(tokens):
        raise FolderError(f"{where} has {len(tokens):,} tokens and {len(kinds):,} token types.")
    parts = builders[kind](fields, tokens, kinds, where)
    parts.names |= _names(fields, tokens)
    parts.chat_template = fields.get("tokenizer.chat_template")
    start = bool(fields.get("tokenizer.ggml.add_bos_token", kind == "llama"))
    end = bool(fields.get("tokenizer.ggml.add_eos_token", False))
    add_frame(
        parts.engine,
        parts.names.get("bos_token") if start else None,
        parts.names.get("eos_token") if end else None,
    )
    parts.takes_type_ids = False
    return parts


def _names(fields: Fields, tokens: list[str]) -> dict[str, str]:
    ids = {role: fields.get(f"tokenizer.ggml.{name}_token_id") for role, name in ROLES.items()}
    return {role: tokens[int(i)] for role, i in ids.items() if i is not None and 0 <= int(i) < len(tokens)}


def _bytes(fields: Fields, tokens: list[str], kinds: list[int], where: str | Path) -> TokenizerParts:
    cut = fields.get("tokenizer.ggml.pre", "gpt-2")
    if cut not in CUTS:
        known = ", ".join(CUTS)
        raise FolderError(
            f'{where} has tokenizer.ggml.pre "{cut}", which is not supported.{nearest(cut, CUTS)} Supported: {known}.'
        )
    merges = [tuple(merge.split(" ")) for merge in fields.get("tokenizer.ggml.merges", [])]
    if any(len(merge) != 2 for merge in merges):
        raise FolderError(f"{where} has a merge that is not a pair of tokens.")
    engine = byte_bpe({token: i for i, token in enumerate(tokens)}, merges, **CUTS[cut])
    if cut == "qwen2":
        engine.normalizer = normalizers.NFC()
    add_special(engine, [token for token, kind in zip(tokens, kinds, strict=True) if kind in (UNKNOWN, CONTROL)])
    own = [token for token, kind in zip(tokens, kinds, strict=True) if kind == USER_DEFINED]
    add_special(engine, own, special=False)
    return TokenizerParts(engine)


def _pieces(fields: Fields, tokens: list[str], kinds: list[int], where: str | Path) -> TokenizerParts:
    scores = fields.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens) or UNKNOWN not in kinds:
        raise FolderError(f"{where} has {len(scores):,} scores for {len(tokens):,} tokens, or no unknown token.")
    prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    rows = list(zip(tokens, map(float, scores), map(int, kinds), strict=True))
    return build(SentencePieceModel(rows, BPE, byte_fallback=True, add_prefix=prefix, trim=False), where)
