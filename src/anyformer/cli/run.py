"""A task at the command line: inputs from arguments, files and lines, answers printed as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import count, islice
from pathlib import Path
from typing import Any

from torch import Tensor

from anyformer import pretrained
from anyformer.data.audio.audio_file import SUFFIXES as AUDIO
from anyformer.data.files import data_suffix
from anyformer.data.images.image_file import SUFFIXES
from anyformer.data.tables.formats import SUFFIXES as TABLES
from anyformer.data.video.clips import VIDEOS
from anyformer.errors import Error, InputError, SkippedError
from anyformer.tasks import TASKS, WRITING, find, task
from anyformer.tasks.base import Task, spell_device
from anyformer.tasks.generate import TextGenerator
from anyformer.tasks.tables import ask, describe, find_rows, is_table
from anyformer.tokenizers.cuts import count_cuts, hash_texts

TOGETHER = 16  # inputs that go through a model at a time
DRAWN = (".png", ".jpg", ".jpeg", ".webp")  # what --out may end in
# Tasks whose answers draw themselves: they have `draw()`, which gives a PIL image.
DRAWING = frozenset("ask-image caption classify-image complete-image detect pose read reconstruct segment".split())


def run(
    name: str,
    model: str | None,
    inputs: Sequence[str],
    options: Mapping[str, Any],
    *,
    chat: bool | None = None,
    out: Path | None = None,
    columns: str = "",
    **where: Any,
) -> None:
    """Answer every input, each answer on a line of its own; where someone watches, text comes word by word. No model:
    the one that ships. With `out`, answers are drawn there. `columns` says which column of a table is what. `chat`
    is a conversation; False continues texts as they stand."""
    written = [option for option in options if option != "threshold"] + ["chat"] * bool(chat)
    if name in TASKS and name != "generate" and chat is False:
        raise InputError(f"{name} frames no chat turns, so it takes no --no-chat.")
    if name in TASKS and name not in WRITING and written:
        raise InputError(f"{name} writes no text, so it takes no --{written[0].replace('_', '-')}.")
    if name in TASKS and "threshold" in options and not find(name).has_slots:
        raise InputError(f"{name} finds no things that are more or less sure, so it takes no --threshold.")
    if "overflow" in where and name != "read":
        raise InputError(f"{name} reads no lines, so it takes no --overflow.")
    if chat and inputs:
        raise InputError("--chat reads what you say from standard input; leave INPUT out.")
    if not chat and not inputs:
        raise InputError("There is no INPUT; give a text, a file, or - to read lines from standard input.")
    if out is not None and name not in DRAWING:
        raise InputError(f"{name} has nothing to draw, so it takes no --out.")
    if find(name).beside is not None:
        inputs, options = split_inputs(name, inputs, options)
    checked = read_inputs(inputs, name, columns)
    named = find(name).reads == "files" and (len(inputs) > 1 or "-" in inputs or has_tables(checked))
    places = image_paths(out)  # an error is one before a model is loaded
    chosen = model if model is not None else pretrained.default(name, bool(chat)).name
    with waiting(f"Reading {chosen}"):
        work: Any = task(name, chosen, **where)
    if isinstance(work, Task):
        print(f"device: {spell_device(work.model)}", file=sys.stderr, flush=True)
    options = options if chat is not False else {**options, "chat": False}
    texts = _texts(checked, name, work, columns)
    if name in pretrained.PAIRS and len(inputs) > 1 and "-" not in inputs and not has_tables(checked):
        texts = group_inputs(list(texts))
    with counted() as asked:
        texts = recorded(texts, asked)
        if chat:
            chat_loop(work, options)
        elif isinstance(work, TextGenerator) and sys.stdout.isatty() and options.get("num_beams", 1) == 1:
            for text in texts:
                show_pieces(() if text is None else work.stream(text, **options))
        else:
            answer_groups(work, texts, options, name, named=named, places=places)


@contextmanager
def counted() -> Iterator[list[set[int]]]:
    """Print once, when all is answered, how many rows were cut and to what length. The list takes `hash_texts` of each
    row that is asked about."""
    asked: list[set[int]] = []
    with count_cuts() as cuts:
        try:
            yield asked
        finally:
            if cuts:
                print(f"truncation: {cuts.by_texts(asked)}", file=sys.stderr, flush=True)


def recorded(rows: Iterable[Any], asked: list[set[int]]) -> Iterator[Any]:
    """Yield the rows, and note the hashes of their texts."""
    for row in rows:
        asked.append(hash_texts(row))
        yield row


def answer_groups(
    work: Any, texts: Iterator[Any], options: Mapping[str, Any], name: str, *, named: bool, places: Iterator[Path]
) -> None:
    """Some inputs at a time; `named`: they are files, and each answer comes under its file's name."""
    asked = failed = 0
    while group := list(islice(texts, TOGETHER)):
        with waiting(f"{name} …"):
            answers = answer_each(work, group, options) if named else answer_all(work, group, options)
        if not asked and all(isinstance(one, Error) for one in answers) and len({str(one) for one in answers}) == 1:
            raise answers[0]  # of an option or of the model, not of a file
        for text, answer in zip(group, answers, strict=True):
            asked, place = asked + 1, next(places, None)
            if isinstance(answer, Error):
                failed += 1
                print(f"anyformer: {answer}", file=sys.stderr, flush=True)
                continue
            print(under(file_name(text), format_answer(answer)) if named else format_answer(answer), flush=True)
            if place is not None:
                write_image(answer, place)
    if failed:
        kind = SkippedError if failed < asked else InputError
        raise kind(f"{failed} of {asked} inputs had no answer, as said above.")


def answer_each(work: Any, group: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """An answer for each file, or the error that there is instead: the others do not suffer for it."""
    try:
        return answer_all(work, group, options)
    except Error as error:
        return [error] if len(group) == 1 else [one for item in group for one in answer_each(work, [item], options)]


def answer_all(work: Any, group: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """An answer for each input; a blank line, which is None, has a blank one."""
    asked = [text for text in group if text is not None]
    said = iter(work(asked, **options) if asked else ())
    return ["" if text is None else next(said) for text in group]


def file_name(item: Any) -> str:
    """The name of the file that an input is; of a question beside one too."""
    file = item[0] if isinstance(item, tuple) else item
    return file if isinstance(file, str) else str(file.name)


def under(name: str, answer: str) -> str:
    """An answer with the name of the file that it is on; one of several lines below the name."""
    return f"{name}:\n{answer}" if "\n" in answer else f"{name}: {answer}"


def split_inputs(name: str, inputs: Sequence[str], options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """The images among the inputs, and with the options what was said beside them: whatever is no file and is not
    named like one."""
    pictures = [item for item in inputs if item == "-" or "|" in item or _names_picture(item)]
    words = [item for item in inputs if item not in pictures]
    if not words or not pictures:
        return list(inputs), dict(options)
    if name == "ask-image" and len(words) > 1:
        raise InputError("ask-image takes one question, and images: anyformer run ask-image PICTURE QUESTION.")
    return pictures, {**options, str(find(name).beside): words if name == "match" else words[0]}


def _names_picture(item: str) -> bool:
    return os.path.exists(item) or item.lower().endswith(tuple(SUFFIXES))


def image_paths(out: Path | None) -> Iterator[Path]:
    """Where images of answers go: to `out` itself, or to as many files numbered like it.  out.png, out-2.png, …"""
    if out is None:
        return iter(())
    if out.suffix.lower() not in DRAWN:
        raise InputError(f"--out is {out}; it takes the name of an image, such as {out.with_suffix('.png')}.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out is {out}, and there is no folder {out.parent}.")
    return (out if i == 1 else out.with_stem(f"{out.stem}-{i}") for i in count(1))


def write_image(answer: Any, path: Path) -> None:
    try:
        answer.draw().save(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None


def read_inputs(given: Sequence[str], name: str, columns: str) -> list[tuple[str, str | Path | None]]:
    """Each input with what it stands for, before a model is loaded: the text in a file, the path of a table, or None
    for a text as it stands and for standard input (-). A task on files keeps their names as they are."""
    kind = find(name)
    if kind.reads == "files":
        tables = [os.path.isfile(item) and is_table(kind, Path(item)) for item in given]
        checked: list[tuple[str, str | Path | None]] = [
            (item, Path(item) if table else None) for item, table in zip(given, tables, strict=True)
        ]
    else:
        checked = [(item, _file(kind, item)) for item in given]
    if columns and not has_tables(checked):
        raise InputError("--columns says which column of a table is what; no INPUT is a .tsv, .csv or .jsonl file.")
    if name in pretrained.PAIRS and has_tables(checked) and not all(isinstance(held, Path) for _, held in checked):
        raise InputError(f"{name} takes tables alone, with a column for each text; leave the other inputs out.")
    files = [item for item, held in checked if isinstance(held, str)]
    if files:
        more = f" and {len(files) - 5} more" if len(files) > 5 else ""
        print(f"anyformer: read as a file, not as a text: {', '.join(files[:5])}{more}", file=sys.stderr, flush=True)
    return checked


def has_tables(checked: Sequence[tuple[str, str | Path | None]]) -> bool:
    return any(isinstance(held, Path) for _, held in checked)


def group_inputs(texts: list[Any]) -> Iterator[Any]:
    """Two texts, or a question and its choices, as the one input that they are; unless the first is a whole line."""
    return iter(texts if "\t" in texts[0] else [tuple(texts)])


def _texts(given: Iterable[tuple[str, str | Path | None]], name: str, work: Any, columns: str) -> Iterator[Any]:
    """Texts as they stand, the text in a file, a question for each row of a table, and for - one text for each line of
    standard input. None for a blank one."""
    for item, held in given:
        if isinstance(held, Path):
            yield from _rows(item, name, work, columns)
        elif item != "-":
            yield item if held is None else held
        else:
            yield from _lines(name)


def _rows(path: str, name: str, work: Any, columns: str) -> Iterator[Any]:
    rows = find_rows(find(name), path, columns, work.model.origin.settings.get("data", {}))
    print(f"anyformer: {describe(rows, path)}", file=sys.stderr, flush=True)
    return ask(find(name), rows)


def _lines(name: str) -> Iterator[str | None]:
    if find(name).reads == "texts":
        print("anyformer: standard input is read as lines of text, one row each.", file=sys.stderr, flush=True)
    for number, line in enumerate(lines(), 1):
        if line.strip():
            yield line
        elif name == "embed":
            raise InputError(f"Line {number} of standard input is blank, so it has no vector: leave it out.")
        elif find(name).reads == "texts":
            yield None


def _file(kind: type[Task], item: str) -> str | Path | None:
    """What stands in the file of this name, if there is one; of a table its path. An error if a text looks like the
    path of a file that does not exist."""
    try:
        if item and Path(item).is_dir():
            raise InputError(f"{item} is a folder; give a text, a file, or - for what stands on standard input.")
        if not Path(item).is_file():
            if item != "-":
                check_no_path(item)
            return None
        return Path(item) if is_table(kind, Path(item)) else Path(item).read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{item} is not UTF-8 text: {error.reason} at byte {error.start}.") from None
    except OSError as error:
        if item and len(item) < 256:
            raise InputError(f"{item} cannot be read: {error.strerror}.") from None
        return None  # a text too long to name a file
    except ValueError:  # a text with a zero byte
        return None


def check_no_path(text: str) -> None:
    """Raise InputError if a text looks like the path of a file: one word that is absolute, leads into a folder that
    exists, ends in a suffix that a reader knows, or has a suffix and is almost the name of a file."""
    path = Path(text)
    if not text.isprintable() or " " in text:
        return
    folder = path.parent
    known = data_suffix(path) in (*TABLES, *SUFFIXES, *AUDIO, *VIDEOS)
    inside = folder.is_dir()
    names = [other.name for other in folder.iterdir() if other.is_file()] if inside and path.suffix else []
    mistyped = bool(get_close_matches(path.name, names, cutoff=0.8))
    if path.is_absolute() or known or mistyped or (inside and folder != Path(".")):
        similar = get_close_matches(path.name, names, n=1)
        hint = f' Did you mean "{similar[0]}"?' if similar else ""
        raise InputError(f"There is no file {text}.{hint} To give it as a text, write it to standard input (INPUT -).")


def lines() -> Iterator[str]:
    """Lines of standard input, as they come."""
    try:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"Standard input is not UTF-8 text: {error.reason}.") from None


def chat_loop(work: Any, options: Mapping[str, Any]) -> None:
    """A question a line, until the input ends."""
    if not isinstance(work, TextGenerator) or not work.templated:
        raise InputError("--chat needs a model with a chat template, and this one has none; leave --chat out.")
    conversation = work.chat(**options)
    asked = sys.stdin.isatty()
    if asked:
        print("Type a line and press Enter; Ctrl-D ends.", file=sys.stderr)
    while True:
        if asked:
            print("> ", end="", file=sys.stderr, flush=True)
        text = next(filter(str.strip, lines()), None)
        if text is None:
            return
        show_pieces(conversation.stream(text))


def show_pieces(pieces: Iterable[str]) -> None:
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


def format_answer(answer: Any) -> str:
    """An answer as one printed thing; a vector as its numbers."""
    return " ".join(f"{x:.6g}" for x in answer.tolist()) if isinstance(answer, Tensor) else str(answer)


def waiting(message: str) -> Any:
    """Something that moves on a terminal while the block runs, and nothing elsewhere."""
    from rich.console import Console

    return Console(stderr=True).status(message)
