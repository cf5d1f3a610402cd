"""The demo: the original Transformer learns, in about a minute, to translate number words from English to German.

    three hundred and forty-two thousand, seven hundred and sixty-one
    dreihundertzweiundvierzigtausendsiebenhunderteinundsechzig

German says the units before the tens ("two-and-forty"), so attention has something to show. The words come from
num2words; the model never sees the numbers that it is tested on.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer.config import Settings
from anyformer.errors import Error
from anyformer.heads.base import IGNORED
from anyformer.model import Model
from anyformer.text.tokenizer import Tokenizer, pad
from anyformer.train.data import even_batches
from anyformer.train.engine import Progress, TrainSettings, train
from anyformer.train.losses import next_token_loss
from anyformer.train.optim import paper_peak

LIMIT = 1_000_000
LONGEST = 64  # tokens; the longest number has 14


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Settings):
    numbers: int = 20_000  # to learn from
    tests: int = 1_000
    steps: int = 900
    batch_size: int = 128
    d_model: int = 128
    n_layers: int = 2
    n_heads: int = 4
    dropout: float = 0.1
    smoothing: float = 0.1
    warmup: int = 300
    lr: float = 0.002
    seed: int = 1


@dataclass(frozen=True)
class Pair:
    number: int
    english: str
    german: str


def draw_numbers(count: int, tests: int, seed: int) -> tuple[list[int], list[int]]:
    """Numbers to learn from and numbers to be tested on, with none in both.

    Half are drawn evenly from 0 to 999,999, where nearly all have six digits, and half so that every length is as
    likely. All below 100 are for learning: they are the words that the others are made of.
    """
    chance = random.Random(seed)
    drawn: dict[int, None] = dict.fromkeys(range(100))
    while len(drawn) < count + tests:
        drawn[chance.randrange(LIMIT)] = None
        drawn[int(LIMIT ** chance.random())] = None
    numbers = list(drawn)[100 : count + tests]
    chance.shuffle(numbers)
    return [*range(100), *numbers[tests:]], numbers[:tests]


def write_out(number: int) -> Pair:
    from num2words import num2words

    return Pair(number, num2words(number, lang="en"), num2words(number, lang="de"))


def split_english(text: str) -> str:
    """twenty-one thousand, five -> twenty one thousand five"""
    return " ".join(re.findall(r"\w+", text))


def split_german(text: str) -> str:
    """einundzwanzigtausendfünf -> ein und zwanzig tausend fünf"""
    return " ".join(re.sub(r"(hundert|tausend|und)", r" \1 ", text).split())


def join_german(text: str) -> str:
    """German writes a number below a million as one word."""
    return text.replace(" ", "")
