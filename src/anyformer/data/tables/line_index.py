"""Where each record of a text file begins and ends: found once, with numpy, and kept for large files."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anyformer.data.cache import new_file, used
from anyformer.data.files import BLOCK, Buffer, file_fingerprint
from anyformer.errors import DataError

Spans = NDArray[np.int64]  # [2, n]: where the records begin, and where they end
KEEP = 2**25  # bytes of a file from which on its index is kept on disk

NEWLINE, RETURN, TAB, QUOTE = b'\n\r\t"'


def lines(data: Buffer, path: Path, cache: Path) -> tuple[Spans, str]:
    """Every line of UTF-8 text, without its end, and a digest of the whole."""
    if not len(data):
        raise DataError(f"{path} is empty.")
    place = cache / f"{file_fingerprint(path)}.{len(data)}.lines.npy"
    note = place.with_suffix(".digest")
    if used(place) and used(note):
        return np.load(place, mmap_mode="r"), note.read_text()
    spans, digest = _scan(data, path)
    if len(data) >= KEEP:
        with new_file(place) as stream:
            np.save(stream, spans)
        with new_file(note) as stream:
            stream.write(digest.encode())
    return spans, digest


def _scan(data: Buffer, path: Path) -> tuple[Spans, str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    digest = hashlib.blake2b(digest_size=16)
    found = []
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        digest.update(block)
        check_text(block, start, path)
        try:
            decoder.decode(block, start + BLOCK >= len(data))
        except UnicodeDecodeError:
            raise not_text(data, path) from None
        found.append(np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == NEWLINE) + start)
    ends = np.concatenate(found)
    if data[-1] != NEWLINE:
        ends = np.append(ends, len(data))
    starts = np.concatenate([[len(codecs.BOM_UTF8) if data[:3] == codecs.BOM_UTF8 else 0], ends[:-1] + 1])
    return np.stack([starts, _without_return(data, starts, ends)]), digest.hexdigest()


def _without_return(data: Buffer, starts: Spans, ends: Spans) -> Spans:
    last = as_bytes(data)[np.maximum(ends - 1, 0)]
    return ends - ((last == RETURN) & (ends > starts))


def check_text(block: bytes, start: int, path: Path) -> None:
    """An error for bytes that no text has, found before the rest of a large file is read."""
    if (zero := block.find(b"\0")) >= 0:
        raise DataError(f"{path} is not text: its byte {start + zero:,} is zero; save the file as UTF-8.")


def not_text(data: Buffer, path: Path) -> DataError:
    start = 0
    for number in range(1, len(data) + 1):
        end = data.find(b"\n", start)
        line = data[start : end if end >= 0 else len(data)]
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            return DataError(
                f"{path}, line {number}, is not UTF-8 text (byte 0x{byte:02x} at column {error.start + 1});"
                " save the file as UTF-8."
            )
        start = end + 1
    return DataError(f"{path} is not UTF-8 text.")


def as_bytes(data: Buffer) -> NDArray[np.uint8]:
    return np.frombuffer(data, dtype=np.uint8)


def line_number(data: Buffer, start: int) -> int:
    """The number, from 1, of the line that begins at a byte. Looked up only where somebody asks."""
    count = 0
    for block in range(0, start, BLOCK):
        count += int((as_bytes(data)[block : min(block + BLOCK, start)] == NEWLINE).sum())
    return count + 1


def not_blank(spans: Spans) -> Spans:
    """Only lines with something on them."""
    return spans[:, spans[1] > spans[0]]


def count_bytes(data: Buffer, spans: Spans, byte: int) -> Spans:
    """How often a byte stands in each record."""
    places = np.concatenate(
        [np.flatnonzero(as_bytes(data)[start : start + BLOCK] == byte) + start for start in range(0, len(data), BLOCK)]
    )
    return np.searchsorted(places, spans[1]) - np.searchsorted(places, spans[0])


def texts(data: Buffer, spans: Spans) -> Iterator[str]:
    for start, end in spans.T.tolist():
        yield data[start:end].decode("utf-8")


def paragraphs(data: Buffer, spans: Spans) -> Spans:
    """Runs of lines between blank ones, as one record each."""
    text = as_bytes(data)
    full = spans[1] > spans[0]
    # A line of spaces is as blank as an empty one.
    odd = np.flatnonzero(full & (text[np.minimum(spans[0], len(text) - 1)] <= 32))
    for i in odd.tolist():
        full[i] = bool(data[int(spans[0, i]) : int(spans[1, i])].strip())
    edges = np.diff(np.concatenate([[0], full.astype(np.int8), [0]]))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return np.stack([spans[0, first], spans[1, last]])


def quoted(data: Buffer, spans: Spans, comma: str, path: Path) -> Spans:
    """Lines joined where a quoted cell runs over several. A quotation mark counts where a cell begins with it;
    elsewhere (it may mean inches) it is a character like any other."""
    marked = np.flatnonzero(count_bytes(data, spans, QUOTE)).tolist()
    ends = np.ones(spans.shape[1], dtype=bool)
    opened: int | None = None  # the line whose cell is still open
    for i in marked:
        if opened is not None:
            ends[opened:i] = False
        still = _left_open(data[int(spans[0, i]) : int(spans[1, i])], comma.encode(), opened is not None)
        ends[i] = not still
        opened = (i if opened is None else opened) if still else None
    if opened is not None:
        where = f"{path}, line {line_number(data, int(spans[0, opened]))},"
        raise DataError(
            f'{where} begins a cell with a quotation mark (") that is never closed; double it or remove it.'
        )
    last = np.flatnonzero(ends)
    first = np.concatenate([[0], last[:-1] + 1])
    return np.stack([spans[0, first], spans[1, last]])


def _left_open(line: bytes, comma: bytes, inside: bool) -> bool:
    """Whether a quoted cell goes on after this line, which begins `inside` one or not."""
    at = 0
    while True:
        if inside or line[at : at + 1] == b'"':
            at = _closing(line, at if inside else at + 1)
            if at < 0:
                return True
        at, inside = line.find(comma, at) + 1, False
        if not at:
            return False


def _closing(line: bytes, at: int) -> int:
    """Behind the mark that ends a quoted cell; two in a row stand for one inside it. -1: it does not end here."""
    while (at := line.find(b'"', at)) >= 0:
        if line[at + 1 : at + 2] != b'"':
            return at + 1
        at += 2
    return -1
