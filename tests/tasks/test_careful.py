"""What a translator does with texts as people write them: control characters, capitals, loops, names, other languages,
sentences without an end."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig
from anyformer.tasks.careful import best, clean, is_shouted, loops, lowered, mend, repeats
from anyformer.tokenizers.sentence_split import clauses
from tests.tasks.learn import begin, learn, listed

PAIRS = {
    "It rains": "Es regnet",
    "the cat sleeps": "die Katze schläft",
    "The cat sleeps": "Die Katze schläft",
    "and a dog barks": "und ein Hund bellt",
    "sing": "la di la di la di la di la di la di la di",
}
ROWS = listed(*({"source": a, "target": b} for a, b in PAIRS.items()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = begin("translate", "transformer-tiny", ROWS, vocab_size=300, options={"num_beams": 2})
    learn(task, ROWS, 150, batch=BatchConfig(rows=5))
    path = tmp_path_factory.mktemp("careful") / "x"
    task.save(path)
    return path


def test_control_characters_are_no_part_of_a_text(folder: Path) -> None:
    translate = af.task("translate", folder)
    dirty = ["\x00It\x07 rains\x1b", "\ufeffIt ra\u00adins\u200b", "\x00\x01", ""]
    answers = [str(one) for one in translate(dirty)]
    assert answers == [str(translate("It rains"))] * 2 + ["", ""] and answers[0] == "Es regnet"
    assert clean("tab\tand\nline \U0001f468\u200d\U0001f469") == "tab\tand\nline \U0001f468\u200d\U0001f469"


def test_capitals_are_read_as_small_letters(folder: Path) -> None:
    """Of several words; the answer has capitals too. Only where the model reads sentences."""
    translate = af.task("translate", folder, sentences=True)
    answer = translate("THE CAT SLEEPS")
    assert str(answer) == "DIE KATZE SCHLÄFT" and answer.source == "THE CAT SLEEPS"
    assert [is_shouted(text) for text in ("THE CAT", "NATO", "I", "The CAT", "12 34", "OK, GO!")] == [
        *(True, False, False, False, False, True)
    ]
    assert lowered('"AM I LATE?" HE SAID.') == '"Am I late?" he said.'
    raw = af.task("translate", folder)
    assert raw("THE CAT SLEEPS").text != "DIE KATZE SCHLÄFT"


def test_a_loop_is_left(folder: Path) -> None:
    """What a model says over and over is written anew, unless the caller allows it; what the source repeats is no
    loop."""
    translate = af.task("translate", folder)
    assert str(translate("sing", no_repeat_ngram_size=0)) == PAIRS["sing"]
    said = translate("sing")
    assert repeats(said.ids)[0] == 1 and 0 < len(said.ids) < 40 and str(translate("It rains")) == "Es regnet"
    assert repeats([7, 1, 2, 1, 2, 1, 2, 1, 2]) == (4, 3) and repeats([1, 2, 1, 2, 1, 2]) == (1, 6)
    assert repeats([9, 1, 2, 3, 1, 2, 3, 1, 2, 3]) == (3, 4) and repeats([]) == (1, 0)
    assert loops([5, 5, 5, 5, 5], [1, 2]) and not loops([5, 5, 5, 5], [4, 4, 4, 4]) and not loops([5, 5, 5], [1])


def test_answers_are_no_longer_than_their_source_allows(folder: Path) -> None:
    translate: Any = af.task("translate", folder, sentences=True, max_target_length=128)
    chosen = translate._choose([[1, 2, 3], [4] * 5], {})
    assert chosen["max_new_tokens"] == 35 and translate._choose([[1] * 200], {})["max_new_tokens"] == 128
    assert translate._choose([[1]], {"max_new_tokens": 60})["max_new_tokens"] == 60


def test_another_language_is_said(folder: Path) -> None:
    translate = af.task("translate", folder, language="en")
    with pytest.warns(UserWarning, match=r"German, .*English"):
        translate(["It rains", "Wo ist der Bahnhof?", "Ich weiß es nicht."])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translate(["the cat sleeps", "Berlin", "", "17:45"])
        af.task("translate", folder)("Wo ist der Bahnhof?")
    with pytest.raises(af.ConfigError, match='language is "xx"; known are: en, de'):
        af.task("translate", folder, language="xx")


def test_long_sentences_are_cut_at_their_borders(folder: Path) -> None:
    assert clauses("one two three", 0) == clauses("one two three", 3) == ["one two three"]
    text = "I came home late, the door was open and nobody was there"
    assert clauses(text, 8) == ["I came home late,", "the door was open and nobody was there"]
    assert clauses("I saw the door open and nobody was there", 6) == ["I saw the door open", "and nobody was there"]
    endless = " ".join(str(n) for n in range(5000))
    parts = clauses(endless, 40)
    assert " ".join(parts) == endless and max(len(part.split()) for part in parts) <= 40 and len(parts) == 125
    translate = af.task("translate", folder, sentences=True, clauses=4)
    whole = translate("The cat sleeps and a dog barks")
    assert str(whole) == "Die Katze schläft und ein Hund bellt" and len(whole.sentences) == 2


def test_five_thousand_words(folder: Path) -> None:
    """An answer, and no longer than three times the text."""
    translate = af.task("translate", folder, sentences=True, clauses=4, num_beams=1)
    said = str(translate("the cat sleeps " * 1666))
    assert said.count("Katze") > 1000 and len(said) < 3 * 5000 * 8


def test_of_like_answers_the_one_with_the_names_is_taken() -> None:
    source, answers = "Tom met Mary in 1992.", ["Tom traf Maria 1992.", "Tom traf Mary 1992.", "Mary 1992 Tom"]
    assert best(source, answers, [-0.5, -0.6, -0.7]) == 1
    assert best(source, answers, [-0.5, -0.9, -0.55]) == 2  # the second is too unlikely
    assert best(source, answers, [-0.5, -0.9, -0.9]) == 0
    assert best("a man", ["ein Mann", "ein Mensch"], [-0.5, -0.5]) == 0


def test_names_that_are_nearly_right_are_put_right() -> None:
    source, said = "Angela Merkel met Tom in Warsaw.", "Angela Meckel traf Tom in Warschau."
    doubts = [-2.0 if 7 <= n < 13 else -0.1 for n in range(len(said))]
    assert mend(source, said, doubts) == "Angela Merkel traf Tom in Warschau."  # sure of Warschau, not of Meckel
    assert mend(source, said, [-0.1] * len(said)) == said
    said = "Ruf 555-019 an, oder 1.250 oder 19."
    assert mend("Call 555-0199, or 1,250, or 7 p.m.", said, [-0.1] * len(said)) == said.replace("019", "0199")
    assert mend("Say hello.", "Sagen Sie hallo.", [-2.0] * 20) == "Sagen Sie hallo."


def test_names_are_kept_by_a_folder_that_says_so(folder: Path) -> None:
    """The same answers as without, where there is no name; log-probabilities only for those who ask."""
    plain, keeping = af.task("translate", folder), af.task("translate", folder, copies=True)
    assert repeats(keeping("sing").ids)[0] == 1  # the answer that is taken loops no more than the first would
    for text in ("It rains", "the cat sleeps"):
        assert str(plain(text)) == str(keeping(text)) and keeping(text).logprobs is None
        assert len(keeping(text, logprobs=True).logprobs) == len(keeping(text).ids)
        assert len(keeping(text, num_return_sequences=2)) == 2
