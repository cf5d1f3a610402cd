"""One self-contained HTML page for a deck: each item with its code, what it showed, and the verdict."""

from __future__ import annotations

import base64
import html
import inspect
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .item import DECKS, SECTIONS, Item, Table
from .run import Shown, counts

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { margin-top: 3rem; border-bottom: 1px solid var(--line) }
article { margin: 1.6rem 0; padding: 1rem 1.2rem; border: 1px solid var(--line); border-radius: .6rem }
h3 { margin: 0 0 .4rem; font-size: 1.08rem } .id { font-family: ui-monospace, monospace; opacity: .65 }
.tag { font-size: .78rem; padding: .1rem .5rem; border-radius: 1rem; background: var(--soft); margin-left: .4rem }
.works { background: #2a92; } .partly { background: #db32; } .failed { background: #d333; }
.missing, .unavailable, .skipped { background: #8883; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem .9rem; border-radius: .4rem; font-size: .86rem }
table { border-collapse: collapse; font-size: .92rem; margin: .6rem 0 } caption { text-align: left; font-weight: 600 }
td, th { padding: .22rem .8rem .22rem 0; border-bottom: 1px solid var(--line); text-align: left }
img { max-width: 100%; background: white; border-radius: .4rem } summary { cursor: pointer; opacity: .75 }
.note { opacity: .85; font-style: italic } nav a { margin-right: .8rem }
"""


def write_page(shown: Sequence[Shown], out: Path) -> list[Path]:
    """A page for each deck that has items among those shown."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for deck in DECKS:
        mine = [one for one in shown if one.item.deck == deck]
        if mine:
            written.append(out / f"{deck}.html")
            written[-1].write_text(page(deck, mine), encoding="utf-8")
    return written


def page(deck: str, shown: Sequence[Shown]) -> str:
    said = ", ".join(f"{n} {status}" for status, n in counts([one.item for one in shown]).items())
    sections = "".join(_sections(shown))
    names = dict.fromkeys(_section(one.item) for one in shown)
    links = "".join(f'<a href="#{name}">{html.escape(SECTIONS.get(name, name))}</a>' for name in names)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{deck}: {html.escape(DECKS[deck])}</title>"
        f'<meta name=viewport content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{deck}: {html.escape(DECKS[deck])}</h1><p>{len(shown)} items: {said}.</p>"
        f"<nav>{links}</nav>{sections}</html>"
    )


def _section(one: Item) -> str:
    return one.id.rsplit("-", 1)[0]


def _sections(shown: Sequence[Shown]) -> Iterator[str]:
    last = ""
    for one in shown:
        if (name := _section(one.item)) != last:
            yield f'<h2 id="{name}"><span class=id>{name}</span> {html.escape(SECTIONS.get(name, ""))}</h2>'
            last = name
        yield article(one)


def article(shown: Shown) -> str:
    one = shown.item
    tags = "".join(f"<span class=tag>{text}</span>" for text in (one.kind, one.cost) if text != "fast")
    verdict = f'<span class="tag {shown.verdict}">{shown.verdict}</span>'
    parts = [f"<h3><span class=id>{one.id}</span> {_inline(one.title)}{tags}{verdict}</h3>", *_texts(shown)]
    if one.show is not None:
        code = html.escape(source(one))
        parts.append(f"<details><summary>code</summary><pre>{code}</pre></details>")
    parts += [_thing(thing) for thing in shown.things]
    return f'<article id="{one.id}">{"".join(parts)}</article>'


def _texts(shown: Shown) -> Iterator[str]:
    one = shown.item
    if one.about:
        yield "".join(f"<p>{_inline(text)}</p>" for text in one.about.split("\n\n"))
    for text in (one.note, shown.error):
        if text:
            yield f"<p class=note>{_inline(text)}</p>"
    if one.also or one.see:
        said = [f"also {', '.join(one.also)}"] if one.also else []
        yield f"<p class=note>{html.escape('; '.join([*said, *(f'see {name}' for name in one.see)]))}</p>"


def source(one: Item) -> str:
    """The body of the function, without decorator and docstring."""
    assert one.show is not None
    text = textwrap.dedent(inspect.getsource(one.show))
    text = text[text.index("def ") :]
    return re.sub(r'\n    """.*?"""', "", text, count=1, flags=re.S).rstrip()


def _inline(text: str) -> str:
    """HTML of a text with `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _thing(thing: Any) -> str:
    if isinstance(thing, Table):
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in thing.head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in thing.cells())
        title = f"<caption>{html.escape(thing.title)}</caption>" if thing.title else ""
        return f"<table>{title}<tr>{head}</tr>{rows}</table>"
    if hasattr(thing, "savefig"):
        stream = io.BytesIO()
        thing.savefig(stream, format="png", bbox_inches="tight", dpi=110)
        return f'<img alt="figure" src="data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}">'
    return f"<pre>{html.escape(str(thing))}</pre>"
