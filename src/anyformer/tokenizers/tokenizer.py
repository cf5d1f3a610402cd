"""Tokenizer: text to ids and back with the `tokenizers` library; trained here or loaded from a model's files.

    tok = Tokenizer.train(["corpus.txt"], kind="bpe", vocab_size=8000)
    tok.decode(tok.encode("a line"))        # "a line"
    tok(["a line", "one more line"])        # {"input_ids": [2, T], "attention_mask": [2, T]}
    tok = Tokenizer.load("folder")          # or a file: .json, .txt, .model, .spm, .tiktoken, .gguf
    tok.chat([{"role": "user", "content": "Hello"}])

All methods are thread-safe: calls keep no state.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

import tokenizers
from anyformer.errors import ConfigError, FolderError, InputError
from anyformer.tokenizers import chat_template, load, train
from anyformer.tokenizers.components import MOST_IDS, Span, TokenizerParts
from anyformer.tokenizers.cuts import are_counted, note_cut
from anyformer.tokenizers.padding import pad, plain, token_budget, truncate
from anyformer.tokenizers.train import END, MASK, PAD, SEPARATOR, START, UNKNOWN, Kind, Source
from anyformer.tokenizers.windows import QuestionWindows, windows

Side = Literal["left", "right"]

# Names of the special tokens in published vocabularies.
SPELLINGS = {
    "pad_token": (PAD, "[PAD]", "<|pad|>"),
    "eos_token": (END, "<|endoftext|>", SEPARATOR, "<|im_end|>"),
    "unk_token": (UNKNOWN, "[UNK]"),
    "bos_token": ("<s>", "<bos>"),
    "cls_token": (START,),
    "sep_token": (SEPARATOR,),
    "mask_token": (MASK, "<mask>"),
}


class Tokenizer:
    """A vocabulary with its rules for splitting text.

    `pad_id`, `end_id`, `unknown_id`, `start_id`, `separator_id` and `mask_id` are None if the vocabulary has none.
    `target` is the tokenizer for generated text: itself, unless a translation model has one per language.
    """

    def __init__(self, engine: tokenizers.Tokenizer | TokenizerParts, names: dict[str, str] | None = None) -> None:
        parts = engine if isinstance(engine, TokenizerParts) else TokenizerParts(engine, names or {})
        self.parts = parts
        self.engine = parts.engine
        found = {role: parts.names.get(role) or self._spelling(role) for role in SPELLINGS}
        self.names = {role: name for role, name in found.items() if name is not None}
        self.pad_id, self.end_id, self.unknown_id = map(self._id, ("pad_token", "eos_token", "unk_token"))
        self.separator_id, self.mask_id = self._id("sep_token"), self._id("mask_token")
        cls = self._id("cls_token")
        self.start_id = self._id("bos_token") if cls is None else cls
        self.chat_template = parts.chat_template
        self._warned = False  # about unknown ids
        self.target: Tokenizer = Tokenizer(parts.target) if parts.target is not None else self

    def _spelling(self, role: str) -> str | None:
        return next((name for name in SPELLINGS[role] if self.engine.token_to_id(name) is not None), None)

    def _id(self, role: str) -> int | None:
        return self.engine.token_to_id(self.names[role]) if role in self.names else None

    @classmethod
    def train(
        cls,
        source: Source,
        kind: Kind = "bpe",
        vocab_size: int = 8000,
        *,
        special: Sequence[str] = (),
        end: bool = False,
        bert: bool = False,
        progress: bool | None = None,
    ) -> Tokenizer:
        """Train a vocabulary on text files (a path or a list of paths) or on an iterator of texts.

        A list always holds file names, so that a misspelled path is an error; pass texts as iter(texts) or a generator.
        `special` adds tokens that are never split. With `end`, every encoded text ends in </s>, as for an
        encoder-decoder; with `bert` it is encoded as [CLS] text [SEP], with pairs and [MASK]. `progress` shows progress
        bars (default: in a terminal).
        """
        shown = sys.stderr.isatty() if progress is None else progress
        return cls(train.train_vocabulary(source, kind, vocab_size, special, end, bert, shown))

    @classmethod
    def load(cls, path: str | PathLike[str], *, pattern: str | None = None) -> Tokenizer:
        """Load the tokenizer of a model folder or file: tokenizer.json, vocab.txt, vocab.json (with merges.txt),
        *.model, source.spm (with target.spm), *.tiktoken or *.gguf.

        `pattern` is the regular expression that splits text into words, for unpublished tiktoken files.
        """
        return cls(load.read(Path(path), pattern))

    def save(self, folder: str | PathLike[str]) -> None:
        """Write tokenizer.json, and the config files with which transformers' AutoTokenizer loads it."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.names, **self.parts.config}
        if self.parts.target is not None:
            config["tokenizer_class"] = "MarianTokenizer"
        else:
            (path / load.FILE).write_text(self._json(), encoding="utf-8")
        for name, content in self.parts.files.items():
            (path / name).write_bytes(content)
        if not self.parts.takes_type_ids:
            config["model_input_names"] = ["input_ids", "attention_mask"]
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        config["padding_side"] = self.parts.padding_side
        (path / load.CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def state(self) -> str:
        """The library's tokenizer as JSON."""
        if (
            highest := max(self.engine.get_vocab().values(), default=0)
        ) >= MOST_IDS:  # the size of a list in the library
            raise ConfigError(f"The vocabulary has id {highest:,}; ids must be below {MOST_IDS:,}.")
        written: str = self.engine.to_str()
        return written

    def _json(self) -> str:
        state = json.loads(self.state())
        if self.parts.wrapped is not None:
            state["normalizer"] = self.parts.wrapped
        return json.dumps(state, ensure_ascii=False)

    def __len__(self) -> int:
        return self.engine.get_vocab_size()

    def check(self, vocab_size: int) -> None:
        """Raise an error unless every id fits an embedding table of `vocab_size` rows."""
        largest = max(self.engine.get_vocab().values(), default=-1)
        if largest >= vocab_size:
            raise ConfigError(
                f"The tokenizer's largest id is {largest:,}, but the model's vocab_size is {vocab_size:,};"
                " use the tokenizer that belongs to the model."
            )

    @overload
    def encode(  # type: ignore[overload-overlap]  # a str is a sequence of str
        self, text: str, pair: str | None = None, *, special: bool = True, max_length: int | None = None
    ) -> list[int]: ...
    @overload
    def encode(
        self,
        text: Sequence[str],
        pair: Sequence[str] | None = None,
        *,
        special: bool = True,
        max_length: int | None = None,
    ) -> list[list[int]]: ...
    def encode(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        special: bool = True,
        max_length: int | None = None,
    ) -> list[int] | list[list[int]]:
        """Return the ids of a text, of several, or of texts with pairs. `special` adds special tokens around a text.

        A special token written in a text is encoded as that token.
        """
        rows = [row.ids for row in self.encodings(text, pair, special=special, max_length=max_length)]
        return rows[0] if isinstance(text, str) else rows

    def encodings(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        special: bool = True,
        max_length: int | None = None,
        fast: bool = True,
    ) -> list[Any]:
        """Return the library's Encoding of each text; `offsets` maps its tokens to characters of the original text."""
        firsts = _texts(text)
        seconds = None if pair is None else _texts(pair)
        if seconds is not None and len(firsts) != len(seconds):
            raise InputError(f"There are {len(firsts)} texts but {len(seconds)} pairs; give one pair per text.")
        rows = self._encode(firsts, seconds, special, fast)
        if max_length is None:
            self._note_truncated(firsts, rows)
            return rows
        token_budget(self.engine, max_length, pair is not None, special)
        long = [i for i, row in enumerate(rows) if len(row.ids) > max_length]
        if long:
            first = self._encode([firsts[i] for i in long], None, False, fast)
            second = None if seconds is None else self._encode([seconds[i] for i in long], None, False, fast)
            for i, row in zip(long, truncate(self.engine, first, second, max_length, special), strict=True):
                rows[i] = row
                note_cut(firsts[i] if seconds is None else firsts[i] + seconds[i], max_length)
        return rows

    def _note_truncated(self, texts: list[str], rows: list[Any]) -> None:
        """Record texts that the library truncated itself, if it was configured to."""
        limit = (self.engine.truncation or {}).get("max_length")
        for text, row in zip(texts, rows, strict=True) if limit is not None and are_counted() else ():
            if len(row.ids) == limit and row.overflowing:
                note_cut(text, limit)

    def _encode(self, texts: list[str], pairs: list[str] | None, special: bool, fast: bool) -> list[Any]:
        front = self.parts.pre_tokenizer
        try:
            sides: list[list[Any]] = [
                [front(text) for text in side] if front is not None else side for side in (texts, pairs or [])
            ]
            rows = sides[0] if pairs is None else list(zip(*sides, strict=True))
            cut = front is not None and front.pieces
            encode = self.engine.encode_batch_fast if fast and not cut else self.engine.encode_batch
            return encode(rows, is_pretokenized=cut, add_special_tokens=special)
        except (UnicodeEncodeError, TypeError):  # all are texts: one has characters that cannot be encoded
            raise InputError("A text holds an unpaired surrogate, which is not a valid character; remove it.") from None

    def offsets(self, encoding: Any, text: str, pair: str | None = None) -> list[Span]:
        """Return the characters of `text` (or `pair`) that each token covers; (0, 0) for added tokens.

        The encoding must be made with fast=False.
        """
        front = self.parts.pre_tokenizer
        if front is None:
            return list(encoding.offsets)
        sides = [front.spans(side, encoding) for side in (text, pair) if side is not None]
        owners = encoding.sequence_ids
        return [(0, 0) if owner is None else sides[owner][i] for i, owner in enumerate(owners)]

    @overload
    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...
    @overload
    def decode(self, ids: Sequence[Sequence[int]], *, special: bool = False) -> list[str]: ...
    @overload
    def decode(self, ids: Tensor, *, special: bool = False) -> Any: ...
    def decode(self, ids: Any, *, special: bool = False) -> str | list[str]:
        """Return the text of a row of ids, or of several rows; `special` keeps special tokens."""
        try:
            if isinstance(ids, (str, bytes)):
                raise TypeError("text, not ids")
            rows = ids.tolist() if isinstance(ids, Tensor) else list(ids)
            if rows and not isinstance(rows[0], int) and not (isinstance(rows[0], Tensor) and rows[0].ndim == 0):
                several = [plain(row) for row in rows]
                self._warn_unknown_ids(several)
                return self.engine.decode_batch(several, skip_special_tokens=not special)
            row = plain(rows)
            self._warn_unknown_ids([row])
            return self.engine.decode(row, skip_special_tokens=not special)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                f"ids is {ids!r:.80}; it must be a row of ids, or several rows, of integers from 0."
            ) from None

    def _warn_unknown_ids(self, rows: Sequence[Sequence[int]]) -> None:
        """Warn once about ids without a token, which decoding skips; a model's vocabulary may be padded."""
        if self._warned:
            return
        unknown = {i for row in rows for i in row if i >= self._dense}
        unknown = {i for i in unknown if self.engine.id_to_token(i) is None}
        if unknown:
            self._warned = True
            warnings.warn(
                f"The tokenizer has no token for the id {min(unknown)}, so decoding skips it. The"
                f" model's vocabulary is larger than the tokenizer's {len(self):,} tokens.",
                stacklevel=3,
            )

    @cached_property
    def _dense(self) -> int:
        """Number of leading ids that all have a token; ids above it are looked up."""
        ids = self.engine.get_vocab().values()
        return max(ids, default=-1) + 1 if len(set(ids)) == max(ids, default=-1) + 1 else 0

    def tokens(self, ids: Sequence[int] | Tensor) -> list[str]:
        """Return each token as readable text, including special tokens, for example as axis labels."""
        return [self.decode([i]) or self.engine.id_to_token(i) or "" for i in plain(ids)]

    def __call__(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        side: Side | None = None,
        special: bool = True,
        max_length: int | None = None,
        offsets: bool = False,
    ) -> dict[str, Tensor]:
        """Return a padded batch: input_ids, attention_mask, token_type_ids for pairs if the model uses them, and with
        `offsets` the characters of each token as offset_mapping [rows, length, 2].

        `side` is the padding side: "left" for prompts that a decoder continues. `max_length` truncates the longer text
        of a pair first.
        """
        rows = self.encodings(texts, pairs, special=special, max_length=max_length, fast=not offsets)
        more = {"token_type_ids": [row.type_ids for row in rows]} if pairs is not None and self.takes_type_ids else {}
        where = side or self.parts.padding_side
        batch = pad([row.ids for row in rows], self.pad_id or 0, where, more)
        if offsets:
            given = zip(_texts(texts), [None] * len(rows) if pairs is None else _texts(pairs), rows, strict=True)
            spans = [self.offsets(row, text, pair) for text, pair, row in given]
            ends = [pad([[span[i] for span in row] for row in spans], 0, where)["input_ids"] for i in (0, 1)]
            batch["offset_mapping"] = torch.stack(ends, dim=-1)
        return batch

    @property
    def takes_type_ids(self) -> bool:
        return self.parts.takes_type_ids

    def windows(
        self,
        questions: str | Sequence[str],
        contexts: str | Sequence[str],
        *,
        max_length: int = 384,
        stride: int = 128,
        answers: Sequence[Span | None] | None = None,
        keep_answer: bool = False,
    ) -> QuestionWindows:
        """Return questions with long contexts as windows that overlap by `stride` tokens.

        `answers` are character spans in the contexts, or None. Each window has the index of its example, the offsets of
        its tokens, and the answer's token positions, 0 if it does not hold the whole answer. `keep_answer` returns one
        window per example: the one with the answer nearest its middle.
        """
        return windows(self, _texts(questions), _texts(contexts), max_length, stride, answers, keep_answer)

    @overload
    def chat(
        self, messages: Sequence[chat_template.Message], *, add_generation_prompt: bool = True, **more: Any
    ) -> str: ...
    @overload
    def chat(
        self, messages: Sequence[Sequence[chat_template.Message]], *, add_generation_prompt: bool = True, **more: Any
    ) -> list[str]: ...
    def chat(self, messages: Any, *, add_generation_prompt: bool = True, **more: Any) -> str | list[str]:
        """Return a conversation, or each of several, as text in the model's chat format, by its own template.

        The text contains special tokens, so encode it with special=False. `more` are further template variables.
        """
        if self.chat_template is None:
            raise FolderError("This tokenizer has no chat_template; use the tokenizer of a chat model.")
        several = isinstance(messages, (list, tuple)) and bool(messages) and isinstance(messages[0], (list, tuple))
        texts = chat_template.render(
            self.chat_template,
            messages if several else [messages],
            **{"add_generation_prompt": add_generation_prompt, **self.names, **more},
        )
        return texts if several else texts[0]


def _texts(texts: str | Sequence[str]) -> list[str]:
    if not isinstance(texts, Iterable):
        raise InputError(f"A tokenizer takes a text or a list of texts, not {type(texts).__name__}.")
    rows = [texts] if isinstance(texts, str) else list(texts)
    wrong = [row for row in rows if not isinstance(row, str)]
    if wrong:
        raise InputError(f"A tokenizer takes texts, not {type(wrong[0]).__name__}.")
    return rows
