"""Continuous refilling beside static batches: 1,000 prompts whose answers have geometric lengths.

    python benchmarks/refill.py                  # 2 CPU cores, float32
    python benchmarks/refill.py --device cuda    # one GPU, bfloat16, a larger model

Every prompt says how long its answer is (no end token), so that both ways write the same tokens. Static batches come in
the order of arrival, and each runs until its longest row is done. Only tokens that were asked for count.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import Tensor

import anyformer as af

MEAN, LONGEST = 32, 400  # new tokens
SIZES = {"cpu": {"n_layers": 4, "d_model": 256, "n_heads": 4, "vocab_size": 8192}, "cuda": {}}
Prompts = list[dict[str, Any]]
OPTIONS: dict[str, Any] = {"eos_token_id": None, "pad_token_id": 0}


def make_prompts(n: int, vocabulary: int) -> Prompts:
    """4 to 32 tokens each; an answer ends after each of its tokens with probability 1 / MEAN."""
    random = torch.Generator().manual_seed(0)
    sizes = torch.randint(4, 33, (n,), generator=random).tolist()
    news = torch.empty(n).geometric_(1 / MEAN, generator=random).clamp(max=LONGEST).long().tolist()
    return [
        {"input_ids": torch.randint(1, vocabulary, (size,), generator=random), "max_new_tokens": new}
        for size, new in zip(sizes, news, strict=True)
    ]


def static(generate: Callable[..., Tensor], prompts: Prompts, rows: int, device: str) -> list[list[int]]:
    """Left-padded batches; what a row says after its own end is thrown away."""
    answers = []
    for first in range(0, len(prompts), rows):
        group = prompts[first : first + rows]
        longest = max(len(prompt["input_ids"]) for prompt in group)
        ids = torch.stack([torch.nn.functional.pad(p["input_ids"], (longest - len(p["input_ids"]), 0)) for p in group])
        new = max(prompt["max_new_tokens"] for prompt in group)
        mask = (ids != 0).long().to(device)
        made = generate(input_ids=ids.to(device), attention_mask=mask, max_new_tokens=new, **OPTIONS).tolist()
        for prompt, row in zip(group, made, strict=True):
            answers.append(row[longest : longest + prompt["max_new_tokens"]])
    return answers


def refilled(model: af.Model, prompts: Prompts, rows: int) -> list[list[int]]:
    found = dict(model.generate_many(prompts, rows, **OPTIONS))
    return [found[i][len(prompt["input_ids"]) :].tolist() for i, prompt in enumerate(prompts)]


def timed(work: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peer(model: af.Model, device: str) -> Any:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        model.save(folder, format="hf")
        return AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype).to(device).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--peer", action="store_true", help="transformers' static batches too")
    given = parser.parse_args()
    torch.manual_seed(0)
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    model = af.build("gpt2-124m", max_length=512, **SIZES[given.device]).to(given.device, dtype).eval()
    prompts = make_prompts(given.prompts, model.config.to_json()["vocab_size"])
    ways = {
        "refilled": lambda: refilled(model, prompts, given.rows),
        "static": lambda: static(model.generate, prompts, given.rows, given.device),
    }
    if given.peer:
        theirs = peer(model, given.device)
        ways["transformers, static"] = lambda: static(theirs.generate, prompts, given.rows, given.device)
    tokens = sum(prompt["max_new_tokens"] for prompt in prompts)
    print(f"torch {torch.__version__}, {given.device}: {len(prompts)} prompts, {tokens} tokens, {given.rows} rows")
    refilled(model, prompts[: given.rows], given.rows)  # warms up
    took, answers = {}, {}
    for name, work in ways.items():
        took[name], answers[name] = timed(work)
        same = sum(a == b for a, b in zip(answers[name], answers["refilled"], strict=True))
        print(
            f"{name}: {took[name]:.1f} s, {tokens / took[name]:,.0f} tokens/s, {same} answers as refilled", flush=True
        )
    print(f"ratio {took['static'] / took['refilled']:.2f}")
    assert answers["static"] == answers["refilled"], "refilling changed an answer"


if __name__ == "__main__":
    main()
