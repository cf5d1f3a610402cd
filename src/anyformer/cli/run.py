"""`anyformer run`: read inputs from arguments, files and standard input, and print the answers."""

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
from anyformer.tasks import find, task
from anyformer.tasks.base import Task, spell_device
from anyformer.tasks.generate import TextGenerator
from anyformer.tasks.tables import ask, describe, find_rows, is_table
from anyformer.tokenizers.cuts import count_cuts, hash_texts

BATCH_SIZE = 16  # inputs per call of the task
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")  # of --out


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
    """Answer every input and print one answer per line. In a terminal, generated text is streamed.

    Without `model`, the default model of the task is used. With `out`, answers are drawn to image files. `columns` maps
    columns of tables to columns of the task. `chat` starts a conversation; False continues texts without chat template.
    """
    generation = [option for option in options if option != "threshold"] + ["chat"] * bool(chat)
    kind = find(name, model)
    if name != "generate" and chat is False:
        raise InputError(f"{name} has no chat template and does not accept --no-chat.")
    if not kind.writes and generation:
        raise InputError(f"{name} does not generate text and does not accept --{generation[0].replace('_', '-')}.")
    if "threshold" in options and not kind.has_slots:
        raise InputError(f"{name} has no detection scores and does not accept --threshold.")
    if "overflow" in where and name != "read":
        raise InputError(f"{name} does not read text lines and does not accept --overflow.")
    if chat and inputs:
        raise InputError("--chat reads from standard input; remove INPUT.")
    if not chat and not inputs:
        raise InputError("INPUT is missing; give a text, a file, or - for standard input.")
    if out is not None and not kind.draws:
        raise InputError(f"{name} has no image output and does not accept --out.")
    if kind.beside is not None:
        inputs, options = split_inputs(name, inputs, options)
    checked = read_inputs(inputs, name, columns)
    named = kind.reads == "files" and (len(inputs) > 1 or "-" in inputs or has_tables(checked))
    places = image_paths(out)  # checked before a model is loaded
    chosen = model if model is not None else pretrained.default(name, bool(chat)).name
    with waiting(f"Loading {chosen}"):
        work: Any = task(name, chosen, **where)
    if isinstance(work, Task):
        by_default = "" if model is not None else f"model: {chosen} (the default of {name}), "
        print(f"{by_default}device: {spell_device(work.model)}", file=sys.stderr, flush=True)
    options = options if chat is not False else {**options, "chat": False}
    texts = _texts(checked, name, work, columns)
    if kind.takes_pairs() and len(inputs) > 1 and "-" not in inputs and not has_tables(checked):
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
    """Print once, after all answers, how many rows were truncated and to what length. The list takes `hash_texts` of
    each row that is asked about."""
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
    """Answer inputs in batches. With `named`, each answer is prefixed with the file name of its input."""
    total = failed = 0
    while group := list(islice(texts, BATCH_SIZE)):
        with waiting(f"{name} …"):
            answers = answer_each(work, group, options) if named else answer_all(work, group, options)
        if not total and all(isinstance(one, Error) for one in answers) and len({str(one) for one in answers}) == 1:
            raise answers[0]  # the same error for all inputs: an option or the model is wrong
        for text, answer in zip(group, answers, strict=True):
            total, place = total + 1, next(places, None)
            if isinstance(answer, Error):
                failed += 1
                print(f"anyformer: {answer}", file=sys.stderr, flush=True)
                continue
            print(prefixed(file_name(text), format_answer(answer)) if named else format_answer(answer), flush=True)
            if place is not None:
                write_image(answer, place)
    if failed:
        kind = SkippedError if failed < total else InputError
        raise kind(f"{failed} of {total} inputs failed; see the errors above.")


def answer_each(work: Any, group: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """An answer or an error for each file."""
    try:
        return answer_all(work, group, options)
    except Error as error:
        return [error] if len(group) == 1 else [one for item in group for one in answer_each(work, [item], options)]


def answer_all(work: Any, group: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:
    """An answer for each input; blank lines (None) have empty answers."""
    texts = [text for text in group if text is not None]
    answers = iter(work(texts, **options) if texts else ())
    return ["" if text is None else next(answers) for text in group]


def file_name(item: Any) -> str:
    """The file name of an input, also if the input is a pair of a file and a question."""
    file = item[0] if isinstance(item, tuple) else item
    return file if isinstance(file, str) else str(file.name)


def prefixed(name: str, answer: str) -> str:
    """An answer prefixed with its file name; an answer with several lines starts on a new line."""
    return f"{name}:\n{answer}" if "\n" in answer else f"{name}: {answer}"


def split_inputs(name: str, inputs: Sequence[str], options: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Separate images from texts. The texts (inputs that are not files and have no image suffix) are added to the
    options."""
    images = [item for item in inputs if item == "-" or "|" in item or _names_image(item)]
    texts = [item for item in inputs if item not in images]
    if not texts or not images:
        return list(inputs), dict(options)
    if name == "ask-image" and len(texts) > 1:
        raise InputError("ask-image needs one question and images: anyformer run ask-image IMAGE QUESTION")
    return images, {**options, str(find(name).beside): texts if name == "match" else texts[0]}


def _names_image(item: str) -> bool:
    return os.path.exists(item) or item.lower().endswith(tuple(SUFFIXES))


def image_paths(out: Path | None) -> Iterator[Path]:
    """The output image files: `out`, then numbered files (out.png, out-2.png, …)."""
    if out is None:
        return iter(())
    if out.suffix.lower() not in IMAGE_SUFFIXES:
        raise InputError(f"--out is {out}; expected an image file such as {out.with_suffix('.png')}.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out is {out}, but the folder {out.parent} does not exist.")
    return (out if i == 1 else out.with_stem(f"{out.stem}-{i}") for i in count(1))


def write_image(answer: Any, path: Path) -> None:
    """Draw an answer to an image file."""
    try:
        answer.draw().save(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from None


def read_inputs(given: Sequence[str], name: str, columns: str) -> list[tuple[str, str | Path | None]]:
    """Resolve inputs before a model is loaded: the text of a text file, the path of a table, or None for a literal text
    and for standard input (-). Tasks that read files keep file names."""
    kind = find(name)
    if kind.reads == "files":
        tables = [os.path.isfile(item) and is_table(kind, Path(item)) for item in given]
        checked: list[tuple[str, str | Path | None]] = [
            (item, Path(item) if table else None) for item, table in zip(given, tables, strict=True)
        ]
    else:
        checked = [(item, _file(kind, item)) for item in given]
    if columns and not has_tables(checked):
        raise InputError("--columns needs a table as INPUT (.tsv, .csv, .jsonl or .parquet).")
    if kind.takes_pairs() and has_tables(checked) and not all(isinstance(content, Path) for _, content in checked):
        raise InputError(f"{name} cannot mix tables and other inputs; remove the other inputs.")
    if kind.reads == "texts" and not kind.takes_pairs() and is_one_text_unquoted(given):
        print(
            f"anyformer: {len(given)} inputs of one word each; put quotes around a text with spaces.",
            file=sys.stderr,
            flush=True,
        )
    files = [item for item, content in checked if isinstance(content, str)]
    if files:
        more = f" and {len(files) - 5} more" if len(files) > 5 else ""
        print(f"anyformer: read as file, not as text: {', '.join(files[:5])}{more}", file=sys.stderr, flush=True)
    return checked


def is_one_text_unquoted(given: Sequence[str]) -> bool:
    """Whether arguments look like the words of one sentence: three or more, and one ends like a sentence or begins with
    a capital."""
    words = [item for item in given if item and not any(letter.isspace() for letter in item)]
    return 3 <= len(given) == len(words) and (given[0][:1].isupper() or given[-1][-1:] in ".!?")


def has_tables(checked: Sequence[tuple[str, str | Path | None]]) -> bool:
    """Whether an input is a table."""
    return any(isinstance(content, Path) for _, content in checked)


def group_inputs(texts: list[Any]) -> Iterator[Any]:
    """Combine two texts, or a question and its choices, to one input. Texts that contain tabs are complete inputs."""
    return iter(texts if "\t" in texts[0] else [tuple(texts)])


def _texts(given: Iterable[tuple[str, str | Path | None]], name: str, work: Any, columns: str) -> Iterator[Any]:
    """Yield the inputs: texts, contents of files, rows of tables, and lines of standard input (None for blank
    lines)."""
    for item, content in given:
        if isinstance(content, Path):
            yield from _rows(item, name, work, columns)
        elif item != "-":
            yield item if content is None else content
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
            raise InputError(f"Line {number} of standard input is blank; remove blank lines.")
        elif find(name).reads == "texts":
            yield None


def _file(kind: type[Task], item: str) -> str | Path | None:
    """The content of a text file, the path of a table, or None for a literal text. An error if the text looks like the
    path of a missing file."""
    try:
        if item and Path(item).is_dir():
            raise InputError(f"{item} is a folder; give a text, a file, or - for standard input.")
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
        return None  # a text that is too long for a file name
    except ValueError:  # a text with a zero byte
        return None


def check_no_path(text: str) -> None:
    """Raise InputError if a text looks like the path of a missing file: it has no spaces and is absolute, is inside an
    existing folder, has a known suffix, or is similar to the name of a file."""
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
        raise InputError(f"There is no file {text}.{hint} To use it as text, pass it on standard input (INPUT -).")


def lines() -> Iterator[str]:
    """Yield the lines of standard input."""
    try:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"Standard input is not UTF-8 text: {error.reason}.") from None


def chat_loop(work: Any, options: Mapping[str, Any]) -> None:
    """Answer each line of standard input in a conversation."""
    if not isinstance(work, TextGenerator) or not work.templated:
        raise InputError("--chat needs a model with a chat template; this model has none.")
    conversation = work.chat(**options)
    interactive = sys.stdin.isatty()
    if interactive:
        print("Type a message and press Enter; press Ctrl-D to quit.", file=sys.stderr)
    while True:
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        text = next(filter(str.strip, lines()), None)
        if text is None:
            return
        show_pieces(conversation.stream(text))


def show_pieces(pieces: Iterable[str]) -> None:
    """Print streamed text."""
    for piece in pieces:
        print(piece, end="", flush=True)
    print(flush=True)


def format_answer(answer: Any) -> str:
    """An answer as text; a vector as numbers separated by spaces."""
    return " ".join(f"{x:.6g}" for x in answer.tolist()) if isinstance(answer, Tensor) else str(answer)


def waiting(message: str) -> Any:
    """A spinner on a terminal while the block runs; no output elsewhere."""
    from rich.console import Console

    return Console(stderr=True).status(message)
