"""Text to text: translation and other sequence-to-sequence tasks.

translate = af.task("translate", "folder")
print(translate("A man rides a bicycle."))
"""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Generator, Tensor

from anyformer import registry
from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.examples import Example
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, DataError, FolderError, InputError
from anyformer.forward_context import IGNORED
from anyformer.generation.plan import model_generation_config
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.language import perplexity
from anyformer.metrics.text_generation import bleu, by_length, has_sacrebleu
from anyformer.model import Model
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Column,
    Loss,
    Metrics,
    Options,
    Progress,
    Source,
    TaskSetup,
    Total,
    answering,
)
from anyformer.tasks.careful import (
    NO_REPEAT,
    best,
    clean,
    is_shouted,
    loops,
    lowered,
    mend,
    names,
    repeats,
    warn_of_languages,
)
from anyformer.tasks.generated import Generated, count, generated
from anyformer.tasks.objectives import MAX_REMOVED, infilling, special_tokens
from anyformer.tasks.stream import BREAK
from anyformer.tasks.text import WritingTask, divergence, pad_labels, text_of, texts_of
from anyformer.tasks.written import Written as Written
from anyformer.tasks.written import fitted, join, shouted
from anyformer.tokenizers.cuts import are_counted, shorten
from anyformer.tokenizers.foreign import NAMES
from anyformer.tokenizers.padding import pad
from anyformer.tokenizers.sentence_split import clauses, group_sentences, split_lines_and_sentences

CORRUPTED = "spoiled"  # whether an example is a text that is read with gaps
PIECES = (4, 8, 16, 32, 64)  # words of its pieces, each of these as often; a sentence alone may have up to the last
AT_ONCE = 64  # texts that are written together
RATIO, SPARE = 3, 20  # tokens of an answer for one of a sentence, and beside
ENOUGH = 100  # of them, to look at lengths one by one


@dataclass(frozen=True, kw_only=True)
class SequenceToSequenceOptions(Options):
    num_beams: int = 5
    length_penalty: float = 1.0
    max_target_length: int = 128  # tokens of what is written
    prefix: str = ""  # stands before every source: "translate English to German: "
    # Whether the model learned from single sentences: a text to answer is cut into lines and sentences, each of which
    # is read by itself, in small letters if it is all capitals, and answered in about three tokens for one at most.
    # Rows to learn from and to evaluate on are read as they stand.
    sentences: bool = False
    clauses: int = 0  # words; a longer sentence is cut, at commas and conjunctions where it has them; 0: never
    language: str = ""  # that it reads, such as "en"; a text in another is answered with a warning
    # Whether names and numbers are to stay as they are: of answers that are about as likely, the one that keeps more of
    # them is taken, and a name that is nearly right is put right (the ids stay those that the model wrote).
    copies: bool = False
    # Of a text that stands on both sides: the share of its tokens that are left out of the source, in runs of about
    # three with one mark each (the tokenizer's mask, else its unknown word), anew each time. So a model learns the
    # language before a task that has few rows (BART's pre-training). Such a text is cut into pieces, most of them
    # short: in long ones attention takes long to find its way.
    infilling: float = 0.0
    # Each row goes through the model twice, and what the two dropouts make of it must agree: the weight of their
    # divergence in the loss (R-Drop, Liang et al. 2021). It helps where rows are few, at twice the time. 0: once.
    r_drop: float = 0.0

    def check(self) -> None:
        self.require(self.r_drop >= 0, f"r_drop is {self.r_drop}; it must be 0 or more.")
        self.require(
            0 <= self.infilling <= MAX_REMOVED, f"infilling is {self.infilling}; it must be from 0 to {MAX_REMOVED}."
        )
        self.require(self.clauses >= 0, f"clauses is {self.clauses}; it must be 0 or more.")
        known = ", ".join(NAMES)
        self.require(self.language in ("", *NAMES), f'language is "{self.language}"; known are: {known}.')
        self.require(self.num_beams > 0, f"num_beams is {self.num_beams}; it must be 1 or more.")
        self.require(
            self.max_target_length > 1, f"max_target_length is {self.max_target_length}; it must be 2 or more."
        )


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(SequenceToSequenceOptions):
    lowercase: bool = False  # whether BLEU tells large letters from small ones
    tokenize: Literal["13a", "none", "intl", "char", "zh", "ja-mecab"] = "13a"


class Translate(WritingTask[str, Written]):
    name = "translate"
    about = "translate texts, or any text-to-text task"
    columns = (
        Column("source", ("src", "en", "input", "english", "from")),
        Column("target", ("tgt", "trg", "de", "fr", "output", "german", "french", "to", "translation")),
    )
    sides = ("source", "target")
    options_class: ClassVar[type[Options]] = TranslateOptions
    settings: SequenceToSequenceOptions
    batch = BatchConfig(tokens=4096)
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
        self.max_target_length = min(self.settings.max_target_length, self.max_length)
        if self.settings.infilling:
            self.metric, self.larger_is_better = "loss", False
            self.mark = self._find_mark()

    def _find_mark(self) -> int:
        """What stands where tokens were left out."""
        tok = self.tokenizer
        mark = tok.mask_id if tok.mask_id is not None else tok.unknown_id
        if mark is None or tok.target is not tok:
            missing = "a mask or unknown token" if mark is None else "one vocabulary for both sides"
            raise InputError(f"task.infilling needs {missing}, which this tokenizer does not have.")
        return mark

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        if getattr(setup.task, "infilling", 0.0):
            if getattr(setup.task, "prefix", ""):
                raise ConfigError("task.infilling and task.prefix exclude each other; set one of them.")
            if not any(row["source"] == row["target"] for row in rows):
                raise DataError(
                    f"task.infilling needs rows with equal source and target; {rows.path} has none. Give a file twice"
                    f' (--data texts.txt,texts.txt), or one column for both (data.columns="source=text,target=text").'
                )
        return super().begin(source, rows, valid, setup)

    def key(self) -> str:
        return f"{super().key()}|{PIECES}" if self.settings.infilling else super().key()

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        return config.replace(head="language") if "head" in config.field_names() else config

    @classmethod
    def fits(cls, config: Settings) -> bool:
        source = getattr(config, "encoder", None)  # of two families, the one that reads
        words = (
            not isinstance(source, Mapping) or "vocab_size" in registry.family(source["family"]).config.field_names()
        )
        heads = getattr(config, "uses", (getattr(config, "head", "language"),))
        pair = "decoder_start" in config.field_names() and "language" in heads
        return (
            pair and words and not {"image_size", "n_mels"} & set(config.field_names())
        )  # what sees or hears does not read

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        if model.decoder_start is None or "language" not in model.heads or "input_ids" not in model.names:
            raise FolderError(f"{path} holds a {model.family} model, which is not an encoder-decoder for text.")

    # Rows to loss.

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        if "target" not in rows[0]:
            return [{"input_ids": ids} for ids in self._encode(texts_of(rows, "source"), self.max_length)]
        pairs = list(zip(texts_of(rows, "source"), texts_of(rows, "target"), strict=True))
        if not self.settings.infilling:
            return self._pairs(pairs)
        parts = [[(piece, piece) for piece in training_chunks(a)] if a == b else [(a, b)] for a, b in pairs]
        flat = [(row, *pair) for row, some in enumerate(parts) for pair in some]
        examples = self._pairs([pair for _, *pair in flat])
        return [
            {"row": row, **example, CORRUPTED: int(source == target)}
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
        return [shorten([*ids, *ends], self.max_target_length, text) for ids, text in zip(rows, texts, strict=True)]

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = self.pad(examples)
        if CORRUPTED in examples[0]:
            batch |= self._spoil(batch, torch.tensor([bool(example[CORRUPTED]) for example in examples]), generator)
        if "labels" in examples[0]:
            rows = [example["labels"] for example in examples]
            batch["labels"] = pad_labels(rows)
            batch["decoder_attention_mask"] = pad(rows, 0)["attention_mask"]
        return batch

    def _spoil(self, batch: Batch, chosen: Tensor, generator: Generator) -> Batch:
        framing = special_tokens(batch["input_ids"], self.framing)
        special = framing | (batch["attention_mask"] == 0) | ~chosen.unsqueeze(1)
        return infilling(batch, special, self.mark, self.tokenizer.pad_id or 0, generator, self.settings.infilling)

    def loss(self, batch: Batch) -> Loss:
        if self.settings.r_drop == 0 or not self.model.training:
            return self._loss(batch, self.smoothing)
        labels, logits, again = batch["labels"], self.scores(batch), self.scores(batch)
        total, count = token_loss(logits, labels, self.smoothing)
        both = (total + token_loss(again, labels, self.smoothing)[0]) / 2
        return Loss(both + self.settings.r_drop * divergence(logits, again, labels != IGNORED), count)

    def _loss(self, batch: Batch, smoothing: float) -> Loss:
        return Loss(*token_loss(self.scores(batch), batch["labels"], smoothing))

    def scores(self, batch: Batch) -> Tensor:
        given = {name: value for name, value in batch.items() if name != "labels"}
        logits: Tensor = self.model(**given, decoder_input_ids=self.model.shift_right(batch["labels"])).logits
        return logits

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        total = Total()
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows)):
                total.add(self._loss(batch, 0.0))
        pairs = zip(texts_of(rows, "source"), texts_of(rows, "target"), strict=True)
        asked = [(source, target) for source, target in pairs if not self.settings.infilling or source != target]
        texts, wanted = [source for source, _ in asked], [target for _, target in asked]
        said = [str(answer) for answer in self.write(texts, progress=progress, careful=self.detailed)]
        figures = self.figures(said, wanted) if asked else {}
        if asked and len(asked) < len(rows):
            figures["written"] = len(asked)  # the others have their loss alone
        if self.detailed and "bleu" in figures and len(texts) >= ENOUGH:

            def some(chosen: Sequence[int]) -> float:
                return float(self.figures([said[i] for i in chosen], [wanted[i] for i in chosen])["bleu"])

            figures["by_length"] = by_length(texts, some)
        return {**figures, "loss": total.mean, "perplexity": perplexity(total.total, int(total.count))}

    def figures(self, said: list[str], wanted: list[str]) -> Metrics:
        if not has_sacrebleu():
            return {}
        options = cast("TranslateOptions", self.settings)
        return bleu(said, wanted, lowercase=options.lowercase, tokenize=options.tokenize)

    def answers(self, things: list[str], **options: Any) -> list[Any]:
        """`options` are those of `model.generate`. A blank text has a blank answer. With `num_return_sequences` above 1
        each text has a list of so many answers, the best first."""
        texts = [clean(text_of(one, "source")).strip() for one in things]
        warn_of_languages(self.settings.language, texts)
        lines = [self._lines(text) for text in texts]
        asked = [part for some in lines for part in chain(*some) if self._is_asked(part)]
        self._say_what_is_cut(asked)
        written, many = self._write(asked, options, careful=True), count({**self.writing, **options})
        ranked = [iter([some[rank] for some in written]) for rank in range(many)]
        answers = [[self._joined(text, some, said) for said in ranked] for text, some in zip(texts, lines, strict=True)]
        return answers if many > 1 else [some[0] for some in answers]

    def answer_ids(self, text: str, **options: Any) -> list[int]:
        """Ids of the answer that a call gives to a text, with the end unless it was cut short."""
        said = self(text, **options)
        ids = list(said.ids)
        if self.tokenizer.target.decode(ids).strip() != said.text:  # joined, or names put right
            ids = self.tokenizer.target.encode(said.text, special=False)
        (source,) = self._encode([said.source])
        ended = self.end is not None and (
            said.sentences or len(said.ids) < self._choose([source], options)["max_new_tokens"]
        )
        return [*ids, cast("int", self.end)] if ended else ids

    def _lines(self, text: str) -> list[list[str]]:
        """What is read by itself, by lines."""
        if not self.settings.sentences:
            return [[text]] if text else []
        return [
            [part for one in line for part in clauses(one, self.settings.clauses)]
            for line in split_lines_and_sentences(text)
        ]

    def _is_asked(self, part: str) -> bool:
        """Of single sentences, those without a word (an emoji, a row of stars) are left as they are."""
        return not self.settings.sentences or any(letter.isalnum() for letter in part)

    def _joined(self, text: str, lines: list[list[str]], said: Iterator[Written]) -> Written:
        found = [[next(said) if self._is_asked(part) else Written(part, part, ()) for part in line] for line in lines]
        parts = tuple(chain(*found))
        if len(parts) == 1:
            return parts[0]
        return join("\n".join(" ".join(fitted(line)) for line in found), text, parts)

    def _say_what_is_cut(self, texts: list[str]) -> None:
        if are_counted():
            return
        lengths = [len(ids) for ids in self._encode(texts)] if texts else []
        long = [length for length in lengths if length > self.max_length]
        if long:
            what = f"a text of {long[0]} tokens was" if len(long) == 1 else f"{len(long)} texts were"
            warnings.warn(f"The model's maximum length is {self.max_length} tokens, so {what} truncated.", stacklevel=3)

    def write(
        self,
        texts: list[str],
        options: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        careful: bool = False,
    ) -> list[Written]:
        """The best answer to each text, in the order in which they came; `careful` as in a call."""
        return [some[0] for some in self._write(texts, options or {}, progress, careful)]

    def _write(
        self, texts: list[str], options: Mapping[str, Any], progress: Progress | None = None, careful: bool = False
    ) -> list[list[Written]]:
        """Texts of like length together, the longest first, in the order in which they came."""
        calm = careful and self.settings.sentences
        read = [lowered(text) if calm and is_shouted(text) else text for text in texts]
        sources = (
            [example["input_ids"] for example in self.examples([{"source": text} for text in read])] if texts else []
        )
        order = sorted(range(len(texts)), key=lambda i: -len(sources[i]))
        found: dict[int, list[Written]] = {}
        for start in range(0, len(order), AT_ONCE):
            some = order[start : start + AT_ONCE]
            written = self._some([read[i] for i in some], [sources[i] for i in some], options, careful)
            for i, answers in zip(some, written, strict=True):
                found[i] = answers if read[i] == texts[i] else [shouted(one, texts[i]) for one in answers]
            if progress is not None:
                progress(min(start + AT_ONCE, len(order)), len(order))
        return [found[i] for i in range(len(texts))]

    def _some(
        self, texts: list[str], rows: list[list[int]], options: Mapping[str, Any], careful: bool
    ) -> list[list[Written]]:
        chosen = self._choose(rows, options)
        keeps = careful and self.settings.copies and chosen["num_beams"] > 1 and not chosen.get("do_sample")
        keeps = keeps and count(chosen) == 1
        more = {"num_return_sequences": chosen["num_beams"], "logprobs": True} if keeps else {}
        given = self._generate(rows, {**chosen, **more})
        if careful and "no_repeat_ngram_size" not in chosen and not model_generation_config(self.model):
            given = self._without_loops(rows, given, {**chosen, **more})
        if keeps:  # the one that keeps the most names must not loop either
            given = [
                [one for one in some if not loops(one.ids, row)] or some[:1]
                for row, some in zip(rows, given, strict=True)
            ]
        answers = [
            [self._written(text, row, one) for one in some] for text, row, some in zip(texts, rows, given, strict=True)
        ]
        return [[self._keep(some, bool(chosen.get("logprobs")))] for some in answers] if keeps else answers

    def _without_loops(
        self, rows: list[list[int]], given: list[list[Generated]], chosen: dict[str, Any]
    ) -> list[list[Generated]]:
        """The same, but what runs into a loop is written again, and cut there if it does so once more."""
        again = [i for i, some in enumerate(given) if loops(some[0].ids, rows[i])]
        if not again or "decoder_input_ids" in chosen:
            return given
        anew = self._generate([rows[i] for i in again], {**chosen, "no_repeat_ngram_size": NO_REPEAT})
        for i, some in zip(again, anew, strict=True):
            given[i] = [one.cut(repeats(one.ids)[1]) if loops(one.ids, rows[i]) else one for one in some]
        return given

    def _keep(self, some: list[Written], logprobs: bool) -> Written:
        """Of one text's answers the one that keeps its names and numbers best, with those nearly right put right."""
        scores = [sum(one.logprobs or ()) / max(len(one.ids), 1) for one in some]
        one = some[best(some[0].source, [str(one) for one in some], scores)]
        text = mend(one.source, one.text, self._doubts(one)) if names(one.source) else one.text
        return replace(one, text=text, logprobs=one.logprobs if logprobs else None)

    def _doubts(self, one: Written) -> list[float]:
        """The log-probability of the token of each letter."""
        found: list[float] = []
        for n, value in enumerate(one.logprobs or ()):
            length = len(self.tokenizer.target.decode(list(one.ids[: n + 1])).lstrip())
            found += [value] * (length - len(found))
        return [*found, *[0.0] * (len(one.text) - len(found))]

    def _written(self, text: str, source: Sequence[int], one: Generated) -> Written:
        said = self.tokenizer.target.decode(list(one.ids)).strip()
        if one.alignment is None:
            return Written(said, text, one.ids, logprobs=one.logprobs)
        tokens = self.tokenizer.target.tokens(one.ids), self.tokenizer.tokens(source)
        return Written(said, text, one.ids, (), one.logprobs, one.alignment, *map(tuple, tokens))

    @property
    def manners(self) -> Mapping[str, Any]:
        """More that `model.generate` is told, where the call says nothing else."""
        return {}

    def _choose(self, rows: list[list[int]], options: Mapping[str, Any]) -> dict[str, Any]:
        """What `model.generate` is told of these rows."""
        most = min(self.max_target_length, max(map(len, rows), default=0) * RATIO + SPARE)
        free = self.settings.sentences and not {"max_new_tokens", "max_length"} & {*self.writing, *options}
        return {**self.decoding, **({"max_new_tokens": most} if free else {}), **options}

    def _generate(self, rows: list[list[int]], chosen: dict[str, Any]) -> list[list[Generated]]:
        if not all(rows):
            raise InputError("A text is empty; give at least one character.")
        batch = {name: value.to(self.model.device) for name, value in pad(rows, self.tokenizer.pad_id or 0).items()}
        with answering(self.model):
            return generated(self.model, batch, chosen, {self.end, self.model.padding})

    @property
    def decoding(self) -> dict[str, Any]:
        """What `model.generate` is told in every call that says nothing else."""
        ends = {"eos_token_id": self.end} if self.model.config.to_json().get("end") is None else {}
        return {
            **ends,
            "num_beams": self.settings.num_beams,
            "length_penalty": self.settings.length_penalty,
            "max_new_tokens": self.max_target_length,
            **self.manners,
            **self.writing,
        }

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        if not fresh:
            return {"batch_tokens": 4096, "lr": 1e-4, "schedule": "linear", "warmup_steps": 200, "label_smoothing": 0.1}
        more = {"optimizer": "adam", "schedule": "inverse_sqrt", "warmup_steps": 2000, "label_smoothing": 0.1}
        return {"batch_tokens": 4096, "lr": 7e-4, **more}


def training_chunks(text: str) -> list[str]:
    """The same every time, for a text."""
    if text.strip() == BREAK:
        return []
    chance = random.Random(zlib.crc32(text.encode()))
    return group_sentences(text, iter(lambda: chance.choice(PIECES), None), max(PIECES))
