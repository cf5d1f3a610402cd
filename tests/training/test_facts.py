"""What was inferred is said: before the first step of train, as comments of --dry-run, beside the answers of eval and
run; and a dry run refuses what training would refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.examples import Example, prepare
from anyformer.data.images.loading import DecodedImages
from anyformer.data.rows import ListRows
from anyformer.data.tables.formats import Row
from anyformer.tokenizers.cuts import count_cuts, hash_texts, note_cut
from anyformer.training.display import Display
from tests.training import picture_files as pictures

MOODS = "good bad ugly odd fine".split()


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def table(rows: int = 60, classes: int = 5, name: str = "x.csv", extra: str = "") -> str:
    """A table whose columns have no usual order: a number that is no use, the label, the text."""
    lines = [f"{i},{MOODS[i % classes]},it is {MOODS[i % 5]} {i}" for i in range(rows)]
    Path(name).write_text("\n".join(["id,category,sentence", *lines, *([extra] if extra else [])]) + "\n")
    return name


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def train(*more: object, recipe: str = "bert-tiny", data: str = "x.csv", out: str = "mine") -> int:
    order = ("--recipe", recipe, "--data", data, "--out", out, "--set=train.device=cpu", "--set=train.steps=2")
    return run("train", "classify-text", *order, *more)


def said(text: str) -> dict[str, str]:
    """The facts that were printed, by name."""
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    pairs = [line.partition(":") for line in lines if ":  " in line or ": " in line]
    return {name: value.strip() for name, _, value in reversed(pairs) if " " not in name}


def test_train_says_what_it_inferred(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it before the first step."""
    steps: list[str] = []
    monkeypatch.setattr(Display, "on_step_end", lambda self, progress: steps.append(capsys.readouterr().out))
    table()
    assert train() == 0
    found = said(steps[0])
    assert found["columns"] == 'text from "sentence", label from "category"; not used: id (x.csv)'
    assert found["classes"] == "5 (bad, fine, good, odd, ugly)"
    assert found["rows"] == "48 for training, 12 for validation (held out, drawn at random, stratified by class)"
    assert "fewer than 50 rows" in steps[0]
    assert found["pooling"] == "the first token" and found["device"] == "cpu, float32"
    assert found["weights"] == "from scratch, by the recipe bert-tiny" and found["parameters"].endswith(", all trained")
    assert "wordpiece, learned from the rows" in found["tokenizer"] and "texts are cut at 128 tokens" in found["length"]


def test_a_fine_tuned_model(capsys: pytest.CaptureFixture[str]) -> None:
    """Which weights, what is new of them, what is frozen; rows of a file of their own."""
    table(), table(8, name="dev.csv"), table(40, 3, "three.csv")
    assert train("--valid", "dev.csv") == 0
    capsys.readouterr()
    assert train("--set=train.freeze=encoder.*", recipe="mine", data="three.csv", out="next") == 0
    found = said(capsys.readouterr().out)
    assert found["weights"] == "fine-tuned from mine; new: classify" and found["classes"].startswith("3 (")
    model = af.load("next")
    head = sum(p.numel() for one in model.heads.values() for p in one.parameters())
    total = sum(p.numel() for p in model.parameters())
    assert found["parameters"] == f"{head:,} of {total:,} trained; frozen: encoder.*"
    assert found["tokenizer"].endswith("tokens, that of mine")
    assert train("--valid", "dev.csv", recipe="mine", out="same") == 0
    shown = capsys.readouterr().out
    assert said(shown)["weights"] == "fine-tuned from mine" and "Warning" not in shown
    assert said(shown)["rows"] == "60 for training, 8 for validation (from dev.csv)"
    assert train("--set=train.lora=2", recipe="mine", out="adapted") == 0
    assert "trained (LoRA adapters of rank 2 and new heads)" in capsys.readouterr().out


def test_numbers_and_images(capsys: pytest.CaptureFixture[str]) -> None:
    rows = "".join(f"it is {i}\t{i / 7:.2f}\n" for i in range(30))
    Path("numbers.tsv").write_text("text\tlabel\n" + rows)
    assert train("--dry-run", data="numbers.tsv") == 0
    found = said(capsys.readouterr().out)
    assert found["label"] == "a number (regression)" and "classes" not in found
    assert "(held out, drawn at random)" in found["rows"]
    Path("x.npz").write_bytes(pictures.npz())
    assert run("train", "classify-image", "--recipe", "vit-tiny", "--data", "x.npz", "--out", "y", "--dry-run") == 0
    found = said(capsys.readouterr().out)
    assert found["classes"] == "3 (red, green, blue)" and found["images"] == "32 x 32 pixels"


def test_the_columns_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Which are numbers and which categories."""
    rows = "".join(f"{i % 7},{'rgb'[i % 3]},{'ab'[i % 2]}\n" for i in range(30))
    Path("x.csv").write_text("size,color,label\n" + rows)
    order = ("--recipe", "ft-transformer-tiny", "--data", "x.csv", "--out", "mine", "--dry-run")
    assert run("train", "classify-set", *order) == 0
    found = said(capsys.readouterr().out)
    assert found["numbers"] == "size" and found["categories"] == "color" and found["classes"] == "2 (a, b)"


def test_a_dry_run_shows_true_values(capsys: pytest.CaptureFixture[str]) -> None:
    """What follows from the data too, and nothing else on standard output: it can be given back as --config."""
    table()
    assert train("--dry-run", "--set=train.lr=1e-3") == 0
    shown = capsys.readouterr()
    assert "# model.n_labels: 5 " in shown.out and "model.n_labels: 2" not in shown.out
    settings = yaml.safe_load(shown.out)
    assert settings["task.problem"] == "classification" and settings["tokenizer.kind"] == "wordpiece"
    assert settings["data.max_length"] == 128 and not Path("mine").exists()
    Path("all.yaml").write_text(shown.out)
    assert train("--config", "all.yaml") == 0
    config = json.loads(Path("mine/config.json").read_text())
    assert config["model"]["n_labels"] == 5 and config["train"]["lr"] == 1e-3
    line = next(line for line in shown.out.splitlines() if line.startswith("# model.vocab_size"))
    assert int(line.split()[2]) == config["model"]["vocab_size"]
    capsys.readouterr()
    assert train("--dry-run", recipe="mine", out="next") == 0  # of a folder too
    Path("folder.yaml").write_text(capsys.readouterr().out)
    assert train("--config", "folder.yaml", recipe="mine", out="next") == 0


def test_a_dry_run_builds_no_weights(capsys: pytest.CaptureFixture[str]) -> None:
    """A model of 175 billion parameters is looked at in a moment."""
    Path("x.txt").write_text("one two three\n" * 200)
    order = ("--recipe", "gpt3-175b", "--data", "x.txt", "--out", "mine", "--dry-run", "--set=tokenizer.kind=byte")
    assert run("train", "generate", *order) == 0
    assert int(said(capsys.readouterr().out)["parameters"].split(",")[0]) >= 170


@pytest.mark.parametrize(
    ("more", "extra", "says"),
    [
        ((), "61,,no label", "label ''"),
        (("--set=train.freeze=nothing",), "", "train.freeze"),
        (("--set=train.lora=2", "--set=train.lora_targets=zzz"), "", "zzz"),
        (("--set=train.cuda_graphs=true",), "", "train.cuda_graphs"),
        (("--set=train.device=cuda:99",), "", "device"),
        (("--set=tokenizer.kind=wrodpiece",), "", "wordpiece"),
        (("--set=task.metric=pearson",), "", "task.metric is pearson"),
        (("--out", "full"), "", "full is not empty"),
    ],
)
def test_a_dry_run_refuses_what_training_would(
    more: tuple[str, ...], extra: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table(extra=extra)
    Path("full").mkdir()
    Path("full/file").write_text("mine")
    errors = []
    for dry in ((), ("--dry-run",)):
        assert train(*more, *dry) == 2
        shown = capsys.readouterr()
        errors.append(shown.err.splitlines()[-1])
        assert says in errors[-1] and not Path("mine").exists()
    assert errors[0] == errors[1]


@pytest.fixture
def model(capsys: pytest.CaptureFixture[str]) -> str:
    table()
    assert train("--set=data.max_length=8") == 0
    capsys.readouterr()
    return "mine"


def test_eval_and_run_say_device_and_truncation(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, once; standard output is the answer alone."""
    long = "it is " + "good " * 20
    Path("long.csv").write_text(f"sentence,category\nit is bad,bad\n{long},good\n{long} too,good\n")
    assert run("eval", "classify-text", "--model", model, "--data", "long.csv") == 0
    shown = capsys.readouterr()
    assert "device: cpu, float32" in shown.err and shown.err.count("truncation: 2 rows were cut to 8 tokens") == 1
    assert "device" not in shown.out and "truncation" not in shown.out and "accuracy" in shown.out
    assert run("run", "classify-text", "--model", model, long, "it is bad") == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 2 and "device: cpu, float32" in shown.err
    assert shown.err.count("truncation: 1 row was cut to 8 tokens") == 1
    assert run("run", "classify-text", "--model", model, "it is bad") == 0
    assert "truncation" not in capsys.readouterr().err


@pytest.mark.parametrize("task", ["translate", "embed"])
def test_other_tasks_count_what_they_cut(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Sources and targets of a translator, each once though it is tokenized twice; an encoder cuts in the library."""
    columns = {"translate": ("source", "target", "transformer-tiny"), "embed": ("first", "second", "bert-tiny")}[task]
    rows = [f"one cat {i}\tein kater {i}" for i in range(12)]
    Path("x.tsv").write_text("\n".join(["\t".join(columns[:2]), *rows]) + "\n")
    size = {"translate": 290, "embed": 120}[task]
    settings = ("train.steps=1", "data.max_length=8", f"tokenizer.vocab_size={size}", "train.device=cpu")
    order = ["--recipe", columns[2], "--data", "x.tsv", "--out", "mine"]
    assert run("train", task, *order, *(f"--set={one}" for one in settings)) == 0
    capsys.readouterr()
    Path("long.tsv").write_text("\t".join(columns[:2]) + "\none cat 1\tein kater 1\n" + "one cat " * 9 + "\tkurz\n")
    assert run("eval", task, "--model", "mine", "--data", "long.tsv") == 0
    shown = capsys.readouterr().err
    tokens = af.Tokenizer.load("mine")
    pairs = [("one cat 1", "ein kater 1"), ("one cat " * 9, "kurz")]
    long = sum(any(len(tokens.encode(text)) > 8 for text in pair) for pair in pairs)
    assert long and f"truncation: {long} row{'s were' if long > 1 else ' was'} cut to 8 tokens" in shown
    assert run("run", task, "--model", "mine", "one cat " * 9) == 0
    shown = capsys.readouterr().err
    assert shown.count("cut to 8 tokens") == 1 and "reads 8 tokens at a time" not in shown


def test_rows_are_counted_not_texts(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows with one text are two; one of two texts that are cut is one."""
    long = "it is " + "good " * 20
    Path("long.csv").write_text(f"sentence,category\nit is bad,bad\n{long},good\n{long},good\n")
    assert run("eval", "classify-text", "--model", model, "--data", "long.csv") == 0
    assert "truncation: 2 rows were cut to 8 tokens" in capsys.readouterr().err
    assert run("run", "classify-text", "--model", model, "long.csv") == 0
    assert "truncation: 2 rows were cut to 8 tokens" in capsys.readouterr().err
    assert run("run", "classify-text", "--model", model, *[long] * 12) == 0
    assert "truncation: 12 rows were cut to 8 tokens" in capsys.readouterr().err
    rows = ListRows([{"a": ["x"]}, {"a": ["x", "y"]}, {"a": ["ok"]}, {"a": ["x"]}] * 3)

    def examples(rows: list[Row]) -> list[Example]:
        for text in (text for row in rows for text in row["a"] if text != "ok"):
            note_cut(text, 4)
        return [{"n": 1} for _ in rows]

    with count_cuts() as cuts:
        prepare(rows, examples)
    assert cuts.by_row(rows) == "9 rows were cut to 4 tokens"
    with count_cuts() as cuts:
        DecodedImages(rows, lambda row: examples([row])[0]).take(range(len(rows)))
    assert cuts.by_row(rows) == "9 rows were cut to 4 tokens"


@pytest.mark.parametrize("suffix", ["tsv", "csv"])
def test_a_first_line_that_is_read_as_a_row_is_said(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a table whose first line has no name that the task knows."""
    sign = "\t" if suffix == "tsv" else ","
    lines = [f"number {i}{sign}{MOODS[i % 2]}" for i in range(30)]
    Path(f"x.{suffix}").write_text("\n".join(["the film was bad" + sign + "bad", *lines]) + "\n")
    order = ("--data", f"x.{suffix}")
    assert train("--dry-run", data=order[1]) == 0
    found = said(capsys.readouterr().out)
    assert '"the film was bad, bad"' in found["header"] and "data.header" in found["header"]
    assert train(data=order[1]) == 0
    assert "header" in said(capsys.readouterr().out)
    assert run("eval", "classify-text", "--model", "mine", *order) == 0
    assert '"the film was bad, bad"' in capsys.readouterr().err
    assert run("run", "classify-text", "--model", "mine", order[1]) == 0
    shown = capsys.readouterr()
    assert '"the film was bad, bad"' in shown.err and len(shown.out.splitlines()) == 31
    for given in ("--set=data.header=true", "--set=data.header=false"):
        assert train("--dry-run", given, data=order[1], out="next") == 0
        assert "header" not in said(capsys.readouterr().out)


def test_a_header_is_not_said_to_be_missing(capsys: pytest.CaptureFixture[str]) -> None:
    table()
    assert train("--dry-run") == 0
    assert "header" not in said(capsys.readouterr().out)


def test_cuts_are_counted_by_text_and_length() -> None:
    note_cut("nobody counts", 3)
    with count_cuts() as cuts:
        assert not cuts
        for text, length in (("a", 3), ("a", 3), ("b", 3), ("a", 1200)):
            note_cut(text, length)
    assert str(cuts) == "1 text was cut to 1,200 tokens, 2 texts were cut to 3 tokens"


def test_cuts_are_counted_by_row() -> None:
    """A pair is one row, whichever of its texts is cut and however it is tokenized."""
    rows = ["long", ("a", "b"), "a\tb", {"first": "a", "second": "b", "label": "x"}, "short", "LONG"]
    with count_cuts() as cuts:
        note_cut("long", 3)
        note_cut("ab", 3)
    assert cuts.by_texts(map(hash_texts, rows)) == "5 rows were cut to 3 tokens"
    with count_cuts() as cuts:
        note_cut("b", 3)
    assert cuts.by_row([rows[3], rows[3]]) == "2 rows were cut to 3 tokens"  # type: ignore[list-item]
    with count_cuts() as cuts:
        note_cut("a sentence of a text", 3)
    assert cuts.by_texts(map(hash_texts, rows)) == "1 text was cut to 3 tokens"


@pytest.mark.parametrize("share", ["0.001", "0"])
def test_a_split_that_holds_out_no_row_is_said(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless that was asked for."""
    table(48)
    assert train(f"--set=data.validation_split={share}") == 0
    shown = capsys.readouterr().out
    assert said(shown)["rows"].startswith("48 for training, none for validation")
    assert ("Warning: data.validation_split" in shown) == (share != "0")
