"""Lines of text read from images, beside Tesseract, and lines drawn to learn from.

python benchmarks/read.py [--model FOLDER] [--data $ANYFORMER_DATA/sroie] [--threads 2] [--lines 720] [--weights int8]
python benchmarks/read.py --model lines --drawn test_2016_flickr.en.gz --fonts Carlito,LinLibertine_R,EBGaramond

The validation lines of SROIE; or, with --drawn, lines of that text drawn by fonts at hand, of which --fonts names some
that the reader did not learn from. Tesseract reads them with `--psm 7` (one line of text), a white border around each,
since it reads worse without one: as a list in one process for each core, and in a process for each line. anyformer
reads all lines in one call, and one by one. Without a folder the weights are random, never say where a line ends, and
are stopped where the longest line of each batch ends. Lines a second of the wall clock, and for each second of
processor time, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import ImageOps

import anyformer as af
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.synthetic_text import TextLineGenerator, fonts
from anyformer.tasks.read import Read, prose

BORDER = 10  # white pixels around a line for Tesseract
BATCH = 64


def clock(run: Callable[[], Any], who: int) -> tuple[Any, float, float]:
    """The result, seconds, and seconds of processor time of this process or of its children."""
    started, before = time.perf_counter(), resource.getrusage(who)
    result = run()
    after = resource.getrusage(who)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result, time.perf_counter() - started, busy


def show(name: str, lines: int, seconds: float, busy: float, rate: str = "") -> None:
    print(
        f"{name:<36} {lines / seconds:8.1f} lines/s   {lines / busy:8.1f} for a second of a core   {rate}", flush=True
    )


def errors(said: Sequence[str], wanted: Sequence[str]) -> str:
    """Characters that must be changed, runs of spaces aside: large or small not counted, and counted."""
    import jiwer

    plain = [[" ".join(text.split()) for text in side] for side in (wanted, said)]
    small = [[text.lower() for text in side] for side in plain]
    return f"CER {100 * jiwer.cer(*small):.2f}%, case counted {100 * jiwer.cer(*plain):.2f}%"


def tesseract(*args: str) -> str:
    done = subprocess.run(
        ["tesseract", *args, "--psm", "7"],
        env={**os.environ, "OMP_THREAD_LIMIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def tesseract_lists(files: Sequence[str], folder: Path, cores: int) -> list[str]:
    """A process a core, each with a list of files."""
    shares = [files[i::cores] for i in range(cores)]
    lists = [folder / f"list-{i}.txt" for i in range(cores)]
    for place, share in zip(lists, shares, strict=True):
        place.write_text("\n".join(share) + "\n")
    with ThreadPoolExecutor(cores) as pool:
        pages = list(pool.map(lambda place: tesseract(str(place), "stdout").split("\f"), lists))
    return [pages[i % cores][i // cores] for i in range(len(files))]


def tesseract_each(files: Sequence[str], cores: int) -> list[str]:
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(lambda file: tesseract(file, "stdout"), files))


def peer(pictures: Sequence[ImageFile], texts: Sequence[str], cores: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder, files = Path(place), []
        for i, picture in enumerate(pictures):
            files.append(str(folder / f"{i:05d}.png"))
            ImageOps.expand(picture.open("L"), BORDER, 255).save(files[-1])
        said, *times = clock(lambda: tesseract_lists(files, folder, cores), resource.RUSAGE_CHILDREN)
        show("Tesseract, a list", len(files), *times, errors(said, texts))
        few = files[:60]
        _, *times = clock(lambda: tesseract_each(few, cores), resource.RUSAGE_CHILDREN)
        show("Tesseract, a process for each line", len(few), *times)


def drawn(path: Path, names: Sequence[str], lines: int) -> tuple[list[ImageFile], list[str]]:
    """Lines of a text, by fonts whose files have one of these names; all fonts where there are none."""
    faces = [face for face in fonts() if not names or any(name in Path(face).name for name in names)]
    if not faces:
        raise SystemExit(f"None of the {len(fonts())} fonts at hand is called {' or '.join(names)}.")
    print(f"{lines} lines drawn by {len(faces)} fonts")
    source = TextLineGenerator(prose(str(path)), prose=True, faces=faces)
    made = [source.line(0, 0, i) for i in range(lines)]
    return [ImageFile.of(image) for image, _ in made], [text for _, text in made]


def make_reader(folder: str | None, data: Path, weights: str | None) -> Any:
    if folder is not None:
        return af.task("read", folder, weights=weights)
    torch.manual_seed(0)
    task = Read.begin("line-reader-small", Read.read(data / "train.tsv"))
    with tempfile.TemporaryDirectory() as place:
        task.save(place)
        return af.task("read", place, weights=weights)


def read_all(read: Any, pictures: Sequence[ImageFile], texts: Sequence[str], trained: bool) -> list[str]:
    """All at once; where random weights would go on for ever, batch by batch with a bound to each."""
    if trained:
        return [str(answer) for answer in read(list(pictures))]
    order = sorted(range(len(pictures)), key=lambda i: pictures[i].open("L").width)
    said = [""] * len(pictures)
    for start in range(0, len(order), BATCH):
        some = order[start : start + BATCH]
        longest = max(len(texts[i]) for i in some) + 1
        for i, answer in zip(some, read([pictures[i] for i in some], max_new_tokens=longest), strict=True):
            said[i] = str(answer)
    return said


def ours(read: Any, pictures: Sequence[ImageFile], texts: Sequence[str], trained: bool) -> None:
    read(pictures[0], max_new_tokens=2)
    said, *times = clock(lambda: read_all(read, pictures, texts, trained), resource.RUSAGE_SELF)
    show("anyformer, all lines", len(pictures), *times, errors(said, texts) if trained else "(random weights)")
    few = list(zip(pictures[:60], texts, strict=False))

    def one_by_one() -> None:
        for picture, text in few:
            read(picture, **({} if trained else {"max_new_tokens": len(text) + 1}))

    _, *times = clock(one_by_one, resource.RUSAGE_SELF)
    show("anyformer, line by line", len(few), *times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder trained for read; without one, random weights")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("ANYFORMER_DATA", ".")) / "sroie")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lines", type=int, default=720)
    parser.add_argument("--weights", choices=["int8"])
    parser.add_argument("--drawn", type=Path, help="a text whose lines are drawn and read instead")
    parser.add_argument("--fonts", default="", help="with --drawn: parts of the names of fonts, with commas between")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    if chosen.drawn is not None:
        pictures, texts = drawn(chosen.drawn, [name for name in chosen.fonts.split(",") if name], chosen.lines)
    else:
        rows = list(Read.read(chosen.data / "val.tsv"))[: chosen.lines]
        pictures, texts = [row["image"] for row in rows], [row["text"] for row in rows]
    print(f"torch {torch.__version__}, {chosen.threads} threads, {len(texts)} lines, load {os.getloadavg()[0]:.1f}")
    peer(pictures, texts, chosen.threads)
    read = make_reader(chosen.model, chosen.data, chosen.weights)
    ours(read, pictures, texts, chosen.model is not None)
    source = TextLineGenerator(texts)
    _, *times = clock(lambda: [source.line(0, 0, i) for i in range(500)], resource.RUSAGE_SELF)
    show("lines drawn by fonts, one process", 500, *times)


if __name__ == "__main__":
    main()
