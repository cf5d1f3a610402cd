"""Training steps of anyformer's engine beside its peers: same sizes, batches and precision, one run, alternating.

    python benchmarks/train.py                     # 2 CPU cores: nanoGPT's CPU config
    python benchmarks/train.py --device cuda       # GPT-2 124M, BERT-base, Transformer-base on Multi30k

A step is everything: the batch to the device, forward, backward, clipping, AdamW. Ours is `Engine.step`, the loop that
`anyformer train` runs. nanoGPT is benchmarks/nanogpt.py, a restatement of its layers; transformers is the package.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from nanogpt import NanoGPT, Sizes
from torch import Tensor

import anyformer as af
from anyformer.data.batches import Batches, BatchSettings
from anyformer.tasks.base import Loss
from anyformer.tasks.text import token_loss
from anyformer.train.distributed import Devices
from anyformer.train.engine import Engine
from anyformer.train.settings import TrainSettings

Batch = dict[str, Tensor]
Step = Callable[[], float]  # one step; the real tokens that it learned from


class Given:
    """Work for the engine: batches that are there already, again and again."""

    metric, larger_is_better = "loss", False
    slow = False  # batches are there already

    def __init__(self, model: af.Model, batches: Sequence[Batch]) -> None:
        self.model, self.given = model, batches

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        return [[i] for i in range(len(self.given))]

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> Batch:
        return self.given[rows[0]]

    def ready(self, batch: Batch, generator: torch.Generator) -> Batch:
        return batch

    def loss(self, batch: Batch) -> Loss:
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return Loss(*token_loss(self.model(**inputs).logits, batch["labels"]))

    def evaluate(self) -> dict[str, float | str]:
        return {}

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def where(self, row: int) -> str:
        return f"batch {row}"


def ours(model: af.Model, batches: Sequence[Batch], device: str, compiled: bool, precision: str) -> Step:
    settings = TrainSettings(
        steps=10**6, lr=1e-4, weight_decay=0.1, compile=compiled, precision=precision, device=device, log_every=100
    )
    engine = Engine(Given(model, batches), settings, Devices(torch.device(device)))
    model.train()

    def step() -> float:
        before = engine.state.tokens
        engine.step()
        return (
            engine.state.tokens - before if device == "cpu" else real(batches[(engine.state.step - 1) % len(batches)])
        )

    return step


def theirs(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Any], Tensor],
    batches: Sequence[Batch],
    device: str,
    precision: str,
) -> Step:
    """The loop of nanoGPT's train.py."""
    at = [0]
    model.train()
    half = torch.autocast(device, torch.bfloat16) if precision == "bf16" else nullcontext()

    def step() -> float:
        batch = batches[at[0] % len(batches)]
        at[0] += 1
        moved = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        with half:
            value = loss(moved)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return real(batch)

    return step


def real(batch: Batch) -> float:
    """Tokens that are real, on both sides."""
    source = batch["attention_mask"].sum() if "attention_mask" in batch else batch["input_ids"].numel()
    target = (batch["labels"] != -100).sum() if "decoder_attention_mask" in batch else 0
    return float(source + target)


@dataclass(frozen=True)
class Workload:
    name: str
    make: Callable[[], dict[str, Step]]


def language(
    sizes: Sizes, rows: int, device: str, compiled: bool, precision: str, peers: Sequence[str]
) -> dict[str, Step]:
    batches = []
    for _ in range(8):
        ids = torch.randint(0, sizes.vocabulary, (rows, sizes.context + 1))
        batches.append({"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()})
    overrides = {"n_layers": sizes.n_layers, "d_model": sizes.d_model, "n_heads": sizes.n_heads}
    overrides |= {"vocab_size": sizes.vocabulary, "max_length": sizes.context, "activation": "gelu"}
    drops = dict.fromkeys(("dropout", "embedding_dropout", "attention_dropout"), sizes.dropout)
    steps = {"anyformer": ours(af.build("gpt2-124m", **overrides, **drops), batches, device, compiled, precision)}
    for name in ("nanoGPT", "nanoGPT compiled"):
        if name in peers:
            steps[name] = nano(sizes, batches, device, name.endswith("compiled"), precision)
    if "transformers" in peers:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=sizes.vocabulary,
            n_positions=sizes.context,
            n_embd=sizes.d_model,
            n_layer=sizes.n_layers,
            n_head=sizes.n_heads,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), sizes.dropout),
        )
        steps["transformers"] = hugging(GPT2LMHeadModel(config), batches, device, compiled, precision, shifts=True)
    return steps


def nano(sizes: Sizes, batches: Sequence[Batch], device: str, compiled: bool, precision: str) -> Step:
    model = NanoGPT(sizes).to(device)
    call: Any = torch.compile(model) if compiled else model
    optimizer = model.optimizer(1e-4, device == "cuda")
    return theirs(model, optimizer, lambda b: call(b["input_ids"], b["labels"]), batches, device, precision)


def hugging(
    model: Any, batches: Sequence[Batch], device: str, compiled: bool, precision: str, shifts: bool = False
) -> Step:
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=device == "cuda")
    call = torch.compile(model) if compiled else model
    labels = "input_ids" if shifts else "labels"  # its decoders shift labels themselves
    return theirs(model, optimizer, lambda b: call(**{**b, "labels": b[labels]}).loss, batches, device, precision)


def masked(device: str, rows: int = 64, length: int = 512, compiled: bool = True) -> dict[str, Step]:
    from transformers import BertConfig, BertForMaskedLM

    batches = []
    for _ in range(8):
        ids = torch.randint(1000, 30522, (rows, length))
        chosen = torch.rand(rows, length) < 0.15
        labels = ids.masked_fill(~chosen, -100)
        batches.append({"input_ids": ids.masked_fill(chosen, 103), "labels": labels})
    model = af.build("bert-base", head="masked")
    return {
        "anyformer": ours(model, batches, device, compiled, "bf16"),
        "transformers": hugging(BertForMaskedLM(BertConfig()), batches, device, compiled, "bf16"),
    }


def sentences(device: str, rows: int = 128) -> dict[str, Step]:
    """Multi30k's own pairs in 8,000 pieces: ours bucketed by length, as `anyformer train` does; theirs as they come."""
    folder = Path(os.environ["ANYFORMER_DATA"]) / "multi30k"
    packed = [(folder / f"train.{side}.gz").read_bytes() for side in ("en", "de")]
    texts = [gzip.decompress(side).decode("utf-8").splitlines() for side in packed]
    tokenizer = af.Tokenizer.train(iter(texts[0] + texts[1]), kind="bpe", vocab_size=8000, end=True, progress=False)
    ids = [[tokenizer.encode(text) for text in side] for side in texts]
    lengths = [[len(a), len(b)] for a, b in zip(*ids, strict=True)]
    bucketed = Batches(lengths, BatchSettings(rows=rows), 0).whole(0)[:64]
    order = torch.randperm(len(lengths)).tolist()
    arrival = [order[i : i + rows] for i in range(0, 64 * rows, rows)]
    pairs = [[_pair(ids, chosen) for chosen in plan] for plan in (bucketed, arrival)]
    from transformers import MarianConfig, MarianMTModel

    sizes = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "max_position_embeddings": 256}
    config = MarianConfig(vocab_size=8000, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **sizes, **heads)
    model = af.build("transformer-base", vocab_size=8000, max_length=256)
    peer = [{k: v for k, v in batch.items() if k != "decoder_attention_mask"} for batch in pairs[1]]
    counted = hugging(MarianMTModel(config), peer, device, False, "bf16")
    at = [0]

    def step() -> float:
        counted()
        at[0] += 1
        return real(pairs[1][(at[0] - 1) % len(peer)])

    return {"anyformer": ours(model, pairs[0], device, False, "bf16"), "transformers": step}


def _pair(ids: Sequence[Sequence[list[int]]], chosen: Sequence[int]) -> Batch:
    def pad(rows: list[list[int]], fill: int) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, fill)

    source, target = ([side[int(i)] for i in chosen] for side in ids)
    said = pad(target, -100)
    read = torch.nn.functional.pad(said.clamp(min=0)[:, :-1], (1, 0))
    mask = pad([[1] * len(row) for row in source], 0)
    return {
        "input_ids": pad(source, 0),
        "attention_mask": mask,
        "decoder_input_ids": read,
        "decoder_attention_mask": (said >= 0).long(),
        "labels": said,
    }


def workloads(device: str) -> list[Workload]:
    if device == "cpu":
        small = Sizes(4, 128, 4, 64, 65)
        peers = ("nanoGPT", "transformers")
        both = ("nanoGPT", "nanoGPT compiled")  # its README says --compile=False for this
        return [
            Workload("nanoGPT's CPU config", lambda: language(small, 12, "cpu", False, "float32", peers)),
            Workload("the same, ours compiled", lambda: language(small, 12, "cpu", True, "float32", both)),
        ]
    gpt2 = Sizes(12, 768, 12, 1024, 50304)
    peers = ("nanoGPT compiled", "transformers")
    return [
        Workload("GPT-2 124M, 32 x 1024, compiled", lambda: language(gpt2, 32, "cuda", True, "bf16", peers)),
        Workload("BERT-base, 64 x 512, compiled", lambda: masked("cuda")),
        Workload("Transformer-base, Multi30k", lambda: sentences("cuda")),
    ]


def timed(step: Step, n: int, device: str) -> float:
    """Real tokens a second over n steps."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    tokens = sum(step() for _ in range(n))
    if device == "cuda":
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def run(load: Workload, device: str, rounds: int, n: int, best: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    steps = load.make()
    for step in steps.values():
        timed(step, 3 if device == "cpu" else 20, device)
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            speeds[name].append(timed(step, n, device))
    middle = {name: (max if best else statistics.median)(values) for name, values in speeds.items()}
    ratios = {
        f"over {name}": round(middle["anyformer"] / value, 2) for name, value in middle.items() if name != "anyformer"
    }
    return {"workload": load.name, **{name: round(value) for name, value in middle.items()}, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="steps a round")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--best", action="store_true", help="the best round instead of the median: on a busy machine")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    parser.add_argument("--json", help="write the rows to this file as well")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    else:
        torch.set_float32_matmul_precision("high")
    rows = []
    for load in workloads(options.device):
        if options.only in load.name:
            rows.append(run(load, options.device, options.rounds, options.steps, options.best))
            print(
                "  ".join(
                    f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value}"
                    for name, value in rows[-1].items()
                ),
                flush=True,
            )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
