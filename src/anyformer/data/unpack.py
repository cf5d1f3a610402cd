"""Decompression with limits: gz and xz in blocks, members of zips.

A file may decompress to FREE bytes, or RATIO times its own size if that is more. Larger files are refused before they
fill the memory or the disk; ANYFORMER_MAX_UNPACKED (such as 20GB) sets another limit.
"""

from __future__ import annotations

import lzma
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from anyformer.data.cache import spool
from anyformer.data.files import BLOCK, PACKED, Buffer, env_bytes, file_fingerprint, map_file, reading
from anyformer.errors import DataError
from anyformer.jsonfile import open_file

FREE, RATIO = 2**28, 100
LIMIT = "ANYFORMER_MAX_UNPACKED"
GZIP, READ = 31, 2**18  # zlib's window bits for gzip; bytes read at a time
XZ_MEMORY = 2**28  # memory limit in bytes; xz -9 takes 65 MB


def most(packed: int) -> int:
    """The maximum bytes after decompression of a file of a size."""
    return env_bytes(LIMIT, max(FREE, RATIO * packed))


def check_unpacked(name: str, packed: int, unpacked: int, error: type[DataError] = DataError) -> None:
    if unpacked > most(packed):
        raise error(
            f"{name} has {packed / 10**6:,.1f} MB and unpacks to more than {most(packed) // 10**6:,} MB. If you trust"
            f" it, set the environment variable {LIMIT} to a larger limit, such as 20GB."
        )


def content(path: Path, cache: Path) -> Buffer:
    """The decompressed bytes of a file, memory-mapped if they are many."""
    with reading(path):
        if path.suffix.lower() in PACKED:
            return spool(blocks(path), cache / f"{file_fingerprint(path)}.unpacked")
        return map_file(path)


def blocks(path: Path) -> Iterator[bytes]:
    """The content of a .gz or .xz file."""
    with reading(path), open_file(path) as stream:
        packed, done = os.fstat(stream.fileno()).st_size, 0
        for block in _xz(stream) if path.suffix.lower() == ".xz" else _gz(stream):
            done += len(block)
            check_unpacked(str(path), packed, done)
            yield block


def _gz(stream: BinaryIO) -> Iterator[bytes]:
    """As gzip.open, which looks at zeros after the end one by one, and there may be gigabytes of them."""
    rest = b""
    while content := _after_zeros(stream, rest):
        unpacker = zlib.decompressobj(GZIP)
        while not unpacker.eof:
            content = content or stream.read(READ)
            block = unpacker.decompress(content, BLOCK)
            if not (block or content):
                raise EOFError("it ends before its content does")
            content = unpacker.unconsumed_tail
            if block:
                yield block
        rest = unpacker.unused_data


def _xz(stream: BinaryIO) -> Iterator[bytes]:
    """As lzma.open, which takes as much memory as a file asks for."""
    rest = b""
    while content := _after_zeros(stream, rest):
        unpacker = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
        while not unpacker.eof:
            if unpacker.needs_input and not content and not (content := stream.read(BLOCK)):
                raise EOFError("it ends before its content does")
            block, content = unpacker.decompress(content, BLOCK), b""
            if block:
                yield block
        rest = unpacker.unused_data


def _after_zeros(stream: BinaryIO, rest: bytes) -> bytes:
    """How the next part of a packed file begins: zeros may stand before it, but no whole block of them."""
    return rest.lstrip(b"\0") or stream.read(BLOCK).lstrip(b"\0")


def open_zip(path: Path) -> zipfile.ZipFile:
    with reading(path):
        open_file(path).close()  # which refuses a pipe
        return zipfile.ZipFile(path)


def read_member(archive: zipfile.ZipFile, name: str, where: str, error: type[DataError] = DataError) -> bytes:
    """A file out of a zip that is called `where` in messages."""
    with reading(f"{where}: {name}", error):
        info = archive.getinfo(name)
        check_unpacked(f"{where}: {name}", info.compress_size, info.file_size, error)
        return archive.read(info)
