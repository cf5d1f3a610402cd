"""The tour: whatever models are here answer their examples, on a page that needs nothing else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer import pretrained
from anyformer.cli.demo import html, number_translation, page, tour
from anyformer.cli.main import main
from anyformer.tasks.answer import ExtractedAnswer
from anyformer.tasks.answers import Label
from anyformer.tasks.tag import Entity, TaggedText
from tests import shelf
from tests.pages import Page


@pytest.fixture(autouse=True)
def _no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The large models of others would take long."""
    monkeypatch.setattr(pretrained, "EXTRAS", ())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    pack = shelf.packer()
    shelf.write_notes(folder / "notes", "en-de", "translate", '"one <cat> there"')
    shelf.write_notes(folder / "notes", "small", "classify-text", '"cat number 1"')
    for run, name in ((shelf.train_translator(folder), "en-de"), (_small(folder), "small")):
        pack.pack(pack.Order(run, name, home=folder / "home", notes=folder / "notes", anyway=True))
    return folder / "home"


def _small(folder: Path) -> Path:
    return shelf.train_classifier(folder, "bert-tiny", "small")


def test_one_page_with_every_model(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models' own answers, an image of the alignment, and nothing that is fetched from anywhere."""
    monkeypatch.setenv("ANYFORMER_MODELS", str(home))
    with pytest.raises(SystemExit):
        main(("demo", "--out", str(tmp_path / "out")))
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    parsed = Page(text)
    link, *sources = parsed.sources
    assert link == "http://127.0.0.1:8017/" and text.count("http") == 1  # to the explorer
    assert not parsed.open and sources and all(source.startswith("data:") for source in sources)
    assert "anyformer explore --model en-de" in text
    words = " ".join(" ".join(parsed.words).split())
    assert "one <cat> there" in words and "<cat>" not in text, "what models are given is no HTML"
    label = af.task("classify-text", home / "small")("cat number 1")
    assert f"{label.label} {label.score:.2f}" in words
    assert str(af.task("translate")("one <cat> there")) in words.replace("  ", " ")
    assert words.index("translate") < words.index("classify-text")
    printed = capsys.readouterr().out
    assert "2 models were run offline" in printed and "index.html" in printed


def test_of_several_sentences_the_first_is_drawn(home: Path) -> None:
    work = af.task("translate", home / "en-de", sentences=True)
    whole, first, none = work(["One cat there. One dog there.", "One cat there.", ""])
    drawn = html.output_image("translate", work, whole.source, whole)
    assert len(whole.sentences) == 2 and drawn == html.output_image("translate", work, first.source, first) != ""
    assert html.output_image("translate", work, "", none) == ""


def test_a_damaged_model_does_not_stop_the_others(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.setenv("ANYFORMER_MODELS", str(tmp_path / "home"))
    weights = tmp_path / "home" / "en-de" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    shutil.rmtree(tmp_path / "home" / "small")
    text = tour.tour(tmp_path / "out").read_text(encoding="utf-8")
    assert "is damaged: its model.safetensors has another checksum" in text
    assert "not installed" in text and "&quot;small&quot; is not installed" in text


def test_with_no_model_it_says_how_to_get_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_MODELS", str(tmp_path))
    with pytest.raises(af.FolderError, match=r"pip install \./models.*--train"):
        tour.tour(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_answers_are_shown_as_what_they_are() -> None:
    """A span where it stands, names marked, probabilities as bars, cosines as torch has them; all of it escaped."""
    assert "in <mark>&lt;Paris&gt;</mark>." in html.span(
        ("where", "in <Paris>."), ExtractedAnswer("<Paris>", 0.9, 3, 10)
    )
    ann = Entity("Ann", "PER", 0, 1, 1.0, (0, 3))
    tagged = TaggedText(
        ("Ann", "&", "Bo"), ("B-PER", "O", "O"), (1, 1, 1), (ann,), "Ann & Bo", ((0, 3), (4, 5), (6, 8))
    )
    assert html.plain(html.entities("", tagged)) == "Ann PER & Bo"
    bars = html.bars("", Label("b", 0.75, {"a": 0.25, "b": 0.75}))
    assert html.plain(bars) == "b 0.75 a 0.25" and "width:75.0%" in bars
    vectors = torch.tensor([[3.0, 4.0], [4.0, 3.0]])
    cosine = torch.cosine_similarity(vectors[0], vectors[1], 0)
    assert f"{cosine:.2f}" in html.cosine_table(["x", "y"], vectors)


def test_commands_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of a panel runs in a shell: two texts are two arguments, and a file is copied to the page's folder,
    so that its path is short and relative wherever the models are installed."""
    model = pretrained.PretrainedModel("p", "classify-pair", "", 1, default=True, example=["it's one", "two"])
    shown = tour.command(model, {}, tmp_path).replace("anyformer run classify-pair", "printf '%s|'")
    assert subprocess.run(["bash", "-c", shown], capture_output=True, text=True).stdout == "it's one|two|"
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "example.png").write_bytes(b"a line")
    (tmp_path / "here" / "my demo").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    given = {"file": "example.png"}
    model = pretrained.PretrainedModel("r", "read", "", 1, default=True, example=given, path=tmp_path / "far")
    assert tour.command(model, {}, Path("my demo")) == "anyformer run read 'my demo/r.png'"
    assert Path("my demo/r.png").read_bytes() == b"a line"
    model = pretrained.PretrainedModel("s", "generate", "", 1, example="Once")
    told = "anyformer run generate --model s Once --max-new-tokens 90 --seed 1"
    assert tour.command(model, {"max_new_tokens": 90, "seed": 1}, tmp_path) == told


def test_known_failures_are_shown() -> None:
    """A failure of the example or of inputs like it stands in its panel, escaped."""
    shown = page.show(page.Panel("translate", "m", "", "", "", known_failure="<b> is wrong"))
    assert "Known failure: &lt;b&gt; is wrong" in shown
    assert "Known failure" not in page.show(page.Panel("translate", "m", "", "", ""))


def test_where_there_is_no_model_the_command_trains_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new user's first command works wherever it is typed."""
    asked: list[Path] = []
    monkeypatch.setenv("ANYFORMER_MODELS", str(tmp_path))
    monkeypatch.setattr(number_translation, "run", lambda out, settings: asked.append(out))
    with pytest.raises(SystemExit) as stop:
        main(("demo", "--out", str(tmp_path / "out")))
    assert not stop.value.code and asked == [tmp_path / "out"] and "training one instead" in capsys.readouterr().out
