"""A family, a score, a position encoding and tasks of one's own: registered, saved, loaded, found by the commands."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import plugins, registry, tasks
from anyformer.cli.main import main
from anyformer.errors import ConfigError, FolderError
from anyformer.explorer.model_list import ModelList
from anyformer.explorer.timeouts import Deadline

SOURCE = (Path(__file__).parent / "own_plugin.py").read_text(encoding="utf-8")
TEXT = "\n".join(f"the {word} sat on the mat {i}" for i in range(12) for word in ("cat", "dog")) + "\n"


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test registers is gone after it."""
    registry.load_recipes()
    tables = [(registry, "FAMILIES"), (registry, "RECIPES"), (tasks, "TASKS"), (tasks, "OWN")]
    for module, name in [*tables, (plugins, "ORIGINS"), (plugins, "SCORES"), (plugins, "POSITIONS")]:
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith(("pebbles", "broken")):
            del sys.modules[name]
    plugins.load_entry_points.cache_clear()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module pebbles, which is the current folder."""
    (tmp_path / "pebbles.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of a command and what it prints."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    shown = capsys.readouterr()
    return int(stop.value.code or 0), shown.out + shown.err


def forget_all() -> None:
    """As if the plugin had never been loaded."""
    del sys.modules["pebbles"]
    for table in (registry.FAMILIES, registry.RECIPES, tasks.TASKS, tasks.OWN):
        for name in [name for name in table if name in ("pebble", "pebble-tiny", "mood")]:
            del table[name]  # type: ignore[attr-defined]
    for kept in (plugins.ORIGINS, plugins.SCORES, plugins.POSITIONS):
        kept.clear()  # type: ignore[attr-defined]


def test_a_model_survives_save_and_load(plugin: Path) -> None:
    plugins.load("pebbles")
    model = af.build("pebble-tiny", n_layers=2)
    model.save("saved")
    ids = torch.tensor([[5, 6, 7]])
    again = af.load("saved")
    assert torch.equal(model.eval()(input_ids=ids).logits, again(input_ids=ids).logits)
    config = json.loads(Path("saved/config.json").read_text())
    assert config["plugins"] == {"pebbles": ["family pebble", "score distance", "positions parity"]}
    forget_all()
    with pytest.raises(
        FolderError, match=r'"pebble" of the plugin pebbles, which is not loaded; pass --plugin pebbles'
    ):
        af.load("saved")
    plugins.load("pebbles.py")
    assert torch.equal(af.load("saved")(input_ids=ids).logits, again(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("gpt2-tiny", {"positions": "parity", "score": "distance"}),
        ("gpt2-tiny", {"positions": "learned+slope"}),
        ("bert-tiny", {"positions": "learned+slope", "score": "distance"}),
        ("t5-tiny", {"positions": "slope"}),
        ("vit-tiny", {"positions": "learned+slope", "score": "distance"}),
    ],
)
def test_every_family_takes_them(recipe: str, given: dict[str, str], plugin: Path) -> None:
    plugins.load("pebbles")
    torch.manual_seed(0)
    ids = torch.randint(5, 90, (1, 8))
    batch = {"input_ids": ids}
    if recipe == "t5-tiny":
        batch["decoder_input_ids"] = ids
    if recipe == "vit-tiny":
        batch = {"pixel_values": torch.randn(1, 3, 32, 32)}
    models = [af.build(recipe, **changes).eval() for changes in (given, {})]
    if recipe != "vit-tiny":  # positions and scores are parts of the numbers
        models[1].load_state_dict(models[0].state_dict(), strict=False)
    found, other = (model(**batch).to_tuple()[0] for model in models)
    assert not torch.allclose(found, other)
    models[0].save("saved")
    assert torch.equal(found, af.load("saved", optimize=False)(**batch).to_tuple()[0])
    forget_all()
    with pytest.raises(FolderError, match="pass --plugin pebbles"):
        af.load("saved")


def test_what_makes_no_sense_is_refused(plugin: Path) -> None:
    plugins.load("pebbles")
    for changes, said in (
        ({"positions": "slop"}, 'Did you mean "slope"'),
        ({"score": "distanc"}, 'Did you mean "distance"'),
        ({"positions": "slope+parity"}, "only one of slope and parity"),
    ):
        with pytest.raises(ConfigError, match=said):
            af.build("gpt2-tiny", **changes)
    with pytest.raises(ConfigError, match="enter with tokens; images take only"):
        af.build("vit-tiny", positions="parity")


def test_the_commands_take_a_plugin(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", "generate", "--recipe", "pebble-tiny", "--data", "text.txt", "--out", "mine", "--max-length", "8"]
    own = ("--plugin", "pebbles")
    assert run(capsys, *train)[0] == 2  # not known without it
    code, said = run(capsys, *train, "--steps", "2", "--device", "cpu", *own)
    assert code == 0 and "pebble-tiny" in said
    assert "pebble-tiny" in run(capsys, "recipes", "--family", "pebble", *own)[1]
    assert "tell the mood of a text" in run(capsys, "tasks", *own)[1]
    commands = [
        ["run", "generate", "--model", "mine", "the cat", "--max-new-tokens", "3"],
        ["eval", "generate", "--model", "mine", "--data", "text.txt"],
        ["convert", "mine", "again", "--to", "anyformer"],
    ]
    for command in commands:
        forget_all()
        code, said = run(capsys, *command)
        assert code == 2 and "pass --plugin pebbles" in said and len(said.splitlines()) == 1, said
        code, said = run(capsys, *command, *own)
        assert code == 0, said
    assert json.loads(Path("again/config.json").read_text())["plugins"]["pebbles"][0] == "family pebble"
    models = ModelList.of([Path("mine")])
    opened = models.open(next(iter(models.entries)), Deadline(30))
    assert opened.model.family == "pebble" and opened.decoder_only


def test_a_task_of_ones_own(plugin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("rows.tsv").write_text("text\tlabel\n" + "a good day\tgood\na bad day\tbad\n" * 10, encoding="utf-8")
    train = ["train", "mood", "--recipe", "bert-tiny", "--data", "rows.tsv", "--out", "mine", "--steps", "2"]
    code, said = run(capsys, *train)
    assert code == 2 and 'There is no task "mood"' in said
    assert run(capsys, *train, "--plugin", "pebbles", "--device", "cpu")[0] == 0
    assert af.task("mood", "mine")("a good day").label in ("good", "bad")
    assert af.evaluate("mood", model="mine", data="rows.tsv")["accuracy"] >= 0
    forget_all()
    code, said = run(capsys, "run", "mood", "--model", "mine", "a good day")
    assert code == 2 and 'needs the task "mood" of the plugin pebbles' in said
    assert af.load("mine").family == "bert"  # the model alone needs no plugin
    code, said = run(capsys, "run", "mood", "--model", "mine", "a good day", "--plugin", "pebbles")
    assert code == 0 and "(0." in said


def test_entry_points_are_found_without_plugin(plugin: Path) -> None:
    """In a process of its own, with the metadata of an installed package."""
    info = plugin / "site" / "pebbles-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pebbles\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(
        "[anyformer.recipes]\npebble = pebbles\n\n[anyformer.tasks]\nmood = pebbles:Mood\n"
    )
    (plugin / "pebbles.py").rename(plugin / "site" / "pebbles.py")
    code = (
        "import anyformer as af; model = af.build('pebble-tiny'); model.save('saved'); print(af.load('saved').family);"
        " from anyformer.tasks import find, names; print(find('mood').about, 'mood' in names());"
        " import json; print(json.load(open('saved/config.json'))['plugins'])"
    )
    path = os.pathsep.join([str(plugin / "site"), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["pebble", "tell the mood of a text True"] and lines[2].startswith(
        "{'pebbles': ['family pebble'"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1 / 0", "The plugin broken fails to import: ZeroDivisionError: division by zero"),
        ("import nowhere_to_be_found", "needs the module nowhere_to_be_found, which is not installed"),
        ("import anyformer as af\naf.register('additive', score=print)", 'There is a score "additive" already'),
        (
            "import anyformer as af\naf.register('alibi', positions=print)",
            'a position encoding "alibi" already',
        ),
    ],
)
def test_a_plugin_that_fails(content: str, said: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "broken.py").write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    code, shown = run(capsys, "tasks", "--plugin", "broken")
    assert code == 2 and said in shown and len(shown.splitlines()) == 1


def test_a_plugin_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nowhere_to_be_found", "nowhere.to.be", "nowhere.py"):
        code, said = run(capsys, "tasks", "--plugin", name)
        assert code == 2 and name in said and len(said.splitlines()) == 1


def test_taken_names_are_refused_at_once(plugin: Path) -> None:
    """Also in a process that has read no recipe: the built-in names are known first."""
    plugins.load("pebbles")
    import pebbles  # type: ignore[import-not-found]

    made: dict[str, Any] = {"config": pebbles.PebbleConfig, "build": pebbles.build}
    size = pebbles.PebbleConfig()
    with pytest.raises(ConfigError, match="these names: gpt2; choose others"):
        af.register("gpt2", sizes={"own-tiny": size}, **made)
    with pytest.raises(ConfigError, match="these names: gpt2-tiny"):
        af.register("own", sizes={"gpt2-tiny": size}, **made)
    with pytest.raises(ConfigError, match='There is a task "tag"'):
        af.register(type("Tag", (pebbles.Mood,), {"name": "tag"}))
    assert "own" not in registry.FAMILIES


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        (3, {}, "takes a name or a task class, not int"),
        ("A name", {"score": print}, "lower-case letters"),
        ("own", {}, "takes config, build and sizes, or score, or positions"),
        ("own", {"score": print, "positions": print}, "takes config, build and sizes, or score, or positions"),
        ("own", {"score": 3}, "must be a function"),
        (dict, {}, "dict is not a subclass of Task"),
        ("own", {"config": dict, "build": print, "sizes": {"a": {}}}, "must be a dataclass that subclasses"),
    ],
)
def test_wrong_calls_are_refused(name: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        af.register(name, **given)
