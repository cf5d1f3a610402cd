"""Damage to files: bytes, JSON, archives, and what a file is (a pipe, a link, a folder)."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.values import ODD_NUMBERS, ODD_TEXTS, mutate_json, odd_name

BOMB = 64 * 2**20  # bytes of zeros, packed a thousandfold
LARGE = 2**16  # bytes; larger than any seed, so it was blown up by a change before, and is not unpacked here
HUGE = 40 * 2**30  # of a file with a hole in it, which takes no room
TEXT = (".txt", ".tsv", ".csv", ".conll", ".md", ".jinja", ".vocab", ".bpe")
ZIPS = (".zip", ".npz")
TORCH = (".bin", ".pt")
SIZE_AT, PACKED_AT, FLAG_AT = 24, 20, 8  # in an entry of a zip's list


def mutate(folder: Path, chance: Random) -> list[str]:
    """One to three changes to the files of a folder; what was done."""
    return [_one(folder, chance) for _ in range(chance.choice((1, 1, 1, 2, 3)))]


def _one(folder: Path, chance: Random) -> str:
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and _size(path) < HUGE
    )
    if not files:
        return "nothing left"
    weights = [3.0 if path.suffix == ".json" else 1.0 for path in files]
    file = chance.choices(files, weights)[0]
    name = file.relative_to(folder).as_posix()
    if chance.random() < 0.08:
        return f"{name}: {_replace(file, folder, chance)}"
    content = file.read_bytes()
    changed, said = mutate_bytes(content, file.suffix, chance)
    file.write_bytes(changed)
    return f"{name}: {said}"


def _size(path: Path) -> int:
    return path.stat().st_size


def mutate_bytes(content: bytes, suffix: str, chance: Random) -> tuple[bytes, str]:
    """By what the file is, most of the time; any file may have its bytes damaged."""
    changes: dict[str, Callable[[bytes, Random], tuple[bytes, str]]] = {
        ".json": _json,
        ".jsonl": _json_line,
        ".safetensors": _safetensors,
        ".gz": _gz,
        **dict.fromkeys(ZIPS, _zip),
        **dict.fromkeys(TORCH, _torch),
        **dict.fromkeys(TEXT, _text),
        ".npy": _npy,
    }
    if suffix in changes and chance.random() < 0.75:
        return changes[suffix](content, chance)
    return _bytes(content, chance)


def _bytes(content: bytes, chance: Random) -> tuple[bytes, str]:
    held = bytearray(content)
    how = chance.choice(("flip", "flip", "flip", "cut", "zero", "insert", "repeat", "number", "empty", "head"))
    at = chance.randrange(len(held) + 1) if chance.random() < 0.5 else chance.randrange(min(len(held), 200) + 1)
    if how == "flip" and held:
        for _ in range(chance.choice((1, 1, 4, 30))):
            held[min(chance.randrange(len(held)), len(held) - 1)] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del held[at:]
    elif how == "zero":
        held[at : at + chance.choice((1, 8, 100))] = bytes(chance.choice((1, 8, 100)))
    elif how == "insert":
        held[at:at] = chance.randbytes(chance.choice((1, 8, 1000)))
    elif how == "repeat":
        held[at:at] = held[at : at + 500] * chance.choice((1, 50))
    elif how == "number":  # a size or a count in a header
        number = chance.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000, 0x01000000))
        held[at : at + 4] = struct.pack(chance.choice("<>") + "I", number)
    elif how == "empty":
        held.clear()
    else:
        held[:4] = chance.choice((b"RIFF", b"PK\3\4", b"\x1f\x8b\x08\0", b"GGUF", b"\x89PNG", b"PAR1", b'{"a"'))
    return bytes(held), f"{how} at {at}"


def _json(content: bytes, chance: Random) -> tuple[bytes, str]:
    text, said = mutate_json(content.decode("utf-8", "replace"), chance)
    return text.encode("utf-8", "surrogatepass"), said


def _json_line(content: bytes, chance: Random) -> tuple[bytes, str]:
    lines = content.split(b"\n")
    i = chance.randrange(len(lines))
    lines[i], said = _json(lines[i], chance)
    return b"\n".join(lines), f"line {i + 1}: {said}"


def _text(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Lines and cells."""
    lines = content.split(b"\n")
    i = chance.randrange(len(lines))
    how = chance.choice(("cell", "cell", "cell", "remove", "twice", "blank", "swap", "quote", "join"))
    mark = b"\t" if b"\t" in content else b"," if b"," in content else b" "
    if how == "cell":
        cells = lines[i].split(mark)
        odd_cell = str(chance.choice((*ODD_TEXTS, *ODD_NUMBERS))).encode("utf-8", "surrogatepass")
        cells[chance.randrange(len(cells))] = odd_cell
        lines[i] = mark.join(cells)
    elif how == "remove":
        del lines[i]
    elif how == "twice":
        lines.insert(i, lines[i])
    elif how == "blank":
        lines[i] = b""
    elif how == "swap":
        j = chance.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
    elif how == "quote":
        lines[i] = b'"' + lines[i]
    else:
        lines[i] = lines[i].replace(mark, b"")
    return b"\n".join(lines), f"{how} in line {i + 1}"


def _torch(content: bytes, chance: Random) -> tuple[bytes, str]:
    """The program in data.pkl, in place: its opcodes, numbers and names; or the archive."""
    start, end = content.find(b"\x80\x02"), content.find(b"PK\3\4", 4)
    if chance.random() < 0.2 or not 0 <= start < end:
        return _bytes(content, chance) if chance.random() < 0.7 else _zip(content, chance)
    held = bytearray(content)
    said = []
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(start, end)
        new = chance.choice(
            (chance.randbytes(1), chance.choice(b"(.0NJKMXcRQbhqrjtue})]\x85\x86\x87\x93\x94a").to_bytes(1))
        )
        if chance.random() < 0.3:
            new = struct.pack("<i", chance.choice((0, 1, -1, 2**31 - 1, 2**20)))
        held[at : at + len(new)] = new
        said.append(f"{new!r} at {at}")
    return bytes(held), ", ".join(said)


def _safetensors(content: bytes, chance: Random) -> tuple[bytes, str]:
    """The header, its length kept right."""
    if len(content) < 8:
        return _bytes(content, chance)
    size = int.from_bytes(content[:8], "little")
    text, said = mutate_json(content[8 : 8 + size].decode("utf-8", "replace"), chance)
    head = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(head)) + head + content[8 + size :], f"header: {said}"


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(BOMB), 1)


def _gz(content: bytes, chance: Random) -> tuple[bytes, str]:
    if chance.random() < 0.2:
        return _bomb() * chance.choice((1, 10)), "a bomb"
    if len(content) > LARGE:
        return _bytes(content, chance)
    try:
        inner = gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return _bytes(content, chance)
    changed, said = mutate_bytes(inner, chance.choice((".tsv", ".json", "")), chance)
    return gzip.compress(changed), f"inside: {said}"


def _zip(content: bytes, chance: Random) -> tuple[bytes, str]:
    how = chance.choice(("inside", "inside", "inside", "encrypted", "sizes", "bomb", "name", "twice", "remove"))
    if how in ("encrypted", "sizes"):
        return _zip_header(content, chance, how)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(info.file_size for info in archive.infolist()) > 100 * LARGE:
                return _bytes(content, chance)
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # damaged before
        return _bytes(content, chance)
    if not members:
        return _bytes(content, chance)
    i = chance.randrange(len(members))
    name, inside = members[i]
    if how == "inside":
        inside, said = mutate_bytes(inside, Path(name).suffix, chance)
        members[i] = (name, inside)
    elif how == "bomb":
        members[i], said = (name, inside[:128] + bytes(BOMB * chance.choice((1, 5)))), "a bomb"
    elif how == "name":
        members[i], said = (
            (chance.choice((odd_name(chance), "../../x.png", "/x.png", "a/" * 200 + "x.png")), inside),
            how,
        )
    elif how == "twice":
        members.insert(i, (name, inside[::-1]))
        said = how
    else:
        del members[i]
        said = how
    return _pack(members), f"{name}: {said}"


def _pack(members: list[tuple[str, bytes]]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, inside in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), inside, zipfile.ZIP_DEFLATED, 1)
    return stream.getvalue()


def _zip_header(content: bytes, chance: Random, how: str) -> tuple[bytes, str]:
    """Flags and sizes in the zip's list of its files."""
    held = bytearray(content)
    places = [i for i in range(len(held) - 46) if held[i : i + 4] == b"PK\1\2"]
    if not places:
        return _bytes(content, chance)
    at = chance.choice(places)
    if how == "encrypted":
        held[at + FLAG_AT] |= 1
    elif chance.random() < 0.3:
        held[at + 10] = chance.choice((1, 9, 12, 14, 93, 99))  # a way of packing
    else:
        where = at + chance.choice((SIZE_AT, PACKED_AT, 42))
        held[where : where + 4] = struct.pack("<I", chance.choice((0, 1, 10**6, 2**31, 2**32 - 2)))
    return bytes(held), how


def _npy(content: bytes, chance: Random) -> tuple[bytes, str]:
    """The array's type and shape."""
    end = content.find(b"\n")
    if end < 10:
        return _bytes(content, chance)
    head = content[10 : end + 1].decode("latin-1")
    said = chance.choice(("<f8", "|O", "<U3", "|S4", "<i8", "|b1", "<c16", "<M8[s]", "|V8", "<f2", "<u8"))
    shape = chance.choice(("()", "(0,)", "(1,)", "(3, 0)", "(1000000000000,)", "(-1,)", "(2, 2, 2, 2, 2)", "('a',)"))
    if chance.random() < 0.5:
        head = head.replace(head.split("'descr': ")[-1].split(",")[0], repr(said))
    else:
        head = head.replace(head.split("'shape': ")[-1].split("), ")[0] + ")", shape)
    packed = head.encode("latin-1")[: 2**16 - 1]
    return content[:8] + struct.pack("<H", len(packed)) + packed + content[end + 1 :], f"header {head.strip()[:80]}"


def _replace(file: Path, folder: Path, chance: Random) -> str:
    """Another kind of thing under the file's name."""
    how = chance.choice(
        (
            "remove",
            "directory",
            "pipe",
            "dangling",
            "outward",
            "outward",
            "itself",
            "upward",
            "huge",
            "device",
            "beside",
        )
    )
    if how == "beside":
        return _add(folder, chance)
    content = file.read_bytes()
    file.unlink()
    if how == "directory":
        file.mkdir()
        (file / "x").write_bytes(b"x")
    elif how == "pipe":
        os.mkfifo(file)
    elif how == "dangling":
        file.symlink_to("nowhere")
    elif how == "outward":  # where a link leads matters only if the file is what it should be
        outside = folder.parent / f"outside{file.suffix}"
        outside.write_bytes(content if chance.random() < 0.5 else (folder.parent / "secret.txt").read_bytes())
        file.symlink_to(outside)
    elif how == "itself":
        file.symlink_to(file.name)
    elif how == "upward":
        file.symlink_to("..", target_is_directory=True)
    elif how == "huge":
        with file.open("wb") as stream:
            stream.write(content)
            stream.truncate(HUGE)
    elif how == "device":
        file.symlink_to(chance.choice(("/dev/zero", "/dev/null", "/dev/full")))
    return how


def _add(folder: Path, chance: Random) -> str:
    """A file that nobody asked for: a companion of models, or something with an odd name."""
    names = (
        *("README.md", "modules.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "x.zip"),
        *("preprocessor_config.json", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja", "x.model"),
        *(
            "model.safetensors.index.json",
            "adapter_config.json",
            "vocab.txt",
            "1_Pooling",
            "x\x1b[31m.json",
            "\udcff.txt",
        ),
    )
    place = folder / chance.choice(names)
    if place.exists() or place.is_symlink():
        return "nothing beside"
    how = chance.choice(("outward", "pipe", "odd", "odd"))
    if how == "outward":
        place.symlink_to(folder.parent / "secret.txt")
    elif how == "pipe":
        os.mkfifo(place)
    else:
        place.write_bytes(chance.choice((b"", b"{}", b"[]", b"null", b"\xff\xfe", json.dumps({"a": [1]}).encode())))
    return f"{how} {place.name!r} beside"


def clear(folder: Path) -> None:
    """Remove a folder with whatever was made in it."""
    shutil.rmtree(folder, ignore_errors=True)
