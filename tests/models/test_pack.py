"""models/pack.py: from a run's folder to a model that ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import anyformer as af
from anyformer import pretrained
from anyformer.tasks import find
from anyformer.tasks.evaluation import EvalResult
from tests import shelf

pack = shelf.packer()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator, and a classifier that was taken further from a small model."""
    folder = tmp_path_factory.mktemp("runs")
    shelf.train_translator(folder)
    small = shelf.train_classifier(folder, "bert-tiny", "small")
    shelf.train_classifier(folder, small, "further", lora=2)
    shelf.write_notes(folder / "notes", "en-de", "translate", '"one cat there"')
    shelf.write_notes(folder / "notes", "small", "classify-text", '"cat number 1"')
    shelf.write_notes(folder / "notes", "further", "classify-text", '"cat number 1"', False, base="small")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYFORMER_MODELS", str(tmp_path / "home"))
    return tmp_path / "home"


def order(made: Path, home: Path, run: str, name: str, **more: Any) -> Any:
    return pack.Order(made / run, name, home=home, notes=made / "notes", **{"anyway": True, **more})


@pytest.mark.parametrize(("weights", "stored"), [("bf16", {"BF16"}), ("int8", {"I8", "F32"})])
def test_weights_go_small_and_the_rest_of_the_run_stays_behind(
    weights: str, stored: set[str], made: Path, home: Path
) -> None:
    folder = pack.pack(order(made, home, "translator", "en-de", weights=weights))
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "card.md",
    }
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == stored  # noqa: SIM118 - not a dict
    kept, packed = (af.task("translate", path) for path in (made / "translator", folder))
    batch = kept.tokenizer(["one cat there"])
    given = {"input_ids": batch["input_ids"], "decoder_input_ids": torch.tensor([[0, 5, 6]])}
    close = kept.model(**given).logits, packed.model(**given).logits
    torch.testing.assert_close(*close, rtol=0.05, atol=0.05)


def test_the_card_says_where_it_comes_from(made: Path, home: Path) -> None:
    """The command and the energy of the run itself, the notes of people, the figures of the packed model."""
    rows = (("eight pairs", str(made / "pairs.tsv")),)
    card = (pack.pack(order(made, home, "translator", "en-de", evals=rows)) / "card.md").read_text()
    record = json.loads((made / "translator" / "train.json").read_text())
    assert pack.tidy(record["command"]) in card and "kWh (an estimate" in card and "4 steps" in card
    assert "it has learned next to nothing" in card and "eight animals, made up here" in card
    figures: Any = pack.evaluate_task("translate", "en-de", str(made / "pairs.tsv"), device="cpu").metrics
    assert f"signature: {figures['signature']}" in card and f"{figures['bleu']:.4f}" in card
    row = pretrained.find("en-de")
    assert row is not None and row.score == f"bleu {figures['bleu']:.4g} on eight pairs"
    assert str(made) not in card and str(Path.home()) not in card


@pytest.mark.parametrize(
    ("test", "listed", "first"),
    [
        ("true", "{measured}", "the rows below."),
        ("false", "{measured} (used for checkpoint selection)", pack.UNTESTED),
        ('"bleu 9.9 on strangers"', "bleu 9.9 on strangers", "bleu 9.9 on strangers."),
        ('false\nhalf = "bleu 5 on four pairs"', "bleu 5 on four pairs (used for checkpoint selection)", pack.UNTESTED),
    ],
)
def test_the_listed_score_is_held_out_or_marked(
    test: str, listed: str, first: str, made: Path, home: Path, tmp_path: Path
) -> None:
    """When a model is packed, and when its notes change later."""
    shelf.write_notes(tmp_path / "notes", "en-de", "translate", '"one cat there"')
    rows = (("eight pairs", str(made / "pairs.tsv")),)
    order = pack.Order(
        made / "translator",
        "en-de",
        home=home,
        notes=tmp_path / "notes",
        anyway=True,
        evals=(*rows, ("more", rows[0][1])),
    )
    place = pack.pack(order) / "card.md"
    measured = pretrained.find("en-de").score  # type: ignore[union-attr]
    assert measured.startswith("bleu ") and measured.endswith(" on eight pairs")
    file = tmp_path / "notes" / "en-de.toml"
    file.write_text(file.read_text().replace("test = true", f"test = {test}"))
    for write in (lambda: pack.rewrite_cards(home, file.parent), lambda: pack.pack(order)):
        write()
        assert f"\n## Scores\n\nTest: {first}\n" in place.read_text()
        assert ("A fixed half of those rows: bleu 5 on four pairs. " in place.read_text()) == ("half" in test)
        found = pretrained.find("en-de")
        assert found is not None and found.score == listed.format(measured=measured)
        assert found.open() == place.parent, "the checksums are those of the new card"


def test_notes_may_set_what_the_task_does(made: Path, home: Path, tmp_path: Path) -> None:
    shelf.write_notes(tmp_path / "notes", "en-de", "translate", '"one cat there"')
    with (tmp_path / "notes" / "en-de.toml").open("a") as file:
        file.write("settings = { sentences = true }\n")
    pack.pack(pack.Order(made / "translator", "en-de", home=home, notes=tmp_path / "notes", anyway=True))
    task: Any = af.task("translate", "en-de")
    assert task.settings.sentences and task.settings.max_target_length == 8, "the others stay as the run had them"


def test_a_difference_is_small_and_finds_its_base(made: Path, home: Path) -> None:
    """The folder holds no tokenizer and no word table; with its base it answers as the run did."""
    small = pack.pack(order(made, home, "small", "small", weights="float32"))
    folder = pack.pack(order(made, home, "further", "further"))
    assert not (folder / "tokenizer.json").exists()
    assert (folder / "model.safetensors").stat().st_size < 0.2 * (small / "model.safetensors").stat().st_size
    texts = ["cat number 1", "owl number 8"]
    kept, packed = (af.task("classify-text", path) for path in (made / "further", "further"))
    for one, other in zip(kept(texts), packed(texts), strict=True):
        assert one.label == other.label and one.score == pytest.approx(other.score, abs=0.01)
    af.load("further").save(home.parent / "whole")
    alone = af.task("classify-text", home.parent / "whole")(texts)
    assert [str(one) for one in alone] == [str(one) for one in packed(texts)], "saved, it needs its base no more"
    for file in small.iterdir():
        file.unlink()
    small.rmdir()
    with pytest.raises(af.FolderError, match='"further" needs "small", which is not installed'):
        af.task("classify-text", "further")


def test_packing_again_replaces(made: Path, home: Path) -> None:
    pack.pack(order(made, home, "small", "small", weights="float32"))
    pack.pack(order(made, home, "translator", "en-de"))
    pack.pack(order(made, home, "small", "small", weights="bf16"))
    rows = json.loads((home / pretrained.TABLE).read_text())["models"]
    assert [row["name"] for row in rows] == ["en-de", "small"]
    assert all(pretrained.find(row["name"]).open().is_dir() for row in rows)  # type: ignore[union-attr]
    assert not [path for path in home.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "stranger"}, "no notes on this model"),
        ({"LARGEST": 10_000}, "bytes, and 10,000 are allowed"),
        ({"ALL": 10_000}, "together have"),
        ({"alike": lambda a, b: False, "anyway": False}, "answers too differently"),
    ],
)
def test_what_may_not_ship_does_not(
    change: dict[str, Any], says: str, made: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left of it."""
    for name in ("LARGEST", "ALL", "alike"):
        if name in change:
            monkeypatch.setattr(pack, name, change.pop(name))
    with pytest.raises(af.FolderError, match=says):
        pack.pack(order(made, home, "small", **{"name": "small", **change}))
    assert not home.exists() or not list(home.iterdir())


def test_a_figure_that_moves_is_refused(made: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 % of the figure that counts, no more."""

    def fake(task: str, folder: Path, path: str, *, device: str) -> EvalResult:
        assert device == "cpu"
        return EvalResult(path, 8, "accuracy", {"accuracy": 0.9 if folder == made / "small" else 0.9 - moved})

    monkeypatch.setattr(pack, "evaluate_task", fake)
    for moved in (0.008, 0.01):
        rows = order(made, home, "small", "small", evals=(("rows", "file"),), anyway=False)
        if moved < 0.009:
            pack.pack(rows)
        else:
            with pytest.raises(af.FolderError, match=r"Packing moved accuracy on rows from 0.9000 to 0.8900"):
                pack.pack(rows)


def test_alike_means_words_and_nearly_numbers() -> None:
    assert pack.alike("cat (0.93)", "cat (0.94)") and not pack.alike("cat (0.93)", "dog (0.93)")
    assert pack.alike("nose 100,50", "nose 101,50") and not pack.alike("nose 100,50", "nose 120,50")


def test_paths_of_a_machine_do_not_get_out(made: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_DATA", "/somewhere/data")
    folder = pack.pack(order(made, home, "small", "small"))
    assert pack.tidy(f"anyformer train x --recipe {folder}") == "anyformer train x --recipe small"
    line = "anyformer train x --data /somewhere/data/a/b.tsv --out /tmp/runs/mine --set train.lr=1e-3"
    assert pack.tidy(line) == "anyformer train x --data $D/a/b.tsv --out mine --set train.lr=1e-3"


def test_every_note_is_whole() -> None:
    """Notes name a task that there is, and an example that lies beside them."""
    paths = sorted(pack.NOTES.glob("*.toml"))
    assert len(paths) >= 14
    for path in paths:
        notes = pack.read_notes(pack.Order(Path(), path.stem))
        find(notes["task"])
        assert "example" in notes or (pack.NOTES / "inputs" / notes["example_file"]).is_file()
        assert "example" in notes or notes["example_from"]
        card = pack.HOME / path.stem / pretrained.CARD
        said = card.read_text(encoding="utf-8") if card.is_file() else None
        assert said is None or all(f"- {one}\n" in said for one in notes["failures"]), "card and notes say the same"
    used = {pack.read_notes(pack.Order(Path(), path.stem)).get("example_file") for path in paths}
    assert {path.name for path in (pack.NOTES / "inputs").iterdir()} <= used


def test_cards_say_what_the_notes_say() -> None:
    """Cards and listed scores of packed models are rewritten from the notes; committed ones are up to date."""
    for card in sorted(pack.HOME.glob("*/card.md")):
        text = card.read_text(encoding="utf-8")
        notes = pack.read_notes(pack.Order(Path(), card.parent.name))
        assert pack.rewritten(text, card.parent.name, notes) == text, f"run models/pack.py --cards for {card}"
        assert "\n## Scores\n\nTest: " in text
        row = pretrained.find(card.parent.name)
        assert row is not None and row.score == pack.listed_score(notes, text), "run models/pack.py --cards"
        assert row.score
