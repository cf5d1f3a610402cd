"""Sentences in which "it" is one thing or another by what is said of it: the dog did not cross the river because it was
too tired, or too wide. German and French have a word for each gender."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

# English; German with its gender; French with its own.
BEASTS = """dog|Hund m|le chien m;cat|Katze f|le chat m;horse|Pferd n|le cheval m;cow|Kuh f|la vache f
donkey|Esel m|l'âne m;bird|Vogel m|l'oiseau m;mouse|Maus f|la souris f
goat|Ziege f|la chèvre f;sheep|Schaf n|le mouton m;elephant|Elefant m|l'éléphant m;bear|Bär m|l'ours m
lion|Löwe m|le lion m;animal|Tier n|l'animal m;fox|Fuchs m|le renard m
duck|Ente f|le canard m;turtle|Schildkröte f|la tortue f"""
TIRED = "tired|müde|fatigué;old|alt|vieux/vieille;weak|schwach|faible;lazy|faul|paresseux/paresseuse;sick|krank|malade"
# What is done; to what; and what that may be too much.
DEEDS = [
    (
        "cross|überquerte|traversé",
        "river|Fluss m|la rivière f;bridge|Brücke f|le pont m;road|Straße f|la route f;field|Feld n|le champ m"
        ";desert|Wüste f|le désert m;lake|See m|le lac m;square|Platz m|la place f;avenue|Allee f|l'avenue f",
        "wide|breit|large;long|lang|long/longue;big|groß|grand/grande;dangerous|gefährlich|dangereux/dangereuse",
    ),
    (
        "eat|fraß|mangé",
        "soup|Suppe f|la soupe f;meat|Fleisch n|la viande f;cake|Kuchen m|le gâteau m;apple|Apfel m|la pomme f"
        ";bread|Brot n|le pain m;carrot|Karotte f|la carotte f",
        "hot|heiß|chaud/chaude;cold|kalt|froid/froide;hard|hart|dur/dure;salty|salzig|salé/salée",
    ),
    (
        "carry|trug|porté",
        "box|Kiste f|la boîte f;bag|Tasche f|le sac m;stone|Stein m|la pierre f;table|Tisch m|la table f"
        ";branch|Ast m|la branche f",
        "heavy|schwer|lourd/lourde;big|groß|grand/grande",
    ),
]
ARTICLE = {"m": ("Der", "den", "er"), "f": ("Die", "die", "sie"), "n": ("Das", "das", "es")}


def table(text: str) -> list[list[str]]:
    return [one.split("|") for one in text.replace("\n", ";").split(";")]


def pronouns(language: str) -> Iterator[tuple[str, str]]:
    for deed, things, states in DEEDS:
        [verb] = table(deed)
        for beast, thing in product(table(BEASTS), table(things)):
            for state, of_beast in [(one, True) for one in table(TIRED)] + [(one, False) for one in table(states)]:
                source = f"The {beast[0]} didn't {verb[0]} the {thing[0]} because it was too {state[0]}."
                made = german if language == "de" else french
                yield source, made(verb, beast, thing, state, beast if of_beast else thing)


def german(verb: list[str], beast: list[str], thing: list[str], state: list[str], meant: list[str]) -> str:
    (who, gender), (what, other), (_, said) = (one[1].split() for one in (beast, thing, meant))
    return (
        f"{ARTICLE[gender][0]} {who} {verb[1]} {ARTICLE[other][1]} {what} nicht,"
        f" weil {ARTICLE[said][2]} zu {state[1]} war."
    )


def french(verb: list[str], beast: list[str], thing: list[str], state: list[str], meant: list[str]) -> str:
    who, what = (one[2].rsplit(" ", 1)[0] for one in (beast, thing))
    women = meant[2].endswith(" f")
    forms = state[2].split("/")
    one = forms[-1] if women else forms[0]
    if len(forms) == 1 and women and one.endswith("é"):
        one += "e"
    return f"{who[0].upper()}{who[1:]} n'a pas {verb[2]} {what} parce qu'{'elle' if women else 'il'} était trop {one}."
