"""Cleaning of texts by users before a small model translates them: control characters, capitals, loops, names.

Translations are `careful` in a call and in `anyformer eval`, not during training.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from difflib import SequenceMatcher

from anyformer.tokenizers.foreign import NAMES, other_than

# What no text needs: control characters but tabs and ends of lines, the soft hyphen, marks without width.
CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f]+")
WIDTHLESS = re.compile("[\u00ad\u200b\u2060\ufeff]")
PERIOD = 16  # tokens of what comes again and again, at most
NO_REPEAT = 3  # tokens; where a text ran into a loop, it is written again without repeating so many
NAME = re.compile(r"[^\W\d_][\w-]*")
NUMBER = re.compile(r"\d+")
MARGIN = 0.3  # log-probability a token, by which an answer that keeps more names may be less likely than the best
UNSURE = -1.0  # log-probability of the least likely token of a word that may be a name gone wrong
ALIKE = 0.6  # of two spellings: twice the letters that they share, by all


def clean(text: str) -> str:
    return CONTROL.sub(" ", WIDTHLESS.sub("", text))


def warn_of_languages(language: str, texts: Sequence[str]) -> None:
    """Say once that a text is in another language than the model reads, if that is known."""
    found = (
        next((other for text in texts if (other := other_than(language, text)) is not None), None) if language else None
    )
    if found is not None:
        warnings.warn(
            f"A text appears to be {found}, but this model reads {NAMES[language]}; its answer is unreliable.",
            stacklevel=4,
        )


# Capitals.


def is_shouted(text: str) -> bool:
    """Whether several words are written in capitals, and none otherwise."""
    words = [word for word in NAME.findall(text) if len(word) > 1]
    return len(words) > 1 and text.isupper()


def lowered(text: str) -> str:
    """A sentence in small letters, with a capital where it begins, and in "I"."""
    small = re.sub(r"\bi\b", "I", text.lower())
    first = re.search(r"[^\W\d_]", small)
    return small if first is None else small[: first.start()] + small[first.start()].upper() + small[first.end() :]


# Loops.


def repeats(ids: Sequence[int], most: int = PERIOD) -> tuple[int, int]:
    """How often the same tokens come one after another, up to `most` at a time, and where the first time ends."""
    best, place = 1, len(ids)
    for period in range(1, most + 1):
        run = 0
        for end in range(period, len(ids)):
            run = run + 1 if ids[end] == ids[end - period] else 0
            times = run // period + 1
            if times > max(best, 2 if period > 2 else 3):
                best, place = times, end + 1 - (times - 1) * period
    return best, place


def loops(ids: Sequence[int], source: Sequence[int]) -> bool:
    """Whether a text says something over and over that its source does not."""
    times, _ = repeats(ids)
    return times > 1 and times > repeats(source)[0]


# Names and numbers.


def names(text: str) -> list[str]:
    """Words inside of a text that begin with a capital, and its numbers."""
    found = [one[0] for one in NAME.finditer(text) if one.start() > 0 and one[0][0].isupper() and len(one[0]) > 1]
    return [*found, *NUMBER.findall(text)]


def stands(part: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def best(source: str, answers: Sequence[str], scores: Sequence[float]) -> int:
    """The first of those nearly as likely as the best that keep the most names and numbers as they are."""
    wanted = names(source)
    kept = [sum(stands(one, text) for one in wanted) for text in answers]
    near = [i for i, score in enumerate(scores) if scores[0] - score <= MARGIN]
    return max(near, key=lambda i: (kept[i], -i))


def mend(source: str, answer: str, doubts: Sequence[float]) -> str:
    """An answer with the names and numbers that it spells wrongly as the source has them: a word like a name that is
    missing, beginning with its letter and written in doubt, or any number like one that is missing. `doubts` has a
    log-probability for each letter."""
    missing = [one[0] for kind in (NAME, NUMBER) for one in kind.finditer(source) if not stands(one[0], answer)]
    for part in (one for one in missing if len(one) > 2 and (one[0].isupper() or one.isdigit())):
        words = [
            word
            for word in (NUMBER if part.isdigit() else NAME).finditer(answer)
            if word[0][0] == part[0] and not stands(word[0], source)
            if part.isdigit() or min(doubts[slice(*word.span())]) < UNSURE
        ]
        near = max(words, key=lambda word: _likeness(word[0], part), default=None)
        if near is not None and _likeness(near[0], part) >= ALIKE:
            start, end = near.span()
            answer = answer[:start] + part + answer[end:]
            doubts = [*doubts[:start], *[0.0] * len(part), *doubts[end:]]
    return answer


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
