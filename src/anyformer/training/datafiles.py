"""The files of a run's data: whether they still hold what it was begun with.

For each file the run's folder keeps a digest of the content, and the size and times by which the content need not be
read again. The rows of tables, zips and arrays have a digest of their own besides (`Rows.fingerprint`), of all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from anyformer.data.files import reading
from anyformer.data.rows import Rows
from anyformer.errors import ConfigError, FolderError
from anyformer.saving import flush

FILES = "data-files.tsv"  # in a run's folder: when it was written, then a line for each file
WHOLE = 2**20  # bytes up to which a file is read whole
END = 64 * 2**10  # bytes that are read at either end of a larger one
RECENT = 2 * 10**9  # nanoseconds: a file that changed so shortly before it was read may change again at the same time
CHUNK = 256  # files that a thread takes at a time
NAMED = 3  # files that a message names


@dataclass(frozen=True)
class Content:
    """A file's content as a digest, and what tells that it was not touched since."""

    digest: str
    size: int
    mtime: int  # nanoseconds, as ctime
    ctime: int
    inode: int
    path: str

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        return self.size, self.mtime, self.ctime, self.inode


def loose_files(several: Iterable[Rows | None]) -> list[Path]:
    """The files that rows name, each once, in the order of the rows; folders of frames as their files."""
    values = (
        value for rows in several if rows is not None and rows.has_files for row in rows for value in row.values()
    )
    paths = dict.fromkeys(path for value in values if isinstance(path := getattr(value, "path", None), Path))
    return [file for path in paths for file in (sorted(path.iterdir()) if os.path.isdir(path) else [path])]


def digest(path: Path) -> str:
    """Of the whole content up to 1 MB; of a larger file, of its size and its first and last 64 kB."""
    with reading(path), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            parts = [file.read()]
        else:
            parts = [str(size).encode(), file.read(END)]
            file.seek(-END, os.SEEK_END)
            parts.append(file.read(END))
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def write_files(folder: Path, files: Sequence[Path]) -> None:
    """Keep what the files hold now."""
    if not files:
        return
    lines = [str(time.time_ns())]
    for one in _contents(files, {}):
        lines.append("\t".join([one.digest, *map(str, one.stamp), json.dumps(one.path)]))
    (folder / FILES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    flush(folder / FILES)


def check_files(folder: Path, files: Sequence[Path], unlisted: int = 0) -> None:
    """Refuse files with other content than the run was begun with; of other times with the same content, warn. The last
    `unlisted` files may be missing from the list: runs begun earlier kept only those that rows name."""
    if not (folder / FILES).exists():
        return
    before, untouched = _read(folder / FILES)
    now = _contents(files, untouched)
    pairs = list(zip(before, now, strict=False))
    changed = [new.path for old, new in pairs if old.digest != new.digest]
    if changed or not len(files) - unlisted <= len(before) <= len(files):
        what = _listed(changed) if changed else f"{len(now):,} files; there were {len(before):,}"
        raise ConfigError(
            f"The data of the run in {folder} has changed since the run began: {what}. Restore the old content, or"
            " start another run with another --out."
        )
    touched = [new.path for old, new in pairs if old.mtime != new.mtime]
    if touched:
        warnings.warn(
            f"Data files were rewritten with the same content since the run in {folder} began: {_listed(touched)}.",
            stacklevel=3,
        )


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - NAMED:,} more" if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more


def _contents(files: Sequence[Path], untouched: Mapping[str, Content]) -> list[Content]:
    with ThreadPoolExecutor(8) as pool:  # which wait for the disk together
        parts = [files[i : i + CHUNK] for i in range(0, len(files), CHUNK)]
        return [
            one for part in pool.map(lambda part: [_content(path, untouched) for path in part], parts) for one in part
        ]


def _content(path: Path, untouched: Mapping[str, Content]) -> Content:
    name = str(path)
    with reading(path):
        facts = os.stat(name)
    stamp = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
    known = untouched.get(name)
    return known if known is not None and known.stamp == stamp else Content(digest(path), *stamp, name)


def _read(path: Path) -> tuple[list[Content], dict[str, Content]]:
    """Every entry, and those by path whose content need not be read again if their stamp is the same."""
    try:
        when, *lines = path.read_text(encoding="utf-8").splitlines()
        entries = []
        for line in lines:
            found, size, mtime, ctime, inode, name = line.split("\t")
            entries.append(Content(found, int(size), int(mtime), int(ctime), int(inode), str(json.loads(name))))
        latest = int(when) - RECENT
    except (OSError, ValueError):
        raise FolderError(f"{path} is damaged, so changes of the data cannot be detected; start another run.") from None
    return entries, {one.path: one for one in entries if max(one.mtime, one.ctime) < latest}
