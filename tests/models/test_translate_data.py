"""What the translators learn from: synthetic pairs are right in both languages, and the vocabulary copies anything."""

from __future__ import annotations

import random
import re

from tests.models.test_everyday import script

synthetic, data, pronouns = script("synthetic"), script("translate_data"), script("pronouns")


def test_templates_say_the_same_names_and_numbers() -> None:
    chance = random.Random(0)
    for template in synthetic.templates():
        slots = [set(re.findall(r"{(\w+)}", text)) for text in template]
        assert {slot.replace("of_", "").replace("in_", "") for slot in slots[0]} == {
            slot.replace("of_", "").replace("in_", "") for slot in slots[1]
        }
        made = synthetic.filled(template, chance)
        assert not any("{" in text or "  " in text for text in made)
        digits = [sorted(re.sub(r"\D", "", text)) for text in made]
        assert digits[0] == digits[1] == digits[2], made


def test_numbers_in_each_language() -> None:
    chance = random.Random(1)
    some = [synthetic.large(chance) for _ in range(50)]
    assert ("," in "".join(en for en, _, _ in some)) and all("," not in de + fr for _, de, fr in some)
    for en, de, fr in some:
        assert en.replace(",", ".") == de and en.replace(",", " ") == fr
    assert all(fr == en.replace(".", ",") for en, _, fr in (synthetic.decimal(chance) for _ in range(20)))


def test_other_names_and_numbers_on_both_sides() -> None:
    pair = "Tom paid Mary 1,000 yen in Boston in 2003.", "Tom zahlte Mary 2003 in Boston 1.000 Yen."
    made = synthetic.renamed(*pair, 1, random.Random(2))
    assert made is not None
    assert not re.search("Tom|Mary|1[,.]000|2003", made[0] + made[1])
    assert re.sub(r"\D", "", made[0]) != "" and sorted(re.sub(r"\D", "", made[0])) == sorted(re.sub(r"\D", "", made[1]))
    assert synthetic.renamed("Tom's dog sleeps.", "Toms Hund schläft.", 1, random.Random(2)) is None
    assert synthetic.renamed("It rains.", "Es regnet.", 1, random.Random(2)) is None


def test_it_agrees_with_what_is_meant() -> None:
    german, french = (dict(pronouns.pronouns(language)) for language in ("de", "fr"))
    source = "The dog didn't cross the river because it was too wide."
    assert german[source] == "Der Hund überquerte den Fluss nicht, weil er zu breit war."
    assert french[source] == "Le chien n'a pas traversé la rivière parce qu'elle était trop large."
    tired = french[source.replace("wide", "tired").replace("dog", "cow")]
    assert tired == "La vache n'a pas traversé la rivière parce qu'elle était trop fatiguée."


def test_vocabulary_has_single_digits_and_every_character() -> None:
    engine = data.vocabulary(["in 1992 and 1992 and 1992 Émile"] * 3, 300)
    for text in ("in 1992", "Żółć 数 99\u00a0%"):
        ids = engine.encode(text).ids
        assert engine.decode(ids) == text and ids[-1] == 1
        assert sum(re.fullmatch(r"\D*\d", engine.decode([i])) is not None for i in ids) == len(re.findall(r"\d", text))
