"""Training a vocabulary on text from files or an iterator: six kinds.

Every vocabulary trained here has padding id 0, end id 1 and unknown id 2.
"""

from __future__ import annotations

import codecs
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import tokenizers
from anyformer.errors import ConfigError, InputError, nearest
from anyformer.tokenizers.components import TokenizerParts, add_bert_frame, add_frame
from tokenizers import decoders, models, pre_tokenizers, trainers

Kind = Literal["bpe", "wordpiece", "unigram", "word", "char", "byte"]
Source = str | PathLike[str] | Iterable[str | PathLike[str]]

ALPHABET = 1000  # characters of a wordpiece vocabulary; rarer ones become unknown
PAD, END, UNKNOWN = SPECIAL = ("<pad>", "</s>", "<unk>")
START, SEPARATOR, MASK = BERT = ("[CLS]", "[SEP]", "[MASK]")


def train_vocabulary(
    source: Source, kind: str, vocab_size: int, special: Sequence[str], end: bool, bert: bool, progress: bool
) -> TokenizerParts:
    if kind not in KINDS:
        raise ConfigError(f'There is no tokenizer kind "{kind}".{nearest(kind, KINDS)} Kinds: {", ".join(KINDS)}.')
    if end and bert:
        raise ConfigError("end (</s>) and bert ([SEP]) exclude one another; give one of them.")
    names = list(dict.fromkeys((*SPECIAL, *(BERT if bert else ()), *special)))
    engine, trainer = KINDS[kind](vocab_size, names)
    if isinstance(trainer, trainers.WordPieceTrainer):
        engine = _learn_wordpiece(not_empty(texts(source)), vocab_size, names, progress)
    elif trainer is not None:
        trainer.show_progress = progress
        engine.train_from_iterator(not_empty(texts(source)), trainer)
    if end:
        add_frame(engine, end=END)
    elif bert:
        add_bert_frame(engine, START, SEPARATOR)
    return TokenizerParts(engine)


def texts(source: Source) -> Iterator[str]:
    if isinstance(source, (str, PathLike)):
        return lines(Path(source))
    if isinstance(source, (list, tuple)):
        return chain.from_iterable(lines(Path(path)) for path in source)
    return map(_text, source)


def _text(item: object) -> str:
    if not isinstance(item, str):
        raise InputError(f"A tokenizer is trained on texts, but the iterator gave {type(item).__name__}.")
    return item


def lines(file: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, each with its newline."""
    number = 0
    try:
        with file.open("rb") as raw:
            for number, line in enumerate(raw, 1):
                yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode("utf-8")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{file}, line {number}, is not UTF-8 text: byte 0x{byte:02x}, {error.reason}.") from None
    except OSError as error:
        hint = "A list must hold file names; pass texts as iter(texts)."
        raise InputError(f"{str(file)[:80]} cannot be read: {error.strerror}. {hint}") from None


def not_empty(source: Iterator[str]) -> Iterator[str]:
    found = False
    for text in source:
        found = found or bool(text.strip())
        yield text
    if not found:
        raise InputError("The texts are empty; give texts to train the vocabulary on.")


Engine = tuple[tokenizers.Tokenizer, Any]  # the engine and its trainer, if it is trained


def _bpe(vocab_size: int, special: list[str]) -> Engine:
    """Byte-level BPE as in GPT-2: no character is unknown (Sennrich 2016, Radford 2019)."""
    engine = _engine(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(special):
        raise ConfigError(f"A bpe vocabulary needs vocab_size {len(alphabet) + len(special)} or more, one per byte.")
    return engine, trainers.BpeTrainer(
        initial_alphabet=alphabet, vocab_size=vocab_size, special_tokens=special, show_progress=False
    )


def _wordpiece(vocab_size: int, special: list[str]) -> Engine:
    """BERT's WordPiece: words split greedily into the longest known pieces (Schuster and Nakajima 2012)."""
    engine = _engine(models.WordPiece(unk_token=UNKNOWN), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece())
    return engine, trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)


def _learn_wordpiece(
    source: Iterator[str], vocab_size: int, special: list[str], progress: bool
) -> tokenizers.Tokenizer:
    """Train a WordPiece vocabulary deterministically.

    The library numbers characters in hash-table order and merges equally frequent pairs by number, so the same texts
    gave different vocabularies. Here characters are numbered first; the texts are read twice, the second time
    from a file.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8") as kept:
        seen: Counter[str] = Counter()
        for text in source:
            seen.update(text)
            kept.write(json.dumps(text) + "\n")
        kept.seek(0)
        found = [(character, n) for character, n in seen.items() if not character.isspace()]
        characters = sorted(c for c, _ in sorted(found, key=lambda pair: (-pair[1], pair[0]))[:ALPHABET])
        engine, _ = _wordpiece(vocab_size, special)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            special_tokens=[*special, *(f"##{character}" for character in characters)],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=progress,
        )
        engine.train_from_iterator((json.loads(line) for line in kept), trainer)
    learned, _ = _wordpiece(vocab_size, special)
    learned.model = models.WordPiece(engine.get_vocab(), unk_token=UNKNOWN)  # its characters are not marked as special
    learned.add_special_tokens(special)
    return learned


def _unigram(vocab_size: int, special: list[str]) -> Engine:
    """Unigram: the pieces that maximize the likelihood of the texts (Kudo 2018)."""
    engine = _engine(models.Unigram(), pre_tokenizers.Metaspace(), decoders.Metaspace())
    return engine, trainers.UnigramTrainer(
        unk_token=UNKNOWN, vocab_size=vocab_size, special_tokens=special, show_progress=False
    )


def _word(vocab_size: int, special: list[str]) -> Engine:
    """Words and punctuation; rare and new words are unknown."""
    engine = _engine(models.WordLevel(unk_token=UNKNOWN), pre_tokenizers.Whitespace(), None)
    return engine, trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)


def _char(vocab_size: int, special: list[str]) -> Engine:
    every = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    engine = _engine(models.WordLevel(unk_token=UNKNOWN), every, decoders.Fuse())
    return engine, trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)


def _byte(vocab_size: int, special: list[str]) -> Engine:
    """Bytes: 256 tokens and the special ones; no training."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*special, *alphabet))}
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine = _engine(models.BPE(vocabulary, []), cut, decoders.ByteLevel())
    engine.add_special_tokens(special)
    return engine, None


def _engine(model: Any, cut: Any, join: Any) -> tokenizers.Tokenizer:
    engine = tokenizers.Tokenizer(model)
    engine.pre_tokenizer = cut
    if join is not None:
        engine.decoder = join
    return engine


KINDS: dict[str, Callable[[int, list[str]], Engine]] = {
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
    "word": _word,
    "char": _char,
    "byte": _byte,
}
