"""Text to ids and back, on the `tokenizers` library: train a vocabulary, or load one that came with a model.

    tok = Tokenizer.train(["corpus.txt"], kind="bpe", vocab_size=8000)
    tok.decode(tok.encode("a line"))        # "a line"
    tok(["a line", "one more line"])        # {"input_ids": [2, T], "attention_mask": [2, T]}

Padding is 0, the end of a text 1 and what is unknown 2 in every vocabulary trained here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from anyformer.errors import ConfigError, FolderError, InputError, nearest

Kind = Literal["bpe", "wordpiece", "unigram", "word", "char", "byte"]

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
PAD, END, UNKNOWN = SPECIAL = ("<pad>", "</s>", "<unk>")

# What other people's vocabularies call the same things.
SPELLINGS = {
    "pad_token": (PAD, "[PAD]", "<|pad|>"),
    "eos_token": (END, "<|endoftext|>", "[SEP]", "<|im_end|>"),
    "unk_token": (UNKNOWN, "[UNK]"),
}


class Tokenizer:
    """A vocabulary and the rules to cut text by it. `pad_id`, `end_id` and `unknown_id` are None where it has none."""

    def __init__(self, engine: tokenizers.Tokenizer, names: dict[str, str] | None = None) -> None:
        self.engine = engine
        names = names or {}
        found = {role: names.get(role) or self._spelling(role) for role in SPELLINGS}
        self.names = {role: name for role, name in found.items() if name is not None}
        self.pad_id, self.end_id, self.unknown_id = (
            engine.token_to_id(self.names[role]) if role in self.names else None for role in SPELLINGS
        )

    def _spelling(self, role: str) -> str | None:
        return next((name for name in SPELLINGS[role] if self.engine.token_to_id(name) is not None), None)

    @classmethod
    def train(
        cls,
        source: str | PathLike[str] | Iterable[str | PathLike[str]],
        kind: Kind = "bpe",
        vocab_size: int = 8000,
        *,
        end: bool = False,
    ) -> Tokenizer:
        """Learn a vocabulary from text files (a path, or a list of paths) or from an iterator of texts.

        A list always names files, so that a path with a slip in it is an error and not a text; give texts as
        iter(texts) or as a generator. With `end`, every encoded text ends in </s>, as an encoder-decoder wants it.
        """
        if kind not in KINDS:
            raise ConfigError(f'There is no tokenizer "{kind}".{nearest(kind, KINDS)} There are: {", ".join(KINDS)}.')
        engine, trainer = KINDS[kind](vocab_size)
        if trainer is not None:
            engine.train_from_iterator(_texts(source), trainer)
            if engine.get_vocab_size() <= len(SPECIAL):
                raise InputError("The texts are empty, so there is no vocabulary to learn from them.")
        if end:
            engine.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 1)])
        return cls(engine)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Tokenizer:
        """The tokenizer of a model folder (tokenizer.json)."""
        path = Path(folder)
        if not (path / FILE).is_file():
            raise FolderError(f"{path} has no {FILE}, so there is no tokenizer to load from it.")
        try:
            engine = tokenizers.Tokenizer.from_file(str(path / FILE))
        except Exception as error:  # the library raises bare Exceptions
            raise FolderError(f"{path / FILE} cannot be read: {error}.") from None
        engine.no_padding()  # batches are padded here, and cutting texts short is the caller's decision
        engine.no_truncation()
        return cls(engine, _special_names(path / CONFIG))

    def save(self, folder: str | PathLike[str]) -> None:
        """Write tokenizer.json, and the few words beside it that let transformers' AutoTokenizer load it too."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.engine.save(str(path / FILE))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.names}
        (path / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return self.engine.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self.engine.encode(text).ids

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of the ids; padding and other special tokens are left out."""
        return self.engine.decode(_plain(ids), skip_special_tokens=True)

    def pieces(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Each token by itself, readable, special ones too: the labels of a picture."""
        return [self.decode([i]) or self.engine.id_to_token(i) or "" for i in _plain(ids)]

    def __call__(self, texts: str | Sequence[str], side: Literal["left", "right"] = "right") -> dict[str, Tensor]:
        """A padded batch; `side` is where the padding goes (left for prompts that a decoder continues)."""
        encoded = self.engine.encode_batch([texts] if isinstance(texts, str) else list(texts))
        return pad([row.ids for row in encoded], self.pad_id if self.pad_id is not None else 0, side)


def pad(rows: Sequence[Sequence[int]], value: int, side: Literal["left", "right"] = "right") -> dict[str, Tensor]:
    """Rows of ids as tensors {input_ids, attention_mask} of one length."""
    length = max((len(row) for row in rows), default=0)
    ids = torch.full((len(rows), length), value)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        ids[i, place] = torch.tensor(row, dtype=torch.long)
        mask[i, place] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _plain(ids: Sequence[int] | Tensor) -> list[int]:
    return [int(i) for i in (ids.tolist() if isinstance(ids, Tensor) else ids)]


def _texts(source: str | PathLike[str] | Iterable[str | PathLike[str]]) -> Iterator[str]:
    if isinstance(source, (str, PathLike)):
        return _lines(Path(source))
    if isinstance(source, (list, tuple)):
        return chain.from_iterable(_lines(Path(path)) for path in source)
    return (str(text) for text in source)


def _lines(file: Path) -> Iterator[str]:
    try:
        with file.open(encoding="utf-8") as lines:
            yield from lines
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: {error}.") from None
    except OSError as error:
        hint = "A list names files; give texts themselves as iter(texts)."
        raise InputError(f"{str(file)[:80]} cannot be read: {error.strerror}. {hint}") from None


def _special_names(file: Path) -> dict[str, str]:
    """What a folder says its special tokens are called; older ones say it as {"content": "</s>", …}."""
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FolderError(f"{file} is not valid JSON: {error}.") from None
    names = {role: config.get(role) for role in SPELLINGS}
    return {role: name["content"] if isinstance(name, dict) else name for role, name in names.items() if name}


Parts = tuple[tokenizers.Tokenizer, Any]  # the engine, and its trainer where there is something to learn


def _bpe(vocab_size: int) -> Parts:
    """Pairs of bytes merged by frequency, as GPT-2 does: no character is ever unknown (Sennrich 2016, Radford 2019)."""
    engine = _engine(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(SPECIAL):
        raise ConfigError(f"A bpe vocabulary needs {len(alphabet) + len(SPECIAL)} entries or more, a byte each.")
    return engine, trainers.BpeTrainer(initial_alphabet=alphabet, **_common(vocab_size))


def _wordpiece(vocab_size: int) -> Parts:
    """BERT's: words cut greedily into the longest known pieces (Schuster and Nakajima 2012)."""
    engine = _engine(models.WordPiece(unk_token=UNKNOWN), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())
    return engine, trainers.WordPieceTrainer(**_common(vocab_size))


def _unigram(vocab_size: int) -> Parts:
    """The pieces that make the texts likeliest (Kudo 2018)."""
    engine = _engine(models.Unigram(), pre_tokenizers.Metaspace(), decoders.Metaspace())
    return engine, trainers.UnigramTrainer(unk_token=UNKNOWN, **_common(vocab_size))


def _word(vocab_size: int) -> Parts:
    """Words between spaces, punctuation by itself; what is rare or new is unknown."""
    engine = _engine(models.WordLevel(unk_token=UNKNOWN), pre_tokenizers.Whitespace(), None)
    return engine, trainers.WordLevelTrainer(**_common(vocab_size))


def _char(vocab_size: int) -> Parts:
    every = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    engine = _engine(models.WordLevel(unk_token=UNKNOWN), every, decoders.Fuse())
    return engine, trainers.WordLevelTrainer(**_common(vocab_size))


def _byte(vocab_size: int) -> Parts:
    """One token a byte: 256 and the special ones, with nothing to learn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *alphabet))}
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine = _engine(models.BPE(vocabulary, []), cut, decoders.ByteLevel())
    engine.add_special_tokens(list(SPECIAL))
    return engine, None


def _engine(model: Any, cut: Any, join: Any) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = cut
    if join is not None:
        engine.decoder = join
    return engine


def _common(vocab_size: int) -> dict[str, Any]:
    return {"vocab_size": vocab_size, "special_tokens": list(SPECIAL), "show_progress": False}


KINDS: dict[str, Callable[[int], Parts]] = {
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "word": _word,
    "char": _char,
    "byte": _byte,
}
