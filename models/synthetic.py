"""Pairs of sentences that nobody wrote: names, numbers, dates and prices in templates and in place of others, so that a
translator learns to copy what it has never seen, and how numbers are written in either language.

Languages are numbered as the columns of templates.tsv: 0 English, 1 German, 2 French.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
Three = tuple[str, str, str]  # the same in English, German and French

MEN = (
    "Tom John Peter Paul Michael David James Robert William Thomas Daniel Mark George Kevin Brian Ahmed"
    " Omar Ali Hiroshi Kenji Wei Raj Arjun Carlos Miguel Diego Pedro Luca Marco Giovanni Ivan Dmitri Sergei"
    " Lukas Felix Jonas Stefan Klaus Hans Jürgen Pierre Jacques Luc Antoine Émile Olivier Lars Sven Erik"
    " Noah Liam Kofi Kwame Barack Donald Joe Boris Vladimir Albert Isaac Charles Alan Steve Bill Elon Tim"
    " Jeff Oscar Otto Gustav Leon Finn Mehmet Yusuf Igor Viktor"
).split()
WOMEN = (
    "Mary Anna Emma Maria Sarah Laura Julia Linda Susan Karen Nancy Lisa Emily Olivia Sophia Fatima Aisha"
    " Leila Yuki Keiko Mei Priya Anita Carmen Lucia Elena Rosa Giulia Chiara Olga Natasha Svetlana Lena"
    " Hannah Greta Ursula Heidi Marie Claire Sophie Amélie Chloé Zoé Camille Ingrid Astrid Freya Ada Grace"
    " Marie Rosalind Michelle Kamala Hillary Theresa Alice Clara Nora Ella Mia Lea Ayşe Zeynep Amara Ngozi"
    " Christine Annalena Margaret"
).split()
FAMILIES = (
    "Smith Johnson Miller Brown Taylor Wilson Clark Walker Hall Young King Wright Hill Green Baker Müller"
    " Schmidt Schneider Fischer Weber Wagner Becker Hoffmann Scholz Steinmeier Baerbock Dupont Martin"
    " Bernard Dubois Moreau Laurent Lefebvre Leroy Girard Mercier Hollande Chirac García Rodríguez López"
    " Hernández Pérez Rossi Ferrari Bianchi Ivanov Petrov Kuznetsov Nowak Kowalski Horvat Nagy Novák Jensen"
    " Hansen Larsen Andersson Virtanen Tanaka Suzuki Watanabe Kim Nguyen Chen Wang Patel Singh Khan Hassan"
    " Okafor Mensah Obama Biden Trump Clinton Johnson Thatcher Einstein Newton Curie Darwin Turing Lovelace"
    " Hopper Gates Jobs Musk Rowling Hawking Bach Beethoven Chopin O'Neill McDonald van Dijk de Vries von"
    " Braun da Silva"
)
FAMILIES_LIST = re.findall(r"(?:van|de|von|da) \S+|\S+", FAMILIES)
PLACES: list[Three] = [
    *((name, name, name) for name in (
        "Paris Berlin London Madrid Boston Chicago Tokyo Oslo Stockholm Helsinki Dublin Amsterdam"
        " Rotterdam Hamburg Stuttgart Frankfurt Dresden Leipzig Bonn Lyon Marseille Toulouse Bordeaux"
        " Nantes Lille Barcelona Valencia Toronto Vancouver Sydney Melbourne Seattle Denver Dallas Houston"
        " Miami Detroit Atlanta Osaka Kyoto Seoul Taipei Nairobi Lagos Dakar Lima Bogota Santiago"
        " Montevideo Istanbul Ankara Budapest Sofia Riga Vilnius Tallinn Zagreb Glasgow Manchester"
        " Liverpool Birmingham Leeds Cardiff Belfast Oxford Cambridge Salzburg Graz Innsbruck Delhi Mumbai"
        " Karachi Manila Jakarta Hanoi Rio Quito Houston Phoenix Portland Austin Kiel Rostock Mannheim"
        " Strasbourg Dijon Rennes Brest"
    ).split()),
    ("Munich", "München", "Munich"), ("Cologne", "Köln", "Cologne"), ("Vienna", "Wien", "Vienne"),
    ("Rome", "Rom", "Rome"), ("Milan", "Mailand", "Milan"), ("Venice", "Venedig", "Venise"),
    ("Moscow", "Moskau", "Moscou"), ("Warsaw", "Warschau", "Varsovie"), ("Prague", "Prag", "Prague"),
    ("Brussels", "Brüssel", "Bruxelles"), ("Geneva", "Genf", "Genève"), ("Zurich", "Zürich", "Zurich"),
    ("Lisbon", "Lissabon", "Lisbonne"), ("Athens", "Athen", "Athènes"), ("Beijing", "Peking", "Pékin"),
    ("New York", "New York", "New York"), ("San Francisco", "San Francisco", "San Francisco"),
    ("Los Angeles", "Los Angeles", "Los Angeles"), ("Copenhagen", "Kopenhagen", "Copenhague"),
    ("Hong Kong", "Hongkong", "Hong Kong"), ("Bucharest", "Bukarest", "Bucarest"), ("Kyiv", "Kiew", "Kiev"),
    ("Naples", "Neapel", "Naples"), ("Nuremberg", "Nürnberg", "Nuremberg"), ("Singapore", "Singapur", "Singapour"),
]  # fmt: skip
# English; German; French with its article, with "in", and with "of".
LANDS = [line.split("|") for line in """
France|Frankreich|la France|en France|de la France
Germany|Deutschland|l'Allemagne|en Allemagne|de l'Allemagne
Italy|Italien|l'Italie|en Italie|de l'Italie
Spain|Spanien|l'Espagne|en Espagne|de l'Espagne
Portugal|Portugal|le Portugal|au Portugal|du Portugal
Poland|Polen|la Pologne|en Pologne|de la Pologne
Austria|Österreich|l'Autriche|en Autriche|de l'Autriche
Belgium|Belgien|la Belgique|en Belgique|de la Belgique
Norway|Norwegen|la Norvège|en Norvège|de la Norvège
Sweden|Schweden|la Suède|en Suède|de la Suède
Finland|Finnland|la Finlande|en Finlande|de la Finlande
Denmark|Dänemark|le Danemark|au Danemark|du Danemark
Greece|Griechenland|la Grèce|en Grèce|de la Grèce
Russia|Russland|la Russie|en Russie|de la Russie
Japan|Japan|le Japon|au Japon|du Japon
China|China|la Chine|en Chine|de la Chine
India|Indien|l'Inde|en Inde|de l'Inde
Brazil|Brasilien|le Brésil|au Brésil|du Brésil
Mexico|Mexiko|le Mexique|au Mexique|du Mexique
Canada|Kanada|le Canada|au Canada|du Canada
Australia|Australien|l'Australie|en Australie|de l'Australie
Egypt|Ägypten|l'Égypte|en Égypte|de l'Égypte
Morocco|Marokko|le Maroc|au Maroc|du Maroc
Iceland|Island|l'Islande|en Islande|de l'Islande
Ireland|Irland|l'Irlande|en Irlande|de l'Irlande
Scotland|Schottland|l'Écosse|en Écosse|de l'Écosse
Hungary|Ungarn|la Hongrie|en Hongrie|de la Hongrie
Argentina|Argentinien|l'Argentine|en Argentine|de l'Argentine
South Africa|Südafrika|l'Afrique du Sud|en Afrique du Sud|de l'Afrique du Sud
""".strip().splitlines()]  # fmt: skip
MONTHS = list(zip(
    "January February March April May June July August September October November December".split(),
    "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split(),
    strict=True,
))  # fmt: skip
DAYS = list(zip(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
    "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
    "lundi mardi mercredi jeudi vendredi samedi dimanche".split(),
    strict=True,
))  # fmt: skip
COMPANIES = (
    "Siemens Volkswagen BMW Bosch Airbus Renault Peugeot Nestlé Microsoft Google Apple Amazon Netflix"
    " Toyota Sony Samsung Nokia IBM Intel Boeing Ford Tesla SAP BASF Bayer Adidas Puma Ikea Philips Shell"
    " Michelin Danone L'Oréal Spotify Huawei"
).split()
ONSETS = (
    "b c d f g h j k l m n p r s t v w z br ch cl dr fr gl gr kr ph pl pr sch sh sk sl st str th tr wh kn zh".split()
)
VOWELS = "a e i o u a e i o ai au ei ie oo ou ö ü é ä ya io".split()
ENDS = (
    "n r s l t m k d ck nd rt ng x th ll ss sch ński vić ez o a i u e y ov ev sen son berg mann stein ton ley".split()
)
GENDERED = re.compile(r"\b(?:né|mort|ami|président|chancelier|ministre)\b|est venu")
BEFORE_VOWEL = re.compile(r"\b([Dd])e (?=[AEIOUÉÈÊÎÔÂ])")
NUMBER = re.compile(r"(?<![\w.,:])\d+(?![\w:]|[.,]\d)")
THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3},\d{3}(?![\d,])")


def invented(chance: random.Random) -> str:
    """A word like a name, or an abbreviation."""
    if chance.random() < 0.06:
        return "".join(chance.choice("ABCDEFGHIKLMNOPRSTUVWXZ") for _ in range(chance.randint(2, 4)))
    parts = [chance.choice(ONSETS) + chance.choice(VOWELS) for _ in range(chance.choice((1, 1, 2, 2, 3)))]
    return ("".join(parts) + chance.choice(ENDS)).capitalize()


def family(chance: random.Random) -> str:
    one = invented(chance) if chance.random() < 0.6 else chance.choice(FAMILIES_LIST)
    return f"{one}-{invented(chance)}" if chance.random() < 0.04 else one


def first_name(chance: random.Random, women: bool) -> str:
    if chance.random() < 0.35:
        return invented(chance).rstrip("aeiou") + ("a" if women else "o")
    return chance.choice(WOMEN if women else MEN)


def person(chance: random.Random, women: bool | None = None) -> str:
    """Angela Weber, Zhailo, J. K. Stroundsen"""
    first = first_name(chance, chance.random() < 0.5 if women is None else women)
    kind = chance.random()
    if kind < 0.3:
        return first
    if kind < 0.36:
        return f"{chance.choice('ABCDEFGHJKLMNPRST')}. {family(chance)}"
    if kind < 0.42:
        return f"{first} {chance.choice('ABCDEFGHJKLMNPRST')}. {family(chance)}"
    return f"{first} {family(chance)}"


def place(chance: random.Random) -> Three:
    if chance.random() < 0.35:
        name = invented(chance)
        return name, name, name
    return chance.choice(PLACES)


def large(chance: random.Random) -> Three:
    """1,250 1.250 1 250"""
    number = chance.randint(1000, 10 ** chance.randint(4, 7))
    if chance.random() < 0.4:
        number = number // 100 * 100
    if chance.random() < 0.12:
        return (str(number), str(number), str(number)) if number < 10000 else large(chance)
    text = f"{number:,}"
    return text, text.replace(",", "."), text.replace(",", " ")


def decimal(chance: random.Random) -> Three:
    text = f"{chance.randint(0, 99)}.{chance.choice('123456789')}"
    text += chance.choice("0123456789") if chance.random() < 0.3 else ""
    return text, text.replace(".", ","), text.replace(".", ",")


def price(chance: random.Random) -> Three:
    kind = chance.random()
    if kind < 0.4:
        amount = large(chance)
    elif kind < 0.7:
        amount = (str(chance.randint(2, 999)),) * 3
    else:
        cents = f"{chance.randint(1, 99)}.{chance.randint(5, 99):02}"
        amount = cents, cents.replace(".", ","), cents.replace(".", ",")
    form = chance.random()
    en, de, fr = amount
    if form < 0.45:
        return f"{en} euros", f"{de} Euro", f"{fr} euros"
    if form < 0.6:
        return f"€{en}", f"{de} €", f"{fr} €"
    if form < 0.8:
        return f"${en}", f"{de} Dollar", f"{fr} dollars"
    if form < 0.9:
        return f"{en} dollars", f"{de} Dollar", f"{fr} dollars"
    return f"{en} pounds", f"{de} Pfund", f"{fr} livres"


def clock(chance: random.Random) -> Three:
    hour, minute = chance.randint(0, 23), chance.choice(("00", "15", "30", "45", f"{chance.randint(1, 59):02}"))
    return f"{hour}:{minute}", f"{hour}:{minute} Uhr", f"{hour} h {minute}"


def day(chance: random.Random, year: str = "") -> Three:
    number, month = chance.randint(2, 30), chance.choice(MONTHS)
    en = f"{month[0]} {number}"
    if chance.random() < 0.3:
        en = f"{number} {month[0]}"
    elif not year and chance.random() < 0.5:
        en += {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number // 10 != 1 else 0, "th")
    joint = "," if en[0].isalpha() else ""
    return (
        f"{en}{joint} {year}" if year else en,
        f"{number}. {month[1]} {year}".strip(),
        f"{number} {month[2]} {year}".strip(),
    )


def years(chance: random.Random) -> str:
    return str(chance.randint(1900, 2030) if chance.random() < 0.75 else chance.randint(1000, 1899))


def same(make: Callable[[random.Random], object]) -> Callable[[random.Random], Three]:
    def three(chance: random.Random) -> Three:
        text = str(make(chance))
        return text, text, text

    return three


def land(chance: random.Random) -> dict[str, Three]:
    en, de, the, inside, of = chance.choice(LANDS)
    return {
        "country": (en, de, the),
        "in_country": (f"in {en}", f"in {de}", inside),
        "of_country": (en, de, of),
    }


def mail(chance: random.Random) -> str:
    return f"{invented(chance).lower()}@{invented(chance).lower()}.{chance.choice(('com', 'org', 'de', 'fr', 'net'))}"


def code(chance: random.Random) -> str:
    letters = "".join(chance.choice("ABCDEFGHKLMNPRSTUVWXZ") for _ in range(chance.randint(1, 3)))
    return f"{letters}{chance.choice(('', ' ', '-'))}{chance.randint(1, 9999)}"


SLOTS: dict[str, Callable[[random.Random], Three]] = {
    "city": place,
    "big": large,
    "dec": decimal,
    "dec_raw": same(lambda chance: f"{chance.randint(1, 20)}.{chance.randint(0, 19)}"),
    "price": price,
    "time": clock,
    "day": day,
    "date": lambda chance: day(chance, years(chance)),
    "year": same(years),
    "month": lambda chance: chance.choice(MONTHS),
    "weekday": lambda chance: chance.choice(DAYS),
    "n": same(lambda chance: chance.randint(2, 10 ** chance.randint(1, 3))),
    "m": same(lambda chance: chance.randint(2, 20)),
    "company": same(lambda chance: chance.choice(COMPANIES) if chance.random() < 0.5 else invented(chance)),
    "street": same(lambda chance: f"{invented(chance)} {chance.choice(('Street', 'Avenue', 'Road'))}"),
    "phone": same(lambda chance: " ".join(str(chance.randint(10, 999)) for _ in range(chance.randint(2, 4)))),
    "mail": same(mail),
    "site": same(lambda chance: f"www.{invented(chance).lower()}.{chance.choice(('com', 'org', 'net'))}"),
    "code": same(code),
}


def filled(template: Three, chance: random.Random) -> Three:
    """A template with something in every slot, the same on all sides, in each language's own way."""
    values: dict[str, Three] = {}
    for slot in dict.fromkeys(re.findall(r"{(\w+)}", "".join(template))):
        kind = slot.rstrip("0123456789")
        if kind == "name":
            text = person(chance, False if GENDERED.search(template[2]) else None)
            values[slot] = text, text, text
        elif "country" in kind:
            values = {**{f"{name}{slot[len(kind) :]}": some for name, some in land(chance).items()}, **values}
        else:
            values[slot] = SLOTS[kind](chance)
    texts = [
        re.sub(r"{(\w+)}", lambda found: values[found[1]][i], text)  # noqa: B023  # used at once
        for i, text in enumerate(template)
    ]
    texts[2] = BEFORE_VOWEL.sub(r"\1'", texts[2])
    en, de, fr = (text[0].upper() + text[1:] if template[0][0] != "o" else text for text in texts)
    return en, de, fr


def renamed(source: str, target: str, language: int, chance: random.Random) -> tuple[str, str] | None:
    """The pair with other names and numbers, where some stand on both sides as they are; None: there are none."""
    swaps: list[tuple[str, str, str]] = []  # what stands there, and what comes for it on either side
    for name in dict.fromkeys(re.findall(r"[^\W\d_][\w-]+", source)):
        if name in MEN or name in WOMEN:
            swaps.append((name, *(person(chance, name in WOMEN),) * 2))
        elif any(name == one[0] == one[language] for one in PLACES):
            new = place(chance)
            swaps.append((name, new[0], new[language]))
    for number in dict.fromkeys(NUMBER.findall(source)):
        if int(number) > 1:
            new = years(chance) if len(number) == 4 else str(chance.randint(2, 10 ** len(number)))
            swaps.append((number, new, new))
    done = False
    for number in dict.fromkeys(THOUSANDS.findall(source)):
        forms = [number.replace(",", "."), number.replace(",", " "), number.replace(",", "")]
        there = next((form for form in forms if once(form, target)), None)
        if there is not None and once(number, source):
            new = large(chance)
            source, target = source.replace(number, new[0]), target.replace(there, new[language])
            done = True
    for old, left, right in swaps:
        if once(old, source) and once(old, target):
            source, target = put(old, left, source), put(old, right, target)
            done = True
    if language == 2:
        target = BEFORE_VOWEL.sub(r"\1'", target)
    return (source, target) if done else None


def word_of(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.,-]){re.escape(text)}(?![\w-]|['’]\w|[.,]\d)")


def once(text: str, inside: str) -> bool:
    return len(word_of(text).findall(inside)) == 1 == inside.count(text)


def put(old: str, new: str, inside: str) -> str:
    return word_of(old).sub(lambda _: new, inside)


def templates(name: str = "templates") -> list[Three]:
    rows = (HERE / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return [(row[0], row[1], row[2]) for row in (line.split("\t") for line in rows)]
