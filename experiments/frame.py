"""What every experiment shares: the command line, seeds, tables, figures, and the page that says what came out.

    python experiments/01_scale.py [--seeds 1 2 3] [--quick] [--out DIR]

An experiment is a `Claim` and a function `run(options) -> Found`. Its page is written from what was measured, so the
same command gives the same page but for the time it took.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import runpy
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from anyformer.errors import Error
from anyformer.training.display import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PAGES = Path(__file__).parents[1] / "docs" / "experiments"
Verdict = Literal["holds", "holds partly", "does not hold here", "undecided"]
T = TypeVar("T")


class AbsentError(Error):
    """Data or weights that an experiment needs are not on this machine; the message says how to get them."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    number: int
    name: str  # of the files: "scale" -> experiments/01_scale.py, docs/experiments/01-scale.md
    title: str
    items: tuple[str, ...]  # of the lectures (lectures/), that it shows: "003-5-02"
    says: str  # what the lectures say, in our own words
    did: str  # what was done to see whether it holds
    seeds: tuple[int, ...] = (1, 2, 3)
    takes: Mapping[str, str] = field(default_factory=dict)  # options of its own, with what they are for
    switches: Mapping[str, str] = field(default_factory=dict)  # the same, without a value

    @property
    def script(self) -> str:
        return f"experiments/{self.number:02}_{self.name.replace('-', '_')}.py"

    @property
    def stem(self) -> str:
        return f"{self.number:02}-{self.name}"


@dataclass(frozen=True)
class Options:
    seeds: tuple[int, ...]
    quick: bool
    out: Path  # where the page goes
    own: Mapping[str, Any] = field(default_factory=dict)  # what was given of the claim's own options

    def pick(self, full: T, quick: T) -> T:
        """What a whole run takes, or what a test of a few seconds does."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Spread:
    """What a figure was over the seeds: its mean, and the standard deviation around it."""

    mean: float
    deviation: float
    n: int

    def __str__(self) -> str:
        if self.n < 2 or not math.isfinite(self.mean):
            return show(self.mean)
        mean = show(self.mean)
        return f"{mean} ± {show(self.deviation) if 'e' in mean else f'{self.deviation:,.{decimals(mean)}f}'}"


def decimals(number: str) -> int:
    """0.12 -> 2; 1,234 -> 0"""
    return len(number.partition(".")[2])


def spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return Spread(statistics.fmean(values), deviation, len(values))


def show(value: object) -> str:
    """1234.5 -> 1,234; 0.12345 -> 0.123; 0.00001 -> 1e-05"""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if not value:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if size < 0.001 else f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *([show(cell) for cell in row] for row in self.rows)]
        return "\n".join([f"{self.title}:", "", *(f"| {' | '.join(line)} |" for line in lines)])


@dataclass(frozen=True)
class Picture:
    figure: Figure
    caption: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came out. `exact`: what must hold to the last digit (or to rounding) and whether it did."""

    tables: Sequence[Table]
    verdict: Verdict
    words: str  # the verdict in our words
    pictures: Sequence[Picture] = ()
    exact: dict[str, bool] = field(default_factory=dict)


Run = Callable[[Options], Found]


def main(claim: Claim, run: Run, arguments: Sequence[str] | None = None) -> None:
    """The command of one experiment."""
    try:
        found = publish(claim, run, read_options(claim, arguments))
    except Error as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    failed = [what for what, held in found.exact.items() if not held]
    if failed:
        sys.exit(f"Should be exact and is not: {'; '.join(failed)}.")


def read_options(claim: Claim, arguments: Sequence[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=f"{claim.title}. {claim.did}")
    parser.add_argument("--seeds", "--seed", type=int, nargs="+", default=claim.seeds, metavar="N")
    parser.add_argument("--quick", action="store_true", help="a few seconds, to see that it runs; says little")
    parser.add_argument("--out", type=Path, help="where the page goes (docs/experiments; with --quick: runs/quick)")
    for name, about in claim.takes.items():
        parser.add_argument(f"--{name}", help=about)
    for name, about in claim.switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=about)
    given = parser.parse_args(arguments)
    own = {name: getattr(given, name) for name in (*claim.takes, *claim.switches) if getattr(given, name)}
    out = given.out if given.out is not None else Path("runs/quick") if given.quick else PAGES
    return Options(tuple(given.seeds), given.quick, out, own)


def publish(claim: Claim, run: Run, options: Options) -> Found:
    """Run it on one thread, print the tables, write the page with its figures, and bring the index up to date."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these models are small, and one thread keeps the order of every sum
    worked, waited = time.process_time(), time.perf_counter()
    try:
        found = run(options)
    finally:
        torch.set_num_threads(threads)
    seconds = time.process_time() - worked, time.perf_counter() - waited
    options.out.mkdir(parents=True, exist_ok=True)
    pictures = [write_picture(claim, index, one, options.out) for index, one in enumerate(found.pictures)]
    page = write_page(claim, options, found, pictures, seconds)
    (options.out / f"{claim.stem}.md").write_text(page, encoding="utf-8")
    write_index(options.out)
    print("\n\n".join(table.markdown() for table in found.tables))
    print(f"\n{claim.title}: {found.verdict}. {found.words}\nThe page: {options.out / claim.stem}.md")
    return found


def write_page(
    claim: Claim, options: Options, found: Found, pictures: Sequence[str], seconds: tuple[float, float]
) -> str:
    seeds = "Seeds " + ", ".join(map(str, options.seeds)) + ". " if len(claim.seeds) > 1 else ""
    spreads = "Where a cell says ±, it is the mean and the standard deviation over the seeds. " if seeds else ""
    return "\n\n".join(
        [
            f"# {claim.number}. {claim.title}",
            wrap(f"**The claim.** {claim.says}"),
            wrap(f"**What was done.** {claim.did}"),
            wrap(items_line(claim)),
            f"    {command(claim, options)}",
            *(table.markdown() for table in found.tables),
            *(f"![{one.caption}]({name})\n\n{one.caption}" for name, one in zip(pictures, found.pictures, strict=True)),
            wrap(f"**Verdict: {found.verdict}.** {found.words}"),
            wrap(f"{seeds}{spreads}It took {took(seconds)} on {where()}.") + "\n",
        ]
    )


def items_line(claim: Claim) -> str:
    return f"**Items of the lectures** (`python -m lectures {claim.items[0]}` shows one): {', '.join(claim.items)}."


def wrap(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def command(claim: Claim, options: Options) -> str:
    seeds = "" if options.seeds == claim.seeds else " --seeds " + " ".join(map(str, options.seeds))
    own = "".join(f" --{name}" if value is True else f" --{name} {value}" for name, value in options.own.items())
    return f"python {claim.script}{own}{seeds}{' --quick' if options.quick else ''}"


def took(seconds: tuple[float, float]) -> str:
    """Of the processor, which says how much work it was; and on the clock, where others shared the machine."""
    worked, waited = seconds
    shared = f" ({duration(waited)} on the clock, the machine being shared)" if waited > 1.2 * worked + 1 else ""
    return f"{duration(worked)}{shared}"


def where() -> str:
    """On what it ran."""
    used = torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0
    return f"one thread of {machine()}" + (f" with a GPU, {torch.cuda.get_device_name()}" if used else "")


def machine() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        found = None
    return f"an {found[1].strip()}" if found else f"a {platform.machine()} processor"


def write_picture(claim: Claim, index: int, picture: Picture, out: Path) -> str:
    name = f"{claim.stem}{f'-{index + 1}' if index else ''}.svg"
    import matplotlib

    # Neither ids drawn by chance nor the date: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": claim.stem, "svg.fonttype": "none"}):
        picture.figure.savefig(out / name, metadata={"Date": None})
    return name


def write_items(out: Path) -> None:
    """The line of each page that names the lectures' items, as its script names them now."""
    for script in sorted(Path(__file__).parent.glob("[0-9][0-9]_*.py")):
        claim = runpy.run_path(str(script))["CLAIM"]
        page = out / f"{claim.stem}.md"
        line = f"\n\n{wrap(items_line(claim))}\n\n    python "
        text = re.sub(
            r"(\n\n\*\*Items of[^\n]*(\n[^\n]+)*)?\n\n    python ", line, page.read_text(encoding="utf-8"), count=1
        )
        page.write_text(text, encoding="utf-8")


def write_index(out: Path) -> None:
    """A row a page, read from the pages themselves."""
    rows = []
    for page in sorted(out.glob("[0-9][0-9]-*.md")):
        text = page.read_text(encoding="utf-8")
        title, flat = re.match(r"# (\d+)\. (.+)", text), " ".join(text.split())  # sentences run over lines
        verdict = re.search(r"\*\*Verdict: (.+?)\.\*\*", flat)
        time_taken = re.search(r"It took (.+?)(?: \(| on one thread)", flat)
        if title and verdict and time_taken:
            rows.append(f"| {title[1]} | [{title[2]}]({page.name}) | {verdict[1]} | {time_taken[1]} |")
    lines = ["# The lectures' claims, measured", "", *INDEX.splitlines(), "", "| | claim | verdict | time |"]
    lines += ["|---|---|---|---|", *rows, ""]
    (out / "README.md").write_text("\n".join(lines), encoding="utf-8")


INDEX = """\
One command a claim; each page is written by its script from what it measured, also where that contradicts the lectures.
`python experiments/01_scale.py` runs the first again; `--seeds 4 5 6` with other seeds, `--quick` in a few seconds
(which says little). Times are of one processor core, with an H200 in claim 8."""


@contextmanager
def plot(
    columns: int = 1, width: float = 4.2, height: float = 3.2, beside: bool = False
) -> Iterator[tuple[Figure, list[Any]]]:
    """A figure of `columns` panels side by side, in the house's look; legends are drawn where lines have names, on the
    panel or `beside` it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained")
    panels = [figure.add_subplot(1, columns, column + 1) for column in range(columns)]
    yield figure, panels
    for axes in panels:
        if axes.images:
            continue
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[1]:
            place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)} if beside else {}
            axes.legend(frameon=False, fontsize=8, **place)


class Pace:
    """Says how far it is, once it takes longer than a second: a live line in a terminal, now and then a plain one
    elsewhere."""

    def __init__(self, total: int, what: str = "runs") -> None:
        self.total, self.what, self.done = total, what, 0
        self.started = self.last = time.perf_counter()

    def next(self, label: str) -> None:
        self.done += 1
        self.note(label, first=True)

    def note(self, label: str, first: bool = False) -> None:
        now, live = time.perf_counter(), sys.stdout.isatty()
        if now - self.last < (1.0 if live or self.last == self.started else 10.0) and not (first and live):
            return
        self.last = now
        line = f"{self.done}/{self.total} {self.what}, {duration(now - self.started)}: {label}"
        print(f"\r\x1b[K{line}" if live else line, end="" if live else "\n", flush=True)
        if live and self.done == self.total:
            print()


if __name__ == "__main__":  # after pages came from elsewhere, or a script names other items
    write_items(PAGES)
    write_index(PAGES)
