"""The models that ship, at work: what anyone can see to be right, they say. A model that is not in this checkout is
skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import pretrained
from anyformer.data.images import draw
from anyformer.data.images.image_file import ImageFile

INPUTS = Path(__file__).parents[2] / "models" / "notes" / "inputs"


def ask(name: str, *things: Any, **options: Any) -> list[Any]:
    found = pretrained.find(name)
    if found is None or found.path is None:
        pytest.skip(f"{name} is not here")
    if found.base is not None and (base := pretrained.find(found.base)) is not None and base.path is None:
        pytest.skip(f"{found.base} is not installed")
    answers: list[Any] = af.task(found.task, name)(list(things), **options)
    return answers


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        (
            "en-fr",
            {
                "Where is the train station?": ("gare", "?"),
                "Two dogs are running in the snow.": ("chiens", "neige"),
                "I would like a cup of coffee, please.": ("café",),
                "My brother works in a hospital in London.": ("frère", "hôpital", "Londres"),
            },
        ),
        (
            "en-de",
            {
                "Where is the train station?": ("Bahnhof", "?"),
                "Two dogs are running in the snow.": ("Hunde", "Schnee"),
                "I would like a cup of coffee, please.": ("Tasse", "Kaffee"),
                "My brother works in a hospital in London.": ("Bruder", "Krankenhaus", "London"),
            },
        ),
    ],
)
def test_translations_have_the_words(name: str, pairs: dict[str, tuple[str, ...]]) -> None:
    """In captions and in everyday talk, with capitals and stops."""
    for source, answer in zip(pairs, map(str, ask(name, *pairs)), strict=True):
        assert all(word in answer for word in pairs[source]), answer
        assert answer[0].isupper() and answer[-1] in ".?", answer


@pytest.mark.parametrize(("name", "words"), [("en-de", ("Bahnhof", "Hunde")), ("en-fr", ("gare", "chiens"))])
def test_texts_of_several_sentences_are_translated_whole(name: str, words: tuple[str, str]) -> None:
    """Each as it is alone, its lines as they stood; where there is nothing to translate, nothing is made up."""
    parts = ["Where is the train station?", "Two dogs are running in the snow."]
    alone = [str(one) for one in ask(name, *parts)]
    whole, blank, emoji = map(str, ask(name, f"{parts[0]} {parts[1]}\n\n{parts[1]}\n", " ", "\U0001f600"))
    assert whole == f"{alone[0]} {alone[1]}\n\n{alone[1]}" and all(word in whole for word in words)
    assert blank == "" and emoji == "\U0001f600"


def test_capitals_times_and_names_of_the_data_survive() -> None:
    """What the rules for names, numbers and capitals keep; the cards say what goes wrong."""
    pairs = {
        "My flight to Chicago leaves at 17:45.": ("Chicago", "17:45"),
        "WHERE IS THE TRAIN STATION?": ("WO IST DER BAHNHOF?",),
    }
    for source, answer in zip(pairs, map(str, ask("en-de", *pairs)), strict=True):
        assert all(part in answer for part in pairs[source]), answer


@pytest.mark.parametrize("name", ["en-de", "en-fr"])
def test_another_language_is_warned_about(name: str) -> None:
    with pytest.warns(UserWarning, match="German, .*English"):
        ask(name, "Wo ist der Bahnhof?")


def test_a_chat_in_a_sentence() -> None:
    lines = "Did you feed the cat?", "Oh no, I forgot!", "Please do it when you get home.", "I will be there at 6."
    chat = "\n".join(f"{who}: {line}" for who, line in zip(("Sara", "Mark") * 2, lines, strict=True))
    (answer,) = map(str, ask("dialogues", chat))
    assert "Mark" in answer and "cat" in answer and len(answer) < len(chat)


def test_a_printed_line_is_read() -> None:
    (answer,) = ask("lines", INPUTS / "line.png")
    assert str(answer) == "Invoice 2031-07: 3 coffees, 12.50 EUR"
    read = af.task("read", "lines")
    batch, _ = read.look_at([ImageFile.of(INPUTS / "line.png")])
    looked = read.regions(batch, list(answer.ids))[:, 0].argmax(dim=1).double()  # a column for each letter
    places = torch.stack([looked, torch.arange(float(len(looked)))])
    assert float(torch.corrcoef(places)[0, 1]) > 0.98  # from left to right
    assert answer.draw().height > draw.STRIP * len(answer.ids)  # a strip for each


def test_a_spoken_digit_is_heard() -> None:
    (answer,) = ask("digits", INPUTS / "seven.wav")
    assert str(answer).startswith("7")


def test_cells_are_found_where_they_are() -> None:
    """The image has one white cell, right of the middle, and more than a dozen red ones."""
    (found,) = ask("cells", INPUTS / "cells.jpg")
    names = [one.label for one in found]
    white = [one.box for one in found if one.label == "WBC"]
    assert names.count("RBC") >= 12 and len(white) == 1
    left, top, right, bottom = (float(x) for x in white[0])
    assert left > 300 and right - left > 150 and bottom - top > 150


def test_a_face_has_its_points_in_order() -> None:
    """Brows above eyes, eyes above the mouth, the mouth above the chin; her right eye is left in the image."""
    (found,) = ask("faces", INPUTS / "face.jpg")
    points = dict(zip(found.names, found.persons[0].tolist(), strict=True))
    parts = ("_brow_", "_eye_", "_lip_")
    middles = [[place[1] for name, place in points.items() if part in name] for part in parts]
    heights = [sum(one) / len(one) for one in middles]
    assert heights == sorted(heights) and heights[-1] < points["jaw_middle"][1]
    assert points["right_eye_outer"][0] < points["nose_bridge_4"][0] < points["left_eye_outer"][0]


def test_a_ship_is_a_ship() -> None:
    (answer,) = ask("cifar10", INPUTS / "ship.jpg")
    assert str(answer).startswith("ship")


def test_patches_that_were_hidden_come_back_roughly() -> None:
    """Better than painting the mean, which has an error of one (patches are normalized)."""
    (found,) = ask("patches", INPUTS / "ship.jpg")
    assert found.error < 0.5


def test_opinions_names_and_answers() -> None:
    opinions = [str(one) for one in ask("sentiment", "A lovely film, a joy to watch.", "Dull, slow and badly acted.")]
    assert [one.split()[0] for one in opinions] == ["positive", "negative"]
    (tagged,) = map(str, ask("entities", "Angela Merkel met Barack Obama in Berlin."))
    assert all(part in tagged for part in ("Angela Merkel: PER", "Barack Obama: PER", "Berlin: LOC"))
    (answer,) = ask("questions", ("Who baked cookies?", "Amanda baked cookies, and Jerry ate them all before noon."))
    assert str(answer) == "Amanda"


def test_questions_may_have_no_answer() -> None:
    """Of a text that answers one of two questions; the card has the rates, and questions that it still gets wrong."""
    town = "The town lies on the coast."
    prize = "Albert Einstein was born in Ulm in 1879 and won the Nobel Prize in Physics in 1921."
    asked = (("Where does the town lie?", town), ("Who is the mayor?", town), ("Where was he born?", prize))
    said = [str(one) for one in ask("questions", *asked, ("Who did Einstein marry?", prize))]
    assert said[1::2] == ["no answer"] * 2 and said[2] == "Ulm" and "coast" in said[0]


def test_probabilities_are_calibrated_and_doubts_are_said() -> None:
    """The temperatures and limits of the cards are in force; neither changes which answer is the best."""
    for name, thing, limit in (
        ("sentiment", "It could hardly have been better.", 0.75),
        ("paraphrase", ("The minister resigned on Tuesday.", "The minister opened a school on Tuesday."), 0.7),
    ):
        (answer,) = ask(name, thing)
        plain = af.task(pretrained.find(name).task, name, temperature=1.0, unsure_below=0.0)(thing)  # type: ignore[union-attr]
        assert answer.unsure and answer.score < limit and "unsure" in str(answer) and answer.score < plain.score
        assert answer.label == plain.label and not plain.unsure
    (tagged,) = ask("entities", "Grace Hopper worked for Remington Rand in Philadelphia.")
    assert [one.unsure for one in tagged.entities if one.label == "PER"] == [False]
    assert all(one.unsure == (one.score < 0.7) for one in tagged.entities)
    assert str(*ask("entities", "The cat sat on the mat.")) == "The cat sat on the mat."  # no entity: no tags


def test_two_sentences_that_say_the_same() -> None:
    same = (
        "The company said its profit fell by a third last year.",
        "Last year profits at the firm dropped 33 percent.",
    )
    other = ("The cat sat on the mat.", "Stock markets fell sharply on Monday.")
    assert [str(one).split()[0] for one in ask("paraphrase", same, other)] == ["same", "different"]


def test_a_story_goes_on_in_words() -> None:
    """English words between stops, not one word again and again."""
    torch.manual_seed(0)
    (told,) = map(str, ask("stories", "Once upon a time there was a little", max_new_tokens=60))
    words = [word.strip('.,!?";:').lower() for word in told.split()]
    assert len(words) > 30 and len(set(words)) > 15
    assert {"the", "and", "a", "to", "was"} & set(words) and "." in told


def test_a_photograph_gets_a_sentence() -> None:
    """It makes things up; that there is a person it should see."""
    (answer,) = map(str, ask("captions", INPUTS / "portrait.jpg"))
    assert {"man", "woman", "girl", "boy", "person"} & set(answer.split()), answer
