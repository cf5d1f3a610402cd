"""python -m tests.goldens write|compare FOLDER [SECTION …]; python -m tests.goldens commit"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.goldens.collect import SECTIONS
from tests.goldens.committed import rewrite

SHOWN = 12  # differences that are listed


def collect(section: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    torch.set_num_threads(1)
    tensors: dict[str, Tensor] = {}
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as home, contextlib.redirect_stdout(io.StringIO()):
        for name, value in SECTIONS[section](Path(home)):
            if isinstance(value, str):
                texts[name] = value
            else:
                tensors[name] = value.clone().contiguous()
    return tensors, texts


def write(folder: Path, section: str) -> None:
    tensors, texts = collect(section)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / f"{section}.safetensors")
    (folder / f"{section}.json").write_text(json.dumps(texts, indent=1))


def compare(folder: Path, section: str) -> list[str]:
    """What differs from the goldens; new entries are not compared."""
    before, said = load_file(folder / f"{section}.safetensors"), json.loads((folder / f"{section}.json").read_text())
    tensors, texts = collect(section)
    wrong = [f"{name}: {texts.get(name)!r}, before {text!r}" for name, text in said.items() if texts.get(name) != text]
    return wrong + [
        f"{name}: {_difference(tensors.get(name), x)}" for name, x in before.items() if not _same(tensors, name, x)
    ]


def _same(tensors: dict[str, Tensor], name: str, before: Tensor) -> bool:
    now = tensors.get(name)
    if now is None or now.shape != before.shape or now.dtype != before.dtype:
        return False
    return torch.equal(now.nan_to_num(), before.nan_to_num()) and torch.equal(now.isnan(), before.isnan())


def _difference(now: Tensor | None, before: Tensor) -> str:
    if now is None:
        return "missing"
    if now.shape != before.shape or now.dtype != before.dtype:
        return f"{now.dtype} {list(now.shape)}, before {before.dtype} {list(before.shape)}"
    worst = float((now.double() - before.double()).abs().max())
    return f"differs by up to {worst:.2e} (largest value {float(before.double().abs().max()):.2e})"


def main(what: str, folder: str = "", *sections: str) -> int:
    if what == "commit":
        rewrite()
        return 0
    wrong: list[str] = []
    for section in sections or SECTIONS:
        started = time.perf_counter()
        if what == "write":
            write(Path(folder), section)
        else:
            wrong += [f"{section}: {line}" for line in compare(Path(folder), section)]
        print(f"goldens: {section} in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    for line in wrong[:SHOWN]:
        print(line)
    if len(wrong) > SHOWN:
        print(f"and {len(wrong) - SHOWN} more")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
