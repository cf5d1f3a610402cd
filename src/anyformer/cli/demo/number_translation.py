"""Demo: train a small Transformer in about a minute to translate number words from English to German.

    three hundred and forty-two thousand, seven hundred and sixty-one
    dreihundertzweiundvierzigtausendsiebenhunderteinundsechzig

German puts the units before the tens ("two-and-forty"), so the alignment is not monotonic. The words come from
num2words; test numbers are not in the training data.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer.config import Settings
from anyformer.errors import FolderError
from anyformer.forward_context import IGNORED
from anyformer.heads.cross_entropy import token_loss
from anyformer.model import Model
from anyformer.progress import progress_bar
from anyformer.tasks.base import Loss
from anyformer.tokenizers.padding import pad
from anyformer.tokenizers.tokenizer import Tokenizer
from anyformer.training.callbacks import Progress
from anyformer.training.seeds import mix_seeds
from anyformer.training.settings import TrainSettings
from anyformer.training.trainer import train

LIMIT = 1_000_000
MAX_LENGTH = 64  # tokens; the longest number has 14
PADDING, END = 0, 1  # ids in every vocabulary of Tokenizer.train; decoding starts with the padding token


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    """Hyperparameters: a small transformer-base that trains in less than a minute on one core."""

    numbers: int = 20_000  # training numbers
    tests: int = 1_000
    steps: int = 1_000
    batch_size: int = 64
    d_model: int = 96
    d_hidden: int = 256
    n_layers: int = 2
    n_heads: int = 4
    dropout: float = 0.1
    smoothing: float = 0.1
    warmup: int = 200
    lr: float = 0.002
    seed: int = 1


@dataclass(frozen=True)
class Pair:
    """A number and its words in both languages."""

    number: int
    english: str
    german: str


def draw_numbers(count: int, tests: int, seed: int) -> tuple[list[int], list[int]]:
    """Draw disjoint training and test numbers.

    Half are uniform from 0 to 999,999, where nearly all have six digits; half are log-uniform, so that all lengths are
    equally likely. All numbers below 100 are training numbers, because the others consist of their words.
    """
    generator = random.Random(seed)
    drawn: dict[int, None] = dict.fromkeys(range(100))
    while len(drawn) < count + tests:
        drawn[generator.randrange(LIMIT)] = None
        drawn[int(LIMIT ** generator.random())] = None
    numbers = list(drawn)[100 : count + tests]
    generator.shuffle(numbers)
    return [*range(100), *numbers[tests:]], numbers[:tests]


def write_out(number: int) -> Pair:
    """A number with its words."""
    from num2words import num2words

    return Pair(number, num2words(number, lang="en"), num2words(number, lang="de"))


def split_english(text: str) -> str:
    """twenty-one thousand, five -> twenty one thousand five"""
    return " ".join(re.findall(r"\w+", text))


def split_german(text: str) -> str:
    """einundzwanzigtausendfünf -> ein und zwanzig tausend fünf"""
    return " ".join(re.sub(r"(hundert|tausend|und)", r" \1 ", text).split())


def join_german(text: str) -> str:
    """Remove spaces: German writes a number below a million as one word."""
    return text.replace(" ", "")


class Corpus:
    """The tokenized pairs, their vocabulary, and batches for teacher forcing."""

    def __init__(self, pairs: list[Pair]) -> None:
        sides = [split_english(pair.english) for pair in pairs], [split_german(pair.german) for pair in pairs]
        self.tokenizer = Tokenizer.train(chain(*sides), kind="word", vocab_size=1000, end=True, progress=False)
        self.source, self.target = ([self.tokenizer.encode(text) for text in side] for side in sides)

    def collate(self, rows: Sequence[int]) -> dict[str, Tensor]:
        target = pad([self.target[row] for row in rows], PADDING)
        return {
            "input_ids": torch.tensor([self.source[row] for row in rows]),
            "decoder_input_ids": teacher(target["input_ids"]),
            "labels": target["input_ids"].masked_fill(target["attention_mask"] == 0, IGNORED),
        }


def even_batches(lengths: Sequence[int], batch_size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch. All rows of a batch have equal length, so no source padding is needed.

    Every row is used once per epoch; rows and batches are reshuffled for every epoch.
    """
    order = random.Random(mix_seeds(seed, epoch))
    by_length: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        by_length.setdefault(length, []).append(row)
    batches = []
    for rows in by_length.values():
        order.shuffle(rows)
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    order.shuffle(batches)
    return batches


class NumberTask:
    """The training task: predict the German words from the English ones."""

    metric, larger_is_better, slow, steady, streams = "exact", True, False, False, 0
    contrastive = False

    def __init__(self, model: Model, corpus: Corpus, settings: DemoSettings) -> None:
        self.model, self.corpus, self.settings = model, corpus, settings
        self.fills: dict[str, int] = {}
        self.longest = None

    def carry(self, rows: int) -> dict[str, Tensor]:
        return {}

    def batches(self, epoch: int) -> list[list[int]]:
        lengths = [len(ids) for ids in self.corpus.source]
        return even_batches(lengths, self.settings.batch_size, self.settings.seed, epoch)

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        return self.corpus.collate(rows)

    def ready(self, batch: dict[str, Tensor], generator: torch.Generator | None) -> dict[str, Tensor]:
        return batch

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return Loss(*token_loss(self.model(**inputs).logits, batch["labels"], self.settings.smoothing))

    def evaluate(self) -> dict[str, float | str]:
        return {}  # the test runs after training

    def save(self, folder: Path) -> None:
        self.model.save(folder)
        self.corpus.tokenizer.save(folder)

    def where(self, row: int) -> str:
        return f"pair {row + 1}"


def teacher(target: Tensor) -> Tensor:
    """The decoder input for teacher forcing: the start token, then the target without its last token."""
    return torch.nn.functional.pad(target[:, :-1], (1, 0), value=PADDING)


def make_model(settings: DemoSettings, vocab_size: int) -> Model:
    """Build the model with its generation settings."""
    torch.manual_seed(settings.seed)
    model = af.build(
        "transformer-base",
        n_layers=settings.n_layers,
        d_model=settings.d_model,
        n_heads=settings.n_heads,
        d_hidden=settings.d_hidden,
        vocab_size=vocab_size,
        max_length=MAX_LENGTH,
        dropout=settings.dropout,
    ).eval()
    model.origin.generation = {
        "eos_token_id": END,
        "pad_token_id": PADDING,
        "decoder_start_token_id": PADDING,
        "max_length": MAX_LENGTH,
    }
    return model


def translate(model: Model, tokenizer: Tokenizer, english: list[str]) -> list[str]:
    """Translate English number words to German."""
    batch: dict[str, Any] = {**tokenizer([split_english(text) for text in english])}
    ids: Any = model.generate(**batch)
    return [join_german(tokenizer.decode(row)) for row in ids]


@dataclass(frozen=True)
class Result:
    """Answers on the test numbers, and the files that were written."""

    pairs: list[Pair]  # test pairs
    answers: list[str]
    folder: Path  # of the model
    image: Path | None  # plot of the alignment; None if no test number is suitable

    @property
    def exact(self) -> float:
        """The fraction of exact matches."""
        return sum(self.right) / len(self.right)

    @property
    def right(self) -> list[bool]:
        """Whether each answer is an exact match."""
        return [pair.german == answer for pair, answer in zip(self.pairs, self.answers, strict=True)]


def run(out: str | Path = "demo-output", settings: DemoSettings | None = None) -> Result:
    """Run the demo: create the data, train, test, and save the model and a plot to `out`."""
    settings = settings if settings is not None else DemoSettings()
    out = make_folder(Path(out))
    started = time.perf_counter()
    with one_thread():
        train_pairs, test = write_pairs(settings)
        corpus = Corpus(train_pairs)
        model = make_model(settings, len(corpus.tokenizer))
        print(describe(settings, model, corpus))
        train_model(model, corpus, settings)
        answers = translate(model, corpus.tokenizer, [pair.english for pair in test])
        model.save(out / "model")
        corpus.tokenizer.save(out / "model")
        result = Result(
            test, answers, out / "model", draw(model, corpus.tokenizer, test, answers, out / "alignment.png")
        )
    print(report(result, time.perf_counter() - started))
    return result


def make_folder(out: Path) -> Path:
    """Create the output folder. This runs before training, so that errors are reported early."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(None, "permission denied")
    except OSError as error:
        raise FolderError(f"--out is {out}, which cannot be written: {error.strerror}.") from None
    return out


@contextmanager
def one_thread() -> Iterator[None]:
    """Use a single thread. The matrices are small, so more threads do not help.

    It also fixes the order of summation, so that a seed gives the same model for any number of cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_pairs(settings: DemoSettings) -> tuple[list[Pair], list[Pair]]:
    """Training and test pairs."""
    train_numbers, test = draw_numbers(settings.numbers, settings.tests, settings.seed)
    with progress_bar("Writing numbers") as show:
        pairs = []
        for number in (*train_numbers, *test):
            pairs.append(write_out(number))
            show(len(pairs), len(train_numbers) + len(test), f"{number:,}")
    return pairs[: len(train_numbers)], pairs[len(train_numbers) :]


def train_model(model: Model, corpus: Corpus, settings: DemoSettings) -> None:
    """Train the model with a progress bar."""
    with progress_bar("Training") as show:

        def on_step(progress: Progress) -> None:
            speed, left = progress.tokens_per_second, progress.seconds_left
            known = "" if speed is None or left is None else f"  {speed:,.0f} tokens/s  {left:.0f} s left"
            show(progress.step, progress.steps, f"loss {progress.loss:.3f}{known}")

        train(NumberTask(model, corpus, settings), train_settings(settings), on_step=on_step)


def train_settings(settings: DemoSettings) -> TrainSettings:
    """The optimizer and schedule of the Transformer paper."""
    return TrainSettings(
        steps=settings.steps,
        batch_size=settings.batch_size,
        optimizer="adam",
        schedule="inverse_sqrt",
        lr=settings.lr,
        warmup_steps=settings.warmup,
        label_smoothing=settings.smoothing,
        seed=settings.seed,
        device="cpu",
        precision="float32",
    )


def draw(model: Model, tokenizer: Tokenizer, pairs: list[Pair], answers: list[str], path: Path) -> Path | None:
    """Plot the cross-attention of the last decoder layer (mean of heads) for a number in which two pairs of tens and
    units change order."""
    right = (pair for pair, answer in zip(pairs, answers, strict=True) if pair.german == answer)
    pair = next((pair for pair in right if pair.german.count("und") - pair.german.count("hundert") == 2), None)
    if pair is None:
        return None
    source = tokenizer([split_english(pair.english)])
    target = tokenizer([split_german(pair.german)])["input_ids"]
    with torch.inference_mode(), af.look(model, "decoder.blocks.*.cross.weights") as seen:
        model(**source, decoder_input_ids=teacher(target))
    weights = list(seen.values())[-1][0]  # [heads, target, source]
    labels = tokenizer.tokens(source["input_ids"][0]), tokenizer.tokens(target[0])
    title = f"{pair.number:,}: cross-attention from German to English words"
    af.plot.alignment(weights, *labels, path, title=title)
    return path


def describe(settings: DemoSettings, model: Model, corpus: Corpus) -> str:
    """A summary of the model and the data."""
    size = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return (
        f"Transformer with {settings.n_layers} + {settings.n_layers} layers of width {settings.d_model}:"
        f" {size:,} parameters, vocabulary of {len(corpus.tokenizer)} tokens.\n"
        f"{len(corpus.source):,} training numbers, {settings.tests:,} test numbers (not in the training data)."
    )


def report(result: Result, seconds: float) -> str:
    """The test score and the first ten answers."""
    lines = ["", f"Exact match on {len(result.pairs):,} unseen numbers: {result.exact:.1%}", ""]
    for pair, answer in list(zip(result.pairs, result.answers, strict=True))[:10]:
        mark = "" if answer == pair.german else f"   (wrong: {pair.german})"
        lines += [f"{pair.number:>9,}  {pair.english}", f"{'':>9}  {answer}{mark}"]
    lines += ["", f"Model: {result.folder} (load it with af.load)"]
    if result.image is not None:
        lines += [f"Alignment plot: {result.image}"]
    return "\n".join([*lines, f"Time: {seconds:.0f} s"])
