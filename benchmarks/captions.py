"""A page of images: what people wrote of each, what captioners write, and where they look before each word.

    python benchmarks/captions.py FOLDER [FOLDER …] --data CAPTIONS.json,IMAGES.zip --out page [--pictures 12]
                                  [--scores] [--device cuda]

Each FOLDER is a model trained for `caption`, or the name of one that ships; the four of the lectures side by side are
show-tell, show-attend-tell, cnn-transformer and vit-transformer. `page/index.html` needs nothing else: the images are
in it. With --scores every captioner is measured on all images of the data, as `anyformer eval caption` does it.
"""

from __future__ import annotations

import argparse
import html
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyformer as af
from anyformer.cli.demo.html import image
from anyformer.cli.demo.page import whole
from anyformer.data.images.image_file import ImageFile
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.tasks.caption import Caption
from anyformer.tasks.evaluation import evaluate_task
from anyformer.tasks.picture_text import texts_of

WIDEST, THUMB = 480, 152  # pixels of an image, and of the same image above a word
MOST = 24  # words whose regions are shown
SCORES = {
    "cider": "CIDEr",
    "cider_shuffled": "CIDEr, captions shuffled",
    "cider_commonest": "CIDEr of the commonest caption",
}
STYLE = """
.scores{overflow-x:auto;margin:0 0 1.2rem}.scores table{width:auto}
.scores th,.scores td{text-align:left;padding:.35rem .8rem}
.scores th{font-weight:600;color:var(--soft);border-bottom:2px solid var(--line)}.scores td{border-width:0 0 1px}
.scores .number{text-align:right}
.note{color:var(--soft);font-size:.87rem;max-width:48rem;margin:-.7rem 0 1.4rem}
main{columns:auto}
article.picture{display:grid;grid-template-columns:minmax(0,15rem) minmax(0,1fr);gap:1.4rem;break-inside:auto}
.seen{position:sticky;top:1rem;align-self:start}.seen img{width:100%}
.seen h2{margin:.7rem 0 .2rem;font-size:.9rem;color:var(--soft)}
.seen ul{margin:0;padding-left:1.1rem;font-size:.87rem}.seen li{margin:.25rem 0}
.one{border-left:3px solid var(--blue);padding:0 0 .2rem .9rem;margin-bottom:1.1rem}.one:last-child{margin-bottom:0}
.one h2{font-size:.87rem;color:var(--soft)}.one h2 small{font-weight:400;margin-left:.5em}
.one .text{margin:.1rem 0 .5rem;font-weight:550}
.strip{list-style:none;display:flex;flex-wrap:wrap;gap:.45rem;margin:0;padding:0}.strip li{width:4.4rem}
.strip img{width:100%;transition:transform .15s}.strip img:hover{transform:scale(2);position:relative;z-index:1}
.strip span{display:block;margin-top:.15rem;text-align:center;font-size:.8rem;line-height:1.25;overflow-wrap:anywhere}
.strip .more{align-self:center;color:var(--soft);font-size:.8rem;text-align:center}
@media (max-width:820px){article.picture{grid-template-columns:minmax(0,1fr)}
.seen{position:static}.seen img{max-width:15rem}}
"""


@dataclass(frozen=True)
class Said:
    """A sentence; and for each of its words the image with what was looked at, where the captioner looks."""

    text: str
    looks: Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Captioner:
    name: str
    family: str
    parameters: int
    said: Sequence[Said]  # of each image
    figures: Mapping[str, Any] = field(default_factory=dict)


def ask(place: str, name: str, pictures: Sequence[ImageFile], device: str, data: str | None) -> Captioner:
    """One captioner at a time is in memory; it is measured where `data` says on what."""
    started = time.perf_counter()
    work: Any = af.task("caption", place, device=device)
    parameters = sum(parameter.numel() for parameter in work.model.parameters())
    answers = work(list(pictures))
    said = [
        Said(answer.text, work.looks(picture, list(answer.ids)))
        for picture, answer in zip(pictures, answers, strict=True)
    ]
    figures = {} if data is None else evaluate_task("caption", place, data, device=device).metrics
    print(f"{name}: {parameters:,} parameters, {time.perf_counter() - started:.1f} s", flush=True)
    return Captioner(name, work.model.family, parameters, said, figures)


def names_of(places: Sequence[str]) -> list[str]:
    """A folder by its last name, unless two share it."""
    short = [Path(place).name for place in places]
    return [one if short.count(one) == 1 else place for one, place in zip(short, places, strict=True)]


def table(captioners: Sequence[Captioner]) -> str:
    """The captioners, with those figures that were found."""
    found = [name for name in SCORES if any(name in one.figures for one in captioners)]
    head = "".join(f"<th class='number'>{title}</th>" for title in ("parameters", *(SCORES[name] for name in found)))
    rows = "".join(
        f"<tr><td>{html.escape(one.name)}</td><td>{html.escape(one.family)}</td>"
        f"<td class='number'>{one.parameters:,}</td>{''.join(_figure(one.figures.get(name)) for name in found)}</tr>"
        for one in captioners
    )
    head = f"<tr><th>captioner</th><th>family</th>{head}</tr>"
    return f"<div class='scores'><table>{head}{rows}</table></div>"


def _figure(value: float | None) -> str:
    return f"<td class='number'>{'' if value is None else f'{value:.3f}'}</td>"


def article(number: int, picture: ImageFile, people: Sequence[str], captioners: Sequence[Captioner]) -> str:
    """An image with what people wrote on the left, and what the captioners did on the right."""
    shown = image(picture.open(), f"image {number + 1}", WIDEST)
    wrote = "".join(f"<li>{html.escape(text)}</li>" for text in people)
    said = "".join(sentence(one, one.said[number]) for one in captioners)
    return (
        f"<article class='picture'><div class='seen'>{shown}<h2>People wrote</h2><ul>{wrote}</ul></div>"
        f"<div>{said}</div></article>"
    )


def sentence(captioner: Captioner, said: Said) -> str:
    cells = "".join(
        f"<li>{image(drawn, f'looked at before: {word}', THUMB)}<span>{html.escape(word)}</span></li>"
        for word, drawn in said.looks[:MOST]
    )
    left = len(said.looks) - MOST
    more = f"<li class='more'>and {left} more</li>" if left > 0 else ""
    strip = f"<ol class='strip'>{cells}{more}</ol>" if cells else ""
    name, family = html.escape(captioner.name), html.escape(captioner.family)
    return (
        f"<section class='one'><h2>{name}<small>{family if family != name else ''}</small></h2>"
        f"<p class='text'>{html.escape(said.text) or '(nothing)'}</p>{strip}</section>"
    )


def page(found: Rows, rows: Sequence[Row], captioners: Sequence[Captioner]) -> str:
    source = Path(found.path).name
    shown = "\n".join(
        article(number, row["image"], texts_of(row, "captions"), captioners) for number, row in enumerate(rows)
    )
    summary = (
        f"The first images of {source}: what people wrote of each, and what captioners write. The small images are"
        " bright where the captioner looked most before it wrote the word below, and dark where it looked"
        " least; a captioner that is given the image only once has none."
    )
    note = (
        f"CIDEr over all {len(found):,} images of {source}. Shuffled: the same captions, each beside another"
        " image's references. The commonest: the caption that most training images have, for every image. A"
        " captioner that looks is above both."
    )
    below = f"<p class='note'>{note}</p>" if any(one.figures for one in captioners) else ""
    body = f"{table(captioners)}{below}\n<main>\n{shown}\n</main>"
    return whole("anyformer: captions side by side", summary, body, STYLE)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="FOLDER", help="a captioner's folder, or its name if it ships")
    parser.add_argument("--data", required=True, help="CAPTIONS.json,IMAGES.zip")
    parser.add_argument("--out", type=Path, required=True, help="the folder that the page goes to")
    parser.add_argument("--pictures", type=int, default=12, help="how many, from the first")
    parser.add_argument("--scores", action="store_true", help="measure every captioner on all images of the data")
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args(arguments)
    if chosen.pictures < 1:
        parser.error(f"--pictures is {chosen.pictures}; it must be 1 or more.")
    try:
        found = Caption.read(chosen.data)
        rows = [found[i] for i in range(min(chosen.pictures, len(found)))]
        pictures = [row["image"] for row in rows]
        data = chosen.data if chosen.scores else None
        named = zip(chosen.folders, names_of(chosen.folders), strict=True)
        captioners = [ask(place, name, pictures, chosen.device, data) for place, name in named]
    except af.Error as error:
        parser.error(str(error))
    chosen.out.mkdir(parents=True, exist_ok=True)
    place = chosen.out / "index.html"
    place.write_text(page(found, rows, captioners), encoding="utf-8")
    print(f"{place}, {place.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
