"""How a run goes: every `train.*` key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings

Precision = Literal["auto", "float32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Settings):
    steps: int = 10_000  # of the optimizer
    max_minutes: float = 0.0  # of training, at whose end the schedule and the run end too; 0: no limit
    batch_size: int = 32  # rows read at once, on all devices together
    batch_tokens: int | None = None  # instead of so many rows, as many as fit into so many tokens, padding counted
    gradient_accumulation: int = 1  # batches whose gradients make one step
    lr: float = 5e-4  # at the end of the warm-up
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0  # steps of a straight line up to lr
    min_lr: float = 0.0  # where cosine and linear end
    # "adam": as the Transformer paper sets it; "muon": matrices by their orthogonalized momentum, all else as "adamw".
    optimizer: Literal["adamw", "adam", "muon"] = "adamw"
    betas: tuple[float, ...] | None = None  # None: 0.9 and 0.95; the paper's Adam 0.9 and 0.98
    eps: float | None = None  # None: 1e-8; the paper's Adam 1e-9
    weight_decay: float = 0.0  # of matrices; never of norms, biases and embeddings
    max_grad_norm: float = 1.0  # the largest norm of all gradients together; 0: none
    label_smoothing: float = 0.0  # the share of a label's weight that goes to all classes alike
    layer_decay: float = 1.0  # each layer further from the answer learns at this share of the rate above it
    freeze: tuple[str, ...] = ()  # globs of parameters that stay as they are: encoder.blocks.0.*
    lora: int = 0  # rank of low-rank adapters that learn instead of the weights; 0: none
    lora_alpha: float | None = None  # their scale is this over the rank; None: 2, whatever the rank
    lora_targets: tuple[str, ...] = ("*.blocks.*",)  # globs of the matrices that have one
    ema_decay: float = (
        0.0  # decay of a moving average of the weights, which is then what is evaluated and kept; 0: none
    )
    average_checkpoints: int = 0  # the model is the mean of the last so many checkpoints; 0: none
    precision: Precision = "auto"  # "auto": bf16 on a GPU that has it, float32 elsewhere
    compile: bool = False
    # On a GPU, record the whole step once and replay it. "auto": for tasks whose batches are all of one shape, and for
    # small models of texts, filled up to few shapes, where nothing stands against it; true: for large ones too.
    cuda_graphs: bool | Literal["auto"] = "auto"
    gradient_checkpointing: bool = (
        False  # compute a block's inner values again in the backward pass instead of keeping them
    )
    parallel: Literal["ddp", "fsdp"] = "ddp"  # on many devices: a whole model on each, or a share of it
    device: str = "auto"
    seed: int = 0
    eval_every: int = 500  # steps; 0: at the end only
    save_every: int = 500  # steps; 0: at the end only
    log_every: int = 10
    keep_checkpoints: int = 2  # checkpoints; the last one may be damaged, so two
    patience: int = 0  # evaluations without a better result before the run stops; 0: it goes on
    divergence_factor: float = 10.0  # stop if the loss exceeds this multiple of the first; 0: only if it is NaN

    def check(self) -> None:
        for name in ("steps", "batch_size", "gradient_accumulation", "log_every", "keep_checkpoints"):
            self.require(getattr(self, name) > 0, f"{name} is {getattr(self, name)}; it must be 1 or more.")
        for name in ("warmup_steps", "lora", "eval_every", "save_every", "patience", "average_checkpoints", "seed"):
            self.require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 or more.")
        for name in ("max_minutes", "min_lr", "weight_decay", "max_grad_norm", "divergence_factor"):
            self.require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; it must be 0 or more.")
        self.require(0 < self.lr < math.inf, f"lr is {self.lr}; it must be a number above 0.")
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


# Keys that a run may change when it continues: they say how long, how often and where, not what is learned.
FREE = frozenset(
    "steps max_minutes eval_every save_every log_every keep_checkpoints patience divergence_factor"
    " precision compile cuda_graphs gradient_checkpointing parallel device".split()
)
