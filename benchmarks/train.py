"""Training steps of anyformer's engine beside its peers: same sizes, batches and precision, one run, alternating.

    python benchmarks/train.py                     # 2 CPU cores: nanoGPT's CPU config
    python benchmarks/train.py --device cuda       # GPT-2 124M, BERT-base, Transformer-base on Multi30k

A step is everything: the batch to the device, forward, backward, clipping, AdamW. Ours is `Engine.step`, the loop that
`anyformer train` runs. nanoGPT is benchmarks/nanogpt.py, a restatement of its layers; transformers is the package.
"""

from __future__ import annotations

import argparse
import gzip
import os
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
from turns import Batch, Given, measure, read_options, take_turns

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig, LengthGroupedSampler
from anyformer.training.distributed import Devices
from anyformer.training.settings import TrainSettings
from anyformer.training.trainer import Trainer

Step = Callable[[], float]  # one step; the real tokens that it learned from


def ours(model: af.Model, batches: Sequence[Batch], device: str, compiled: bool, precision: str, **more: Any) -> Step:
    settings = TrainSettings(
        steps=10**6,
        lr=1e-4,
        weight_decay=0.1,
        compile=compiled,
        precision=precision,
        device=device,
        log_every=100,
        **more,
    )
    engine = Trainer(Given(model, batches), settings, Devices(torch.device(device)))
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
    steps = {
        "anyformer": ours(af.build("gpt2-124m", **overrides, **drops).eval(), batches, device, compiled, precision)
    }
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
    model = af.build("bert-base", head="masked").eval()
    return {
        "anyformer": ours(model, batches, device, compiled, "bf16"),
        "transformers": hugging(BertForMaskedLM(BertConfig()), batches, device, compiled, "bf16"),
    }


def sentences(device: str, rows: int = 128) -> dict[str, Step]:
    """Multi30k's own pairs in 8,000 pieces: ours bucketed by length, as `anyformer train` does, and recorded
    (`train.cuda_graphs=true`); theirs as they come."""
    folder = Path(os.environ["ANYFORMER_DATA"]) / "multi30k"
    packed = [(folder / f"train.{side}.gz").read_bytes() for side in ("en", "de")]
    texts = [gzip.decompress(side).decode("utf-8").splitlines() for side in packed]
    tokenizer = af.Tokenizer.train(iter(texts[0] + texts[1]), kind="bpe", vocab_size=8000, end=True, progress=False)
    ids = [[tokenizer.encode(text) for text in side] for side in texts]
    lengths = [[len(a), len(b)] for a, b in zip(*ids, strict=True)]
    bucketed = LengthGroupedSampler(lengths, BatchConfig(rows=rows), 0).global_batches(0)[:64]
    order = torch.randperm(len(lengths)).tolist()
    arrival = [order[i : i + rows] for i in range(0, 64 * rows, rows)]
    pairs = [[_pair(ids, chosen) for chosen in plan] for plan in (bucketed, arrival)]
    from transformers import MarianConfig, MarianMTModel

    sizes = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8, "max_position_embeddings": 256}
    config = MarianConfig(vocab_size=8000, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, **sizes, **heads)
    model = af.build("transformer-base", vocab_size=8000, max_length=256).eval()
    peer = [{k: v for k, v in batch.items() if k != "decoder_attention_mask"} for batch in pairs[1]]
    counted = hugging(MarianMTModel(config), peer, device, False, "bf16")
    at = [0]

    def step() -> float:
        counted()
        at[0] += 1
        return real(pairs[1][(at[0] - 1) % len(peer)])

    plain = af.build("transformer-base", vocab_size=8000, max_length=256).eval()
    recorded = ours(model, pairs[0], device, False, "bf16", cuda_graphs=True)
    for _ in range(5 * len(pairs[0])):  # until every shape has been recorded
        recorded()
    usual = ours(plain, pairs[0], device, False, "bf16", cuda_graphs=False)
    return {"anyformer": recorded, "anyformer, not recorded": usual, "transformers": step}


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


def run(load: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Real tokens a second."""
    torch.manual_seed(0)
    warm = 3 if options.device == "cpu" else 20
    found = take_turns(load.make(), options.device, options.rounds, options.steps, warm, options.best)
    return {
        "workload": load.name,
        **{name: round(value, 2) if name.startswith("over") else round(value) for name, value in found.items()},
    }


if __name__ == "__main__":
    options = read_options(__doc__, 20, "steps a round")
    measure(options, workloads(options.device), lambda load: run(load, options))
