"""Start and end of each record of a text file, found with numpy and cached for large files."""

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

Spans = NDArray[np.int64]  # [2, n]: start and end of each record
KEEP = 2**25  # bytes; the index of a larger file is cached on disk

NEWLINE, RETURN, TAB, QUOTE = b'\n\r\t"'


def lines(data: Buffer, path: Path, cache: Path) -> tuple[Spans, str]:
    """The lines of UTF-8 text, without line endings, and a digest of the file."""
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
    """Raise an error for bytes that no text contains, before the rest of a large file is read."""
    if (zero := block.find(b"\0")) >= 0:
        raise DataError(f"{path} is not text: byte {start + zero:,} is zero; save the file as UTF-8.")


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
    """The number, from 1, of the line that starts at a byte; computed only for messages."""
    count = 0
    for block in range(0, start, BLOCK):
        count += int((as_bytes(data)[block : min(block + BLOCK, start)] == NEWLINE).sum())
    return count + 1


def not_blank(spans: Spans) -> Spans:
    """Lines that are not blank."""
    return spans[:, spans[1] > spans[0]]


def count_bytes(data: Buffer, spans: Spans, byte: int) -> Spans:
    """How often a byte occurs in each record."""
    positions = np.concatenate(
        [np.flatnonzero(as_bytes(data)[start : start + BLOCK] == byte) + start for start in range(0, len(data), BLOCK)]
    )
    return np.searchsorted(positions, spans[1]) - np.searchsorted(positions, spans[0])


def texts(data: Buffer, spans: Spans) -> Iterator[str]:
    for start, end in spans.T.tolist():
        yield data[start:end].decode("utf-8")


def paragraphs(data: Buffer, spans: Spans) -> Spans:
    """Blocks of lines between blank lines, as one record each."""
    text = as_bytes(data)
    full = spans[1] > spans[0]
    # A line of spaces is blank too.
    odd = np.flatnonzero(full & (text[np.minimum(spans[0], len(text) - 1)] <= 32))
    for i in odd.tolist():
        full[i] = bool(data[int(spans[0, i]) : int(spans[1, i])].strip())
    edges = np.diff(np.concatenate([[0], full.astype(np.int8), [0]]))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return np.stack([spans[0, first], spans[1, last]])


def quoted(data: Buffer, spans: Spans, comma: str, path: Path) -> Spans:
    """Join the lines of multi-line quoted cells. A quotation mark counts at the beginning of a cell; elsewhere (it may
    mean inches) it is an ordinary character."""
    marked = np.flatnonzero(count_bytes(data, spans, QUOTE)).tolist()
    ends = np.ones(spans.shape[1], dtype=bool)
    opened: int | None = None  # the line with the open cell
    for i in marked:
        if opened is not None:
            ends[opened:i] = False
        still = _left_open(data[int(spans[0, i]) : int(spans[1, i])], comma.encode(), opened is not None)
        ends[i] = not still
        opened = (i if opened is None else opened) if still else None
    if opened is not None:
        where = f"{path}, line {line_number(data, int(spans[0, opened]))},"
        raise DataError(f'{where} has a quoted cell without a closing quotation mark ("); double it or remove it.')
    last = np.flatnonzero(ends)
    first = np.concatenate([[0], last[:-1] + 1])
    return np.stack([spans[0, first], spans[1, last]])


def _left_open(line: bytes, comma: bytes, inside: bool) -> bool:
    """Whether a quoted cell continues after this line, which begins `inside` one or not."""
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
    """The position after the closing quotation mark (two in a row are an escaped one); -1 if there is none."""
    while (at := line.find(b'"', at)) >= 0:
        if line[at + 1 : at + 2] != b'"':
            return at + 1
        at += 2
    return -1
