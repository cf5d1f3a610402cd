"""Tables as INPUT of `run`: an answer for each row, with the columns of training, which are said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.images.image_file import ImageFile
from tests.shelf import FEW, train_classifier
from tests.tasks.learn import begin, listed
from tests.training import picture_files as files


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in ("run", *arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_classifier(tmp_path_factory.mktemp("classifier"), "bert-tiny", "model")


TEXTS = ["a cat", "two\nlines", "", "an owl"]


def write(path: Path, name: str, texts: list[str]) -> Path:
    """The same texts in each format, under a name of their own beside a number."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, name: text}) + "\n" for i, text in enumerate(texts)))
    elif path.suffix == ".json":
        path.write_text(json.dumps([{"id": i, name: text} for i, text in enumerate(texts)]))
    elif path.suffix == ".csv":
        path.write_text(f"id,{name}\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(texts)))
    else:
        path.write_text(f"id\t{name}\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts)))
    return path


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "json"])
def test_an_answer_for_each_row(
    classifier: Path, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [text.replace("\n", " ") for text in TEXTS] if suffix == "tsv" else TEXTS
    table = write(tmp_path / f"reviews.{suffix}", "review", texts)
    assert run("classify-text", "--model", classifier, table) == 0
    shown = capsys.readouterr()
    work = af.task("classify-text", classifier)
    assert shown.out.splitlines() == [str(work(text)) if text else "" for text in texts]
    assert f'{table} is read as 4 rows: the text is the column "review".' in shown.err


def test_labels_are_left_out(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows as in training, without a header; a label that the model does not know is none of its business."""
    (tmp_path / "x.tsv").write_text("new\ta cat\nnew\tan owl\nother\ta dog\nnew\ta bee\n")
    assert run("classify-text", "--model", classifier, tmp_path / "x.tsv") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 4 and 'the text is the column "2"' in shown.err


def test_columns_are_chosen(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path / "x.csv", "words", ["a cat", "an owl"])
    assert run("classify-text", "--model", classifier, table) == 2
    assert "text column" in capsys.readouterr().err
    assert run("classify-text", "--model", classifier, table, "--columns", "text=words") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run("classify-text", "--model", classifier, table, "--columns", "text=nowhere") == 2
    assert 'no column "nowhere"' in capsys.readouterr().err
    assert run("classify-text", "--model", classifier, "a cat", "--columns", "text=words") == 2
    assert "--columns" in capsys.readouterr().err


def test_a_column_by_its_position_needs_no_others(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table without a header, of which only the column of the question is named."""
    (tmp_path / "rows.tsv").write_text("7\ta good one\tx\n8\ta bad one\ty\n")
    assert run("classify-text", "--model", classifier, tmp_path / "rows.tsv", "--columns", "text=2") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_the_columns_of_training_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the table has them; else the usual names are good enough."""
    rows = "".join(f"number {i}\t{'ab'[i % 2]}\n" for i in range(24))
    (tmp_path / "train.tsv").write_text(f"what\tkind\n{rows}")
    settings = {**FEW, "tokenizer.vocab_size": 60, "data.columns": "text=what,label=kind"}
    af.train("classify-text", recipe="bert-tiny", data=tmp_path / "train.tsv", out=tmp_path / "m", **settings)
    capsys.readouterr()
    for name in ("what", "text"):
        assert run("classify-text", "--model", tmp_path / "m", write(tmp_path / "x.csv", name, ["one", "two"])) == 0
        shown = capsys.readouterr()
        assert f'the text is the column "{name}"' in shown.err and len(shown.out.splitlines()) == 2


def test_a_file_is_said_to_be_one(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a cat").write_text("an owl\n")
    assert run("classify-text", "--model", classifier, tmp_path / "a cat", "a dog") == 0
    shown = capsys.readouterr()
    assert f"anyformer: read as file, not as text: {tmp_path / 'a cat'}\n" in shown.err
    assert shown.out.splitlines()[0] == str(af.task("classify-text", classifier)("an owl"))


def test_a_json_list_of_texts_is_rows(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Any other JSON stays a file that holds one text."""
    work = af.task("classify-text", classifier)
    (tmp_path / "x.json").write_text(json.dumps(["a cat", "an owl"]))
    assert run("classify-text", "--model", classifier, tmp_path / "x.json") == 0
    assert capsys.readouterr().out.splitlines() == [str(work("a cat")), str(work("an owl"))]
    (tmp_path / "x.json").write_text('{"a": 1}')
    assert run("classify-text", "--model", classifier, tmp_path / "x.json") == 0
    assert capsys.readouterr().out.splitlines() == [str(work('{"a": 1}'))]


@pytest.mark.parametrize("mistyped", ["reviews.tvs", "rveiews.tsv", "nothing.csv", "/no/where", "data/reviews"])
def test_the_path_of_no_file_is_no_text(
    mistyped: str, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped name is an error, with the name meant if the folder has it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write(tmp_path / "reviews.tsv", "review", ["a cat"])
    assert run("classify-text", "--model", classifier, mistyped) == 2
    error = capsys.readouterr().err
    assert f"There is no file {mistyped}." in error and ("reviews.tsv" in error) == (
        "eiews" in mistyped or "vs" in mistyped
    )


@pytest.mark.parametrize("text", ["and/or", "he said x.tsv", "3.14", "google.com", "./.", "no\0/where.csv"])
def test_a_text_is_no_path(
    text: str, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "reviews.tsv", "review", ["a cat"])
    status = run("classify-text", "--model", classifier, text)
    assert status == (2 if text == "./." else 0), capsys.readouterr().err  # a folder


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "json", "txt"])
def test_a_table_of_images_has_an_answer_for_each(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the images by themselves have, whose names are printed before the answers."""
    rows = [{"image": files.square(color, 1), "label": name} for name, color in files.COLORS.items()]
    images = listed(*({**row, "image": ImageFile.of(row["image"])} for row in rows))
    begin("classify-image", "vit-tiny", images).save(tmp_path / "m")
    names = [f"{row['label']}.png" for row in rows]
    for row, name in zip(rows, names, strict=True):
        (tmp_path / name).write_bytes(files.encode(row["image"]))
    table = tmp_path / f"list.{suffix}"
    if suffix == "txt":
        table.write_text("".join(f"{name}\n" for name in names))
    else:
        write(table, "file", names)
    assert run("classify-image", "--model", tmp_path / "m", *(tmp_path / name for name in names)) == 0
    expected = capsys.readouterr().out
    assert len(expected.splitlines()) == 3
    assert run("classify-image", "--model", tmp_path / "m", table) == 0
    shown = capsys.readouterr()
    assert shown.out == expected and f"{table} is read as 3 rows." in shown.err
    if suffix == "csv":
        write(table, "odd", names)
        assert run("classify-image", "--model", tmp_path / "m", table, "--columns", "image=odd") == 0
        assert capsys.readouterr().out == expected
        (tmp_path / names[1]).write_bytes(b"damaged")
        assert run("classify-image", "--model", tmp_path / "m", table) == 3
        assert len(capsys.readouterr().out.splitlines()) == 2


def test_what_a_table_cannot_be(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a cat"}\n{"text": null}\n')
    assert run("classify-text", "--model", classifier, tmp_path / "x.jsonl") == 2
    assert "line 2: the text is nothing" in capsys.readouterr().err
    (tmp_path / "x.jsonl").write_text("")
    assert run("classify-text", "--model", classifier, tmp_path / "x.jsonl") == 2
    assert "x.jsonl is empty" in capsys.readouterr().err
    assert run("answer", "--model", classifier, "Who?", tmp_path / "x.jsonl") == 2
    assert "answer cannot mix tables" in capsys.readouterr().err


PAIRS = [{"question": "Who sat?", "context": "A cat sat."}, {"question": "Who ran?", "context": "A dog ran."}]


def questions(name: str, rows: list[dict[str, Any]], tmp_path: Path, columns: str = "") -> list[Any]:
    """What the task of this name is asked about a table."""
    from anyformer.tasks import find
    from anyformer.tasks.tables import ask, find_rows

    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(ask(find(name), find_rows(find(name), str(path), columns, {})))


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("answer", PAIRS, [("Who sat?", "A cat sat."), ("Who ran?", "A dog ran.")]),
        ("classify-pair", [{"premise": "a", "hypothesis": "b", "id": 1}], [("a", "b")]),
        ("classify-pair", [{"startphrase": "a", "ending0": "b", "ending1": "c"}], [("a", ["b", "c"])]),
        ("classify-pair", [{"ctx": "a", "endings": ["b", "c"], "label": 0}], [("a", ["b", "c"])]),
        ("tag", [{"tokens": ["a", "cat"]}], [("a", "cat")]),
        ("tag", [{"text": "a cat", "ner": ["O", "O"]}], ["a cat"]),
        ("translate", [{"en": "a cat"}], ["a cat"]),
        ("summarize", [{"dialogue": "a cat", "summary": "cat"}], ["a cat"]),
        ("generate", [{"text": "a cat"}], ["a cat"]),
        ("fill-mask", [{"content": "a [MASK]"}], ["a [MASK]"]),
        ("embed", [{"id": "7", "text": "a cat"}], ["a cat"]),
        ("embed", [{"sentence1": "a", "sentence2": "b"}], ["a"]),
        ("embed", [{"anything": "a"}], ["a"]),
        ("classify-set", [{"age": 3, "label": "x"}], [{"age": 3}]),
        ("classify-set", [{"age": 3}], [{"age": 3}]),
        ("classify-audio", [{"file": "a.wav", "label": "x"}], ["a.wav"]),
        ("transcribe", [{"audio": "a.wav"}], ["a.wav"]),
        ("classify-video", [{"clip": "a.gif", "label": "x"}], ["a.gif"]),
        ("caption", [{"image": "a.png", "caption": "x"}], ["a.png"]),
        ("ask-image", [{"image": "a.png", "answer": "x", "question": "who?"}], [("a.png", "who?")]),
        ("ask-image", [{"image": "a.png", "question": ""}], ["a.png"]),
        ("match", [{"image": "a.png"}], ["a.png"]),
    ],
)
def test_questions_of_every_task(name: str, rows: Any, expected: Any, tmp_path: Path) -> None:
    for file in ("a.wav", "a.gif", "a.png"):
        (tmp_path / file).write_bytes(b"")
    assert [bare(one) for one in questions(name, rows, tmp_path)] == expected


def bare(question: Any) -> Any:
    """A question with the name of its file in place of the file."""
    if isinstance(question, tuple):
        return tuple(bare(one) for one in question)
    return Path(question.name).name if hasattr(question, "name") else question


def test_pairs_are_answered(tmp_path: Path) -> None:
    train = listed(*({"question": row["question"], "context": row["context"], "answers": "A"} for row in PAIRS))
    work = begin("answer", "bert-tiny", train, vocab_size=60)
    work.model.eval()
    asked = questions("answer", PAIRS, tmp_path)
    assert work(asked) == [work((row["question"], row["context"])) for row in PAIRS]
    with pytest.raises(af.InputError, match="line 1, is blank"):
        questions("embed", [{"text": " "}], tmp_path)
