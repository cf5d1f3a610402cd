"""Tags: learned by heart; the first token of each word has its tag; long sentences in parts; seqeval's figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.forward_context import IGNORED
from anyformer.tasks import find
from anyformer.tasks.tag import TaggedText, joined, word_spans
from tests.tasks.learn import begin, learn, listed

CONLL = """Peter NNP I-PER
Blackburn NNP I-PER
lives VBZ O
in IN O
Brussels NNP I-LOC

Ann NNP I-PER
Tom NNP B-PER
work VBP O
for IN O
Acme NNP I-ORG
Ltd NNP I-ORG
. . O
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("data") / "eng.train"
    path.write_text(CONLL)
    return find("tag").read(path)


@pytest.fixture(scope="module")
def trained(rows: Any) -> Any:
    task = begin("tag", "bert-tiny", rows, vocab_size=120)
    learn(task, rows, 100)
    return task


def test_learned_saved_and_loaded(trained: Any, rows: Any, tmp_path: Path) -> None:
    assert trained.labels == ("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER")
    figures = trained.evaluate(rows)
    assert figures["f1"] == figures["precision"] == figures["recall"] == 100 and figures["accuracy"] == 1
    trained.save(tmp_path / "x")
    tag = af.task("tag", tmp_path / "x")
    found = tag("Peter Blackburn lives in Brussels")
    assert str(found) == "[Peter Blackburn: PER] lives in [Brussels: LOC]"
    assert [(one.text, one.label, one.start, one.end) for one in found.entities] == [
        ("Peter Blackburn", "PER", 0, 2),
        ("Brussels", "LOC", 4, 5),
    ]
    both = tag([("Ann", "Tom", "work"), "Peter Blackburn lives"])
    assert both[0].tags == ("B-PER", "B-PER", "O") and len(both[1].scores) == 3


def test_the_first_token_of_a_word_has_its_tag(trained: Any, rows: Any) -> None:
    example = trained.example(rows[0])
    tok = trained.tokenizer
    tagged = [
        tok.tokens([i])[0] for i, label in zip(example["input_ids"], example["labels"], strict=True) if label >= 0
    ]
    firsts = [tok.tokens(tok.encode(word, special=False))[0] for word in rows[0]["tokens"]]
    assert tagged == firsts and example["labels"][0] == example["labels"][-1] == IGNORED
    assert example["input_ids"] == tok.encode(" ".join(rows[0]["tokens"]))


def test_long_sentences_are_cut_and_put_together(rows: Any) -> None:
    """Every word gets a tag, however short the model's reach."""
    task = begin("tag", "bert-tiny", rows, vocab_size=120, max_length=8)
    parts = task.examples([rows[1]])
    assert len(parts) > 1 and all(len(part["input_ids"]) <= 8 for part in parts)
    assert sum(label >= 0 for part in parts for label in part["labels"]) == 7
    assert [len(row) for row in task.predict(rows)] == [5, 7]
    assert {part["row"] for part in parts} == {0}


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "byte"])
def test_every_kind_of_tokenizer(kind: str, rows: Any) -> None:
    """The pieces of the words are those of the sentence."""
    task = begin("tag", "bert-tiny", rows, kind=kind, vocab_size=300 if kind == "bpe" else 60)
    for row in rows:
        pieces = [i for word in task.pieces([row["tokens"]])[0] for i in word]
        assert pieces == task.tokenizer.encode(" ".join(row["tokens"]), special=False)


def test_parts_of_speech(tmp_path: Path) -> None:
    """Tags that mark no entities are measured by accuracy; another column of the file is one option away."""
    (tmp_path / "x.conll").write_text(CONLL)
    from anyformer.data.settings import DataSettings

    rows = find("tag").read(tmp_path / "x.conll", DataSettings(columns="tags=2"))
    task = begin("tag", "bert-tiny", rows, vocab_size=120)
    assert task.metric == "accuracy" and "NNP" in task.labels
    learn(task, rows, 80)
    assert task.evaluate(rows) == {"accuracy": 1.0}
    assert str(task(tuple(rows[0]["tokens"]))) == "Peter/NNP Blackburn/NNP lives/VBZ in/IN Brussels/NNP"


def test_mistakes(trained: Any) -> None:
    with pytest.raises(af.InputError, match=r'row 1: .*"B-MISC"'):
        trained.evaluate(listed({"tokens": ["a"], "tags": ["B-MISC"]}))
    with pytest.raises(af.InputError, match=r"row 1: .*\b1 tags .*\b2 words"):
        begin("tag", "bert-tiny", listed({"tokens": ["a", "b"], "tags": ["O"]}))
    with pytest.raises(af.DataError, match=r"^the rows given .*\b1 "):
        begin("tag", "bert-tiny", listed({"tokens": ["a"], "tags": ["O"]}))


def test_no_room_for_words(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for length in (1, 2):
        monkeypatch.setattr(trained, "max_length", length)
        with pytest.raises(af.InputError, match=f"max_length is {length}"):
            trained.evaluate(listed({"tokens": ["a"], "tags": ["O"]}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("He's in U.S. (Rome), 3.5 km.", "He 's in U.S. ( Rome ) , 3.5 km ."),
        ("Prof. Hill of M.I.T. met J. Smith.", "Prof. Hill of M.I.T. met J. Smith ."),
        ("Washington,  D.C.", "Washington , D.C."),
        ("It was I. We left Dr.", "It was I . We left Dr ."),
        ("AT&T co-owns n.ä. 7.", "AT&T co-owns n.ä. 7 ."),
    ],
)
def test_words_and_marks(text: str, words: str) -> None:
    assert [text[start:end] for start, end in word_spans(text)] == words.split()
    whole, spans = joined(words.split())
    assert whole == words and [whole[start:end] for start, end in spans] == words.split()


TEXT = "Prof. Peter Blackburn  (of Brussels, D.C.)\nlives in\tBrussels."


def test_answers_have_the_characters_that_were_given(trained: Any) -> None:
    """Whatever was found, without the marks around it the printed answer is the text itself."""
    answer = trained(TEXT)
    assert answer.text == TEXT and [TEXT[a:b] for a, b in answer.spans] == list(answer.words)
    assert answer.entities and "".join(part for part, _ in answer.parts()) == TEXT
    for entity in answer.entities:
        assert entity.text == TEXT[slice(*entity.span)]
        assert answer.spans[entity.start][0] == entity.span[0] and answer.spans[entity.end - 1][1] == entity.span[1]
    assert re.sub(r"\[([^\[\]:]*): [A-Z]+\]", r"\1", str(answer)) == TEXT
    words = trained(("Peter", "Blackburn"))
    assert words.text == "Peter Blackburn" and str(words) == "[Peter Blackburn: PER]"
    assert str(trained("")) == "" and str(TaggedText((), (), ())) == ""
