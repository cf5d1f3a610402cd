"""One text into another: a source is read, a target written.

translate = af.task("translate", "folder")
print(translate("A man rides a bicycle."))
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Generator, Tensor

from anyformer import registry
from anyformer.config import Settings
from anyformer.data.batches import BatchSettings
from anyformer.data.examples import Example
from anyformer.data.formats import Row
from anyformer.data.read import Rows
from anyformer.errors import ConfigError, DataError, FolderError, InputError
from anyformer.heads.base import IGNORED
from anyformer.metrics.language import perplexity
from anyformer.metrics.writing import bleu, by_length, has_sacrebleu
from anyformer.model import Model
from anyformer.tasks.base import (
    AS_USUAL,
    Batch,
    Column,
    Figures,
    Loss,
    Options,
    Progress,
    Setup,
    Source,
    Total,
    answering,
)
from anyformer.tasks.objectives import MOST_GONE, infilling, special_tokens
from anyformer.tasks.stream import BREAK
from anyformer.tasks.text import WritingTask, pad_labels, several, text_of, texts_of, token_loss
from anyformer.text.batch import pad
from anyformer.text.sentences import cut, pieces

SPOILED = "spoiled"  # whether an example is a text that is read with gaps
PIECES = (4, 8, 16, 32, 64)  # words of its pieces, each of these as often; a sentence alone may have up to the last
AT_ONCE = 64  # texts that are written together
ENOUGH = 100  # of them, to look at lengths one by one


@dataclass(frozen=True)
class Written:
    """What the model wrote, and what it read; of a text that it read in several sentences, also each of them."""

    text: str
    source: str
    ids: tuple[int, ...] = field(repr=False)
    sentences: tuple[Written, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class WriteOptions(Options):
    num_beams: int = 5
    length_penalty: float = 1.0
    max_target: int = 128  # tokens of what is written
    prefix: str = ""  # stands before every source: "translate English to German: "
    # Whether the model learned from single sentences: a text to answer is cut into lines and sentences, each of which
    # is read by itself. Rows to learn from and to evaluate on are read as they stand.
    sentences: bool = False
    # Of a text that stands on both sides: the share of its tokens that are left out of the source, in runs of about
    # three with one mark each (the tokenizer's mask, else its unknown word), anew each time. So a model learns the
    # language before a task that has few rows (BART's pre-training). Such a text is cut into pieces, most of them
    # short: in long ones attention takes long to find its way.
    gaps: float = 0.0

    def check(self) -> None:
        self.require(0 <= self.gaps <= MOST_GONE, f"gaps is {self.gaps}; it must be from 0 to {MOST_GONE}.")
        self.require(self.num_beams > 0, f"num_beams is {self.num_beams}; it must be 1 or more.")
        self.require(self.max_target > 1, f"max_target is {self.max_target}; it must be 2 or more.")


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(WriteOptions):
    lowercase: bool = False  # whether BLEU tells large letters from small ones
    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab"] = "13a"


class Translate(WritingTask):
    name = "translate"
    about = "a text into another language, or into any other text"
    columns = (
        Column("source", ("src", "en", "input", "english", "from")),
        Column("target", ("tgt", "trg", "de", "fr", "output", "german", "french", "to", "translation")),
    )
    sides = ("source", "target")
    options_class: ClassVar[type[Options]] = TranslateOptions
    batch = BatchSettings(tokens=4096)
    framed = "end"
    kind = "bpe"
    usual_length = 256
    wanted = "an encoder-decoder"
    text_columns = ("source", "target")
    sequences = ("input_ids", "labels")
    fills = MappingProxyType({"input_ids": 0, "attention_mask": 0, "labels": IGNORED, "decoder_attention_mask": 0})

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.metric = "bleu" if has_sacrebleu() else "loss"
        self.larger_is_better = self.metric != "loss"
        self.end = self.tokenizer.end_id if self.tokenizer.end_id is not None else self.tokenizer.separator_id
        self.max_target = min(self.settings.max_target, self.max_length)
        if self.settings.gaps:
            self.metric, self.larger_is_better = "loss", False
            self.mark = self._find_mark()

    def _find_mark(self) -> int:
        """What stands where tokens were left out."""
        tok = self.tokenizer
        mark = tok.mask_id if tok.mask_id is not None else tok.unknown_id
        if mark is None or tok.target is not tok:
            missing = "a token for what is not known" if mark is None else "one vocabulary for both sides"
            raise InputError(f"Texts with gaps need {missing}, which this tokenizer does not have.")
        return mark

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: Setup = AS_USUAL) -> Self:
        if getattr(setup.task, "gaps", 0.0):
            if getattr(setup.task, "prefix", ""):
                raise ConfigError("task.gaps and task.prefix: a text with gaps has no prefix. Give one of the two.")
            if not any(row["source"] == row["target"] for row in rows):
                raise DataError(
                    f"task.gaps is for texts that stand on both sides, and {rows.path} has none. Give a text file twice"
                    f' (--data texts.txt,texts.txt), or one column for both (data.columns="source=text,target=text").'
                )
        return super().begin(source, rows, valid, setup)

    def key(self) -> str:
        return f"{super().key()}|{PIECES}" if self.settings.gaps else super().key()

    @classmethod
    def fits(cls, config: Settings) -> bool:
        source = getattr(config, "encoder", None)  # of two families, the one that reads
        words = not isinstance(source, Mapping) or "vocab_size" in registry.family(source["family"]).config.names()
        pair = "decoder_start" in config.names() and getattr(config, "head", "language") == "language"
        return pair and words and not {"image_size", "n_mels"} & set(config.names())  # what sees or hears does not read

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        if model.decoder_start is None or "language" not in model.heads or "input_ids" not in model.names:
            raise FolderError(f"{path} holds a {model.family} model, which does not turn one text into another.")

    # Rows to loss.

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        if "target" not in rows[0]:
            return [{"input_ids": ids} for ids in self._encode(texts_of(rows, "source"), self.max_length)]
        pairs = list(zip(texts_of(rows, "source"), texts_of(rows, "target"), strict=True))
        if not self.settings.gaps:
            return self._pairs(pairs)
        parts = [[(piece, piece) for piece in some_pieces(a)] if a == b else [(a, b)] for a, b in pairs]
        flat = [(row, *pair) for row, some in enumerate(parts) for pair in some]
        examples = self._pairs([pair for _, *pair in flat])
        return [
            {"row": row, **example, SPOILED: int(source == target)}
            for (row, source, target), example in zip(flat, examples, strict=True)
        ]

    def _pairs(self, pairs: Sequence[Sequence[str]]) -> list[Example]:
        sources = self._encode([source for source, _ in pairs], self.max_length)
        targets = self.targets([target for _, target in pairs])
        return [{"input_ids": a, "labels": b} for a, b in zip(sources, targets, strict=True)]

    def _encode(self, sources: list[str], max_length: int | None = None) -> list[list[int]]:
        return self.tokenizer.encode([self.settings.prefix + text for text in sources], max_length=max_length)

    def targets(self, texts: list[str]) -> list[list[int]]:
        """Each with its end, unless it is cut: a text that goes on must not teach the model to stop."""
        rows = self.tokenizer.target.encode(texts, special=False)
        ends = [] if self.end is None else [self.end]
        return [[*ids, *ends][: self.max_target] for ids in rows]

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = self.pad(examples)
        if SPOILED in examples[0]:
            batch |= self._spoil(batch, torch.tensor([bool(example[SPOILED]) for example in examples]), generator)
        if "labels" in examples[0]:
            rows = [example["labels"] for example in examples]
            batch["labels"] = pad_labels(rows)
            batch["decoder_attention_mask"] = pad(rows, 0)["attention_mask"]
        return batch

    def _spoil(self, batch: Batch, chosen: Tensor, generator: Generator) -> Batch:
        framing = special_tokens(batch["input_ids"], self.framing)
        special = framing | (batch["attention_mask"] == 0) | ~chosen.unsqueeze(1)
        return infilling(batch, special, self.mark, self.tokenizer.pad_id or 0, generator, self.settings.gaps)

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch, self.smoothing)

    def _loss(self, batch: Batch, smoothing: float) -> Loss:
        labels = batch["labels"]
        given = {name: value for name, value in batch.items() if name != "labels"}
        logits = self.model(**given, decoder_input_ids=self.model.shift_right(labels)).logits
        return Loss(*token_loss(logits, labels, smoothing))

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Figures:
        total = Total()
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows)):
                total.add(self._loss(batch, 0.0))
        pairs = zip(texts_of(rows, "source"), texts_of(rows, "target"), strict=True)
        asked = [(source, target) for source, target in pairs if not self.settings.gaps or source != target]
        texts, wanted = [source for source, _ in asked], [target for _, target in asked]
        said = [str(answer) for answer in self.write(texts, progress=progress)]
        figures = self.figures(said, wanted) if asked else {}
        if asked and len(asked) < len(rows):
            figures["written"] = len(asked)  # the others have their loss alone
        if self.detailed and "bleu" in figures and len(texts) >= ENOUGH:

            def some(chosen: Sequence[int]) -> float:
                return float(self.figures([said[i] for i in chosen], [wanted[i] for i in chosen])["bleu"])

            figures["by_length"] = by_length(texts, some)
        return {**figures, "loss": total.mean, "perplexity": perplexity(total.total, int(total.count))}

    def figures(self, said: list[str], wanted: list[str]) -> Figures:
        if not has_sacrebleu():
            return {}
        return bleu(said, wanted, lowercase=self.settings.lowercase, tokenize=self.settings.tokenize)

    def __call__(self, thing: Any, **options: Any) -> Any:
        """`options` are those of `model.generate`. A blank text has a blank answer."""
        things, alone = several(thing)
        texts = [text_of(one, "source").strip() for one in things]
        lines = [self._lines(text) for text in texts]
        asked = [part for some in lines for part in chain(*some) if self._is_asked(part)]
        self._say_what_is_cut(asked)
        said = iter(self.write(asked, options))
        answers = [self._joined(text, some, said) for text, some in zip(texts, lines, strict=True)]
        return answers[0] if alone else answers

    def _lines(self, text: str) -> list[list[str]]:
        """What is read by itself, by lines."""
        return cut(text) if self.settings.sentences else [[text]] if text else []

    def _is_asked(self, part: str) -> bool:
        """Of single sentences, those without a word (an emoji, a row of stars) are left as they are."""
        return not self.settings.sentences or any(letter.isalnum() for letter in part)

    def _joined(self, text: str, lines: list[list[str]], said: Iterator[Written]) -> Written:
        found = [[next(said) if self._is_asked(part) else Written(part, part, ()) for part in line] for line in lines]
        parts = tuple(chain(*found))
        if len(parts) == 1:
            return parts[0]
        whole = "\n".join(" ".join(part.text for part in line) for line in found)
        return Written(whole, text, tuple(chain(*(part.ids for part in parts))), parts)

    def _say_what_is_cut(self, texts: list[str]) -> None:
        lengths = [len(ids) for ids in self._encode(texts)] if texts else []
        long = [length for length in lengths if length > self.max_length]
        if long:
            what = f"a text of {long[0]} tokens was" if len(long) == 1 else f"{len(long)} texts were"
            warnings.warn(f"The model reads {self.max_length} tokens at a time, so {what} cut.", stacklevel=3)

    def write(
        self, texts: list[str], options: Mapping[str, Any] | None = None, progress: Progress | None = None
    ) -> list[Written]:
        """Texts of like length together, the longest first, in the order in which they came."""
        sources = (
            [example["input_ids"] for example in self.examples([{"source": text} for text in texts])] if texts else []
        )
        order = sorted(range(len(texts)), key=lambda i: -len(sources[i]))
        found: dict[int, Written] = {}
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            for i, ids in zip(some, self._generate([sources[i] for i in some], options or {}), strict=True):
                found[i] = Written(self.tokenizer.target.decode(ids).strip(), texts[i], tuple(ids))
            if progress is not None:
                progress(min(start + AT_ONCE, len(order)), len(order))
        return [found[i] for i in range(len(texts))]

    @property
    def manners(self) -> Mapping[str, Any]:
        """More that `model.generate` is told, where the call says nothing else."""
        return {}

    def _generate(self, rows: list[list[int]], options: Mapping[str, Any]) -> list[list[int]]:
        if not all(rows):
            raise InputError("A text is empty: there is nothing to read.")
        batch = {name: value.to(self.model.device) for name, value in pad(rows, self.tokenizer.pad_id or 0).items()}
        chosen = {
            "num_beams": self.settings.num_beams,
            "length_penalty": self.settings.length_penalty,
            "max_new_tokens": self.max_target,
            **self.manners,
            **self.writing,
            **options,
        }
        if "eos_token_id" not in chosen and self.model.config.to_json().get("end") is None:
            chosen["eos_token_id"] = self.end
        with answering(self.model):
            written = self.model.generate(**batch, **chosen)[:, 1:]
        return [self._until_end(row) for row in written.tolist()]

    def _until_end(self, ids: list[int]) -> list[int]:
        ends = {self.end, self.model.padding}
        cut = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        return ids[:cut]

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        if not fresh:
            return {"batch_tokens": 4096, "lr": 1e-4, "schedule": "linear", "warmup": 200, "label_smoothing": 0.1}
        more = {"optimizer": "adam", "schedule": "inverse_sqrt", "warmup": 2000, "label_smoothing": 0.1}
        return {"batch_tokens": 4096, "lr": 7e-4, **more}


def some_pieces(text: str) -> list[str]:
    """The same every time, for a text."""
    if text.strip() == BREAK:
        return []
    chance = random.Random(zlib.crc32(text.encode()))
    return pieces(text, iter(lambda: chance.choice(PIECES), None), max(PIECES))
