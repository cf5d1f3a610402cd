"""benchmarks/captions.py: one page with every captioner's sentences and what it looked at."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data.images.image_file import ImageFile
from anyformer.tasks.caption import Caption
from tests.pages import Page
from tests.training import picture_files as files

ROOT = Path(__file__).parents[2]
# One that is given the image once, and two that look before every word.
RECIPES = {"told": "show-tell-tiny", "attended": "show-attend-tell-tiny", "vit": "vision-encoder-decoder-tiny"}


def load(name: str) -> ModuleType:
    """A script of benchmarks/, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


captions = load("captions")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images, one of them with a caption that looks like HTML, and three captioners that have learned nothing."""
    folder = tmp_path_factory.mktemp("captions")
    for name, content in files.captioned(6).items():
        (folder / name).write_bytes(content)
    table = json.loads((folder / "x.json").read_text())
    table["images"][1]["captions"][0] = "a <green> square & more"
    (folder / "x.json").write_text(json.dumps(table))
    rows = Caption.read(folder / "x.json")
    for name, recipe in RECIPES.items():
        torch.manual_seed(len(name))
        Caption.begin(recipe, rows).save(folder / name)
    return folder


def write(made: Path, out: Path, *more: str) -> str:
    folders = [str(made / name) for name in RECIPES]
    captions.main([*folders, "--data", f"{made / 'x.json'},{made / 'x_images.zip'}", "--out", str(out), *more])
    return (out / "index.html").read_text(encoding="utf-8")


def cells(text: str, name: str) -> list[list[str]]:
    """The words below the small images of one captioner, image by image."""
    parts = re.findall(rf"<section class='one'><h2>{name}<.*?</section>", text, flags=re.S)
    return [re.findall(r"<li><img [^>]*><span>([^<]*)</span></li>", part) for part in parts]


def test_one_page_with_every_captioner(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People's captions, the models' own, a region for each word of those that look, and nothing from anywhere else."""
    monkeypatch.setattr(captions, "MOST", 100)
    text = write(made, tmp_path / "page", "--pictures", "3")
    read = Page(text)
    words = " ".join(" ".join(read.words).split())
    assert not read.open and all(source.startswith("data:image/jpeg;base64,") for source in read.sources)
    assert not re.search(r"https?://", text) and "prefers-color-scheme:dark" in text
    assert "a <green> square & more" in words and "<green>" not in text
    rows = Caption.read(made / "x.json")
    looked = 0
    for name in RECIPES:
        caption: Any = af.task("caption", made / name)
        answers = caption([rows[i]["image"] for i in range(3)])
        assert f"{sum(parameter.numel() for parameter in caption.model.parameters()):,}" in words
        assert all(answer.text in words for answer in answers)
        below = [[caption.tokenizer.decode([token]).strip() for token in answer.ids] for answer in answers]
        assert cells(text, name) == ([[]] * 3 if name == "told" else below), name
        looked += 0 if name == "told" else sum(map(len, below))
    assert looked > 10 and len(read.sources) == 3 + looked
    assert "CIDEr" not in words


def test_scores_are_those_of_eval(made: Path, tmp_path: Path) -> None:
    """In the table on top, each below its title, of all images and not only of those that are shown."""
    caption: Any = af.task("caption", made / "attended")
    figures = caption.evaluate(Caption.read(made / "x.json"))
    page = write(made, tmp_path, "--pictures", "1", "--scores")
    row = re.search(r"<tr><td>attended</td>.*?</tr>", page, flags=re.S)
    assert row is not None
    shown = re.findall(r"<td class='number'>([^<]*)</td>", row[0])[1:]
    assert shown == [f"{figures[name]:.3f}" for name in ("cider", "cider_shuffled", "cider_commonest")]
    assert float(shown[2]) > 1, "the commonest caption fits some of so few images"
    assert len(re.findall("<article", page)) == 1 and "over all 6 images of x.json" in page


def test_the_table_has_the_figures_that_were_found() -> None:
    """A folder that does not know its commonest caption has an empty cell; without figures there are no columns."""
    one = captions.Captioner("a<b", "x", 1234, [], {"cider": 0.5, "cider_shuffled": 0.25, "cider_commonest": 0.125})
    other = captions.Captioner("c", "y", 5, [], {"cider": 0.0625, "cider_shuffled": 0.03})
    head, *rows = [re.findall(r"<t[hd][^>]*>([^<]*)<", row) for row in captions.table([one, other]).split("<tr>")[1:]]
    assert head[2:4] == ["parameters", "CIDEr"] and "shuffled" in head[4] and "commonest" in head[5]
    assert rows == [["a&lt;b", "x", "1,234", "0.500", "0.250", "0.125"], ["c", "y", "5", "0.062", "0.030", ""]]
    assert "CIDEr" not in captions.table([captions.Captioner("d", "z", 6, [])])


def test_long_sentences_are_cut(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captions, "MOST", 1)
    page = write(made, tmp_path, "--pictures", "2")
    assert all(len(one) <= 1 for name in RECIPES for one in cells(page, name)) and re.search(r"and \d+ more", page)


def test_a_region_is_bright_where_the_captioner_looked(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two words, the first looked for at the upper left, the second at the lower right of an even image."""
    caption: Any = af.task("caption", made / "attended")
    maps = torch.zeros(2, 4, 4)
    maps[0, 0, 0] = maps[1, 3, 3] = 1.0
    monkeypatch.setattr(caption, "regions", lambda batch, ids: maps)
    looks = caption.looks(ImageFile.of(torch.full((32, 32, 3), 120, dtype=torch.uint8).numpy()), [5, 6])
    for (_, drawn), corner in zip(looks, ((0, 0), (1, 1)), strict=True):
        shades = drawn.convert("L").resize((2, 2), resample=4)
        levels = {(x, y): shades.getpixel((x, y)) for x in (0, 1) for y in (0, 1)}
        assert max(levels, key=lambda place: levels[place]) == corner


def test_names(capsys: pytest.CaptureFixture[str], made: Path, tmp_path: Path) -> None:
    """A folder's last name, unless two have the same; a mistake is one sentence, and no page."""
    assert captions.names_of(["a/m", "b/m", "c/n"]) == ["a/m", "b/m", "n"]
    with pytest.raises(SystemExit) as stop:
        captions.main([str(made / "none"), "--data", str(made / "x.json"), "--out", str(tmp_path / "page")])
    assert stop.value.code == 2 and "does not exist" in capsys.readouterr().err and not (tmp_path / "page").exists()
