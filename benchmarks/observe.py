"""What it costs to ask decoding for log-probabilities and alignment: with and without, in turns, medians.

python benchmarks/observe.py [--rounds 5] [--device cuda]

Fresh weights; every row runs to the same length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import anyformer as af

# recipe, batch, prompt or source, new tokens, beams
CASES = [
    ("gpt2-124m", 1, 16, 24, 1),
    ("gpt2-124m", 8, 16, 24, 1),
    ("transformer-base", 16, 20, 32, 1),
    ("transformer-base", 16, 20, 32, 4),
]


def seconds(model: af.Model, options: dict[str, Any]) -> float:
    start = time.perf_counter()
    model.generate(**options)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {given.device}, medians of {given.rounds}")
    models: dict[str, af.Model] = {}
    for name, batch, length, new, beams in CASES:
        torch.manual_seed(0)
        if name not in models:
            models = {name: af.build(name).eval().to(given.device)}
        model = models[name]
        ids = torch.randint(5, 5000, (batch, length), device=given.device)
        options = {"input_ids": ids, "max_new_tokens": new, "num_beams": beams, "eos_token_id": None, "pad_token_id": 0}
        asked = {"logprobs": True, **({"alignment": True} if len(model.stages) > 1 else {})}
        runs = {"plain": options, "observed": {**options, **asked}}
        spent: dict[str, list[float]] = {kind: [] for kind in runs}
        for turn in range(given.rounds + 1):
            for kind, each in runs.items():
                took = seconds(model, each)
                if turn:  # the first is a warm-up
                    spent[kind].append(took)
        plain, observed = (statistics.median(spent[kind]) for kind in runs)
        what = " and ".join(asked)
        print(
            f"{name:18} batch {batch:2}  beams {beams}  {batch * new / plain:7.0f} tok/s   with {what}: "
            f"{batch * new / observed:7.0f} tok/s   cost {observed / plain - 1:+.1%}"
        )


if __name__ == "__main__":
    main()
