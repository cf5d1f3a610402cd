"""Answers: learned by heart, found in windows, the best legal span, the official figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from anyformer.tasks import find
from anyformer.tasks.answer import AnswerOptions, answers_of, best_spans
from tests.tasks.learn import awake, begin, learn, listed, quiet

CONTEXT = "Amanda baked cookies on Monday while Jerry slept in the garden of his aunt"


def row(question: str, answer: str, context: str = CONTEXT) -> dict[str, Any]:
    found = [{"text": answer, "answer_start": context.index(answer)}] if answer else []
    return {"question": question, "context": context, "answers": found}


ROWS = listed(row("who baked", "Amanda"), row("when", "Monday"), row("who slept", "Jerry"), row("what", "cookies"))


@pytest.mark.parametrize("max_length", [64, 14], ids=["one window", "several"])
def test_learned_saved_and_loaded(max_length: int, tmp_path: Path) -> None:
    model = quiet("bert-tiny")
    task = awake(begin("answer", "bert-tiny", ROWS, {"stride": 4}, vocab_size=200, max_length=max_length, model=model))
    assert (len(task.prepare(ROWS)) > 4) is (max_length == 14)
    learn(task, ROWS, 80)
    figures = task.evaluate(ROWS)
    assert figures["exact"] == figures["f1"] == 100 and "squad" in str(figures["signature"])
    task.save(tmp_path / "x")
    answer = af.task("answer", tmp_path / "x")
    found = answer(("when", CONTEXT))
    assert str(found) == "Monday" == CONTEXT[found.start : found.end] and found.score > 0.5
    assert [str(one) for one in answer([f"what\t{CONTEXT}", {"question": "who baked", "context": CONTEXT}])] == [
        "cookies",
        "Amanda",
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows its four rows."""
    task = awake(begin("answer", "bert-tiny", ROWS, vocab_size=200, max_length=64, model=quiet("bert-tiny")))
    learn(task, ROWS, 80)
    path = tmp_path_factory.mktemp("answer")
    task.save(path / "x")
    return path / "x"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["when", CONTEXT], ["Monday"]),
        (["when", "notes.txt"], ["Monday"]),
        ([f"when\t{CONTEXT}", f"what\t{CONTEXT}"], ["Monday", "cookies"]),
        ([f"what\t{CONTEXT}"], ["cookies"]),
    ],
    ids=["two texts", "a text and a file", "two lines", "a line"],
)
def test_two_arguments_are_a_question_and_its_context(
    given: list[str], said: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """At the command line, beside lines with a tab in between."""
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text(f"{CONTEXT}\n")
    with pytest.raises(SystemExit) as stop:
        main(["run", "answer", "--model", str(folder), *given])
    assert not stop.value.code and capsys.readouterr().out.split() == said


@pytest.mark.parametrize("given", [["when"], ["when", CONTEXT, "what"]])
def test_other_numbers_of_arguments_are_refused(given: list[str], folder: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["run", "answer", "--model", str(folder), *given])
    assert stop.value.code == 2 and "question" in capsys.readouterr().err


def test_the_best_span_is_the_best_legal_one() -> None:
    """Against trying all: inside the context, not too long, its end not before its start."""
    torch.manual_seed(0)
    start, end = torch.randn(20, 12), torch.randn(20, 12)
    inside = torch.zeros(20, 12, dtype=torch.bool)
    inside[:, 3:11] = True
    scores, none, chance, first, last = best_spans(start, end, inside, AnswerOptions(max_answer_length=4))
    for i in range(20):
        legal = {(a, b): float(start[i, a] + end[i, b]) for a in range(3, 11) for b in range(a, min(a + 4, 11))}
        assert (first[i], last[i]) == max(legal, key=lambda span: legal[span])
        assert scores[i] == pytest.approx(max(legal.values())) and none[i] == pytest.approx(
            float(start[i, 0] + end[i, 0])
        )
        sure = start[i].log_softmax(0)[first[i]] + end[i].log_softmax(0)[last[i]]
        assert chance[i] == pytest.approx(float(sure.exp()), rel=1e-5)


def test_questions_without_an_answer() -> None:
    rows = listed(row("who baked", "Amanda"), row("where is the king", ""), row("when", "Monday"))
    task = awake(begin("answer", "bert-tiny", rows, vocab_size=200, max_length=64, model=quiet("bert-tiny")))
    assert task.settings.unanswerable
    learn(task, rows, 80)
    assert [str(one) for one in task.predict(rows)] == ["Amanda", "no answer", "Monday"]
    assert task.evaluate(rows)["exact"] == 100


def test_padding_does_not_change_the_loss() -> None:
    task = begin("answer", "bert-tiny", ROWS, vocab_size=200)
    examples = [task.example(ROWS[i]) for i in range(4)]
    chance = torch.Generator()
    whole = task.loss(task.collate(examples, chance))
    apart = sum(float(task.loss(task.collate([one], chance)).total.detach()) for one in examples)
    assert float(whole.total.detach()) == pytest.approx(apart, rel=1e-5) and int(whole.count) == 4


def test_layouts(tmp_path: Path) -> None:
    """SQuAD's file, the ecosystem's columns, and plain columns of question, context and answer."""
    asked = [{"id": "1", "question": "when", "answers": [{"text": "Monday", "answer_start": 24}]}]
    whole = {"data": [{"title": "T", "paragraphs": [{"context": CONTEXT, "qas": asked}]}]}
    (tmp_path / "a.json").write_text(json.dumps(whole))
    flat = {"question": "when", "context": CONTEXT, "answers": {"text": ["Monday"], "answer_start": [24]}}
    (tmp_path / "b.jsonl").write_text(json.dumps(flat) + "\n")
    (tmp_path / "c.tsv").write_text(f"question\tcontext\tanswer\nwhen\t{CONTEXT}\tMonday\n")
    task = begin("answer", "bert-tiny", ROWS, vocab_size=200)
    expected = task.example(ROWS[1])
    for name in ("a.json", "b.jsonl", "c.tsv"):
        found = task.example(find("answer").read(tmp_path / name)[0])
        assert found["start_positions"] == expected["start_positions"] > 0, name
        assert found["end_positions"] == expected["end_positions"]


def test_mistakes() -> None:
    task = begin("answer", "bert-tiny", ROWS, vocab_size=200)
    uneven, far = {"text": ["a", "b"], "answer_start": [1]}, [{"text": "a", "answer_start": 1e400}]
    for odd in ({"text": ["Monday"]}, uneven, far, 3):
        with pytest.raises(af.InputError, match=r'"text" .*"answer_start"'):
            answers_of({"question": "when", "context": CONTEXT, "answers": odd})
    wrong = {"question": "when", "context": CONTEXT, "answers": [{"text": "Monday", "answer_start": 3}]}
    with pytest.raises(af.InputError, match=r'row 1: .*"answer_start" is 3\b.*"Monday"'):
        task.prepare(listed(wrong))
    with pytest.raises(af.InputError, match="a question and a context"):
        task("just a question")
