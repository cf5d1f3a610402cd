"""Splitting text into lines and sentences, by rules for English and similar languages.

split_lines_and_sentences("It rains. Mr. Hill stays.\\n\\nGood night!")
    -> [["It rains.", "Mr. Hill stays."], [], ["Good night!"]]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# end mark, closing marks, white space; then the next letter or digit, possibly after opening marks
STOP = re.compile(r"(?<![.!?…])([.!?…]+)[\"'”’»)\]]*\s+(?=[^\w\s]*(\w))")
TITLES = frozenset("mr mrs ms dr prof st jr sr gen col capt lt sgt rev hon vs approx".split())
NUMBERED = frozenset("no nos fig p pp vol ch sec jan feb mar apr jun jul aug sep sept oct nov dec".split())
LETTERS = re.compile(r"[A-HJ-Z]|[A-Za-z](\.[A-Za-z])+")  # J. Smith, U.S., e.g.; "I" ends sentences
CONJUNCTIONS = frozenset("and but or so because although though while when where which who whom whose that if".split())
SHORTEST = 3  # the first part has at least 1/SHORTEST of the maximum length, if possible


def split_lines_and_sentences(text: str) -> list[list[str]]:
    """Return the sentences of each line; a blank line has none."""
    return [split_sentences(line) for line in text.strip().splitlines()]


def clauses(sentence: str, most: int) -> list[str]:
    """Split a sentence of more than `most` words into parts of about equal length: after commas, else before
    conjunctions, else anywhere. 0 disables splitting.
    """
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
    """Return the number of words in the first part of more than `most` words."""
    size = -(-len(words) // -(-len(words) // most))  # equal parts
    cuts = range(max(most // SHORTEST, 1), most + 1)
    commas = [n for n in cuts if words[n - 1].endswith((",", ";", ":", "—", "–"))]
    joints = [n for n in cuts if words[n].lower() in CONJUNCTIONS]
    return min(commas or joints or [size], key=lambda n: abs(n - size))


def group_sentences(text: str, limits: Iterator[int], most: int) -> list[str]:
    """Group neighboring sentences, each group with at most as many words as the next of the `limits`, or one sentence.
    A sentence of more than `most` words is split. Blank lines are dropped.
    """
    parts = [
        (" " if n or start else "\n", words[start : start + most])
        for line in split_lines_and_sentences(text)
        for n, words in enumerate(sentence.split(" ") for sentence in line)
        for start in range(0, len(words), most)
    ]
    found: list[str] = []
    group, many, limit = "", 0, next(limits)
    for joint, part in parts:
        if group and many + len(part) > limit:
            found.append(group)
            group, many, limit = "", 0, next(limits)
        group += (joint if group else "") + " ".join(part)
        many += len(part)
    return [*found, group] if group else found


def split_sentences(line: str) -> list[str]:
    """Split a line at end marks before a capital or digit; in a line without capitals, before any letter."""
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
    """Whether the full stop belongs to an abbreviation."""
    name = word.removesuffix(".")
    if name.endswith((".", "!", "?", "…")):
        return False
    return bool(name.lower() in TITLES or LETTERS.fullmatch(name) or (follows.isdigit() and name.lower() in NUMBERED))
