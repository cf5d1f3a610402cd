"""A text cut into its lines and their sentences, by plain rules that suit English and its neighbors.

cut("It rains. Mr. Hill stays.\\n\\nGood night!") -> [["It rains.", "Mr. Hill stays."], [], ["Good night!"]]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# What ends a sentence, marks that close, white space; and the letter or digit that comes next, marks before it or not.
STOP = re.compile(r"(?<![.!?…])([.!?…]+)[\"'”’»)\]]*\s+(?=[^\w\s]*(\w))")
TITLES = frozenset("mr mrs ms dr prof st jr sr gen col capt lt sgt rev hon vs approx".split())
NUMBERED = frozenset("no nos fig p pp vol ch sec jan feb mar apr jun jul aug sep sept oct nov dec".split())
LETTERS = re.compile(r"[A-HJ-Z]|[A-Za-z](\.[A-Za-z])+")  # J. Smith, U.S., e.g.; "I" ends sentences
CONJUNCTIONS = frozenset("and but or so because although though while when where which who whom whose that if".split())
SHORTEST = 3  # no part of a sentence is shorter than the longest by this, if it can be helped


def split_lines_and_sentences(text: str) -> list[list[str]]:
    """The sentences of each line; a blank line has none."""
    return [split_sentences(line) for line in text.strip().splitlines()]


def clauses(sentence: str, most: int) -> list[str]:
    """A sentence of more than `most` words in parts of about the same length: cut after commas, else before
    conjunctions, else anywhere. 0: never."""
    words = sentence.split()
    if not most or len(words) <= most:
        return [sentence]
    found = []
    while len(words) > most:
        place = _border(words, most)
        found.append(" ".join(words[:place]))
        words = words[place:]
    return [*found, " ".join(words)]


def _border(words: list[str], most: int) -> int:
    """How many of more than `most` words to cut off."""
    size = -(-len(words) // -(-len(words) // most))  # if all parts were alike
    places = range(max(most // SHORTEST, 1), most + 1)
    commas = [n for n in places if words[n - 1].endswith((",", ";", ":", "—", "–"))]
    joints = [n for n in places if words[n].lower() in CONJUNCTIONS]
    return min(commas or joints or [size], key=lambda n: abs(n - size))


def group_sentences(text: str, limits: Iterator[int], most: int) -> list[str]:
    """Neighboring sentences together, as many as have no more words than the next of the `limits`, or one alone; one
    of more than `most` words is cut. Blank lines are left out."""
    parts = [
        (" " if n or start else "\n", words[start : start + most])
        for line in split_lines_and_sentences(text)
        for n, words in enumerate(sentence.split(" ") for sentence in line)
        for start in range(0, len(words), most)
    ]
    found: list[str] = []
    held, many, limit = "", 0, next(limits)
    for joint, part in parts:
        if held and many + len(part) > limit:
            found.append(held)
            held, many, limit = "", 0, next(limits)
        held += (joint if held else "") + " ".join(part)
        many += len(part)
    return [*found, held] if held else found


def split_sentences(line: str) -> list[str]:
    """A stop ends a sentence where a capital or a digit follows; in a line without capitals, any letter."""
    line = line.strip()
    small = not any(letter.isupper() for letter in line)
    found, start = [], 0
    for stop in STOP.finditer(line):
        begin = max(line.rfind(" ", start, stop.start(1)) + 1, start)
        word, follows = line[begin : stop.end(1)].lstrip("\"'“‘«(["), stop[2]
        numbers = begin == start and word[:-1].isdigit()  # 1. First of a list
        if (small or follows.isupper() or follows.isdigit()) and not numbers and not _is_short(word, follows):
            found.append(line[start : stop.end()].strip())
            start = stop.end()
    return [*found, line[start:]] if line else []


def _is_short(word: str, follows: str) -> bool:
    """Whether the stop belongs to an abbreviation."""
    name = word.removesuffix(".")
    if name.endswith((".", "!", "?", "…")):
        return False
    return bool(name.lower() in TITLES or LETTERS.fullmatch(name) or (follows.isdigit() and name.lower() in NUMBERED))
