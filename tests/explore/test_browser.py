"""The page in a real browser: numbers that are drawn are Python's, and a silenced head changes what is seen.

Screenshots go to the folder that ANYFORMER_SCREENSHOTS names, where it is set.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests take playwright")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER is None:
    pytest.skip("no Chromium is installed here", allow_module_level=True)

import torch
import uvicorn

from anyformer.explore.app import make_app
from anyformer.explore.opened import Opened
from anyformer.explore.server import free_socket
from anyformer.explore.shelf import Shelf

from .models import TEXT, unpack, view

Models = dict[str, Opened]
READY = 'body[data-ready]:not([data-ready=""])'
SLOW = 60_000  # milliseconds: the machine may be busy


class Page:
    """A tab of the browser, by model and view."""

    def __init__(self, tab: Any, address: str, ids: dict[str, str]) -> None:
        self.tab, self.address, self.ids = tab, address, ids
        self.mistakes: list[str] = []
        tab.set_default_timeout(SLOW)
        tab.on("pageerror", lambda error: self.mistakes.append(str(error)))

    def open(self, models: str, name: str, **state: Any) -> None:
        chosen = ",".join(self.ids[model] for model in models.split(","))
        said = {"models": chosen, "view": name, "text": TEXT, **state}
        self.tab.goto("about:blank")
        self.tab.goto(self.address + "#" + "&".join(f"{key}={quote(str(value))}" for key, value in said.items()))
        self.wait()
        assert not self.mistakes
        assert self.tab.locator(".bad").count() == 0, self.tab.locator(".bad").first.inner_text()
        if os.environ.get("ANYFORMER_SCREENSHOTS"):
            place = Path(os.environ["ANYFORMER_SCREENSHOTS"])
            place.mkdir(parents=True, exist_ok=True)
            self.tab.screenshot(path=place / f"{models.replace(',', '_')}-{name}.png", full_page=True)

    def wait(self) -> None:
        self.tab.wait_for_selector(READY, state="attached")

    def act(self, do: Any) -> None:
        """Do something that draws the page anew, and wait for that."""
        before = self.tab.get_attribute("body", "data-ready")
        do()
        self.tab.wait_for_selector(
            f'body[data-ready]:not([data-ready="{before}"]):not([data-ready=""])', state="attached"
        )

    def text(self, selector: str) -> str:
        found: str = self.tab.locator(selector).first.text_content()
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.tab.locator(selector).all_text_contents()
        return found

    def number(self, selector: str) -> float:
        return float(re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", self.text(selector))[-1])


@pytest.fixture(scope="module")
def page(shelf: Shelf) -> Iterator[Page]:
    listening = free_socket(None)
    server = uvicorn.Server(uvicorn.Config(make_app(shelf), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    ids = {entry.name: entry.id for entry in shelf.entries.values()}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        yield Page(tab, f"http://127.0.0.1:{listening.getsockname()[1]}/", ids)
        browser.close()
    server.should_exit = True
    thread.join(timeout=10)


def test_tokens(page: Page, opened: Models) -> None:
    page.open("decoder", "tokens")
    drawn = [int(text) for text in page.texts(".chip small")]
    assert opened["decoder"].tokenizer is not None
    assert drawn == opened["decoder"].tokenizer.encode(TEXT)


def test_all_heads_and_silencing_one(page: Page, opened: Models) -> None:
    page.open("decoder", "heads")
    rows = view(opened["decoder"], "heads", text=TEXT, stage="decoder")["rows"]
    drawn = {cell.split("H ")[0][:3]: float(re.findall(r"H ([\d.]+)", cell)[0]) for cell in page.texts(".cell")}
    for row in rows:
        for head, bits in enumerate(row["entropy"]):
            assert drawn[f"{row['layer']}.{head}"] == pytest.approx(bits, abs=0.006)
    page.tab.locator("#measure-0").click()
    page.tab.wait_for_selector('[data-head="1.3"] .lost')
    lost = [view(opened["decoder"], "without", text=TEXT, layer=layer)["changes"] for layer in (0, 1)]
    assert [float(text[2:]) for text in page.texts(".lost")] == pytest.approx(
        [x for row in lost for x in row], abs=6e-5
    )
    page.act(lambda: page.tab.locator('[data-head="0.1"] .mute').click())
    assert "silenced: decoder self 0.1" in page.text("#muted")
    mute = [{"stage": "decoder", "layer": 0, "part": "self", "head": 1}]
    after = view(opened["decoder"], "heads", text=TEXT, stage="decoder", silence=mute)["rows"]
    drawn_after = [float(text[2:]) for text in page.texts(".entropy")]
    assert drawn_after == pytest.approx([bits for row in after for bits in row["entropy"]], abs=0.006)
    assert after[1]["entropy"] != pytest.approx(rows[1]["entropy"], abs=0.006)  # the layer above sees another input
    assert "mute=decoder.0.self.1" in page.tab.url


def test_one_head_by_keyboard(page: Page, opened: Models) -> None:
    page.open("decoder", "head", layer=1, head=2)
    weights = unpack(view(opened["decoder"], "head", text=TEXT, layer=1, head=2)["cells"])
    page.tab.locator("svg .pick").first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.tab.keyboard.press(key)
    assert page.number("#readout-0") == pytest.approx(float(weights[2, 1]), abs=6e-5)
    page.act(lambda: page.tab.select_option("#mode-0", "lines"))
    strong = int((weights >= 0.02).sum())
    assert page.tab.locator("svg line").count() == strong
    page.act(lambda: page.tab.select_option("#mode-0", "painted"))
    drawn = [float(value) for value in page.tab.locator(".chip").evaluate_all("all => all.map(x => x.dataset.weight)")]
    assert drawn == pytest.approx(weights[-1].tolist(), abs=1e-5)


def test_silencing_from_one_head_changes_the_next_word(page: Page, opened: Models) -> None:
    mute = [{"stage": "decoder", "layer": 0, "part": "self", "head": 0}]
    drawn = []
    for muted in ("", "decoder.0.self.0"):
        page.open("decoder", "next", mute=muted)
        words = view(opened["decoder"], "next", text=TEXT, silence=mute if muted else [])["words"]
        drawn.append(float(page.text("svg .value")))
        assert drawn[-1] == pytest.approx(words[0]["chance"], abs=6e-5)
    assert drawn[0] != drawn[1]


def test_step_by_step_with_a_temperature(page: Page, opened: Models) -> None:
    page.open("decoder", "steps", layer=1, head=1, pos=3)
    got = view(opened["decoder"], "steps", text=TEXT, layer=1, head=1, position=3)
    drawn = [float(text) for text in page.texts('[data-figure^="3-scores"] td:last-child')]
    assert drawn == pytest.approx(got["weights"], abs=6e-5)
    page.tab.locator("#softness-0").fill("2")
    scores = torch.tensor(got["scores"]) * got["scale"] / 2
    softer = scores.masked_fill(~torch.tensor(got["allowed"]), float("-inf")).softmax(-1)
    drawn = [float(text) for text in page.texts('[data-figure^="3-scores"] td:last-child')]
    assert drawn == pytest.approx(softer.tolist(), abs=2e-4)


def test_rollout_and_flow(page: Page, opened: Models) -> None:
    pytest.importorskip("scipy")
    page.open("encoder", "flow", pos=1)
    rolled = view(opened["encoder"], "rollout", text=TEXT, position=1)["row"]["values"]
    drawn = [float(text) for text in page.texts('[data-figure="rollout-of-token-1"] .value')]
    assert drawn == pytest.approx(rolled[:40], abs=6e-4)
    flowed = view(opened["encoder"], "flow", text=TEXT, position=1)["flow"]
    assert [float(text) for text in page.texts('[data-figure^="flow-into"] .value')] == pytest.approx(flowed, abs=6e-4)


def test_next_words_move_with_the_temperature(page: Page, opened: Models) -> None:
    page.open("decoder", "next", pos=2)
    page.tab.locator("#k-0").fill("3")
    page.tab.wait_for_selector('figcaption b:has-text("3 of")')
    wanted = [word["chance"] for word in view(opened["decoder"], "next", text=TEXT, position=2, top_k=3)["words"]]
    drawn = [float(text) for text in page.texts('[data-figure^="after-token"] .value')]
    assert drawn == pytest.approx(wanted, abs=6e-5)
    lens = view(opened["decoder"], "lens", text=TEXT, position=2)["rows"]
    ranks = [int(text) for text in page.texts('[data-figure^="the-logit-lens"] td:nth-last-child(2)')]
    assert ranks == [row["rank"] + 1 for row in lens]


def test_embeddings(page: Page, opened: Models) -> None:
    page.open("relative", "embeddings")
    assert "Positions: " in page.text("h3")
    toy = [float(text) for text in page.texts('[data-figure^="sines"] tbody tr:nth-child(4) td')]
    wanted = view(opened["relative"], "embeddings", text=TEXT)["toy"][3]
    assert toy[1:] == pytest.approx(wanted, abs=6e-4)


def test_alignment_beside_a_recurrent_model(page: Page, opened: Models) -> None:
    page.open("pair,recurrent", "alignment", target="a man")
    for n, name in enumerate(("pair", "recurrent")):
        got = view(opened[name], "head", text=TEXT, target="a man", stage="decoder", part="cross")
        weights = unpack(got["cells"])
        panel = page.tab.locator(".panel").nth(n)
        panel.locator("svg .pick").first.focus()
        page.tab.keyboard.press("ArrowDown")
        assert page.number(f"#readout-{n}") == pytest.approx(float(weights[1, 0]), abs=6e-5)


def test_writing_and_the_tree(page: Page, opened: Models) -> None:
    page.open("decoder", "generation", n=5, beams=3)
    got = view(opened["decoder"], "generation", text=TEXT, new_tokens=5)
    page.tab.locator("#step-0").fill("2")
    drawn = [float(text) for text in page.texts('[data-figure="what-could-come-at-this-step"] .value')]
    assert drawn == pytest.approx([one["chance"] for one in got["steps"][2]["best"]], abs=6e-5)
    assert page.text(".cache").startswith(f"{got['steps'][2]['cache']['tokens']} tokens")
    tree = view(opened["decoder"], "beams", text=TEXT, new_tokens=5, beams=3)
    scores = [float(re.findall(r"-\d+\.\d\d", text)[-1]) for text in page.texts("svg .candidate")]
    assert scores == pytest.approx([one["score"] for level in tree["levels"] for one in level], abs=6e-3)


def test_numbers(page: Page, opened: Models) -> None:
    page.open("pair", "sizes")
    total = sum(one.numel() for one in opened["pair"].model.parameters())
    assert page.text(".total").startswith(f"{total:,} parameters")


def sent(page: Page) -> str:
    """The picture that the page sends."""
    url: str = page.tab.locator("#thumb").get_attribute("src")
    return url.partition(",")[2]


def test_attention_over_a_picture(page: Page, opened: Models) -> None:
    page.open("vit", "picture", layer=1)
    asked = {"picture": sent(page), "stage": "encoder", "layer": 1, "position": 0}
    mean = unpack(view(opened["vit"], "over", **asked)["mean"])
    assert page.number(".most >> nth=0") == pytest.approx(float(mean.max()), abs=6e-5)
    page.act(lambda: page.tab.locator("svg g .pick").nth(5).click())
    other = unpack(view(opened["vit"], "over", **{**asked, "position": 6})["mean"])
    assert page.number(".most >> nth=0") == pytest.approx(float(other.max()), abs=6e-5)
    page.open("vit", "picture", layer=1, mute="encoder.0.self.0,encoder.0.self.1")
    mutes = [{"stage": "encoder", "layer": 0, "part": "self", "head": head} for head in (0, 1)]
    silent = unpack(view(opened["vit"], "over", **asked, silence=mutes)["mean"])
    assert page.number(".most >> nth=0") == pytest.approx(float(silent.max()), abs=6e-5)


def test_hidden_patches(page: Page, opened: Models) -> None:
    page.open("mae", "hidden")
    got = view(opened["mae"], "hidden", picture=sent(page))
    assert page.number(".loss") == pytest.approx(got["loss"], rel=1e-3)
    page.tab.locator("#share-0").fill("0.5")
    page.tab.wait_for_selector('.loss:has-text("8 of 16")')


def test_boxes(page: Page, opened: Models) -> None:
    page.open("detr", "boxes", threshold=0, pos=3)
    asked = {"picture": sent(page)}
    scores = [float(text) for text in page.texts('[data-figure="one-by-one"] td:nth-child(2)')]
    things = view(opened["detr"], "boxes", **asked, threshold=0.0)["things"]
    assert scores == pytest.approx([one["score"] for one in things], abs=6e-4)
    mean = unpack(view(opened["detr"], "over", **asked, stage="decoder", part="cross", position=3)["mean"])
    assert page.number(".most") == pytest.approx(float(mean.max()), abs=6e-5)


def test_words_on_a_picture(page: Page, opened: Models) -> None:
    page.open("captioner", "caption", target="3 5 7", pos=2)
    maps = unpack(view(opened["captioner"], "caption", picture=sent(page), target="3 5 7")["maps"])
    assert page.number(".most") == pytest.approx(float(maps[2].max()), abs=6e-5)


def test_markup_in_a_text_stays_text(page: Page) -> None:
    page.open("decoder", "tokens", text="<img src=x onerror=alert(1)><b>a man</b>")
    assert page.tab.locator("main img, main figure b b").count() == 0


def test_drawings_and_numbers_can_be_taken_along(page: Page) -> None:
    for name, holds in (("head", b"<image"), ("heads", b"0.1"), ("tokens", b"animal")):  # drawn, and laid out
        page.open("decoder", name)
        for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("JSON", (b"{", b"["))):
            with page.tab.expect_download() as taken:
                page.tab.locator("figcaption button", has_text=kind).first.click()
            content = Path(taken.value.path()).read_bytes()
            assert content.startswith(begins)
            assert kind != "SVG" or holds in content


def test_a_phone_in_the_dark(page: Page) -> None:
    page.tab.set_viewport_size({"width": 390, "height": 800})
    page.open("decoder", "heads")
    assert page.tab.locator("html").evaluate("root => root.scrollWidth") <= 390
    before = page.tab.locator("html").get_attribute("data-theme")
    page.act(lambda: page.tab.locator("#theme").click())
    assert page.tab.locator("html").get_attribute("data-theme") != before
    page.tab.set_viewport_size({"width": 1200, "height": 900})


def test_a_sound(page: Page) -> None:
    """The page makes its own tones; every class has its chance, and something of the spectrogram is looked at."""
    page.open("spectrogram", "picture")
    chances = [float(text) for text in page.texts('[data-figure="the-answer"] .value')]
    assert chances == sorted(chances, reverse=True) and 0 < sum(chances) <= 1.001
    assert 0 < page.number(".most >> nth=0") < 1


def test_without_a_model_the_page_lists_them(page: Page) -> None:
    page.tab.goto("about:blank")
    page.tab.goto(page.address)
    page.wait()
    assert page.texts(".chip") == sorted(page.ids)
    page.act(lambda: page.tab.locator(".chip", has_text="decoder").click())
    assert page.tab.locator('[role="tab"]').count() > 5
