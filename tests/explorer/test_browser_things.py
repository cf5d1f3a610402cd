"""Everything that is not text, in a real browser: a drawn number of each view is Python's, and a silenced head changes
it. Without a browser these are skipped, as those in test_browser.py are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.model_list import ModelList
from tests.explorer.browser import Page, sent
from tests.explorer.models import unpack, view
from tests.explorer.things import as_text, frames, frames_zip, npz, save_things

Models = dict[str, LoadedModel]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> ModelList:
    root = tmp_path_factory.mktemp("things")
    save_things(root)
    return ModelList.of(sorted(root.iterdir()))


@pytest.fixture(scope="module")
def things(shelf: ModelList) -> Models:
    return {entry.name: LoadedModel.load(entry.path) for entry in shelf.entries.values()}


def muted(mute: str) -> list[dict[str, Any]]:
    found = []
    for one in mute.split(","):
        stage, layer, part, head = one.split(".")
        found.append({"stage": stage, "layer": int(layer), "part": part, "head": int(head)})
    return found


def both(page: Page, name: str, chosen: str, mute: str, **state: Any) -> Iterator[list[dict[str, Any]]]:
    """The view as it is, then with heads silenced; which they are."""
    page.open(name, chosen, **state)
    yield []
    page.act(lambda: page.tab.evaluate(f"location.hash += '&ablate={mute}'"))
    assert page.texts("#ablated button")
    yield muted(mute)


def given(page: Page, name: str) -> dict[str, Any]:
    """What the page sends along for a model."""
    seen = page.tab.locator("#thumb")
    picture = name not in (
        "tubes",
        "videomae",
        "timesformer",
        "points",
        "table",
        "perceiver-points",
        "ast",
        "perceiver-sound",
    )
    return {"image": sent(page)} if picture and seen.get_attribute("src") else {}


def audio_of(page: Page) -> str:
    """The tones that the page makes for whoever has no sound."""
    found: str = page.tab.evaluate("import('./audio.js').then((made) => made.sampleTones())")
    return found


# model, state in the address, a head that is silenced, and what Python is asked; the first two `.most` are compared.
POINT = {"stage": "encoder", "layer": 1, "position": 7}
JOINT = {"stage": "decoder", "part": "cross", "layer": 1, "position": 3}
OVER: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("vit", {"layer": 1}, "encoder.0.self.0", {"stage": "encoder", "layer": 1, "position": 0}),
    ("ast", {"layer": 1, "pos": 4}, "encoder.0.self.0", {"stage": "encoder", "layer": 1, "position": 4}),
    ("videomae", {"layer": 1, "pos": 9}, "encoder.0.self.0", {"stage": "encoder", "layer": 1, "position": 9}),
    ("timesformer", {"layer": 1}, "encoder.0.space.0", {"part": "space", "layer": 1, "position": 0}),
    ("timesformer", {"site": "encoder/time", "pos": 20}, "encoder.0.space.0", {"part": "time", "position": 20}),
    ("points", {}, "encoder.0.self.0", {"stage": "pool", "part": "cross", "position": 0}),
    ("points", {"site": "encoder/self", "layer": 1, "pos": 7}, "encoder.0.self.0", POINT),
    ("table", {"layer": 1}, "encoder.0.self.0", {"stage": "encoder", "layer": 1, "position": 0}),
    ("segmenter", {"site": "decoder/self", "pos": 17}, "encoder.1.self.0", {"stage": "decoder", "position": 17}),
    ("joints", {"site": "decoder/cross", "layer": 1, "pos": 3}, "decoder.0.cross.0", JOINT),
]


@pytest.mark.parametrize(("name", "state", "mute", "asked"), OVER, ids=[f"{one[0]}-{i}" for i, one in enumerate(OVER)])
def test_over_the_input(page: Page, things: Models, name: str, state: Any, mute: str, asked: Any) -> None:
    drawn = []
    for mutes in both(page, name, "input", mute, **state):
        extra = {"audio": audio_of(page)} if name == "ast" else given(page, name)
        got = view(things[name], "attention_map", **asked, **extra, ablate=mutes)
        assert page.number(".max >> nth=0") == pytest.approx(got["max"], abs=6e-5)
        drawn.append(page.texts(".max"))
        top = [float(text.split()[-1]) for text in page.texts(".cell .top")]
        assert top == pytest.approx([float(one.max()) for one in unpack(got["maps"])], abs=6e-4)
        rolled = view(
            things[name],
            "input_rollout",
            stage=asked.get("stage", "encoder"),
            position=asked["position"],
            **extra,
            ablate=mutes,
        )
        assert page.number(".max >> nth=1") == pytest.approx(rolled["max"], abs=6e-5)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("name", ["pool", "videomae"])
def test_an_answer_read_off_all_tokens(page: Page, things: Models, name: str) -> None:
    drawn = []
    for mutes in both(page, name, "input", "encoder.0.self.0"):
        got = view(things[name], "pooling", **given(page, name), ablate=mutes)
        tops = [*([got["max"]] if name == "pool" else []), got["rollout"]["max"]]
        drawn.append([float(text.split()[-1]) for text in page.texts(".max")])
        assert drawn[-1] == pytest.approx(tops, abs=6e-5)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("name", ["perceiver-picture", "perceiver-sound", "perceiver-points"])
def test_latents(page: Page, things: Models, name: str) -> None:
    """What each latent looks at is the first thing that happens, so silence shows in what reaches the answer."""
    page.open(name, "queries")
    extra = {"audio": audio_of(page)} if "sound" in name else given(page, name)
    got = view(things[name], "queries", **extra, stage="latents", part="cross")
    assert [float(text.split()[-1]) for text in page.texts(".cell .top")] == pytest.approx(got["max"], abs=6e-5)
    assert [float(text[2:]) for text in page.texts(".cell .entropy")] == pytest.approx(got["entropy"], abs=6e-3)
    page.act(lambda: page.tab.locator('[data-query="4"] .open').click())
    over = view(things[name], "attention_map", **extra, stage="latents", part="cross", position=4)
    assert page.number(".max >> nth=0") == pytest.approx(over["max"], abs=6e-5)
    rolls = []
    for mutes in both(page, name, "input", "latents.1.self.0,latents.1.self.1", site="outputs/cross"):
        rolls.append(view(things[name], "input_rollout", **extra, stage="outputs", position=0, ablate=mutes)["max"])
        assert page.number(".max") == pytest.approx(rolls[-1], abs=6e-5)
    assert rolls[0] != rolls[1]


@pytest.mark.parametrize(("name", "site"), [("detr", "decoder"), ("joints", "decoder"), ("segmenter", "decoder")])
def test_all_queries(page: Page, things: Models, name: str, site: str) -> None:
    part = "self" if name == "segmenter" else "cross"
    drawn = []
    for mutes in both(page, name, "queries", f"{site}.0.{part}.0", layer=1):
        got = view(things[name], "queries", **given(page, name), stage=site, part=part, layer=1, ablate=mutes)
        drawn.append([float(text.split()[-1]) for text in page.texts(".cell .top")])
        assert drawn[-1] == pytest.approx(got["max"], abs=6e-5)
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(("name", "mute"), [("joints", "decoder.0.cross.1"), ("vitpose", "encoder.0.self.1")])
def test_joints(page: Page, things: Models, name: str, mute: str) -> None:
    drawn = []
    for mutes in both(page, name, "pose", mute, pos=2):
        got = view(things[name], "pose", **given(page, name), ablate=mutes)
        rows = page.texts('[data-figure="all-keypoints"] tbody tr')
        drawn.append([float(text) for text in page.texts('[data-figure="all-keypoints"] td:nth-child(2)')])
        assert drawn[-1] == pytest.approx([x for x, _, _ in got["keypoints"]], abs=6e-5) and len(rows) == 5
        assert page.number(".peak") == pytest.approx(got["peaks"][2], abs=6e-5)
        wide = float(page.tab.locator('svg[aria-label="keypoints"]').get_attribute("viewBox").split()[2])
        placed = page.tab.locator("circle.keypoint").evaluate_all(
            "all => all.map((one) => Number(one.getAttribute('cx')))"
        )
        assert placed == pytest.approx([x * wide for x, _, _ in got["keypoints"]], abs=0.01)
    assert drawn[0] != drawn[1]
    page.act(lambda: page.tab.locator("circle.keypoint").nth(1).focus() or page.tab.keyboard.press("Enter"))
    assert "pos=1" in page.tab.url


def test_segments(page: Page, things: Models) -> None:
    drawn = []
    for mutes in both(page, "segmenter", "segments", "decoder.0.self.1,encoder.0.self.1", pos=18, layer=1):
        asked = {**given(page, "segmenter"), "ablate": mutes}
        got = view(things["segmenter"], "segments", **asked)
        shares = [float(text) for text in page.texts('[data-figure^="fraction-of-the-image"] .value')]
        assert shares == pytest.approx([one["share"] for one in got["classes"]], abs=6e-5)
        over = view(things["segmenter"], "attention_map", **asked, stage="decoder", layer=1, position=18)
        drawn.append(page.number(".max"))
        assert drawn[-1] == pytest.approx(over["max"], abs=6e-5)
    assert drawn[0] != drawn[1]
    page.act(lambda: page.tab.locator("svg g .pick").nth(5).click())
    assert "pos=5" in page.tab.url and "patch 1,1" in page.text('[data-figure^="attention-of-patch"] b')


def test_boxes_of_a_silenced_detector(page: Page, things: Models) -> None:
    drawn = []
    for mutes in both(page, "detr", "boxes", "decoder.0.cross.0", threshold=0, pos=3, layer=1):
        asked = {**given(page, "detr"), "ablate": mutes}
        boxes = [float(text) for text in page.texts('[data-figure="all-detections"] td:nth-child(4)')]
        things_found = view(things["detr"], "boxes", **asked, threshold=0.0)["detections"]
        assert boxes == pytest.approx([one["box"][0] for one in things_found], abs=6e-4)
        drawn.append(boxes)
        over = view(things["detr"], "attention_map", **asked, stage="decoder", part="cross", layer=1, position=3)
        assert page.number(".max") == pytest.approx(over["max"], abs=6e-5)
    assert drawn[0] != drawn[1]


def test_slots(page: Page, things: Models, tmp_path: Path) -> None:
    """The examples first; then images that are handed in, several at once; a square leads to its query."""
    from PIL import Image

    placed: Any = "all => all.map((one) => one.dataset.box.split(' ').map(Number))"
    drawn = []
    for mutes in both(page, "detr", "query_boxes", "decoder.0.cross.0"):
        boxes = torch.cat(
            [unpack(view(things["detr"], "query_boxes", top=top, ablate=mutes)["boxes"]) for top in (0, 8)]
        )
        drawn.append(page.tab.locator('circle.place[data-query="3"]').evaluate_all(placed))
        np.testing.assert_allclose(np.array(drawn[-1]), boxes[:, 3].numpy(), atol=6e-5)
    assert drawn[0] != drawn[1]
    for i, frame in enumerate(frames(3)):
        Image.fromarray(frame).save(tmp_path / f"{i}.png")
    page.act(lambda: page.tab.locator("#many-files").set_input_files(sorted(tmp_path.iterdir())))
    page.tab.wait_for_selector('p:has-text("3 of 3 your images")')
    assert page.tab.locator('circle.place[data-query="0"]').count() == 3
    page.act(lambda: page.tab.locator('svg [aria-label="query 6"]').click())
    assert "view=boxes" in page.tab.url and "pos=6" in page.tab.url


@pytest.mark.parametrize("name", ["mae", "tubes"])
def test_hidden_patches_of_a_silenced_autoencoder(page: Page, things: Models, name: str) -> None:
    losses = []
    for mutes in both(page, name, "reconstruction", "encoder.0.self.0"):
        losses.append(view(things[name], "reconstruction", **given(page, name), ablate=mutes)["loss"])
        assert page.number(".loss") == pytest.approx(losses[-1], rel=1e-3)
    assert losses[0] != losses[1]


@pytest.mark.parametrize(
    ("name", "mute"), [("captioner", "decoder.0.cross.0"), ("git", "decoder.0.self.0"), ("whisper", "encoder.0.self.1")]
)
def test_words_on_the_input(page: Page, things: Models, name: str, mute: str) -> None:
    drawn = []
    layer = 0 if name == "whisper" else 1
    for mutes in both(page, name, "words", mute, text="3 4 5", target="3 5 7", pos=1, layer=layer):
        extra = {"audio": audio_of(page)} if name == "whisper" else given(page, name)
        got = view(things[name], "word_attention", **extra, text="3 4 5", target="3 5 7", layer=layer, ablate=mutes)
        drawn.append(page.number(".max"))
        assert drawn[-1] == pytest.approx(float(unpack(got["maps"])[1].max()), abs=6e-5)
    assert drawn[0] != drawn[1]


def test_positions_and_filters(page: Page, things: Models) -> None:
    page.open("vit", "input", pos=6)
    alike = unpack(view(things["vit"], "patch_positions", position=5, image=sent(page))["map"]).flatten()
    shown = [value for value in alike.tolist() if abs(value) >= 0.1]
    drawn = [float(text) for text in page.texts('[data-figure^="position-similarity"] svg text')]
    assert drawn == pytest.approx(shown, abs=6e-3)
    share = view(things["vit"], "filters", image=sent(page))["share"]
    texts = page.texts('[data-figure^="principal"] svg text')
    assert [float(text[:-1]) for text in texts] == pytest.approx([100 * one for one in share], abs=0.06)


def test_a_click_asks_another_cell(page: Page, things: Models) -> None:
    page.open("videomae", "input")
    page.act(lambda: page.tab.locator("svg .pick").nth(21).click())
    got = view(things["videomae"], "attention_map", stage="encoder", position=21)
    assert page.number(".max >> nth=0") == pytest.approx(got["max"], abs=6e-5)
    page.open("points", "input", site="encoder/self")
    page.act(lambda: page.tab.locator("circle.dot").nth(9).click())
    weights = page.tab.locator("circle.dot").evaluate_all(
        "all => all.slice(0, 48).map((one) => Number(one.dataset.weight))"
    )
    wanted = unpack(view(things["points"], "attention_map", stage="encoder", position=9)["mean"])
    assert weights == pytest.approx(wanted.tolist(), abs=1e-5)
    page.open("table", "input")
    page.act(lambda: page.tab.locator('[aria-label="query job"]').first.click())
    wanted = unpack(view(things["table"], "attention_map", stage="encoder", position=3)["mean"])
    drawn = [float(text) for text in page.texts('[data-figure^="layer-0"] .value')]
    assert drawn == pytest.approx(wanted.tolist(), abs=6e-5)


def test_files_are_handed_in(page: Page, things: Models, tmp_path: Path) -> None:
    files = {
        "clip.zip": frames_zip(),
        "clips.npz": npz(x=np.stack([frames(), frames() // 3])),
        "rows.csv": b"age,town\n20,Bern\n60,Basel\n",
        "set.csv": b"1,2\n3,4\n5,5\n",
        "no.zip": b"hello",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    page.open("videomae", "input", pos=3)
    page.act(lambda: page.tab.locator("#clip-file").set_input_files(tmp_path / "clip.zip"))
    got = view(things["videomae"], "pooling", clip=as_text(files["clip.zip"]))  # a new clip is asked anew
    assert page.number(".max") == pytest.approx(got["rollout"]["max"], abs=6e-5)
    page.act(lambda: page.tab.locator("#clip-file").set_input_files(tmp_path / "clips.npz"))
    page.act(lambda: page.tab.locator("#row-0").fill("1") or page.tab.keyboard.press("Enter"))
    second = view(things["videomae"], "input", clip=as_text(files["clips.npz"]), row=1)
    chances = [float(text) for text in page.texts('[data-figure="predictions"] .value')]
    assert chances == pytest.approx([one["probability"] for one in second["predictions"]], abs=6e-4)
    page.act(lambda: page.tab.locator("#clip-file").set_input_files(tmp_path / "no.zip"))
    assert "cannot be decoded" in page.text(".bad")
    page.tab.locator("#clip-file").set_input_files(tmp_path / "rows.csv")
    page.tab.wait_for_selector('#status:has-text("not a supported file")')
    page.act(lambda: page.tab.locator("#clip-example").click())
    assert page.tab.locator("main .bad").count() == 0
    page.open("table", "input")
    page.act(lambda: page.tab.locator("#items-file").set_input_files(tmp_path / "rows.csv"))
    assert "missing" in page.text('[data-figure^="layer-0"] svg') and "Bern" in page.text(
        '[data-figure^="layer-0"] svg'
    )
    page.open("points", "input")
    page.act(lambda: page.tab.locator("#items-file").set_input_files(tmp_path / "set.csv"))
    assert page.tab.locator('[data-figure^="layer-0"] circle.dot').count() == 3


def test_a_wave_is_drawn(page: Page, things: Models) -> None:
    page.open("ast", "input")
    got = view(things["ast"], "input", audio=audio_of(page))
    bars = page.tab.locator('svg[aria-label="waveform"] rect').evaluate_all(
        "all => all.map((one) => Number(one.getAttribute('height')))"
    )
    spans = np.array([high - low for low, high in got["waveform"]])
    np.testing.assert_allclose(
        np.array(bars)[spans > 0.1], (spans / np.abs(got["waveform"]).max() * 42)[spans > 0.1], atol=0.01
    )
    assert re.search(r"2\.00 s", page.text('svg[aria-label="waveform"]'))


def test_drawings_of_things_can_be_taken_along(page: Page) -> None:
    for name in ("timesformer", "points", "table"):
        page.open(name, "input")
        with page.tab.expect_download() as taken:
            page.tab.locator('[data-figure^="layer-0"] figcaption button', has_text="JSON").click()
        assert np.isfinite(np.array(json.loads(Path(taken.value.path()).read_text()))).all()
        with page.tab.expect_download() as taken:
            page.tab.locator('[data-figure^="layer-0"] figcaption button', has_text="SVG").click()
        assert Path(taken.value.path()).read_bytes().startswith(b"<svg")


def test_layers_that_do_not_begin_at_nought(page: Page, things: Models) -> None:
    """A Perceiver's first layer looks at its input, so its self-attention begins at 1."""
    page.open("perceiver-points", "heads", site="latents/self")
    rows = view(things["perceiver-points"], "heads", stage="latents", part="self")["rows"]
    assert [row["layer"] for row in rows] == [1, 2]
    drawn = [float(text[2:]) for text in page.texts(".cell .entropy")]
    assert drawn == pytest.approx([bits for row in rows for bits in row["entropy"]], abs=6e-3)
    page.act(lambda: page.tab.locator('[data-head="1.0"] .ablate').click())
    assert "ablated: latents self 1.0" in page.text("#ablated")
    after = view(things["perceiver-points"], "heads", stage="latents", ablate=muted("latents.1.self.0"))["rows"]
    drawn_after = [float(text[2:]) for text in page.texts(".cell .entropy")]
    assert drawn_after == pytest.approx([bits for row in after for bits in row["entropy"]], abs=6e-3)
    assert drawn_after != drawn
