"""One self-contained HTML page for a deck: each item with its code, what it showed, and the verdict."""

from __future__ import annotations

import base64
import html
import io
import keyword
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from .elsewhere import elsewhere
from .item import DECKS, SECTIONS, Item, Table, in_order
from .run import Shown

STYLE = """
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: #1b2330; background: #fff; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; overflow-wrap: break-word }
a { color: #1d4f91 } h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .8rem; padding-bottom: .3rem; border-bottom: 2px solid #1d4f91 }
h3 { font-size: 1.05rem; line-height: 1.35; margin: 0 0 .4rem } p { margin: .5rem 0; max-width: 46rem }
.id { font: .85em ui-monospace, monospace; color: #5a6676; margin-right: .3rem; white-space: nowrap }
nav ol { list-style: none; margin: .4rem 0; padding: 0; columns: 20rem; column-gap: 2rem }
nav li { display: flex; gap: .6rem; break-inside: avoid; padding: .1rem 0 } nav .marks { margin-left: auto }
article { margin: 1rem 0; padding: .8rem 1rem .9rem; border: 1px solid #d9dee6; border-left: .3rem solid #9aa4b2;
  border-radius: .3rem } article.works { border-left-color: #1a7f37 } article.partly { border-left-color: #b7791f }
article.failed { border-left-color: #b42318 }
.facts { font-size: .85rem; color: #5a6676; margin: 0 0 .5rem } .verdict { font-weight: 600; white-space: nowrap }
.works > .facts .verdict, .m-works { color: #1a7f37 } .partly > .facts .verdict, .m-partly { color: #8a5a00 }
.h-yes { color: #1a7f37 } .h-partly { color: #8a5a00 } .h-no { color: #b42318 }
.failed > .facts .verdict, .m-failed { color: #b42318 } .note { border-left: 2px solid #d9dee6; padding-left: .7rem }
.see { font-size: .85rem; color: #5a6676; max-width: none }
pre { font: .76rem/1.45 ui-monospace, monospace; background: #f5f7fa; padding: .6rem .8rem; border-radius: .3rem;
  overflow-x: auto; margin: .5rem 0 } pre.said { background: none; border: 1px solid #d9dee6; white-space: pre-wrap }
code { font: .88em ui-monospace, monospace; background: #f5f7fa; padding: 0 .2rem } summary { cursor: pointer;
  font-size: .88rem; color: #1d4f91 } details { margin: .6rem 0 0 }
.wide { overflow-x: auto; margin: .6rem 0 } table { border-collapse: collapse; font-size: .92rem }
caption { text-align: left; font-weight: 600; padding-bottom: .2rem } th { text-align: left; color: #5a6676 }
td, th { padding: .2rem 1.1rem .2rem 0; border-bottom: 1px solid #d9dee6; vertical-align: top }
.n { text-align: right; font-variant-numeric: tabular-nums } img { max-width: 100%; height: auto; margin: .5rem 0 }
.c { color: #6a7383 } .s { color: #7a4b00 } .k { color: #1d4f91 } .d { color: #7a2f8a }
@media (max-width: 40rem) { body { margin: 1rem auto; padding: 0 .7rem } article { padding: .7rem } }
@page { margin: 1.5cm }
@media print { body { font-size: 10.5pt; margin: 0; max-width: none; padding: 0 } pre { white-space: pre-wrap }
  h2, h3, .facts { break-after: avoid } table, img { break-inside: avoid } a { color: inherit; text-decoration: none } }
"""
MARKS = {"works": "✓", "partly": "◐", "missing": "–", "unavailable": "–", "failed": "✗", "skipped": "…"}
SAID = {  # of an item on its own, and of several
    "works": ("shown", "shown"),
    "partly": ("shown in part", "shown in part"),
    "missing": ("not built yet", "not built yet"),
    "unavailable": ("without its data", "without their data"),
    "failed": ("fails", "fail"),
    "skipped": ("not run", "not run"),
}
HOLDS = {"yes": "the claim holds", "partly": "the claim holds in part", "no": "the claim does not hold"}
HELD = {"yes": "hold", "partly": "hold in part", "no": "do not"}
LACKS = {"partly": "Still missing", "missing": "Not built yet", "unavailable": "Cannot be shown"}
CODE = re.compile(
    r'(?P<c>#[^\n]*)|(?P<s>[rbf]{0,2}(?:""".*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'))'
    rf"|(?P<k>\b(?:{'|'.join(keyword.kwlist)})\b)|(?P<d>(?<![\w.])\d[\w.]*)",
    re.S,
)
NUMBER = re.compile(r"[-−+±]?[\d.,]+(e[-+]?\d+)?\s*[%x×]?|True|False|None|nan|inf|–|")


def write_page(shown: Sequence[Shown], out: Path, wanted: str = "") -> list[Path]:
    """A page for each deck that has items among those shown; only that of the deck, section or item that is wanted."""
    written = []
    for deck in [wanted[:3]] if wanted else DECKS:
        mine = [one for one in shown if one.item.name_in(deck)]
        if mine:
            written.append(out / f"{deck}.html")
            written[-1].write_text(page(deck, mine), encoding="utf-8")
    return written


def page(deck: str, shown: Sequence[Shown]) -> str:
    """All items under this deck's ids, in its order, also those that belong to another deck."""
    named = sorted(((one.item.name_in(deck), one) for one in shown), key=lambda pair: in_order(pair[0]))
    sections = [(name, list(those)) for name, those in groupby(named, lambda pair: pair[0].rsplit("-", 1)[0])]
    title = html.escape(DECKS[deck])
    contents = "".join(_entry(name, those) for name, those in sections)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{deck}: {title}</title>"
        f'<meta name=viewport content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
        f"<h1><span class=id>{deck}</span>{title}</h1><p>{_counts(shown)}</p>"
        f"<nav aria-label=Contents><ol>{contents}</ol></nav>"
        + "".join(_section(name, those) for name, those in sections)
        + "</html>"
    )


def _counts(shown: Sequence[Shown]) -> str:
    count = Counter(one.verdict for one in shown)
    parts = [f"<span class=m-{name}>{MARKS[name]}</span> {count[name]} {SAID[name][count[name] > 1]}" for name in SAID]
    said = ", ".join(part for name, part in zip(SAID, parts, strict=True) if count[name])
    claims = Counter(one.item.holds for one in shown if one.item.kind == "claim" and one.verdict in ("works", "partly"))
    if claims:
        said += f". Of {claims.total()} claim{'s' * (claims.total() > 1)} that are shown, "
        said += ", ".join(f"<span class=h-{name}>{claims[name]} {HELD[name]}</span>" for name in HELD if claims[name])
    return (
        "What the slides say, executed: each item runs the code that stands with it, asserts what must be true, and "
        f"shows what came out. {len(shown)} item{'s' * (len(shown) > 1)}: {said}."
    )


def _entry(name: str, those: Sequence[tuple[str, Shown]]) -> str:
    marks = "".join(f"<span class=m-{one.verdict}>{MARKS[one.verdict]}</span>" for _, one in those)
    title = html.escape(SECTIONS.get(name, ""))
    return f'<li><a href="#{name}"><span class=id>{name}</span>{title}</a><span class=marks>{marks}</span></li>'


def _section(name: str, those: Sequence[tuple[str, Shown]]) -> str:
    title = html.escape(SECTIONS.get(name, ""))
    return f'<h2 id="{name}"><span class=id>{name}</span>{title}</h2>' + "".join(article(*pair) for pair in those)


def article(name: str, shown: Shown) -> str:
    one = shown.item
    facts = [f"<span class=verdict>{MARKS[shown.verdict]} {SAID[shown.verdict][0]}</span>", one.kind]
    if one.kind == "claim" and shown.verdict in ("works", "partly"):
        facts.insert(1, f"<span class=h-{one.holds}>{HOLDS[one.holds]}</span>")
    facts += ["documented run, not run here"] if one.documented else []
    facts += [f"{shown.seconds:.0f} s"] if shown.seconds >= 1 else []
    parts = [f"<h3><span class=id>{name}</span>{_inline(one.title)}</h3><p class=facts>{' · '.join(facts)}</p>"]
    parts += [*_texts(shown), *(_thing(thing) for thing in shown.things)]
    if one.code:
        parts.append(
            f"<details{' open' * (one.code.count(chr(10)) < 12)}><summary>code</summary>{_code(one.code)}</details>"
        )
    if one.helpers:
        parts.append(f"<details><summary>what it uses</summary>{_code(one.helpers)}</details>")
    return f'<article id="{name}" class={shown.verdict}>{"".join([*parts, _see(name, one)])}</article>'


def _texts(shown: Shown) -> Iterator[str]:
    one = shown.item
    yield from (f"<p>{_inline(text)}</p>" for text in one.about.split("\n\n") if text)
    if one.note:
        yield f"<p class=note>{LACKS[one.status]}: {_inline(one.note)}.</p>"
    if one.documented or one.beside:
        whose = "All numbers are from" if one.documented else "Some numbers are from"
        command = html.escape(one.documented or one.beside)
        yield f"<p class=note>{whose} a documented run: <code>{command}</code>.</p>"
    if shown.error:
        yield f"<p class=note>{'Failed' if shown.verdict == 'failed' else 'Not run'}: {_inline(shown.error)}.</p>"


def _see(name: str, one: Item) -> str:
    """What breaks it, and where else it stands."""
    said = []
    if one.wrong:
        changed = ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in one.wrong.items())
        said.append(f"With <code>{html.escape(changed)}</code> an assertion fails.")
    if others := [other for other in (one.id, *one.also) if other != name]:
        said.append(f"The same on other slides: {', '.join(others)}.")
    if there := [html.escape(str(place)) for place in elsewhere(one)]:
        said.append(f"Shown elsewhere, too: {'; '.join(there)}.")
    return f"<p class=see>{'<br>'.join(said)}</p>" if said else ""


def _code(text: str) -> str:
    """Comments, strings, keywords and numbers in color."""
    made, last = [], 0
    for found in CODE.finditer(text):
        made += [
            html.escape(text[last : found.start()]),
            f"<span class={found.lastgroup}>{html.escape(found[0])}</span>",
        ]
        last = found.end()
    return f"<pre>{''.join(made)}{html.escape(text[last:])}</pre>"


def _inline(text: str) -> str:
    """HTML of a text with `code`."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _thing(thing: Any) -> str:
    if isinstance(thing, Table):
        return _table(thing)
    if hasattr(thing, "savefig"):
        return _picture(thing)
    return f"<pre class=said>{html.escape(str(thing))}</pre>"


def _table(table: Table) -> str:
    cells = table.cells()
    kinds = ["n" if all(NUMBER.fullmatch(cell) for cell in column) else "t" for column in zip(*cells, strict=True)]
    kinds = kinds or ["t"] * len(table.head)
    head = "".join(f"<th class={kind}>{html.escape(cell)}</th>" for kind, cell in zip(kinds, table.head, strict=True))
    rows = [
        [f"<td class={kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)] for row in cells
    ]
    title = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<div class=wide><table>{title}<tr>{head}</tr>{lines}</table></div>"


def _picture(figure: Any) -> str:
    """Twice as many pixels as it is wide, so that it is sharp on paper and on fine screens."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", bbox_inches="tight", dpi=200)
    content = stream.getvalue()
    width = int.from_bytes(content[16:20], "big") // 2  # which a PNG says at its beginning
    return f'<img alt="figure" width={width} src="data:image/png;base64,{base64.b64encode(content).decode()}">'
