"""Everyday sentences that no translator has learned from, and how well one does on them.

python everyday.py en-de                 the translator that ships: chrF, and whether names and numbers survive
python everyday.py en-de --model FOLDER  another one; --show prints what it says
python everyday.py --draw                draws the sentences again from Tatoeba (ANYFORMER_DATA): always the same
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from held_out import EVERYDAY, LANGUAGES, everyday, tatoeba, words

from anyformer.errors import Error
from anyformer.tasks import task as open_task

# How many of each kind are drawn; the first that fits counts.
QUOTAS = {"numbers": 45, "questions": 45, "imperatives": 30, "news": 40, "names": 40}
# The lectures' own, and what went wrong before, with references by hand.
OWN = {
    "lecture": [
        (
            "The agreement on the European Economic Area was signed in August 1992.",
            ["Das Abkommen über den Europäischen Wirtschaftsraum wurde im August 1992 unterzeichnet."],
            [
                "L'accord sur la zone économique européenne a été signé en août 1992.",
                "L'accord sur l'Espace économique européen a été signé en août 1992.",
            ],
        ),
        (
            "The animal didn't cross the street because it was too tired.",
            [
                "Das Tier überquerte die Straße nicht, weil es zu müde war.",
                "Das Tier hat die Straße nicht überquert, weil es zu müde war.",
            ],
            ["L'animal n'a pas traversé la rue parce qu'il était trop fatigué."],
        ),
        (
            "The animal didn't cross the street because it was too wide.",
            [
                "Das Tier überquerte die Straße nicht, weil sie zu breit war.",
                "Das Tier hat die Straße nicht überquert, weil sie zu breit war.",
            ],
            ["L'animal n'a pas traversé la rue parce qu'elle était trop large."],
        ),
    ],
    "by hand": [
        (
            "Angela Merkel met Emmanuel Macron in Paris.",
            ["Angela Merkel traf Emmanuel Macron in Paris.", "Angela Merkel hat Emmanuel Macron in Paris getroffen."],
            ["Angela Merkel a rencontré Emmanuel Macron à Paris."],
        ),
        (
            "The new laptop costs 1,250 euros.",
            ["Der neue Laptop kostet 1.250 Euro.", "Der neue Laptop kostet 1250 Euro."],
            ["Le nouvel ordinateur portable coûte 1 250 euros.", "Le nouvel ordinateur portable coûte 1250 euros."],
        ),
        (
            "My flight to Chicago leaves at 17:45.",
            ["Mein Flug nach Chicago geht um 17:45.", "Mein Flug nach Chicago geht um 17:45 Uhr."],
            ["Mon vol pour Chicago part à 17:45.", "Mon vol pour Chicago part à 17 h 45."],
        ),
    ],
}
VERBS = (
    "please don't let's let be take give go come tell show try look listen open close put stop wait keep bring get turn"
    " write read ask call make leave help stay think remember forget eat drink sit stand hurry watch use never say"
    " speak find follow move run hold answer pay buy send"
)
PERSON = frozenset("i you me my your we us our he she his her him it's i'm i've i'd i'll you're".split())
NUMBER = re.compile(r"\d(?:[\d.,:]*\d)?")
NAME = re.compile(r"[^\W\d_][\w'-]*")
NO_BREAK = str.maketrans({"\u00a0": " ", "\u202f": " ", "’": "'"})


def kind_of(source: str) -> str | None:
    """What an English sentence is drawn as."""
    found = source.split()
    if NUMBER.search(source):
        return "numbers"
    if source.endswith("?"):
        return "questions"
    if len(found) > 2 and found[0].lower() in VERBS.split():
        return "imperatives"
    if len(found) >= 10 and not PERSON & {word.strip(".,;").lower() for word in found}:
        return "news"
    if len(found) > 3 and any(word[0].isupper() and word not in ("I", "Tom", "Mary") for word in found[1:]):
        return "names" if not any(word.startswith("I'") for word in found) else None
    return None


def draw(language: str, split: str = "test", salt: str = "everyday") -> list[list[str]]:
    """From the rows to test on, of numbers also from the others where those are too few; by a hash of the words."""
    rows: dict[str, list[str]] = {}
    rank: dict[str, tuple[bool, bytes]] = {}
    for later, name in enumerate((split, "train")):
        for source, target in tatoeba(language, name):
            rows.setdefault(source, []).append(target)
            code = blake2b(f"{salt} {' '.join(words(source))}".encode(), digest_size=8).digest()
            rank.setdefault(source, (bool(later), code))
    left, seen, drawn = dict(QUOTAS), set(), []
    for source in sorted(rows, key=rank.__getitem__):
        kind = kind_of(source)
        if kind is not None and left[kind] and words(source) not in seen:
            left[kind] -= 1
            seen.add(words(source))
            drawn.append([kind, source, *dict.fromkeys(one.translate(NO_BREAK) for one in rows[source])])
    if any(left.values()):
        raise SystemExit(f"Too few sentences: {left}")
    return sorted(drawn, key=lambda row: (list(QUOTAS).index(row[0]), row[1]))


def write_drawn() -> None:
    for place, language in enumerate(LANGUAGES):
        own = [[kind, row[0], *row[1 + place]] for kind, some in OWN.items() for row in some]
        text = "".join("\t".join(row) + "\n" for row in (*draw(language), *own))
        (EVERYDAY / f"en-{language}.tsv").write_text(text, encoding="utf-8")


def kept(source: str, references: Sequence[str], small: frozenset[str]) -> list[str]:
    """Names and numbers that stand in the source and in every reference as they are. A word that also stands in small
    letters somewhere is no name where it begins a sentence."""
    numbers = NUMBER.findall(source)
    names = [
        one[0]
        for one in NAME.finditer(source)
        if one[0][0].isupper() and len(one[0]) > 1 and (one.start() > 0 or one[0].lower() not in small)
    ]
    return [one for one in (*numbers, *names) if all(stands(one, text) for text in references)]


def stands(part: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text) is not None


def score(rows: Sequence[Sequence[str]], said: Sequence[str]) -> dict[str, Any]:
    """chrF with all references and with the first alone; of the sentences that have a name or a number to keep, the
    share in which all of them are there; and those sentences in which they are not."""
    from sacrebleu.metrics.chrf import CHRF

    answers = [text.translate(NO_BREAK) for text in said]
    references = [list(row[2:]) for row in rows]
    many = max(map(len, references))
    streams = [[some[i] if i < len(some) else None for some in references] for i in range(many)]
    small = frozenset(word for row in rows for word in NAME.findall(row[1]) if word.islower())
    wanted = [kept(row[1], some, small) for row, some in zip(rows, references, strict=True)]
    asked = [(i, some) for i, some in enumerate(wanted) if some]
    lost = [i for i, some in asked if not all(stands(one, answers[i]) for one in some)]
    return {
        "sentences": len(rows),
        "chrF": CHRF().corpus_score(answers, streams).score,
        "chrF, first reference": CHRF().corpus_score(answers, [streams[0]]).score,
        "with names or numbers": len(asked),
        "names and numbers kept": 100 * (1 - len(lost) / max(len(asked), 1)),
        "lost": lost,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", nargs="?", choices=[f"en-{language}" for language in LANGUAGES])
    parser.add_argument("--model", help="a folder; otherwise the one that ships")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--show", action="store_true", help="every sentence with what was said")
    given = parser.parse_args(arguments)
    try:
        if given.draw:
            return write_drawn()
        if given.pair is None:
            parser.error("name a pair of languages: en-de or en-fr.")
        rows = everyday(given.pair.removeprefix("en-"))
        said = [str(one) for one in open_task("translate", given.model or given.pair)([row[1] for row in rows])]
    except Error as error:
        sys.exit(f"everyday.py: {error}")
    found = score(rows, said)
    for i, (row, text) in enumerate(zip(rows, said, strict=True)):
        if given.show or i in found["lost"]:
            print(f"{'LOST ' if i in found['lost'] else ''}{row[0]}: {row[1]}\n  {text}\n  wanted: {row[2]}")
    print({name: round(value, 2) for name, value in found.items() if name != "lost"})


if __name__ == "__main__":
    main()
