"""Numbers written out in English and in German, as ids: a small translation of two real languages that needs no data
and comes in every length. The demo's words and splits; German says the units before the tens."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

import torch
from torch import Generator, Tensor

from anyformer.cli.demo.number_translation import END, PADDING, Corpus, Pair, teacher, write_out
from anyformer.forward_context import IGNORED

Batch = dict[str, Tensor]


@cache
def corpus(count: int, tests: int, digits: int, seed: int = 0) -> tuple[Corpus, list[Pair]]:
    """Pairs to learn from, every number of digits as likely, and the pairs that the last `tests` of its rows are."""
    chance = random.Random(seed)
    drawn: dict[int, None] = {}
    while len(drawn) < count + tests:
        n = chance.randint(1, digits)
        drawn[chance.randrange(10 ** (n - 1), 10**n)] = None
        if len(drawn) < 60:
            drawn[len(drawn)] = None  # the words that all others are made of
    pairs = [write_out(number) for number in drawn]
    return Corpus(pairs), pairs[count:]


@dataclass(frozen=True)
class Rows:
    """Batches of the corpus's rows; the last `tests` are not learned from."""

    corpus: Corpus
    tests: int

    @property
    def count(self) -> int:
        return len(self.corpus.source) - self.tests

    def draw(self, rows: int, chance: Generator) -> Batch:
        return self.one_stack(torch.randint(0, self.count, (rows,), generator=chance).tolist())

    def draw_pairs(self, rows: int, chance: Generator) -> Batch:
        return self.pairs(torch.randint(0, self.count, (rows,), generator=chance).tolist())

    def one_stack(self, rows: list[int]) -> Batch:
        """For a single causal stack: the English, then the German, of which each next word is to be said."""
        both = [(self.corpus.source[row], self.corpus.target[row]) for row in rows]
        ids = _pad([source + target for source, target in both], PADDING)
        said = [[IGNORED] * (len(source) - 1) + target + [IGNORED] for source, target in both]
        mask = _pad([[1] * len(source + target) for source, target in both], 0)
        return {"input_ids": ids, "attention_mask": mask, "labels": _pad(said, IGNORED)}

    def pairs(self, rows: list[int]) -> Batch:
        """For an encoder and a decoder."""
        source, target = ([side[row] for row in rows] for side in (self.corpus.source, self.corpus.target))
        mask = _pad([[1] * len(ids) for ids in source], 0)
        return {
            "input_ids": _pad(source, PADDING),
            "attention_mask": mask,
            "decoder_input_ids": teacher(_pad(target, PADDING)),
            "labels": _pad(target, IGNORED),
        }


def _pad(rows: list[list[int]], value: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


GENERATION = {"eos_token_id": END, "pad_token_id": PADDING, "decoder_start_token_id": PADDING}
