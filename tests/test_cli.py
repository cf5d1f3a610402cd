"""The command line: it teaches, it converts, and a mistake ends in one sentence and exit code 2."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import pretrained
from anyformer.cli import run as console
from anyformer.cli.app import recipe_names
from anyformer.cli.listing import format_count, parse_size_range
from anyformer.cli.main import list_recipes, main
from anyformer.tasks import TASKS, find


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    for line in ("anyformer demo", "anyformer recipes", "anyformer convert gpt2/ mine/ --to anyformer"):
        assert line in shown


def test_recipes_are_listed_with_their_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in af.recipes())
    assert "gpt2-124m 124M" in " ".join(shown.split()) and "GPT-2 (Radford et al. 2019)" in shown
    assert len(shown.splitlines()) < 120


def test_recipes_of_a_family_and_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes", "--family", "gpt2") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert {row[1] for row in rows} == {"gpt2"} and ["gpt2-124m", "gpt2", "124,439,808"] in [row[:3] for row in rows]
    assert run("recipes", "--family", "gpt2", "--size", "100M-400M") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["gpt2-124m", "gpt2-355m"]
    for wrong in (("--family", "gpt9"), ("--size", "big"), ("--size", "-"), ("--family", "gpt2", "--size", "1-2")):
        assert run("recipes", *wrong) == 2
        assert wrong[-1] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10M", (0, 1e7)), ("10m-", (1e7, math.inf)), ("1.5K-2B", (1500, 2e9)), ("7", (0, 7))],
)
def test_a_range_of_sizes(text: str, expected: tuple[float, float]) -> None:
    assert parse_size_range(text) == expected


@pytest.mark.parametrize(
    ("count", "text"), [(7, "7"), (1234, "1.2K"), (85_066, "85K"), (999_890_000, "1.0B"), (124_439_808, "124M")]
)
def test_counts_are_short(count: int, text: str) -> None:
    assert format_count(count) == text


def test_counted_parameters_are_those_of_the_built_model() -> None:
    counts = {name: parameters for name, _, parameters, _ in list_recipes()}
    for name in ("gpt2-tiny", "transformer-tiny", "detr-tiny"):
        assert counts[name] == sum(parameter.numel() for parameter in af.build(name).parameters())


def test_convert_goes_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = af.build("gpt2-tiny").eval()
    model.save(tmp_path / "own")
    assert run("convert", str(tmp_path / "own"), str(tmp_path / "hf"), "--to", "hf") == 0
    assert run("convert", str(tmp_path / "hf"), str(tmp_path / "back"), "--to", "anyformer") == 0
    assert str(tmp_path / "back") in capsys.readouterr().out
    ids = torch.randint(0, 256, (2, 9))
    for folder in ("hf", "back"):
        assert torch.equal(af.load(tmp_path / folder)(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["convert", "nowhere", "out", "--to", "hf"], "nowhere does not exist"),
        (["convert", "nowhere", "out", "--to", "onyx"], "'onyx' is not one of"),
        (["convert", "nowhere", "out"], "Missing option '--to'"),
        (["recipe"], "recipe"),
        (["demo", "--train", "--out", "file"], "--out is file, which cannot be written"),
    ],
)
def test_mistakes_end_in_a_sentence_and_code_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    assert says in shown.err and "Traceback" not in shown.err and not shown.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"], "nothing half-written"


def test_python_dash_m(tmp_path: Path) -> None:
    source = Path(af.__file__).parents[1]
    ran = subprocess.run(
        [sys.executable, "-m", "anyformer", "convert", "nowhere", "out", "--to", "hf"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2 and ran.stderr.startswith("anyformer: nowhere does not exist") and not ran.stdout
    assert ran.stderr.count("\n") == 1


def start(folder: Path, torch: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The console script, where importing torch does as told."""
    (folder / "torch.py").write_text(torch)
    source = f"{folder}{os.pathsep}{Path(af.__file__).parents[1]}"
    command = [sys.executable, "-c", "from anyformer_start import main; main()"]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": source, **environment}, capture_output=True, text=True
    )


def test_stopped_while_it_starts(tmp_path: Path) -> None:
    ran = start(tmp_path, "raise KeyboardInterrupt")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("run tra", ["transcribe", "translate"]),
        ("eval classify-t", ["classify-text"]),
        ("run translate --model en-", ["en-de", "en-fr"]),
        ("models line", ["lines"]),
        ("train translate --recipe bert-t", ["bert-tiny"]),
    ],
)
def test_a_shell_completes_names(words: str, expected: list[str], tmp_path: Path) -> None:
    """Without torch, which takes seconds."""
    told = {"COMP_WORDS": f"anyformer {words}", "COMP_CWORD": str(len(words.split()))}
    ran = start(tmp_path, "raise ImportError", _ANYFORMER_COMPLETE="complete_bash", **told)
    assert ran.stdout.split() == expected, ran.stderr


def test_every_recipe_is_completed() -> None:
    assert recipe_names("") == [*af.recipes(), *(model.name for model in pretrained.models())]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder with a tokenizer and a chat template."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = af.Tokenizer.train(iter(["the cat sat on the mat"] * 5), kind="byte")
    torch.manual_seed(0)
    model = af.build("llama-tiny", vocab_size=len(tokenizer), end=None).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    model.save(path)
    tokenizer.save(path)
    (path / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
    )
    return path


def test_run_answers_texts_files_and_lines(
    writer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = af.task("generate", writer, max_new_tokens=6)
    expected = [str(ask(text)) if text else "" for text in ("the cat", "two\nlines", "a", "", "mat")]
    (tmp_path / "prompt.txt").write_text("two\nlines\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("a\n\nmat\n"))
    given = ["the cat", str(tmp_path / "prompt.txt"), "-"]
    assert run("run", "generate", "--model", str(writer), "--max-new-tokens", "6", *given) == 0
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in expected)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a task was asked; it answers "<…>", and in two lines where it is asked about two.png."""
    found: list[Any] = []

    def answer(group: list[Any]) -> list[str]:
        found.extend(group)
        return [f"<{Path(str(one)).stem}>" + "\n<more>" * (one == "two.png") for one in group]

    monkeypatch.setattr("anyformer.cli.run.task", lambda *given, **more: answer)
    return found


def test_answers_on_several_files_have_their_names(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "detect", "--model", "m", "one.png") == 0
    assert capsys.readouterr().out == "<one>\n"
    assert run("run", "detect", "--model", "m", "one.png", "two.png") == 0
    assert capsys.readouterr().out == "one.png: <one>\ntwo.png:\n<two>\n<more>\n"


def test_a_file_that_cannot_be_read_leaves_the_others_their_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(group: list[str]) -> list[str]:
        for one in group:
            if one.startswith("bad"):
                raise af.InputError(f"{one} is damaged.")
        return [f"<{one}>" for one in group]

    monkeypatch.setattr("anyformer.cli.run.task", lambda *given, **more: answer)
    assert run("run", "detect", "--model", "m", "a.png", "bad.png", "c.png") == 3
    shown = capsys.readouterr()
    assert shown.out == "a.png: <a.png>\nc.png: <c.png>\n"
    assert shown.err == "anyformer: bad.png is damaged.\nanyformer: 1 of 3 inputs failed; see the errors above.\n"
    assert run("run", "detect", "--model", "m", "bad.png") == 2
    assert capsys.readouterr().err == "anyformer: bad.png is damaged.\n"


@pytest.mark.parametrize("task", ["translate", "classify-text", "tag"])
def test_a_blank_line_has_a_blank_answer(
    task: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that lines of the output are those of the input; no model is asked about it."""
    monkeypatch.setattr("sys.stdin", io.StringIO("\nHello\n \nmorning\n"))
    assert run("run", task, "--model", "m", "-") == 0
    shown = capsys.readouterr()
    assert shown.out == "\n<Hello>\n\n<morning>\n" and asked == ["Hello", "morning"]
    assert shown.err.count("standard input is read as lines of text") == 1


def test_a_blank_line_has_no_vector_and_names_no_file(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for task, code in (("embed", 2), ("caption", 0)):
        monkeypatch.setattr("sys.stdin", io.StringIO("one.png\n\n"))
        assert run("run", task, "--model", "m", "-") == code
    shown = capsys.readouterr()
    assert "Line 2 of standard input is blank" in shown.err and shown.out == "one.png: <one>\n"


def test_what_draws_nothing_says_so_before_the_work(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", "classify-audio", "x.wav", "--out", str(tmp_path / "y.png")) == 2
    shown = capsys.readouterr()
    assert "classify-audio has no image output" in shown.err and not asked and not shown.out
    silent = {name for name in TASKS if find(name).reads == "files" and not find(name).draws}
    assert silent == {"classify-audio", "classify-video", "match", "transcribe"}


def test_a_question_and_its_choices(asked: list[Any]) -> None:
    """Several texts are one input, for models of pairs and of choices; lines with a tab are an input each."""
    assert run("run", "classify-pair", "--model", "m", "so", "she sat", "she ran", "she fell") == 0
    assert run("run", "answer", "--model", "m", "who", "Ann") == 0
    assert run("run", "classify-pair", "--model", "m", "a\tb", "c\td") == 0
    assert asked == [("so", "she sat", "she ran", "she fell"), ("who", "Ann"), "a\tb", "c\td"]


def test_choices_are_chosen_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"context": "it rained, so", "choices": ["she sat", "she ran", "she fell"], "label": 1}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps({**row, "label": 2}) + "\n")
    kind = find("classify-pair")
    kind.begin("bert-tiny", kind.read(tmp_path / "rows.jsonl")).save(tmp_path / "model")
    assert run("run", "classify-pair", "--model", str(tmp_path / "model"), row["context"], *row["choices"]) == 0
    answer = af.task("classify-pair", tmp_path / "model")((row["context"], row["choices"]))
    assert capsys.readouterr().out == f"{answer}\n" and answer.text in row["choices"]


def test_run_takes_the_options_of_decoding(writer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask = af.task("generate", writer)
    cases: list[tuple[list[str], dict[str, object]]] = [
        (["--num-beams", "3", "--max-new-tokens", "9"], {"num_beams": 3, "max_new_tokens": 9}),
        (
            ["--do-sample", "--temperature", "0.7", "--top-k", "9", "--top-p", "0.9", "--seed", "3"],
            {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.9, "seed": 3},
        ),
        (["--stop", "e", "--stop", r"\n", "--system", "be kind"], {"stop": ["e", "\n"], "system": "be kind"}),
    ]
    for flags, options in cases:
        assert run("run", "generate", "--model", str(writer), *flags, "the cat") == 0
        assert capsys.readouterr().out == f"{ask('the cat', **options)}\n"


def test_run_passes_on_what_was_given_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list of stop strings, say, would switch off the one that examples bring along."""
    passed: list[object] = []
    monkeypatch.setattr("anyformer.cli.run.run", lambda *args, **more: passed.extend(args))
    assert run("run", "generate", "--model", "m", "a") == 0
    assert passed == ["generate", "m", ["a"], {}]
    passed.clear()
    assert run("run", "generate", "--model", "m", "--stop", r"a\nb", "--do-sample", "--seed", "0") == 0
    assert passed == ["generate", "m", [], {"do_sample": True, "seed": 0, "stop": ["a\nb"]}]


def test_run_takes_examples(writer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shots.tsv").write_text("a\tb\nc\td\n")
    ask = af.task("generate", writer, max_new_tokens=9)
    flags = ["--model", str(writer), "--max-new-tokens", "9", "--shots", str(tmp_path / "shots.tsv")]
    assert run("run", "generate", *flags, "--template", r"{0} = {1}\n", "e", "f") == 0
    expected = ask(["e", "f"], shots=[("a", "b"), ("c", "d")], template="{0} = {1}\n")
    assert capsys.readouterr().out == "".join(f"{answer}\n" for answer in expected)


def test_chat_answers_line_by_line(
    writer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = af.task("generate", writer, max_new_tokens=6).chat(system="be kind")
    expected = [chat.send("the cat").text, chat.send("the mat").text]
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat\nthe mat\n"))
    flags = ["--model", str(writer), "--max-new-tokens", "6", "--system", "be kind", "--chat"]
    assert run("run", "generate", *flags) == 0
    assert capsys.readouterr().out == "".join(f"{text}\n" for text in expected)


@pytest.mark.parametrize("live", [False, True])
def test_how_a_prompt_is_framed_is_said(
    live: bool, writer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A chat model answers a chat turn, and says so; with --no-chat it goes on with the text."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: live)
    flags = ["run", "generate", "--model", str(writer), "--max-new-tokens", "6", "the cat"]
    answers = {chat: str(af.task("generate", writer, chat=chat, max_new_tokens=6)("the cat")) for chat in (True, False)}
    assert answers[True] != answers[False]
    capsys.readouterr()
    assert run(*flags) == 0
    said = capsys.readouterr()
    assert said.out == f"{answers[True]}\n" and said.err.count("framed as a chat turn") == 1 and "--no-chat" in said.err
    assert run(*flags, "--no-chat") == 0
    said = capsys.readouterr()
    assert said.out == f"{answers[False]}\n" and "chat turn" not in said.err
    assert run("run", "embed", "the cat", "--no-chat") == 2
    assert "does not accept --no-chat" in capsys.readouterr().err
    assert run("run", "translate", "the cat", "--no-chat") == 2
    assert "does not accept --no-chat" in capsys.readouterr().err


def test_a_terminal_sees_text_as_it_comes(
    writer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run("run", "generate", "--model", str(writer), "--max-new-tokens", "6", "the cat") == 0
    assert capsys.readouterr().out == f"{af.task('generate', writer, max_new_tokens=6)('the cat')}\n"


def test_run_prints_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = af.Tokenizer.train(iter(["the cat sat on the mat"] * 5), kind="wordpiece", vocab_size=60, bert=True)
    af.build("bert-tiny", vocab_size=len(tokenizer)).save(tmp_path)
    tokenizer.save(tmp_path)
    assert run("run", "embed", "--model", str(tmp_path), "the cat", "the mat") == 0
    rows = [[float(x) for x in line.split()] for line in capsys.readouterr().out.splitlines()]
    torch.testing.assert_close(
        torch.tensor(rows), af.task("embed", tmp_path)(["the cat", "the mat"]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generat", "a"], 'Did you mean "generate"'),
        (["generate"], "INPUT is missing"),
        (["generate", "a", "--chat"], "remove INPUT"),
        (["embed", "a", "--num-beams", "2"], "embed does not generate text and does not accept --num-beams"),
        (["generate", "a", "--num-beams", "0"], "num_beams is 0"),
        (["generate", "a", "--temperature", "0.5"], "temperature=0.5"),
        (["generate", "a", "--top-p", "high"], "Invalid value for '--top-p'"),
        (["generate", "a", "--shots", "nowhere.tsv"], "nowhere.tsv does not exist"),
        (["generate", "a", "--template", "{0}{1}"], "shots"),
        (["generate", "a", "--device", "abacus"], "abacus"),
        (["generate", "a", "--dtype", "float33"], "float33"),
    ],
)
def test_mistakes_of_run_are_one_sentence(
    arguments: list[str], says: str, writer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("run", *arguments, "--model", str(writer)) == 2
    shown = capsys.readouterr()
    assert says in shown.err and "Traceback" not in shown.err and not shown.out


def test_run_says_which_file_is_no_text(writer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    assert run("run", "generate", "--model", str(writer), str(tmp_path / "picture.png")) == 2
    assert "picture.png is not UTF-8 text" in capsys.readouterr().err
    assert run("run", "generate", "--model", str(tmp_path / "nowhere"), "a") == 2
    assert "does not exist" in capsys.readouterr().err
    assert run("run", "generate", "--model", str(writer), str(tmp_path)) == 2
    assert f"{tmp_path} is a folder; give a text" in capsys.readouterr().err


def test_a_run_that_is_not_finished_is_said_to_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "generate", "--model", str(tmp_path), "a") == 2
    assert "has no config.json, so it is no model folder" in capsys.readouterr().err
    (tmp_path / "train.json").write_text("{}")
    assert run("run", "generate", "--model", str(tmp_path), "a") == 2
    assert f"The run in {tmp_path} is not finished" in capsys.readouterr().err


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tasks") == 0
    shown = capsys.readouterr().out
    for name in TASKS:
        assert any(line.split()[0] == name for line in shown.splitlines()), name
    assert "text, label" in shown and "source, target" in shown


def test_eval_prints_the_fields_own_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a folder made here, with the figure that counts first; a mistake in the file is one sentence with its line."""
    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    kind = find("classify-text")
    kind.begin("bert-tiny", kind.read(tmp_path / "train.tsv")).save(tmp_path / "model")
    arguments = ("eval", "classify-text", "--model", str(tmp_path / "model"), "--data")
    assert run(*arguments, str(tmp_path / "train.tsv")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "accuracy" and float(lines[0].split()[1]) in (0, 0.5, 1)
    assert [line.split()[0] for line in lines[1:4]] == ["f1", "matthews", "loss"]
    assert lines[-1] == f"2 rows of {tmp_path / 'train.tsv'}"
    (tmp_path / "dev.tsv").write_text("text\tlabel\ngood\tyes\nhm\tmaybe\n")
    assert run(*arguments, str(tmp_path / "dev.tsv")) == 2
    assert 'dev.tsv, line 3: the label "maybe"' in capsys.readouterr().err
    assert run(*arguments, str(tmp_path / "nowhere.tsv")) == 2
    assert "nowhere.tsv does not exist" in capsys.readouterr().err
    assert run("eval", "classify-txt", "--model", "x", "--data", "y") == 2
    assert 'Did you mean "classify-text"?' in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code in (0, None) and capsys.readouterr().out == f"anyformer {af.__version__}\n"


def test_words_beside_pictures(tmp_path: Path) -> None:
    """What is no file and has no image's name is said, stops and all; a name that is mistyped stays one."""
    (tmp_path / "a.png").write_bytes(b"")
    here, texts = str(tmp_path / "a.png"), ["3.5 dogs.", "Mr. Hill"]
    assert console.split_inputs("match", [here, *texts], {}) == ([here], {"texts": texts})
    assert console.split_inputs("ask-image", [here, texts[1]], {}) == ([here], {"question": texts[1]})
    assert console.split_inputs("ask-image", [here, "nowhere.jpg"], {}) == ([here, "nowhere.jpg"], {})
    assert console.split_inputs("match", texts, {}) == (texts, {})


def test_a_model_in_the_place_of_a_task(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = pretrained.PretrainedModel("moods", "classify-text", "", 1)
    monkeypatch.setattr(pretrained, "models", lambda: [model])
    assert run("run", "moods", "good") == 2
    assert "anyformer run classify-text --model moods" in capsys.readouterr().err


def test_a_sentence_without_quotes_is_noticed(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "translate", "--model", "m", "A", "man", "walks.") == 0
    assert "3 inputs of one word each; put quotes around a text" in capsys.readouterr().err
    assert run("run", "translate", "--model", "m", "A man walks.", "He sits.") == 0
    assert run("run", "translate", "--model", "m", "cat", "dog", "cow") == 0
    assert "put quotes" not in capsys.readouterr().err
