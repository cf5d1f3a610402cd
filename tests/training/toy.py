"""A small piece of work for the engine: say the next token of rows that count up, modulo a number, from anywhere."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import anyformer as af
from anyformer.data.batch_sampler import BatchConfig
from anyformer.tasks.base import Loss
from anyformer.tasks.segment_memory import MemoryStreams, SegmentMemory
from anyformer.training.settings import TrainSettings

WORDS, LENGTH = 16, 8


class Toy:
    metric, larger_is_better, slow, steady, streams = "loss", False, False, True, 0
    contrastive = False
    fills: ClassVar[Mapping[str, int]] = {}
    longest = None

    def __init__(
        self, rows: int = 24, batch_size: int = 4, seed: int = 0, dropout: float = 0.1, dtype: torch.dtype | None = None
    ) -> None:
        torch.manual_seed(seed)
        overrides = {"n_layers": 2, "d_model": 16, "n_heads": 2, "vocab_size": WORDS, "max_length": LENGTH}
        drops = dict.fromkeys(("dropout", "embedding_dropout", "attention_dropout"), dropout)
        self.model = af.build("gpt2-tiny", **overrides, **drops).eval()
        if dtype is not None:
            self.model.to(dtype)
        self.rows = [[(start * 5 + i) % WORDS for i in range(LENGTH - start % 3)] for start in range(rows)]
        self.batch_size, self.seed = batch_size, seed
        self.collated: list[int] = []

    def carry(self, rows: int) -> dict[str, Tensor]:
        return {}

    def batches(self, epoch: int) -> list[list[int]]:
        order = list(range(len(self.rows)))
        random.Random(f"{self.seed} {epoch}").shuffle(order)
        return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        self.collated += [int(row) for row in rows]
        ids = torch.full((len(rows), LENGTH), -100)
        for i, row in enumerate(rows):
            ids[i, : len(self.rows[row])] = torch.tensor(self.rows[row])
        return {"input_ids": ids.clamp(min=0), "attention_mask": (ids >= 0).long(), "labels": ids}

    def ready(self, batch: dict[str, Tensor], generator: torch.Generator | None) -> dict[str, Tensor]:
        return batch

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        out = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits, labels = out.logits[:, :-1], batch["labels"][:, 1:]
        total = F.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1), reduction="sum")
        count = (labels != -100).sum()
        return Loss(total, count, {"again": total.detach()})

    def evaluate(self) -> dict[str, float | str]:
        loss = self.loss(self.collate(range(len(self.rows)), torch.Generator()))
        return {"loss": float(loss.total / loss.count), "signature": "toy"}

    def save(self, folder: Path) -> None:
        self.model.save(folder)

    def where(self, row: int) -> str:
        return f"toy.txt, line {row + 1}"


class PictureToy(Toy):
    """Tell images apart by their brightness, with a small residual network: batch norm has statistics to keep."""

    def __init__(self, rows: int = 20, batch_size: int = 5, seed: int = 0) -> None:
        super().__init__(rows, batch_size, seed)
        torch.manual_seed(seed)
        self.model = af.build("resnet-tiny", n_labels=2).eval()
        noise = torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        self.labels = torch.arange(rows) % 2
        self.pictures = noise + 0.5 * self.labels.view(-1, 1, 1, 1)

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        chosen = torch.tensor([int(row) for row in rows])
        return {"pixel_values": self.pictures[chosen], "labels": self.labels[chosen]}

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        logits = self.model(pixel_values=batch["pixel_values"]).logits
        total = F.cross_entropy(logits, batch["labels"], reduction="sum")
        return Loss(total, torch.tensor(len(logits)))


class ReadingToy(Toy):
    """A text in five streams, whose next tokens depend on ones further back than a batch reaches."""

    WINDOW, BACK = 4, 6

    def __init__(self, seed: int = 0, dropout: float = 0.1, dtype: torch.dtype | None = None) -> None:
        super().__init__(rows=1, seed=seed)
        torch.manual_seed(seed)
        small = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_head": 8, "d_hidden": 16, "vocab_size": WORDS}
        self.model = af.build("transformer-xl-tiny", **small, mem_len=8, dropout=dropout).eval().to(dtype)
        self.text = torch.randint(0, WORDS, (self.BACK,)).repeat(40)  # again and again
        self.plan = MemoryStreams(len(self.text) - 1, self.WINDOW, BatchConfig(rows=5), seed)
        self.streams = self.plan.rows
        self.carried: SegmentMemory | None = None

    def carry(self, rows: int) -> dict[str, Tensor]:
        self.carried = SegmentMemory(self.model, rows)
        return self.carried.tensors

    def batches(self, epoch: int) -> list[list[int]]:
        return [[int(start) for start in batch] for batch in self.plan.global_batches(epoch)]

    def collate(self, rows: Sequence[int], generator: torch.Generator) -> dict[str, Tensor]:
        ids = torch.stack([self.text[row : row + self.WINDOW + 1] for row in rows])
        return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    def loss(self, batch: Mapping[str, Tensor]) -> Loss:
        assert self.carried is not None
        out = self.model(input_ids=batch["input_ids"], past_key_values=self.carried.open(batch["goes_on"]))
        self.carried.close(out.past_key_values)
        total = F.cross_entropy(out.logits.reshape(-1, WORDS), batch["labels"].reshape(-1), reduction="sum")
        return Loss(total, (batch["labels"] >= 0).sum())

    def evaluate(self) -> dict[str, float | str]:
        logits = self.model(input_ids=self.text[None, :-1].to(self.model.device)).logits[0]
        return {"loss": float(F.cross_entropy(logits, self.text[1:].to(logits.device)))}


class DeadError(Exception):
    """Ends a run as nothing in the engine does."""


def fingerprint(model: torch.nn.Module) -> str:
    """Equal where every bit of every parameter is."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def settings(**changes: object) -> TrainSettings:
    return TrainSettings(
        steps=20, lr=1e-2, warmup_steps=2, eval_every=7, save_every=5, log_every=1, device="cpu"
    ).replace(**changes)
