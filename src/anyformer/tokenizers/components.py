"""Parts of a tokenizer, and steps that several file readers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from anyformer.errors import FolderError
from anyformer.jsonfile import read_bytes
from anyformer.schema import shown
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

Span = tuple[int, int]
Vocabulary = dict[str, int]
MOST_IDS = 10**7  # the largest vocabularies have about a million; the library allocates a list up to the largest id

# Regular expressions that split text before byte merges, as published with GPT-4, Llama 3 and Qwen 2.
GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")


class PreTokenizer(Protocol):
    """A step before the engine, for what the engine cannot do itself."""

    pieces: bool  # whether it returns a list of pieces

    def __call__(self, text: str) -> str | list[str]: ...

    def spans(self, text: str, encoding: Any) -> list[Span]:
        """Return the offsets of an encoding's tokens in the original text."""
        ...


@dataclass
class TokenizerParts:
    engine: tokenizers.Tokenizer
    names: dict[str, str] = field(default_factory=dict)  # {"eos_token": "</s>", …} from the files
    chat_template: str | None = None
    pre_tokenizer: PreTokenizer | None = None
    takes_type_ids: bool = True  # whether the model uses token_type_ids for text pairs
    padding_side: str = "right"  # side of the padding
    files: dict[str, bytes] = field(default_factory=dict)  # files to save, if not tokenizer.json
    config: dict[str, Any] = field(default_factory=dict)  # extra fields of tokenizer_config.json
    wrapped: dict[str, Any] | None = None  # normalizer in tokenizer.json that stands in for `pre_tokenizer`
    target: TokenizerParts | None = None  # the target language's tokenizer, if a translation model has two


def byte_bpe(
    vocabulary: Vocabulary,
    merges: Sequence[tuple[str, str]],
    *,
    pattern: str | None = None,
    prefix_space: bool = False,
    digits: bool = False,
    whole_words: bool = False,
) -> tokenizers.Tokenizer:
    """Return a byte-level BPE engine as in GPT-2: bytes as visible characters, merged within words split by `pattern`.

    `digits` splits numbers into digits first; `whole_words` keeps a word of the vocabulary even if no merges lead to it
    (as tiktoken does).
    """
    engine = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges), ignore_merges=whole_words))
    cut: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if pattern is not None:
        cut.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
    cut.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=pattern is None))
    engine.pre_tokenizer = cut[0] if len(cut) == 1 else pre_tokenizers.Sequence(cut)
    engine.decoder = decoders.ByteLevel()
    engine.post_processor = processors.ByteLevel(trim_offsets=False)
    return engine


def add_special(engine: tokenizers.Tokenizer, tokens: Iterable[str], *, special: bool = True) -> None:
    """Add tokens that are never split and are matched before normalization."""
    added = [AddedToken(token, special=special, normalized=False) for token in tokens]
    if special:
        engine.add_special_tokens(added)
    else:
        engine.add_tokens(added)


def add_frame(engine: tokenizers.Tokenizer, start: str | None = None, end: str | None = None) -> None:
    """Begin every encoded text with `start` and end it with `end`, both texts of a pair."""
    tokens = [token for token in (start, end) if token is not None]
    if not tokens:
        return
    first, second = (
        " ".join(f"{part}:{kind}" for part in (start, text, end) if part is not None)
        for kind, text in enumerate(("$A", "$B"))
    )
    special = [(token, engine.token_to_id(token)) for token in dict.fromkeys(tokens)]
    engine.post_processor = processors.TemplateProcessing(
        single=first, pair=f"{first} {second}", special_tokens=special
    )


def add_bert_frame(engine: tokenizers.Tokenizer, start: str = "[CLS]", end: str = "[SEP]") -> None:
    """Encode as [CLS] text [SEP], or [CLS] text [SEP] pair [SEP] with type id 1 for the pair."""
    engine.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(token, engine.token_to_id(token)) for token in (start, end)],
    )


def check_vocabulary(vocabulary: dict[str, Any], file: Path) -> Vocabulary:
    """Return a vocabulary {token: id} after checking its ids."""
    wrong = next((token for token, i in vocabulary.items() if type(i) is not int or not 0 <= i < MOST_IDS), None)
    if wrong is not None:
        raise FolderError(f'{file}: "{wrong}" is {shown(vocabulary[wrong])}; it must be an id, 0 to {MOST_IDS - 1:,}.')
    return vocabulary


def lower_words(lower: bool, accents: bool | None, chinese: bool) -> Any:
    """BERT's normalizer; `accents` None strips them if `lower`, `chinese` puts spaces around Chinese characters."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=accents, lowercase=lower
    )


def read_lines(file: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Only a newline ends a line, since tokens may contain other separators."""
    lines = []
    for number, raw in enumerate(read_bytes(file).split(b"\n"), 1):
        try:
            lines.append(raw.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise FolderError(f"{file}, line {number}, is not UTF-8 text: {error.reason}.") from None
    return lines[:-1] if lines and not lines[-1] else lines
