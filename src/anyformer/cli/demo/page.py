"""A self-contained HTML page with a panel for each model. Images and audio are embedded; light and dark themes are
supported."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Panel:
    """The input and the answer of a model. `input`, `answer` and `image` are HTML, the other fields plain text."""

    task: str
    model: str
    description: str
    input: str  # empty if the output image includes it
    answer: str
    image: str = ""
    caption: str = ""  # of the image
    command: str = ""
    explore: str = ""  # the command that opens the explorer
    score: str = ""
    known_failure: str = ""
    seconds: float = 0.0


def write_page(path: Path, panels: Sequence[Panel], absent: Sequence[str], summary: str) -> None:
    """Write the page of the demo. `absent` lists models that are not installed."""
    from anyformer.explorer.server import PORT

    missing = "".join(f"<li>{html.escape(line)}</li>" for line in absent)
    more = (
        f"<section class='absent'><h2>Models that are not installed</h2><ul>{missing}</ul></section>" if missing else ""
    )
    body = "\n".join(map(show, panels))
    explorer = (
        f"<p class='lead'>To look inside a model with your own inputs, run <b>anyformer explore</b> and open"
        f" <a href='http://127.0.0.1:{PORT}/'>the explorer</a>. The commands below are for the folder in which the"
        " demo ran.</p>"
    )
    path.write_text(whole(TITLE, summary, f"{explorer}<main>\n{body}\n</main>\n{more}"), encoding="utf-8")


def whole(title: str, summary: str, body: str, style: str = "") -> str:
    """A complete HTML page; `style` is appended to the default style."""
    return PAGE.format(style=STYLE + style, title=html.escape(title), summary=html.escape(summary), body=body)


def show(panel: Panel) -> str:
    """A panel as HTML."""
    text = html.escape
    image = ""
    if panel.image:
        image = f"<figure>{panel.image}<figcaption>{text(panel.caption)}</figcaption></figure>"
    score = f"<p class='score'>Score: {text(panel.score)}</p>" if panel.score else ""
    failure = f"<p class='failure'>Known failure: {text(panel.known_failure)}</p>" if panel.known_failure else ""
    explore = f"<code>{text(panel.explore)}</code>" if panel.explore else ""
    given = f"<div class='input'>{panel.input}</div>" if panel.input else ""
    return (
        f"<article><header><h2>{text(panel.task)}</h2><span>{text(panel.model)} · {panel.seconds:.1f} s</span></header>"
        f"<p class='description'>{text(panel.description)}</p>"
        f"{given}<div class='answer'>{panel.answer}</div>{image}"
        f"<footer>{failure}{score}<code>{text(panel.command)}</code>{explore}</footer></article>"
    )


TITLE = "anyformer: demo of the pretrained models"

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b2a41;--soft:#5b6b82;--line:#d5dce6;--card:#f6f8fb;--blue:#1b4f8f;
--warm:#b4451f;--mark:#ffe3a8}
@media (prefers-color-scheme:dark){:root{--paper:#10151d;--ink:#e6ecf5;--soft:#9fb0c6;--line:#2c3847;--card:#171f2a;
--blue:#7fb4f5;--warm:#ff9d73;--mark:#5c4712}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:1.2rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,"Segoe UI","DejaVu Sans",sans-serif}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.05rem;margin:0}
.lead{color:var(--soft);margin:0 0 1.2rem;max-width:48rem}
main{columns:2;column-gap:1.1rem}
article{break-inside:avoid;border:1px solid var(--line);border-radius:10px;background:var(--card);padding:.9rem 1rem;
margin:0 0 1.1rem}
article header{display:flex;justify-content:space-between;gap:1rem;align-items:baseline}
article header span,.description,.score{color:var(--soft);font-size:.87rem;font-variant-numeric:tabular-nums}
.description,.score{margin:.1rem 0 .6rem}
.input{border-left:3px solid var(--line);padding-left:.8rem;color:var(--soft)}
.input p,.answer p{margin:.25rem 0}
.answer{border-left:3px solid var(--blue);padding-left:.8rem;margin-top:.6rem}
.answer .text{white-space:pre-wrap;overflow-wrap:anywhere;font-weight:550}
img{max-width:100%;height:auto;display:block;border-radius:6px}
.input img{max-height:190px;width:auto}
audio{width:100%;max-width:22rem;display:block}
figure{margin:.8rem 0 0;background:#fff;border-radius:8px;padding:.4rem;overflow:hidden}
figure img{max-height:640px;width:auto;margin:0 auto}
figcaption{color:#5b6b82;font-size:.82rem;padding:.3rem .2rem 0}
mark{background:var(--mark);color:inherit;border-radius:4px;padding:.05em .25em}
mark small{color:var(--warm);margin-left:.3em;font-size:.72em}
.bars{display:grid;grid-template-columns:auto minmax(0,1fr) auto;gap:.15rem .6rem;align-items:center;font-size:.9rem}
.bars i{display:block;height:.7rem;background:var(--blue);border-radius:3px;min-width:2px}
.bars b{font-weight:500;color:var(--soft);font-variant-numeric:tabular-nums}
table{border-collapse:collapse;font-size:.87rem;width:100%}
td{padding:.3rem .4rem;font-variant-numeric:tabular-nums;border:1px solid var(--line)}td.n{text-align:center;width:4rem}
footer{margin-top:.7rem}.failure{color:var(--warm);font-size:.87rem;margin:.1rem 0 .4rem}
code{display:block;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.82rem;color:var(--soft);
background:var(--paper);border:1px solid var(--line);border-radius:6px;padding:.35rem .6rem}
.absent{color:var(--soft);font-size:.9rem;margin-top:1rem}.absent ul{padding-left:1.1rem} @media
(max-width:820px){main{columns:1}body{padding:.8rem .7rem 2rem}}
"""

PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body><h1>{title}</h1><p class="lead">{summary}</p>
{body}
</body></html>
"""
