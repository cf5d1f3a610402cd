"""Next-sentence prediction (Devlin et al. 2019, §A.2): chunks of documents with the maximum length, each split in two
at a line; with probability one half the second part is from another document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from anyformer.data.examples import Example, Examples
from anyformer.errors import DataError
from anyformer.tokenizers.padding import truncate_pair

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class DocumentChunks:
    """Consecutive lines of a document: the first line, the end, the document, the number of tokens of each chunk."""

    first: Ids
    after: Ids
    document: Ids
    sizes: Ids

    def example(self, examples: Examples, number: int) -> Example:
        """The lines of a piece, and of one of another document, some way off."""
        lines = _lines(examples, int(self.first[number]), int(self.after[number]))
        there = np.searchsorted(self.document, self.document[number] + 1)  # the next document's first piece
        there = int(there) if there < len(self.document) else 0
        away = (there + number * 7919) % len(self.document)  # a prime: every piece meets many others
        other = away if self.document[away] != self.document[number] else there
        return {"lines": lines, "others": _lines(examples, int(self.first[other]), int(self.after[other]))}


def _lines(examples: Examples, first: int, after: int) -> list[Ids]:
    field = examples.fields["input_ids"]
    return [np.asarray(field[i], dtype=np.int64) for i in range(first, after)]


def cut_documents(sizes: Ids, room: int) -> DocumentChunks:
    """Documents stand between blank lines; a piece takes lines of one as long as they fit into `room` tokens, and at
    least two where there are two."""
    first: list[int] = []
    after: list[int] = []
    documents: list[int] = []
    lengths: list[int] = []
    document, start, held, blank = 0, 0, 0, True

    def close(end: int) -> None:
        if held and end - start == 1 and documents and documents[-1] == document:
            after[-1] = end  # a line by itself has nothing to follow it: it joins the piece before
            lengths[-1] = min(lengths[-1] - 3 + held, room) + 3
        elif held:
            first.append(start)
            after.append(end)
            documents.append(document)
            lengths.append(min(held, room) + 3)

    for i, size in enumerate(sizes.tolist()):
        if not size:
            close(i)
            document += not blank
            blank, held = True, 0
            continue
        if blank or (held + size > room and i - start > 1):
            close(i)
            start, held = i, 0
        held, blank = held + size, False
    close(len(sizes))
    if len(set(documents)) < 2:
        raise DataError(
            "task.next_sentence needs two documents or more, separated by a blank line: negative examples are taken"
            " from another document."
        )
    return DocumentChunks(*(np.array(column, dtype=np.int64) for column in (first, after, documents, lengths)))


def join_pairs(
    examples: Sequence[Example], frame: tuple[list[int], list[int]], room: int, generator: Generator
) -> tuple[list[Ids], list[Ids], list[int]]:
    """[CLS] a [SEP] b [SEP] of each piece, with `room` for a and b; its types; and 0 where b follows a, 1 where it is
    from elsewhere."""
    start, end = (np.array(side, dtype=np.int64) for side in frame)
    drawn = torch.rand(len(examples), 3, generator=generator).numpy()
    rows, types, labels = [], [], []
    for example, (kind, split, line) in zip(examples, drawn, strict=True):
        lines, others = example["lines"], example["others"]
        size = max(min(sum(map(len, lines)), room), 2)
        cut = 1 + int(split * (len(lines) - 1)) if len(lines) > 1 else 1
        follows = kind < 0.5 and len(lines) > 1
        begin = int(line * len(others))
        second = lines[cut:] if follows else others[begin:]
        a, b = _fit(np.concatenate(lines[:cut]), np.concatenate(second), size)
        rows.append(np.concatenate([start, a, end, b, end]))
        types.append(np.repeat([0, 1], [len(start) + len(a) + len(end), len(b) + len(end)]))
        labels.append(0 if follows else 1)
    return rows, types, labels


def _fit(a: Ids, b: Ids, room: int) -> tuple[Ids, Ids]:
    """Both cut, the longer first, until they fit."""
    one, other = truncate_pair(len(a), len(b), room)
    return a[:one], b[:other]
