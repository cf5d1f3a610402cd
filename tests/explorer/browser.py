"""A real browser before the page, for the tests that look at what is drawn.

Screenshots go to the folder that ANYFORMER_SCREENSHOTS names; by default to out/screenshots, which git ignores.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests take playwright")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
if BROWSER is None:
    pytest.skip("no Chromium is installed here", allow_module_level=True)

import uvicorn

from anyformer.explorer.app import make_app
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.model_list import ModelList
from anyformer.explorer.server import free_socket
from tests.explorer.models import TEXT

Models = dict[str, LoadedModel]
READY = 'body[data-ready]:not([data-ready=""])'
SLOW = 60_000  # milliseconds: the machine may be busy
SHOTS = Path(os.environ.get("ANYFORMER_SCREENSHOTS") or Path(__file__).parents[2] / "out" / "screenshots")


class Page:
    """A tab of the browser, by model and view."""

    def __init__(self, tab: Any, address: str, ids: dict[str, str]) -> None:
        self.tab, self.address, self.ids = tab, address, ids
        self.mistakes: list[str] = []
        self.kept: set[str] = set()
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
        self.keep(f"{models.replace(',', '_')}-{name}")

    def keep(self, name: str) -> None:
        """A screenshot, for whoever wants to look; one of each."""
        if name in self.kept:
            return
        self.kept.add(name)
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.tab.screenshot(path=SHOTS / f"{name}.png", full_page=True)

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


@contextmanager
def served(shelf: ModelList) -> Iterator[Page]:
    """A tab before a server of these models."""
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


def sent(page: Page) -> str:
    """The image that the page sends."""
    url: str = page.tab.locator("#thumb").get_attribute("src")
    return url.partition(",")[2]
