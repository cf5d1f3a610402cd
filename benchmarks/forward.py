"""Forward passes of anyformer beside transformers: same weights, same inputs, one run, alternating.

    python benchmarks/forward.py                 # 2 CPU cores, float32
    python benchmarks/forward.py --device cuda   # one GPU, bfloat16

Each row also says how far anyformer is from the machine's limit: the multiplications that real tokens need, over the
rate that a large matrix product reaches here.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from torch import Tensor

import anyformer as af


@dataclass(frozen=True)
class Workload:
    name: str
    home: str  # transformers.models.<home>
    model: str
    config: str
    settings: dict[str, Any]
    batch: Callable[[], dict[str, Tensor]]
    real_tokens: Callable[[dict[str, Tensor]], float]  # those that go through the blocks


def uneven(rows: int, longest: int, shortest: int = 4) -> Tensor:
    """Lengths as sentences have them: log-normal, the longest row full (the peers' benchmark draws them so too)."""
    lengths = torch.empty(rows).log_normal_(3.0, 0.6).clamp(shortest, longest).long()
    lengths[0] = longest
    return (torch.arange(longest) < lengths[:, None]).long()


def text(rows: int, length: int, vocab: int, ragged: bool = False) -> dict[str, Tensor]:
    ids = torch.randint(5, vocab, (rows, length))
    return {"input_ids": ids, "attention_mask": uneven(rows, length)} if ragged else {"input_ids": ids}


def pairs(rows: int, source: int, target: int, vocab: int, ragged: bool) -> dict[str, Tensor]:
    batch = text(rows, source, vocab, ragged)
    batch["decoder_input_ids"] = torch.randint(5, vocab, (rows, target))
    if ragged:
        batch["decoder_attention_mask"] = uneven(rows, target)
    return batch


def real(batch: dict[str, Tensor], ids: str = "input_ids", mask: str = "attention_mask") -> float:
    return float(batch[mask].sum()) if mask in batch else float(batch[ids].numel())


MARIAN = {
    "vocab_size": 32000,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "d_model": 512,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "max_position_embeddings": 256,
    "activation_function": "relu",
    "scale_embedding": True,
}


def workloads(cuda: bool) -> list[Workload]:
    more = 8 if cuda else 1  # enough rows that a GPU computes, and does not only wait for launches
    rows = 1024 if cuda else 32
    both = lambda b: real(b) + real(b, "decoder_input_ids", "decoder_attention_mask")  # noqa: E731
    gpt2 = ("gpt2", "GPT2LMHeadModel", "GPT2Config", {})
    bert = ("bert", "BertModel", "BertConfig", {})
    vit = ("vit", "ViTForImageClassification", "ViTConfig", {"num_labels": 1000})
    marian = ("marian", "MarianMTModel", "MarianConfig", MARIAN)
    length = 1024 if cuda else 256
    return [
        Workload(f"GPT-2 124M, {2 * more} x {length}", *gpt2, lambda: text(2 * more, length, 50000), real),
        Workload(f"GPT-2 124M, uneven {16 * more} x 128", *gpt2, lambda: text(16 * more, 128, 50000, True), real),
        Workload(f"BERT-base, {8 * more} x 128", *bert, lambda: text(8 * more, 128, 30000), real),
        Workload(f"BERT-base, uneven {32 * more} x 128", *bert, lambda: text(32 * more, 128, 30000, True), real),
        Workload(
            f"ViT-B/16, {8 * more} images",
            *vit,
            lambda: {"pixel_values": torch.randn(8 * more, 3, 224, 224)},
            lambda b: b["pixel_values"].shape[0] * 197.0,
        ),
        Workload(f"Marian-size, {16 * more} x 24 -> 32", *marian, lambda: pairs(16 * more, 24, 32, 32000, False), both),
        Workload(
            f"Marian-size, uneven {rows} x 64 -> 64",
            *marian,
            lambda: pairs(rows, 64, 64, 32000, True),
            both,
        ),
    ]


def matrix_rate(device: str, dtype: torch.dtype) -> float:
    """Multiply-adds a second, times two, of a large matrix product."""
    n = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / min(timed(lambda: a @ b, device) for _ in range(5))


def timed(action: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def operations(model: torch.nn.Module, tokens: float) -> float:
    """2 · matrix weights · tokens: what cannot be avoided. Tables that are only looked up do not count."""
    tables = ("words.weight", "positions.weight", "types.weight")
    heads = sum(p.numel() for n, p in model.named_parameters() if p.dim() > 1 and n.partition(".")[0] in model.heads)
    body = sum(
        p.numel()
        for n, p in model.named_parameters()
        if p.dim() > 1 and not n.endswith(tables) and n.partition(".")[0] not in model.heads
    )
    stages = len(model.stages)  # type: ignore[arg-type]
    return 2 * tokens * (body / stages + heads)


def run(load: Workload, device: str, dtype: torch.dtype, rounds: int, rate: float) -> dict[str, Any]:
    torch.manual_seed(0)
    home = f"transformers.models.{load.home}"
    config = getattr(importlib.import_module(f"{home}.configuration_{load.home}"), load.config)(**load.settings)
    theirs = getattr(importlib.import_module(f"{home}.modeling_{load.home}"), load.model)(config).to(dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = af.load(folder, device=device)
    theirs = theirs.to(device)
    batch = {k: v.to(device, dtype) if v.is_floating_point() else v.to(device) for k, v in load.batch().items()}
    with torch.inference_mode():
        difference = check(ours(**batch), theirs(**batch))
        for _ in range(2):
            ours(**batch), theirs(**batch)
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for _ in range(rounds):
            times["theirs"].append(timed(lambda: theirs(**batch), device))
            times["ours"].append(timed(lambda: ours(**batch), device))
    mine, peer = statistics.median(times["ours"]), statistics.median(times["theirs"])
    needed = operations(ours, load.real_tokens(batch))
    return {
        "workload": load.name,
        "ours_ms": round(1e3 * mine, 2),
        "transformers_ms": round(1e3 * peer, 2),
        "ratio": round(peer / mine, 2),
        "of_limit": round(needed / rate / mine, 2),
        "difference": float(f"{difference:.1e}"),
    }


def check(ours: Any, theirs: Any) -> float:
    """The largest difference at real positions, relative to the largest value."""
    name = "logits" if "logits" in theirs else "last_hidden_state"
    a, b = ours[name].float(), theirs[name].float()
    shown = a.abs().sum(dim=-1, keepdim=True) > 0
    return float(((a - b) * shown).abs().max() / b.abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--json", help="write the rows to this file as well")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    if options.device == "cpu":
        torch.set_num_threads(2)
    rate = matrix_rate(options.device, dtype)
    versions = f"torch {torch.__version__}, transformers {importlib.import_module('transformers').__version__}"
    print(
        f"{options.device}, {str(dtype).removeprefix('torch.')}, {versions}; matrix product {rate / 1e9:,.0f} GFLOP/s"
    )
    print(f"{'workload':36} {'anyformer':>12} {'transformers':>13} {'ratio':>7} {'of limit':>9} {'difference':>11}")
    rows = []
    for load in workloads(options.device == "cuda"):
        if options.only.lower() in load.name.lower():
            row = run(load, options.device, dtype, options.rounds, rate)
            rows.append(row)
            print(
                f"{row['workload']:36} {row['ours_ms']:>9.1f} ms {row['transformers_ms']:>10.1f} ms"
                f" {row['ratio']:>6.2f}x {row['of_limit']:>9.2f} {row['difference']:>11.1e}",
                flush=True,
            )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": options.device, "rate": rate, "versions": versions, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
