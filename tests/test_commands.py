"""The commands that the README, the docs and the cards show.

Those of the README and of the docs run as they stand, in page order, in a folder that has the files they name; the
answer beside a command is what it prints. Those that train for hours (cards, results) are planned with --dry-run.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

import anyformer as af
from anyformer import pretrained
from anyformer.cli.main import app
from tests.training import picture_files as pictures
from tests.training import sound_files as sounds

ROOT = Path(__file__).parents[1]
COMMAND = typer.main.get_command(app)
CARDS = sorted((ROOT / "models" / "src").rglob("card.md"))
PAGES = [ROOT / "README.md", ROOT / "models" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ANSWERED = ("translate", "read", "classify-image", "classify-audio", "classify-text", "tag")  # `run` prints a line
# These serve, converse or change the shell, or are tested elsewhere (the demo): they are parsed.
WAITING = {"explore", "--chat", "--install-completion", "demo"}
SHORT = [
    "--set",
    "train.steps=2",
    "--set",
    "train.lr=1e-5",
    "--set",
    "train.eval_every=2",
    "--set",
    "train.batch_size=4",
]
READY = {"answer": "questions", "read": "lines", "classify-pair": "choices", "eval read": "lines"}  # for `--model mine`
HERE = ["--set", "train.device=cpu", "--set", "train.cuda_graphs=false"]  # what a machine without a GPU can plan
WORDS = "cat dog cow bee ant hen fox owl".split()


@dataclass(frozen=True)
class Shown:
    """A command on a page, and the comment beside it."""

    page: Path
    words: tuple[str, ...]
    comment: str = ""

    @property
    def task(self) -> str:
        return self.words[1] if self.words[0] in ("run", "train", "eval") and len(self.words) > 1 else ""

    def option(self, name: str) -> str | None:
        return self.words[self.words.index(name) + 1] if name in self.words else None

    def __str__(self) -> str:
        return f"{self.page.parent.name}/{self.page.name}: {' '.join(self.words)[:60]}"


def commands(page: Path) -> list[Shown]:
    """The indented lines of a page that begin with `anyformer`; a line that ends in a backslash goes on in the next."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = []
    for line in re.findall(r"^ {4}anyformer( .*)$", text, flags=re.M):
        typed, _, comment = re.sub(r" {3,}(?=[^#\s])(?!-).*$", "", line).partition(" # ")
        words = tuple(shlex.split(typed.strip()))
        if words:
            found.append(Shown(page, words, comment.strip()))
    return found


RUN = list({one.words: one for page in PAGES for one in commands(page) if "$D" not in " ".join(one.words)}.values())
PLANNED = [one for page in (*CARDS, ROOT / "docs" / "results.md") for one in commands(page) if one.words[0] == "train"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "models").symlink_to(ROOT / "models")
    reviews = "".join(f"{word} number {i}\t{('good', 'bad')[i % 2]}\n" for i, word in enumerate(WORDS * 3))
    for name in ("reviews.tsv", "more.tsv"):
        (folder / name).write_text("text\tlabel\n" + reviews)
    (folder / "examples.tsv").write_text("what is one and one\ttwo\nwhat is one and two\tthree\n")
    (folder / "notes.txt").write_text("Amanda baked cookies, and Jerry ate them all before noon.")
    (folder / "texts.txt").write_text("".join(f"the {word} sat on the mat\n" for word in WORDS))
    images(folder)
    sound(folder)
    tokenizer = af.Tokenizer.train(WORDS * 20, kind="byte", vocab_size=256)
    af.build("gpt2-tiny", vocab_size=len(tokenizer), max_length=256).eval().save(folder / "my-gpt2", format="hf")
    tokenizer.save(folder / "my-gpt2")
    return folder


def images(folder: Path) -> None:
    """Class folders, boxes in COCO's form, lines of text, and a photograph."""
    for i, (label, pixels) in enumerate(pictures.labeled()):
        (folder / "images" / label).mkdir(parents=True, exist_ok=True)
        (folder / "images" / label / f"{i}.png").write_bytes(pictures.encode(pixels))
    (folder / "cat.jpg").write_bytes(pictures.encode(pictures.square((200, 40, 40), 5), "JPEG"))
    for name, content in pictures.coco().items():
        (folder / name.replace("x.json", "boxes.json")).write_bytes(content)
    shutil.copy(folder / "boxes.json", folder / "more.json")
    for name, content in pictures.lines().items():
        (folder / name.replace("x_lines.", "lines.").replace("x.", "lines.")).write_bytes(content)


def sound(folder: Path) -> None:
    """Clips with labels, and speech."""
    for name, content in sounds.spoken().items():
        (folder / name.replace("x.", "clips.")).write_bytes(content)
    (folder / "talk.wav").write_bytes(sounds.tone(300))


def run(folder: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    COMMAND.main(list(words), prog_name="anyformer", standalone_mode=False)


def parse(words: tuple[str, ...]) -> None:
    """Whether the command line is understood, without doing what it says."""
    command = COMMAND.commands.get(words[0])  # type: ignore[attr-defined]
    COMMAND.make_context("anyformer", list(words), resilient_parsing=True) if command is None else command.make_context(
        words[0], list(words[1:])
    )


def needs(one: Shown, folder: Path) -> str:
    """Why a command cannot run here: a model or a folder that is not on this machine; "" if it can."""
    model = one.option("--model")
    found = (
        pretrained.find(model) if model else pretrained.default(one.task) if one.words[0] in ("run", "eval") else None
    )
    if found is not None and found.path is None:
        return f"the model {found.name} is not here"
    path = folder / (model or ".")
    return "" if found or path.exists() else f"{model} is a folder of the reader's own"


def ready(one: Shown, folder: Path) -> tuple[str, ...]:
    """The command with few steps of training, and with a model for its task where it says "mine"."""
    words = list(one.words)
    stand_in = READY.get(f"{one.words[0]} {one.task}", READY.get(one.task))
    if one.option("--model") == "mine" and stand_in is not None:
        words[words.index("--model") + 1] = stand_in
        if stand_in == "choices" and not (folder / "choices").exists():
            choices(folder)
    if "--out" in words and words[0] == "train":  # pages use one name for several models
        shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
    return (*words, *(SHORT if words[0] == "train" else ()))


def choices(folder: Path) -> None:
    rows = [{"first": f"the {word}", "choices": ["sat", "ran"], "label": i % 2} for i, word in enumerate(WORDS)]
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pace = {"steps": 1, "tokenizer.vocab_size": 120, "train.device": "cpu"}
    af.train("classify-pair", recipe="bert-tiny", data=folder / "choices.jsonl", out=folder / "choices", **pace)


@pytest.mark.parametrize("one", RUN, ids=str)
def test_commands_run(
    one: Shown, workspace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if WAITING & set(one.words):
        return parse(one.words)
    words = ready(one, workspace)
    reason = needs(Shown(one.page, words), workspace)
    if reason:
        pytest.skip(reason)
    run(workspace, words, monkeypatch)
    printed = capfd.readouterr().out
    if one.words[0] == "run" and one.task in ANSWERED and one.comment and "--out" not in one.words:
        assert one.comment.rstrip("…").strip() in " ".join(printed.split())
    assert one.option("--out") is None or (workspace / str(one.option("--out"))).exists()
    return None


def test_what_is_planned_is_there() -> None:
    assert len(PLANNED) >= len(CARDS) and len(RUN) > 20


@pytest.mark.parametrize("one", PLANNED, ids=str)
def test_commands_that_train_for_long_are_understood(one: Shown) -> None:
    parse(one.words)


@pytest.mark.slow
@pytest.mark.parametrize("one", PLANNED, ids=str)
def test_commands_that_train_for_long_are_planned(
    one: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With --dry-run on the real data; what an earlier command of the page makes cannot be there."""
    home = os.environ.get("ANYFORMER_DATA")
    if home is None:
        pytest.skip("needs the data sets: set ANYFORMER_DATA")
    words = tuple(word.replace("$D", home) for word in one.words)
    try:
        run(tmp_path, (*words, *HERE, "--dry-run"), monkeypatch)
    except af.Error as error:
        names = [word for word in one.words if not word.startswith(("-", "$D")) and word in str(error)]
        if not names or not re.search("does not exist|no recipe", str(error)):
            raise
        pytest.skip(f"an earlier command makes what it reads: {error}")
    assert "train.steps" in capfd.readouterr().out
