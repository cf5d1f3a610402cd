"""The frame of the page in a real browser: models, lecture, address, downloads, keys, light, phones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyformer.explorer.app import STATIC, describe
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import VIEWS
from tests.explorer.browser import Models, Page
from tests.explorer.models import TEXT, unpack, view

STOPS = json.loads((STATIC / "stops.json").read_text(encoding="utf-8"))

NAMELESS = """() =>
  [...document.querySelectorAll("button, select, input, textarea, img, svg[role], [role=application]")]
  .filter((one) => one.offsetParent !== null || one instanceof SVGElement)
  .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.closest("label")
    || one.labels?.length || one.alt || one.title))
  .map((one) => one.outerHTML.slice(0, 120))"""


def start(page: Page, hash: str = "") -> None:
    page.tab.goto("about:blank")
    page.tab.goto(page.address + hash)
    page.wait()


def test_without_a_model_the_page_lists_them(page: Page) -> None:
    start(page)
    assert sorted(page.texts(".card b")) == sorted(page.ids)
    assert page.texts(".card small")[sorted(page.ids).index("decoder")] == "gpt2-tiny"
    page.keep("list")
    page.act(lambda: page.tab.locator(".card", has_text="decoder").first.click())
    assert page.tab.locator('[role="tab"]').count() > 5
    page.act(lambda: page.tab.select_option("#add", page.ids["encoder"]))
    assert page.texts(".panel > h2")[1].startswith("encoder")
    page.act(lambda: page.tab.locator(".model button").first.click())
    assert [one.split()[0] for one in page.texts(".panel > h2")] == ["encoder"]


def test_three_models_beside_each_other_are_silenced_apart(page: Page, opened: Models) -> None:
    page.open("pair,relative,encoder", "heads", ablate="2/encoder.0.self.1")
    assert page.tab.locator(".panel").count() == 3
    for n, name in enumerate(("pair", "relative", "encoder")):
        silence = [{"stage": "encoder", "layer": 0, "part": "self", "head": 1}] if name == "encoder" else []
        rows = view(opened[name], "heads", text=TEXT, stage="encoder", ablate=silence)["rows"]
        drawn = page.tab.locator(".panel").nth(n).locator(".entropy").all_text_contents()
        wanted = [bits for row in rows for bits in row["entropy"]]
        assert [float(text[2:]) for text in drawn] == pytest.approx(wanted, abs=0.006)


def test_a_model_beside_itself_without_a_head(page: Page, opened: Models) -> None:
    page.open("decoder,decoder", "next", ablate="1/decoder.0.self.0")
    mute = {"stage": "decoder", "layer": 0, "part": "self", "head": 0}
    for n, silence in enumerate(([], [mute])):
        drawn = page.tab.locator(".panel").nth(n).locator("svg .value").first.text_content()
        wanted = view(opened["decoder"], "next", text=TEXT, ablate=silence)["words"][0]["probability"]
        assert float(drawn) == pytest.approx(wanted, abs=6e-5)
    page.act(lambda: page.tab.locator(".model button").nth(1).click())
    assert page.tab.locator(".panel").count() == 1


def test_the_lecture_from_stop_to_stop(page: Page, opened: Models) -> None:
    """Every stop finds a model that shows it and points at a drawing where it says so; the lectures' own sentences."""
    start(page)
    page.act(lambda: page.tab.locator("#lecture-button").click())
    texts, titles = set(), []
    while True:
        assert not page.mistakes and page.texts(".bad") == [], page.text("#caption")
        titles.append(page.text("#stops option:checked"))
        shows_what_it_says(page, STOPS[len(titles) - 1])
        texts.add(page.tab.locator("#text").input_value() if page.tab.locator("#text").is_visible() else "")
        assert page.tab.locator(".lit").count() == int("see=" in page.tab.url), titles[-1]
        if page.tab.locator("#on").is_disabled():
            break
        page.act(lambda: page.tab.keyboard.press("PageDown"))
    assert titles == [f"{i}. {stop['title']}" for i, stop in enumerate(STOPS, 1)]
    assert {
        "The animal didn't cross the street because it was too tired.",
        "The animal didn't cross the street because it was too wide.",
        "The agreement on the European Economic Area was signed in August 1992.",
    } <= texts
    page.act(lambda: page.tab.keyboard.press("PageUp"))
    assert page.text("#stops option:checked") == titles[-2]
    page.act(lambda: page.tab.go_back())
    assert page.text("#stops option:checked") == titles[-1]


def shows_what_it_says(page: Page, stop: dict[str, Any]) -> None:
    """Its view, on a model for each of its needs, with its sentence and its items of the lectures."""
    assert page.tab.locator('[role="tab"][aria-selected="true"]').get_attribute("id") == f"tab-{stop['view']}"
    assert page.tab.locator(".panel").count() == len(stop["needs"])
    assert page.text("#caption").startswith(stop["caption"]) and page.text("#caption .items").endswith(
        ", ".join(stop["items"])
    )
    assert not stop.get("patch") or page.texts(".panel > p")[0].startswith("Attention of patch ")


def test_a_stop_that_cannot_be_shown_is_an_error(page: Page) -> None:
    """Also where a link leads to it; no other view stands under its name, and the lecture goes on."""

    def two_models(route: Any) -> None:
        answer = route.fetch()
        models = [one for one in answer.json()["models"] if one["name"] in ("pair", "vit")]
        route.fulfill(response=answer, json={"models": models})

    number = [stop["title"] for stop in STOPS].index("Before transformers") + 1
    page.tab.route("**/api/models", two_models)
    start(page, f"#stop={number - 1}")
    shows_what_it_says(page, STOPS[number - 2])
    page.act(lambda: page.tab.keyboard.press("PageDown"))
    for again in (False, True):
        if again:
            start(page, f"#stop={number}")
        assert "needs a recurrent encoder-decoder with attention, and none was found" in page.text("main .bad")
        assert page.tab.locator(".panel, #views button:visible").count() == 0
        assert page.text("#caption").startswith(STOPS[number - 1]["caption"])
    page.act(lambda: page.tab.keyboard.press("PageDown"))
    shows_what_it_says(page, STOPS[number])
    page.tab.unroute("**/api/models")


def test_who_looks_around_from_a_stop_is_told(page: Page) -> None:
    """Another view or other models than those of the stop do not stand under its sentence."""
    start(page, "#stop=26")
    page.act(lambda: page.tab.locator("#tab-stats").click())
    assert page.text("#caption").startswith("The selected view does not belong")
    page.act(lambda: page.tab.locator("#again").click())
    shows_what_it_says(page, STOPS[25])
    page.act(lambda: page.tab.select_option("#add", page.ids["vit"]))
    assert page.text("#caption").startswith("This stop needs a vision transformer with patches; other models are open.")


def test_the_back_button_and_the_address(page: Page) -> None:
    page.open("decoder", "tokens")
    page.act(lambda: page.tab.locator("#tab-next").click())
    page.tab.locator("#k-0").fill("3")  # a slider changes the address, and is no place to come back to
    page.tab.wait_for_selector('figcaption b:has-text("3 of")')
    assert "k=3" in page.tab.url
    page.act(lambda: page.tab.go_back())
    assert page.tab.locator("#tab-tokens").get_attribute("aria-selected") == "true"
    page.act(lambda: page.tab.go_forward())
    assert page.tab.locator("#k-0").input_value() == "3"


def test_drawings_and_numbers_can_be_taken_along(page: Page, opened: Models, tmp_path: Path) -> None:
    for name, holds in (("head", b"<image"), ("heads", b"0.1"), ("tokens", b"animal")):  # drawn, and laid out
        page.open("decoder", name)
        for kind, begins in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("JSON", (b"{", b"["))):
            content = taken(page, kind).read_bytes()
            assert content.startswith(begins)
            assert kind != "SVG" or holds in content


def test_every_figure_of_every_text_view_has_its_numbers(page: Page) -> None:
    for name in ("tokens", "steps", "mask", "flow", "next", "embeddings", "generation", "stats"):
        page.open("decoder", name, n=5)
        figures = page.tab.locator("main figure")
        assert figures.count() > 0
        for kind in ("SVG", "PNG", "JSON", "npz"):
            assert page.tab.locator(f'main figcaption button:has-text("{kind}")').count() == figures.count(), name
        with np.load(taken(page, "npz")) as held:
            assert held.files, name


def taken(page: Page, kind: str) -> Path:
    with page.tab.expect_download() as found:
        page.tab.locator("figcaption button", has_text=kind).first.click()
    return Path(found.value.path())


def test_npz_is_read_by_numpy(page: Page, opened: Models) -> None:
    page.open("decoder", "head", layer=1, head=2)
    wanted = unpack(view(opened["decoder"], "head", text=TEXT, layer=1, head=2)["cells"])
    with np.load(taken(page, "npz")) as held:
        assert np.allclose(held["weights"], wanted, atol=1e-4)
        assert [str(one) for one in held["keys"]] == json.loads(taken(page, "JSON").read_text())["keys"]
    page.open("decoder", "tokens", text="a man ünd 漢")
    with np.load(taken(page, "npz")) as held:
        assert opened["decoder"].tokenizer is not None
        assert held["id"].tolist() == opened["decoder"].tokenizer.encode("a man ünd 漢")


def test_tabs_move_with_the_arrow_keys_and_focus_stays(page: Page) -> None:
    page.open("decoder", "heads")
    page.tab.locator("#tab-heads").focus()
    page.act(lambda: page.tab.keyboard.press("ArrowRight"))
    assert page.tab.locator("#tab-head").get_attribute("aria-selected") == "true"
    assert page.tab.evaluate("document.activeElement.id") == "tab-head"
    page.tab.locator("svg .pick").first.focus()
    page.tab.keyboard.press("ArrowDown")
    page.act(lambda: page.tab.keyboard.press("Enter"))  # chooses a token and draws anew
    assert page.tab.evaluate("document.activeElement.getAttribute('role')") == "application"
    assert page.tab.locator("[aria-live]").count() >= 2 and page.tab.locator("main").get_attribute("role") == "tabpanel"


@pytest.mark.parametrize("name", ["decoder", "pair"])
def test_a_phone_in_the_dark_and_everything_has_a_name(page: Page, opened: Models, name: str) -> None:
    """No view is wider than the screen, and whatever can be used says to a screen reader what it is."""
    page.tab.set_viewport_size({"width": 390, "height": 800})
    page.open(name, "tokens", n=5)
    before = page.tab.locator("html").get_attribute("data-theme")
    page.act(lambda: page.tab.locator("#theme").click())
    assert page.tab.locator("html").get_attribute("data-theme") != before
    for tab in page.tab.locator('[role="tab"]').all():
        if tab.get_attribute("aria-selected") != "true":
            page.act(tab.click)
        page.keep(f"phone-{name}-{tab.get_attribute('id')}")
        assert page.texts(".bad") == []
        assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390, tab.text_content()
        assert page.tab.evaluate(NAMELESS) == []
    page.act(lambda: page.tab.locator("#theme").click())
    page.tab.set_viewport_size({"width": 1200, "height": 900})


def test_markup_in_a_text_stays_text(page: Page) -> None:
    page.open("decoder", "tokens", text="<img src=x onerror=alert(1)><b>a man</b>")
    assert page.tab.locator("main img, main figure b b").count() == 0


def test_a_long_question_can_be_stopped(page: Page, opened: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The button shows after a second, and the server stops working."""
    seen: list[Deadline] = []

    def endless(opened: Any, ask: ViewRequest, patience: Deadline) -> dict[str, Any]:
        seen.append(patience)
        while True:
            patience.check()
            patience.canceled.wait(0.01)

    page.open("decoder", "tokens")
    monkeypatch.setitem(VIEWS, "next", endless)
    page.tab.locator("#tab-next").click()
    page.tab.locator("#stop").wait_for(state="visible")
    page.tab.locator("#stop").click()
    assert page.text("#message") == "Stopped."
    assert seen[0].canceled.wait(10)


def test_the_tabs_fit_the_model(page: Page, opened: Models) -> None:
    for name in ("encoder", "recurrent"):
        page.open(name, "tokens")
        shown = {tab.get_attribute("id") for tab in page.tab.locator('[role="tab"]').all()}
        assert ("tab-generation" in shown) == describe(opened[name])["encoder_decoder"]
        assert "tab-boxes" not in shown
