"""A page of HTML, read again."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """Every tag that is opened is closed, and where things come from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
