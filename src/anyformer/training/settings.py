"""The settings of training: train.*."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings

Precision = Literal["auto", "float32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    steps: int = 10_000  # optimizer steps
    epochs: float | None = None  # passes over the training rows, instead of a number of steps
    max_minutes: float = 0.0  # time limit in minutes, at which the schedule ends too; 0: none
    batch_size: int = 32  # rows per batch, over all devices
    batch_tokens: int | None = None  # tokens per batch, padding included, instead of a number of rows
    gradient_accumulation: int = 1  # batches per optimizer step
    lr: float = 5e-4  # learning rate after warmup
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0  # steps of linear warmup
    min_lr: float = 0.0  # learning rate at the end of cosine and linear schedules
    # "adam": as the Transformer paper sets it; "muon": matrices by their orthogonalized momentum, all else as "adamw".
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    betas: tuple[float, ...] | None = None  # None: 0.9 and 0.95; for "adam" 0.9 and 0.98
    eps: float | None = None  # None: 1e-8; for "adam" 1e-9
    weight_decay: float = 0.0  # of matrices only, not of norms, biases and embeddings
    max_grad_norm: float = 1.0  # maximum norm of the gradient; 0: no clipping
    label_smoothing: float = 0.0  # fraction of the target probability spread over all classes
    layer_decay: float = 1.0  # factor of the learning rate for each layer further from the output
    freeze: tuple[str, ...] = ()  # globs of frozen parameters: encoder.blocks.0.*
    lora: int = 0  # rank of LoRA adapters, trained instead of the weights; 0: none
    lora_alpha: float | None = None  # LoRA scale is this over the rank; None: 2, for any rank
    lora_targets: tuple[str, ...] = ("*.blocks.*",)  # globs of the matrices with adapters
    ema_decay: float = (
        0.0  # decay of an exponential moving average of the weights, which is evaluated and saved; 0: none
    )
    average_checkpoints: int = 0  # number of last checkpoints whose weights are averaged at the end; 0: none
    precision: Precision = "auto"  # "auto": bf16 on a GPU that supports it, float32 elsewhere
    compile: bool = False
    # Capture the whole step as a CUDA graph. "auto": for tasks with batches of one shape, and for small text models,
    # whose batches are padded to few shapes, if possible; true: for large models too.
    cuda_graphs: bool | Literal["auto"] = "auto"
    gradient_checkpointing: bool = False  # recompute activations in the backward pass instead of storing them
    parallel: Literal["ddp", "fsdp"] = "ddp"  # multi-GPU strategy: replicate the model ("ddp") or shard it ("fsdp")
    device: str = "auto"  # cpu, cuda, cuda:1, mps; "auto": cuda, mps or cpu, the first that there is
    seed: int = 0
    eval_every: int = 500  # steps; 0: at the end only
    save_every: int = 500  # steps; 0: at the end only
    log_every: int = 10
    keep_checkpoints: int = 2  # number of checkpoints that are kept; two, since the last one may be damaged
    patience: int = 0  # evaluations without improvement before the run stops; 0: no early stopping
    divergence_factor: float = 10.0  # stop if the loss exceeds this multiple of the first; 0: only if it is NaN

    def check(self) -> None:
        for name in ("steps", "batch_size", "gradient_accumulation", "log_every", "keep_checkpoints"):
            self.require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for name in ("warmup_steps", "lora", "eval_every", "save_every", "patience", "average_checkpoints", "seed"):
            self.require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 or more.")
        for name in ("max_minutes", "min_lr", "weight_decay", "max_grad_norm", "divergence_factor"):
            self.require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 or more.")
        self.require(0 < self.lr < math.inf, f"lr is {self.lr}; it must be a number above 0.")
        self.require(self.epochs is None or self.epochs > 0, f"epochs is {self.epochs}; it must be above 0.")
        self.require(self.eps is None or self.eps > 0, f"eps is {self.eps}; it must be above 0.")
        for name in ("label_smoothing", "ema_decay"):
            self.require(
                0 <= getattr(self, name) < 1, f"{name} is {getattr(self, name)}; it must be from 0 to below 1."
            )
        self.require(0 < self.layer_decay <= 1, f"layer_decay is {self.layer_decay}; it must be above 0 and at most 1.")
        pair = self.betas is None or (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas))
        self.require(pair, f"betas are {self.betas}; they must be two numbers from 0 to below 1.")
        if self.optimizer == "muon":
            others = 'or optimizer "adamw".'
            self.require(self.parallel == "ddp", f"optimizer=muon needs unsharded matrices; use parallel=ddp, {others}")
            self.require(
                self.precision != "fp16", f"optimizer=muon does not support precision=fp16; use bf16, {others}"
            )
        self.require(
            self.schedule != "inverse_sqrt" or self.warmup_steps > 0,
            "schedule=inverse_sqrt needs warmup_steps of 1 or more.",
        )


# Settings that may change when a run is resumed: how long, how often and where it runs.
FREE = frozenset(
    "steps epochs max_minutes eval_every save_every log_every keep_checkpoints patience divergence_factor"
    " precision compile cuda_graphs gradient_checkpointing parallel device".split()
)
