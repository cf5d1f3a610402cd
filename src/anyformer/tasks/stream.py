"""Text as one stream of tokens in windows of constant length, without padding; each epoch has another offset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError
from anyformer.tasks.base import DEFAULT_SETUP, BatchPlan, Input, Reply, Source, TaskSetup
from anyformer.tasks.text import TextTask, texts_of

BREAK = "<|endoftext|>"  # a line that stands between documents, in the files of the field


class TokenWindows:
    """Starts of the windows of every epoch. `context` tokens before each are read too; the first epoch starts at 0,
    others at a random offset below one window."""

    def __init__(self, tokens: int, size: int, context: int, settings: BatchConfig, seed: int) -> None:
        if not settings.shuffle:  # a text to evaluate on may be shorter than a window
            size = max(min(size, tokens - context), 1)
        self.tokens, self.size, self.context, self.settings, self.seed = tokens, size, context, settings, seed
        if tokens - context < size:
            raise DataError(
                f"The text has {tokens:,} tokens, fewer than one window of {context + size:,}; give more text, or a"
                " smaller data.max_length."
            )
        self.rows = settings.rows if settings.tokens is None else max(settings.tokens // size, 1)

    padding = 0.0

    def global_batches(self, n: int) -> Sequence[Index]:
        chance = np.random.default_rng((self.seed, n))
        room = self.tokens - self.context
        shift = int(chance.integers(min(self.size, room - self.size + 1))) if n and self.settings.shuffle else 0
        starts = self.context + shift + self.size * np.arange((room - shift) // self.size)
        if self.settings.shuffle:
            starts = chance.permutation(starts)
        return [starts[i : i + self.rows] for i in range(0, len(starts), self.rows)]


class StreamTask(TextTask[Input, Reply]):
    """A row is a line or a document; an example is the position of the first token of a window."""

    batch = BatchConfig(tokens=4096)  # the scores of all words at 4,096 places fit into any memory
    columns_of_text = ("content", "body", "document", "story", "article")
    windows = True
    ahead = 0  # tokens of a window beyond the model's own (the next token is a label)

    @property
    def window(self) -> int:
        """Tokens of the text in a window."""
        return self.max_length

    @property
    def context(self) -> int:
        """Tokens before a window that are read with it."""
        return 0

    runs_on: bool = True  # whether lines follow one another, as those of a text file do

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        task = super().begin(source, rows, valid, setup)
        task.runs_on = rows.kind == "text"
        return task

    @classmethod
    def texts(cls, rows: Rows) -> Iterator[str]:
        return (f"{row['text']}\n" if rows.kind == "text" else str(row["text"]) for row in rows)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "runs_on": self.runs_on}

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        """The ids of each row, its end with it: a newline where lines run on, else the token that ends a text."""
        texts = texts_of(rows, "text")
        end = [self.tokenizer.end_id] if self.tokenizer.end_id is not None else []
        if self.runs_on and self.keeps_newlines:
            ids = self.tokenizer.encode([text + "\n" for text in texts], special=False)
            return [{"input_ids": end if text == BREAK else row} for text, row in zip(texts, ids, strict=True)]
        ids = self.tokenizer.encode(texts, special=False)
        return [{"input_ids": end if text == BREAK else [*row, *end]} for text, row in zip(texts, ids, strict=True)]

    @cached_property
    def keeps_newlines(self) -> bool:
        return "\n" in self.tokenizer.decode(self.tokenizer.encode("a\nb", special=False))

    def flat(self, examples: Examples) -> Any:
        return examples.fields["input_ids"].flat

    def plan(self, examples: Examples, settings: BatchConfig, seed: int = 0) -> BatchPlan:
        return TokenWindows(len(self.flat(examples)) - self.ahead, self.window, self.context, settings, seed)

    def gather(self, examples: Examples, numbers: Sequence[int] | Index) -> list[Example]:
        flat = self.flat(examples)
        return [
            {"input_ids": np.asarray(flat[int(i) - self.context : int(i) + self.window + self.ahead], dtype=np.int64)}
            for i in numbers
        ]

    def row_of(self, examples: Examples, number: int) -> int:
        offsets = examples.fields["input_ids"].offsets
        assert offsets is not None
        return int(np.searchsorted(offsets, number, side="right")) - 1

    def characters(self, rows: Rows) -> int:
        """Of the whole text, newlines among them."""
        return sum(len(row["text"]) + 1 for row in rows)
