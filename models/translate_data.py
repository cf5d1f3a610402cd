"""Pairs for the translators that ship: python translate_data.py OUT writes, for German and for French,

    captions.tsv.gz  Multi30k's captions
    clean.tsv.gz     Tatoeba, also with other names and numbers; templates; sentences one after another
    noisy.tsv.gz     sources in small letters and without marks, with slips of the pen; and things that stay as they are
    valid.tsv        Multi30k's validation rows and as many of Tatoeba's
    choose.tsv       rows like those in everyday/, of Tatoeba's other rows: to choose by
    english.txt.gz   captions of Flickr8k, and Tatoeba's English sentences that only the other language has
    tokenizer/       8,000 pieces of merged bytes, each digit by itself; tokenizer-dropout/: the same, a tenth of the
                     merges left out by chance, anew for every row (Provilkov et al. 2020)

Nothing near an everyday sentence is in it (held_out.py). Data sets are found through ANYFORMER_DATA; it is the same
every time.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import everyday
from held_out import LANGUAGES, HeldOut, Pair, data_folder, held_out, multi30k, tatoeba, words
from held_out import everyday as everyday_rows
from pronouns import pronouns
from synthetic import code, filled, invented, mail, person, renamed, templates

import tokenizers
from anyformer.errors import Error
from anyformer.tokenizers.components import add_frame
from anyformer.tokenizers.train import END, SPECIAL
from tokenizers import decoders, models, pre_tokenizers, trainers

NEIGHBORS = "qwertyuiop asdfghjkl zxcvbnm"


def plain(text: str) -> str:
    """Spaces of all kinds and curly apostrophes as one types them."""
    return " ".join(text.replace("\u2019", "'").replace("\u2018", "'").split())


def sentences(language: str, held: HeldOut) -> list[Pair]:
    pairs = [(plain(source), plain(target)) for source, target in tatoeba(language, "train")]
    return [pair for pair in dict.fromkeys(pairs) if all(pair) and not held.has(*pair)]


def captions(language: str, held: HeldOut) -> list[Pair]:
    pairs = [(plain(source), plain(target)) for source, target in multi30k(language)]
    return [pair for pair in pairs if not held.has(*pair)]


# What is made of the pairs.


def renamings(pairs: Sequence[Pair], language: int, many: int, chance: random.Random) -> Iterator[Pair]:
    """Pairs with other names and numbers, those that have some again and again."""
    has = [pair for pair in pairs if renamed(*pair, language, random.Random(0)) is not None]
    for i in range(many):
        made = renamed(*has[i % len(has)], language, chance)
        assert made is not None
        yield made


def from_templates(language: int, many: int, chance: random.Random) -> Iterator[Pair]:
    rows = templates()
    for i in range(many):
        made = filled(rows[i % len(rows)], chance)
        yield made[0], made[language]


def joined(pairs: Sequence[Pair], many: int, most: int, chance: random.Random) -> Iterator[Pair]:
    """Two sentences to `most` one after another, as in a longer text."""
    for _ in range(many):
        some = [chance.choice(pairs) for _ in range(chance.randint(2, most))]
        yield " ".join(source for source, _ in some), " ".join(target for _, target in some)


def chained(pairs: Sequence[Pair], many: int, language: int, chance: random.Random) -> Iterator[Pair]:
    """Two statements as one long sentence, by a word between them."""
    joints = [(", and", ", und", ", et"), (", but", ", aber", ", mais"), (";", ";", " ;")]
    ends = [pair for pair in pairs if pair[0].endswith(".") and pair[1].endswith(".") and len(pair[0].split()) > 3]
    for _ in range(many):
        (a, x), (b, y) = chance.choice(ends), chance.choice(ends)
        joint = chance.choice(joints)
        first = b.split()[0]
        if first in ("He", "She", "It", "They", "We", "You", "The", "There", "This", "That", "My", "A"):
            b = b[0].lower() + b[1:]
        small = y[0].lower() + y[1:] if y.split()[0].lower() in STARTS else y
        yield f"{a[:-1]}{joint[0]} {b}", f"{x[:-1]}{joint[language]} {small}"


STARTS = frozenset(
    "er sie es wir ihr du ich man der die das ein eine dies mein meine dein deine sein seine unser jeder alle viele il"
    " elle ils elles nous vous tu je on le la les un une c'est ce cette ces mon ma mes ton ta son sa notre tout".split()
)


def small(source: str, chance: random.Random) -> str:
    """As people type who do not care: small letters, often without marks."""
    text = source.lower() if chance.random() < 0.8 else source
    text = re.sub(r"[.!?]+$", "", text)
    return text.replace("'", "") if chance.random() < 0.15 else text.replace(",", "") if chance.random() < 0.5 else text


def slip(source: str, chance: random.Random) -> str:
    """One or two slips of the pen in longer words without capitals."""
    parts = source.split(" ")
    places = [i for i, word in enumerate(parts) if len(word) > 3 and word.isalpha() and (word.islower() or i == 0)]
    for i in chance.sample(places, min(len(places), chance.choice((1, 1, 2)))):
        word, at = parts[i], chance.randint(1, len(parts[i]) - 2)
        kind = chance.random()
        if kind < 0.35:
            word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        elif kind < 0.6:
            word = word[:at] + word[at + 1 :]
        elif kind < 0.8:
            word = word[:at] + word[at] + word[at:]
        else:
            near = NEIGHBORS.find(word[at].lower())
            word = word[:at] + (NEIGHBORS[near + 1 : near + 2].strip() or "e") + word[at + 1 :]
        parts[i] = word
    return " ".join(parts)


def copies(many: int, chance: random.Random) -> Iterator[Pair]:
    """What is the same in both languages."""
    kinds: list[Callable[[random.Random], str]] = [person, person, person, invented, mail, code]
    for _ in range(many):
        text = chance.choice(kinds)(chance)
        yield text, text


def clean(place: int, flickr: list[Pair], talk: list[Pair], chance: random.Random) -> Iterator[Pair]:
    yield from talk
    yield from renamings(talk, place, 50_000, chance)
    yield from from_templates(place, 40_000, chance)
    yield from joined(talk, 15_000, 4, chance)
    yield from joined(flickr, 6_000, 2, chance)
    yield from chained(talk, 8_000, place, chance)
    yield from (pair for pair in pronouns(LANGUAGES[place - 1]) for _ in range(3))
    yield from ((row[0], row[place]) for row in templates("greetings") for _ in range(30))


def noisy(flickr: list[Pair], talk: list[Pair], chance: random.Random) -> Iterator[Pair]:
    yield from ((small(source, chance), target) for source, target in chance.sample(talk, 25_000))
    yield from ((small(source, chance), target) for source, target in chance.sample(flickr, 5_000))
    yield from ((slip(source, chance), target) for source, target in chance.sample(talk, 20_000))
    yield from ((slip(source, chance), target) for source, target in chance.sample(flickr, 8_000))
    yield from copies(6_000, chance)


def free(pairs: Iterable[Pair], held: HeldOut, chance: random.Random) -> list[Pair]:
    """Those that may be learned from, shuffled."""
    rows = [(source, target) for source, target in pairs if source and target and not held.has(source, target)]
    chance.shuffle(rows)
    return rows


def valid(language: str) -> list[Pair]:
    talk = [(plain(source), plain(target)) for source, target in tatoeba(language, "valid")]
    random.Random(0).shuffle(talk)
    flickr = [(plain(source), plain(target)) for source, target in multi30k(language, "val")]
    return [*flickr, *talk[: len(flickr)]]


def english(language: str, held: HeldOut) -> list[str]:
    """Sentences that this language has no translation of."""
    known = {words(source) for source, _ in tatoeba(language, "train")}
    other = next(one for one in LANGUAGES if one != language)
    more = [source for source, _ in sentences(other, held) if words(source) not in known]
    path = data_folder() / "flickr8k" / "train_captions.json"
    pictures = json.loads(path.read_text(encoding="utf-8"))["images"] if path.exists() else []
    flickr = [tidy(text) for picture in pictures for text in picture["captions"]]
    texts = dict.fromkeys((*flickr, *(text for text in more if not held.has(text))))
    return [text for text in texts if 3 <= len(text.split()) <= 40]


def tidy(text: str) -> str:
    """Flickr8k's captions, cut into words, as one writes."""
    text = re.sub(r"\s+([.,!?;:'])", r"\1", plain(text).strip('" '))
    text = re.sub(r"\s+", " ", text.replace(" n't", "n't")).strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


# Files.


def vocabulary(texts: Sequence[str], size: int) -> tokenizers.Tokenizer:
    """Bytes merged by frequency, as our own, but each digit by itself, so that numbers are copied digit by digit."""
    engine = tokenizers.Tokenizer(models.BPE())
    digits, whole = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([digits, whole])
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        vocab_size=size,
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    engine.train_from_iterator(texts, trainer)
    add_frame(engine, end=END)
    return engine


def write_vocabulary(engine: tokenizers.Tokenizer, folder: Path, dropout: float | None) -> None:
    state = json.loads(engine.to_str())
    state["model"]["dropout"] = dropout
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")


def write_rows(path: Path, rows: Sequence[Sequence[str]]) -> None:
    print(f"{path}: {len(rows):,} rows", flush=True)
    text = "".join("\t".join(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def write(out: Path, size: int = 8000) -> None:
    never = {words(row[1]) for language in LANGUAGES for row in everyday_rows(language)}
    choose = {
        language: [row for row in everyday.draw(language, "valid", "choose") if words(row[1]) not in never]
        for language in LANGUAGES
    }
    held = held_out(text for rows in choose.values() for row in rows for text in row[1:])
    for language in LANGUAGES:
        folder, chance = out / f"en-{language}", random.Random(f"translators {language}")
        folder.mkdir(parents=True, exist_ok=True)
        flickr, talk = captions(language, held), sentences(language, held)
        rows = free(clean(1 + LANGUAGES.index(language), flickr, talk, chance), held, chance)
        write_rows(folder / "captions.tsv.gz", flickr)
        write_rows(folder / "clean.tsv.gz", rows)
        write_rows(folder / "noisy.tsv.gz", free(noisy(flickr, talk, chance), held, chance))
        write_rows(folder / "valid.tsv", valid(language))
        write_rows(folder / "choose.tsv", choose[language])
        write_rows(folder / "english.txt.gz", [[text] for text in english(language, held)])
        engine = vocabulary([text for row in (*flickr, *talk, *rows[:50_000]) for text in row], size)
        write_vocabulary(engine, folder / "tokenizer", None)
        write_vocabulary(engine, folder / "tokenizer-dropout", 0.1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        write(Path(sys.argv[1]))
    except Error as error:
        sys.exit(f"translate_data.py: {error}")
