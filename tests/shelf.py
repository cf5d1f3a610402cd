"""Tiny models that ship, made in a moment: a table with checksums and folders beside it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import anyformer as af

ROOT = Path(__file__).parents[1]
NOTES = """
task = "{task}"
description = "for a test"
license = "Apache-2.0"
default = {default}
example = {example}
use = "tests"
not_for = "anything else"
data = ["eight animals, made up here"]
failures = ["it has learned next to nothing"]
test = true
selection = "the last step"
"""
WORDS = "cat dog cow bee ant hen fox owl".split()
PAIRS = "source\ttarget\n" + "".join(f"one {word} there\tein {word} dort\n" for word in WORDS * 2)
LABELED = "text\tlabel\n" + "".join(f"{word} number {i}\t{'ab'[i % 2]}\n" for i, word in enumerate(WORDS * 3))
TEXT = "".join(f"the {a} sat on the {b}\nand then it slept\n\n" for a in WORDS for b in WORDS)
FEW = {"steps": 4, "batch_size": 4, "device": "cpu"}


def packer() -> ModuleType:
    """models/pack.py, which is no part of the package."""
    if "pack" not in sys.modules:
        spec = importlib.util.spec_from_file_location("pack", ROOT / "models" / "pack.py")
        assert spec is not None and spec.loader is not None
        sys.modules["pack"] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(ROOT / "models"))  # its neighbors
        spec.loader.exec_module(sys.modules["pack"])
        sys.path.remove(str(ROOT / "models"))
    return sys.modules["pack"]


def write_notes(
    folder: Path, name: str, task: str, example: str, default: bool = True, base: str | None = None
) -> None:
    folder.mkdir(exist_ok=True)
    text = NOTES.format(task=task, default=str(default).lower(), example=example)
    (folder / f"{name}.toml").write_text(text + (f'base = "{base}"\n' if base else ""))


def train_translator(folder: Path) -> Path:
    """A run of four steps."""
    (folder / "pairs.tsv").write_text(PAIRS)
    af.train(
        "translate",
        recipe="transformer-tiny",
        data=folder / "pairs.tsv",
        out=folder / "translator",
        **{**FEW, "tokenizer.vocab_size": 290, "task.max_target_length": 8, "seed": 2},  # whose answers are not empty
    )
    return folder / "translator"


def train_classifier(folder: Path, recipe: str | Path, out: str, **settings: object) -> Path:
    (folder / "labeled.tsv").write_text(LABELED)
    af.train(
        "classify-text",
        recipe=str(recipe),
        data=folder / "labeled.tsv",
        out=folder / out,
        **{**FEW, **({} if isinstance(recipe, Path) else {"tokenizer.vocab_size": 120}), **settings},
    )
    return folder / out
