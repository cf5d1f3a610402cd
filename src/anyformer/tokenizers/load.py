"""Loading tokenizers from a model's files.

Supported: tokenizer.json; vocab.txt; vocab.json with merges.txt; source.spm, target.spm and vocab.json; *.model;
*.tiktoken; .gguf. tokenizer_config.json and special_tokens_map.json in the same folder are read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tokenizers
from anyformer import pretrained
from anyformer.errors import Error, FolderError
from anyformer.jsonfile import read_bytes, read_object
from anyformer.schema import Range, check_fields, shown
from anyformer.tokenizers.components import (
    QWEN2,
    TokenizerParts,
    add_bert_frame,
    add_frame,
    add_special,
    byte_bpe,
    check_vocabulary,
    lower_words,
    read_lines,
)
from anyformer.tokenizers.gguf_vocab import read_gguf
from anyformer.tokenizers.marian import SOURCE, read_marian
from anyformer.tokenizers.sentencepiece import OWN, build, read_pieces, restore
from anyformer.tokenizers.tiktoken_ranks import read_ranks
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

FILE, CONFIG, SPECIALS = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
MERGED = {"vocab.json": "merges.txt", "encoder.json": "vocab.bpe"}  # the second pair are GPT-2's original names
TEMPLATE, ADDED = "chat_template.jinja", "added_tokens.json"

ROLES = ("pad_token", "eos_token", "unk_token", "bos_token", "cls_token", "sep_token", "mask_token")

BERT = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
MPNET = {"unk_token": "[UNK]", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "mask_token": "<mask>"}
SENTENCEPIECE_DEFAULTS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ROBERTA = {**SENTENCEPIECE_DEFAULTS, "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
# Models without token_type_ids, though their tokenizers produce them.
NO_TYPES = {
    f"{name}Tokenizer"
    for name in "Bart DistilBert GPT2 GPTNeoX Gemma Llama MPNet Marian OpenAIGPT Qwen2 Roberta T5".split()
}

Config = dict[str, Any]
TOKEN = str | dict[str, Any]
SCHEMA: dict[str, Any] = {
    **dict.fromkeys(ROLES, TOKEN | Literal[False]),
    **dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars", "trim_offsets"), bool),
    **dict.fromkeys(("add_prefix_space", "add_bos_token", "add_eos_token"), bool),
    "extra_ids": Annotated[int, Range(0, 100_000)],
    "tokenizer_class": str,
    "padding_side": Literal["left", "right"],
    "model_input_names": list[str],
    "added_tokens_decoder": dict[str, dict[str, Any]],
    "chat_template": str | list[dict[str, Any]],
}


def read(path: Path, pattern: str | None = None) -> TokenizerParts:
    """Read the tokenizer in a folder or file."""
    path = pretrained.resolve_path(path)
    if path.is_dir():
        file = find(pretrained.base_folder(path))
    elif path.is_file():
        file = find(path.parent) if path.suffix in (".pt", ".pth") else path  # weights alone
    else:
        raise FolderError(f"{path} does not exist; give a folder with a tokenizer, or a tokenizer file.")
    try:
        return _read(file, pattern)
    except Error:
        raise
    except Exception as error:  # the library's message about an invalid vocabulary
        raise FolderError(f"{file} is not a valid tokenizer: {str(error).strip().rstrip('.')}.") from error


def _read(file: Path, pattern: str | None) -> TokenizerParts:
    config = read_config(file.parent) if file.suffix != ".gguf" else {}
    parts = read_ranks(file, pattern) if _is_ranks(file) else _reader(file)(file, config)
    _check_frame(parts.engine, file)
    parts.engine.no_padding()  # padding and truncation are done here
    parts.engine.no_truncation()
    if file.suffix in (".txt", ".model", ".spm") or file.name in MERGED:  # other formats contain these tokens
        _add_later(parts.engine, config, file.parent)
    return _dress(parts, config)


def find(folder: Path) -> Path:
    """Return the tokenizer file of a folder, the most complete format first."""
    if (folder / SOURCE).is_file() and not (folder / FILE).is_file():
        return folder / SOURCE
    for name in (FILE, "vocab.txt", *MERGED):
        if (folder / name).is_file():
            return folder / name
    for pattern in ("*.model", "*.tiktoken", "*.gguf"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            raise FolderError(f"{folder} has several {pattern} files; name one: {', '.join(f.name for f in found)}.")
    raise FolderError(
        f"{folder} has no tokenizer.json, nor vocab.txt, vocab.json with merges.txt, source.spm with target.spm,"
        " *.model, *.tiktoken or *.gguf; give a folder with a tokenizer."
    )


def read_config(folder: Path) -> Config:
    """Read tokenizer_config.json and add the fields of special_tokens_map.json."""
    config: Config = {}
    for name in (SPECIALS, CONFIG):
        if (folder / name).is_file():
            found = read_object(folder / name)
            fields = {key: value for key, value in found.items() if value is not None}
            check_fields(fields, SCHEMA, str(folder / name), error=FolderError)
            config |= fields
    if (folder / ADDED).is_file() and "added_tokens_decoder" not in config:  # older folders have it
        added = check_vocabulary(read_object(folder / ADDED), folder / ADDED)
        config["added_tokens_decoder"] = {i: {"content": token} for token, i in added.items()}
    if (folder / TEMPLATE).is_file():
        config["chat_template"] = "\n".join(read_lines(folder / TEMPLATE))
    return config


def names_of(config: Config, defaults: dict[str, str] | None = None) -> dict[str, str]:
    """Return the names of the special tokens; older files write {"content": "</s>", …}."""
    named = {role: _content(config[role]) for role in ROLES if config.get(role)}
    return {**(defaults or {}), **named}


def _content(token: Any) -> str:
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise FolderError(
            f'{CONFIG} has {shown(token)} as a token; it must be a string, or an object with a string in "content".'
        )
    return content


def _reader(file: Path) -> Callable[[Path, Config], TokenizerParts]:
    by_suffix = {
        ".json": _read_json,
        ".txt": _read_words,
        ".model": _read_sentencepiece,
        ".spm": lambda file, config: read_marian(file.parent, names_of(config)),
        ".gguf": lambda file, config: read_gguf(file),
    }
    if file.name in MERGED:
        return _read_merges
    if file.suffix not in by_suffix:
        raise FolderError(f"{file} has an unknown file type; supported are {', '.join(by_suffix)} and .tiktoken.")
    return by_suffix[file.suffix]


def _is_ranks(file: Path) -> bool:
    """Whether a file holds tiktoken ranks; Llama 3 names it tokenizer.model, so the content decides."""
    if file.suffix == ".tiktoken":
        return True
    return file.suffix == ".model" and re.match(rb"[A-Za-z0-9+/]+=* \d+\r?\n", read_bytes(file)[:400]) is not None


def _read_json(file: Path, config: Config) -> TokenizerParts:
    own = config.get(OWN)
    try:
        if own is not None:
            engine, wrapped, front = restore(read_object(file), own)
            return TokenizerParts(engine, names_of(config), pre_tokenizer=front, config={OWN: own}, wrapped=wrapped)
        engine = tokenizers.Tokenizer.from_file(str(file))
    except FolderError:
        raise
    except Exception as error:  # the library raises bare Exceptions
        raise FolderError(f"{file} cannot be read: {str(error).rstrip('.')}.") from None
    return TokenizerParts(engine, names_of(config))


def _check_frame(engine: tokenizers.Tokenizer, file: Path) -> None:
    """Raise an error if a template uses special tokens that are not described; the library panics on them."""
    whole = json.loads(engine.post_processor.__getstate__()) if engine.post_processor is not None else {}
    for one in whole.get("processors", [whole]):
        pieces = [piece for side in ("single", "pair") for piece in one.get(side, ())]
        used = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
        if missing := sorted(used - one.get("special_tokens", {}).keys()):
            raise FolderError(f'{file}: "post_processor" has no {", ".join(missing)} in its "special_tokens".')


def _read_words(file: Path, config: Config) -> TokenizerParts:
    """Read vocab.txt, one token per line: BERT's, and MPNet's, which frames a text with <s> and </s>."""
    vocabulary = {piece: i for i, piece in enumerate(read_lines(file))}
    mpnet = "[CLS]" not in vocabulary and {"<s>", "</s>"} <= vocabulary.keys()
    names = names_of(config, MPNET if mpnet else BERT)
    _need(file, vocabulary, [names[role] for role in ("unk_token", "cls_token", "sep_token")])
    engine = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=names["unk_token"]))
    engine.normalizer = lower_words(
        config.get("do_lower_case", True), config.get("strip_accents"), config.get("tokenize_chinese_chars", True)
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    _specials(engine, names, vocabulary, wide_mask=mpnet)
    start, end = names["cls_token"], names["sep_token"]
    if mpnet:
        engine.post_processor = _roberta(engine, start, end, trim=True, space=False)
    else:
        add_bert_frame(engine, start, end)
    return TokenizerParts(engine, names, takes_type_ids=not mpnet)


def _read_merges(file: Path, config: Config) -> TokenizerParts:
    """Read vocab.json and merges.txt: GPT-2's, RoBERTa's, GPT-1's and Qwen 2's."""
    beside = file.with_name(MERGED[file.name])
    vocabulary = check_vocabulary(read_object(file), file)
    merges = read_merges(beside)
    missing = next((piece for pair in merges for piece in (*pair, "".join(pair)) if piece not in vocabulary), None)
    if missing is not None:
        raise FolderError(f'{beside} merges "{missing}", which is not in {file.name}.')
    if any(piece.endswith("</w>") for piece in vocabulary):
        return _gpt1(vocabulary, merges, config)
    space = bool(config.get("add_prefix_space", False))
    qwen = str(config.get("tokenizer_class", "")).startswith("Qwen2")
    engine = byte_bpe(vocabulary, merges, prefix_space=space, pattern=QWEN2 if qwen else None)
    if qwen:
        engine.normalizer = normalizers.NFC()
    roberta = {"<s>", "</s>", "<mask>"} <= vocabulary.keys()
    if not roberta:
        end = {"eos_token": "<|endoftext|>"} if "<|endoftext|>" in vocabulary else {}
        names = names_of(config, end)
        _specials(engine, names, vocabulary)
        add_frame(engine, names.get("bos_token") if config.get("add_bos_token") else None)
        return TokenizerParts(engine, names, takes_type_ids=False)
    names = names_of(config, ROBERTA)
    _specials(engine, names, vocabulary, wide_mask=True)
    trim = bool(config.get("trim_offsets", True))
    engine.post_processor = _roberta(engine, names["cls_token"], names["sep_token"], trim=trim, space=space)
    return TokenizerParts(engine, names, takes_type_ids=False)


def read_merges(file: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(read_lines(file), 1):
        if not line or line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise FolderError(f"{file}, line {number}, is not two tokens separated by a space.")
        merges.append((pair[0], pair[1]))
    return merges


def _gpt1(vocabulary: dict[str, int], merges: list[tuple[str, str]], config: Config) -> TokenizerParts:
    """GPT-1's tokenizer: lower-cased words, each ending in </w>."""
    names = names_of(config, {"unk_token": "<unk>"})
    model = models.BPE(vocabulary, merges, end_of_word_suffix="</w>", unk_token=names["unk_token"])
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = lower_words(True, None, True)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.BPEDecoder(suffix="</w>")
    _specials(engine, names, vocabulary)
    return TokenizerParts(engine, names, takes_type_ids=False)


def _read_sentencepiece(file: Path, config: Config) -> TokenizerParts:
    """Read a *.model file; `tokenizer_class` in tokenizer_config.json decides the special tokens around a text."""
    parts = build(read_pieces(file), file)
    engine, name = parts.engine, str(config.get("tokenizer_class", "")).removesuffix("Fast")
    known = {role: token for role, token in SENTENCEPIECE_DEFAULTS.items() if engine.token_to_id(token) is not None}
    parts.names = names_of(config, {**known, **parts.names})
    if name == "T5Tokenizer":
        add_special(engine, [f"<extra_id_{i}>" for i in reversed(range(int(config.get("extra_ids", 100))))])
    llama = name in ("LlamaTokenizer", "GemmaTokenizer", "CodeLlamaTokenizer")
    start = config.get("add_bos_token", llama)
    end = config.get("add_eos_token", name in ("T5Tokenizer", "PegasusTokenizer"))
    add_frame(engine, parts.names.get("bos_token") if start else None, parts.names.get("eos_token") if end else None)
    parts.takes_type_ids = not name or name in ("AlbertTokenizer", "XLNetTokenizer")
    return parts


def _roberta(engine: tokenizers.Tokenizer, start: str, end: str, *, trim: bool, space: bool) -> Any:
    """Encode as <s> text </s>, or <s> text </s></s> pair </s>."""
    ids: list[Any] = [engine.token_to_id(token) for token in (end, start)]
    return processors.RobertaProcessing((end, ids[0]), (start, ids[1]), trim, space)


def _specials(
    engine: tokenizers.Tokenizer, names: dict[str, str], vocabulary: dict[str, int], wide_mask: bool = False
) -> None:
    """Mark the special tokens of the vocabulary; with `wide_mask` the mask token includes the space before it."""
    found = sorted({name for name in names.values() if name in vocabulary}, key=vocabulary.__getitem__)
    mask = names.get("mask_token") if wide_mask else None
    engine.add_special_tokens([AddedToken(t, special=True, normalized=False, lstrip=t == mask) for t in found])


def _need(file: Path, vocabulary: dict[str, int], tokens: list[str]) -> None:
    missing = [token for token in tokens if token not in vocabulary]
    if missing:
        raise FolderError(f"{file} has no {', '.join(missing)}; name them in {CONFIG} in the same folder.")


def _add_later(engine: tokenizers.Tokenizer, config: Config, folder: Path) -> None:
    """Add the tokens of added_tokens_decoder, checking that each gets its id."""
    known = {token.content for token in engine.get_added_tokens_decoder().values()}
    declared = {int(i): token for i, token in config.get("added_tokens_decoder", {}).items()}
    for i, token in sorted(declared.items()):
        content = _content(token)
        if content in known:
            continue
        place = engine.token_to_id(content)
        if i != (engine.get_vocab_size() if place is None else place):
            raise FolderError(
                f"{folder}: the token {content} has id {i} in {CONFIG}, which is neither its id in the vocabulary nor"
                " the next free one."
            )
        flags = {flag: bool(token.get(flag)) for flag in ("lstrip", "rstrip", "single_word", "normalized", "special")}
        engine.add_tokens([AddedToken(content, **flags)])


def _dress(parts: TokenizerParts, config: Config) -> TokenizerParts:
    """Apply the config fields of all formats: chat template, padding side, input names."""
    parts.chat_template = parts.chat_template or _default_template(config.get("chat_template"))
    parts.padding_side = str(config.get("padding_side", parts.padding_side))
    inputs = config.get("model_input_names")
    name = str(config.get("tokenizer_class", "")).removesuffix("Fast")
    if inputs is not None:
        parts.takes_type_ids = "token_type_ids" in inputs
    elif name in NO_TYPES:
        parts.takes_type_ids = False
    return parts


def _default_template(template: Any) -> str | None:
    """Return the chat template; of several named ones, the one named "default"."""
    if isinstance(template, list):
        template = {str(entry.get("name")): entry.get("template") for entry in template}.get("default")
    return template if isinstance(template, str) else None
