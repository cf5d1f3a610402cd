"""The walls of the house: one attention, imports that point one way, no family in the core, a light import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import anyformer
from anyformer import registry

ROOT = Path(anyformer.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Lower tiers know nothing of higher ones. Rooms of one tier may use each other, in one direction.
TIERS = [
    ("errors", "progress", "version"),
    ("device", "jsonfile", "plugins", "schema", "upgrades"),
    ("config", "gguf", "saving", "pretrained"),
    ("core",),
    ("layers",),
    ("forward_context",),
    ("inputs", "heads", "tokenizers", "generation"),
    ("forward_arguments", "library_methods", "output_spec", "stage", "model"),
    ("registry",),
    ("recipes",),
    ("checkpoints",),
    ("data", "metrics"),
    ("tasks",),
    ("training",),
    ("fast",),  # found by the others through core/rewrites.py alone
    (
        "cli",
        "extend",
        "serve",
        "explorer",
        "integrations",
        "plot",
        "__main__",
        "",
    ),  # "" is anyformer/__init__.py, the public names
]
RANK = {room: rank for rank, tier in enumerate(TIERS) for room in tier}

# The only imports that point upwards, each a lazy delegate inside a method: (file, function, room).
EXCEPTIONS = {
    ("model.py", "save", "checkpoints"),
    ("library_methods.py", "resize_token_embeddings", "checkpoints"),
}

HEAVY = (
    "PIL",
    "transformers",
    "datasets",
    "matplotlib",
    "fastapi",
    "typer",
    "rich",
    "pandas",
    "scipy",
    "sklearn",
    "pyarrow",
    "sacrebleu",
    "soundfile",
    "av",
    "jiwer",
)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _room(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def _imports(tree: ast.Module) -> Iterator[tuple[str, str | None]]:
    """(room, the function it is imported in or None) of every import from anyformer that really runs."""

    def walk(node: ast.AST, function: str | None) -> Iterator[tuple[str, str | None]]:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = []
        for parts in (name.split(".") for name in names):
            if parts[0] == "anyformer":
                inside = len(parts) > 1 and ((ROOT / parts[1]).is_dir() or (ROOT / f"{parts[1]}.py").exists())
                yield (parts[1] if inside else ""), function
        for child in ast.iter_child_nodes(node):
            yield from walk(child, function)

    yield from walk(tree, None)


def _words_of_code(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Identifiers and strings, docstrings aside."""
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "name", "arg", "module", "asname"):
            if isinstance(getattr(node, field, None), str):
                yield line, getattr(node, field)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield line, node.value


def test_softmax_qk_v_stands_in_one_file() -> None:
    """Nothing outside core/attend.py attends: no fused kernel, no module of PyTorch's, no softmax of its own."""
    kernels = {"scaled_dot_product_attention", "flex_attention", "MultiheadAttention", "varlen_attn"}
    banned = kernels | {"softmax", "Softmax"}
    found = [
        f"{_name(path)}:{line} {word}"
        for path in FILES
        if _name(path) not in ("core/attend.py", "fast/attention.py")
        for line, word in _words_of_code(_tree(path))
        if word.split(".")[-1] in banned
    ]
    assert not found
    inside = {word for _, word in _words_of_code(_tree(ROOT / "core" / "attend.py"))}
    assert {"softmax", "scaled_dot_product_attention"} <= inside  # or this test looks at nothing


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_point_one_way(path: Path) -> None:
    """core ← layers ← inputs, heads ← model ← recipes ← checkpoints, tokenizers, generation ← data ← tasks ← cli."""
    room = _room(path)
    assert room in RANK, f"{room} has no tier in this test"
    for used, function in _imports(_tree(path)):
        assert used in RANK, f"{used} has no tier in this test"
        allowed = RANK[used] <= RANK[room] or (_name(path), function, used) in EXCEPTIONS
        assert allowed, f"{_name(path)} imports from {used or 'anyformer'}"


def test_rooms_do_not_import_in_circles() -> None:
    """Within a tier too: no room needs, by way of others, itself."""
    needs: dict[str, set[str]] = {}
    for path in FILES:
        for used, function in _imports(_tree(path)):
            if used != _room(path) and (_name(path), function, used) not in EXCEPTIONS:
                needs.setdefault(_room(path), set()).add(used)
    assert "core" in needs["model"]
    done: set[str] = set()
    while ready := {room for room in needs if needs[room] <= done | (RANK.keys() - needs.keys())} - done:
        done |= ready
    assert done == needs.keys(), f"a circle among {sorted(needs.keys() - done)}"


def test_every_exception_is_used() -> None:
    """An exception that nothing needs any more goes away."""
    used = {(_name(path), function, room) for path in FILES for room, function in _imports(_tree(path))}
    assert used >= EXCEPTIONS


def test_the_core_knows_no_family() -> None:
    """No family's name in the code of core/: what a family needs, its recipe says in settings."""
    registry.load_recipes()
    others = {
        "gpt",
        "gpt2",
        "bert",
        "roberta",
        "vit",
        "deit",
        "detr",
        "mae",
        "llama",
        "marian",
        "clip",
        "swin",
        "whisper",
    }
    families = (set(registry.FAMILIES) | others) - {"transformer"}
    assert {"bert", "perceiver"} <= families
    found = [
        f"{_name(path)}:{line} {word}"
        for path in FILES
        if _room(path) == "core"
        for line, word in _words_of_code(_tree(path))
        for piece in re.split(r"[^A-Za-z0-9]+|(?<=[a-z])(?=[A-Z])", word)
        if piece.lower() in families
    ]
    assert not found


def _python(code: str) -> str:
    environment = {"PYTHONPATH": str(ROOT.parent), "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    return run.stdout.strip()


def test_importing_loads_nothing_heavy() -> None:
    """Heavy things load when they are used, the recipes' build among the things that do not need them."""
    code = "import sys, anyformer; anyformer.build('gpt2-tiny'); print(*(name.split('.')[0] for name in sys.modules))"
    loaded = set(_python(code).split())
    assert "torch" in loaded
    assert not loaded & set(HEAVY)


def test_importing_costs_little_more_than_torch() -> None:
    """At most a quarter of what `import torch` takes, best of three: seconds would measure the machine."""
    code = "import time; a = time.perf_counter(); import torch; b = time.perf_counter(); import anyformer"
    code += "; print(b - a, time.perf_counter() - b)"
    runs = [tuple(map(float, _python(code).split())) for _ in range(3)]
    assert min(ours / torch for torch, ours in runs) < 0.25, runs
