"""Language modeling: training for `generate`. Next-token prediction over windows of a text in characters, bytes or
subwords.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import Rows
from anyformer.heads.cross_entropy import token_loss
from anyformer.heads.language import hide_seen
from anyformer.metrics.language import bits_per_character, perplexity
from anyformer.model import Model
from anyformer.tasks import generate
from anyformer.tasks.base import Batch, BatchPlan, Column, Loss, Metrics, Options, Progress, Source, Total, answering
from anyformer.tasks.segment_memory import CONTINUES, MemoryStreams, SegmentMemory, memory_layers
from anyformer.tasks.stream import StreamTask
from anyformer.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LanguageOptions(Options):
    # Tokens before each window that are read, without gradients, into the model's memory (Transformer-XL, Mamba).
    memory: int = 0
    # Instead: each row of a batch goes on where the batch before ended, and the memory with it (Transformer-XL).
    carry_memory: bool = False

    def check(self) -> None:
        self.require(self.memory >= 0, f"memory is {self.memory}; it must be 0 or more.")
        self.require(
            not (self.memory and self.carry_memory),
            "memory and carry_memory exclude each other; set one of them to 0 or false.",
        )


UNKNOWN = 2**20  # tokens that are looked at for unknown ones
STREAMS = 8  # in which a text is evaluated: few, as each of them begins with nothing to remember


class GenerateTask(generate.TextGenerator, StreamTask[str, generate.GeneratedText]):
    """Language model training; predictions as in `tasks.generate`."""

    name = "generate"
    about = "continue a text or chat (language modeling)"
    columns = (Column("text", StreamTask.columns_of_text),)
    options_class = LanguageOptions
    settings: LanguageOptions
    writes = True
    framed = "none"
    kind = "bpe"
    usual_length = 1024
    ahead = 1
    metric = "loss"
    larger_is_better = False
    steady = True
    wanted = "a decoder-only model"
    carried: SegmentMemory | None = None
    __call__ = StreamTask.__call__  # type: ignore[assignment]  # it checks the arguments, and then calls `respond`

    def __init__(self, model: Model, tokenizer: Tokenizer, options: Any = None, **more: Any) -> None:
        own = {name: more.pop(name) for name in ("labels", "max_length") if name in more}
        generate.TextGenerator.__init__(self, model, tokenizer, **more)
        StreamTask.__init__(self, model, tokenizer, options, **own)

    @classmethod
    def fits(cls, config: Settings) -> bool:
        """One stack of words that decodes: it has a vocabulary, no second side, and can have a language head."""
        names = set(config.field_names())
        uses = getattr(config, "uses", () if "head" in names else ("language",))
        words = "vocab_size" in names and getattr(config, "reads_text", True)
        return words and "language" in uses and not {"decoder_start", "discriminator", "image_size"} & names

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        return config.replace(head="language") if "head" in config.field_names() else config

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, path: Source, options: Mapping[str, Any]) -> Any:
        said = dict(model.origin.settings.get("task", {}))
        kept = cls.saved_options(said)
        ours = {name: value for name, value in options.items() if name in cls.options_class.field_names()}
        more = {name: value for name, value in options.items() if name not in ours}
        chosen = cls.options_class.from_json({**kept, **ours})
        task = cls(model, tokenizer, chosen, max_length=said.get("max_length"), **more)
        task.runs_on = said.get("runs_on", True)
        return task

    def respond(self, thing: Any, **options: Any) -> Any:
        return generate.TextGenerator.__call__(self, thing, **options)

    @property
    def context(self) -> int:
        return int(self.settings.memory)

    def plan(self, examples: Examples, settings: BatchConfig, seed: int = 0) -> BatchPlan:
        if not self.settings.carry_memory:
            return super().plan(examples, settings, seed)
        memory_layers(self.model)
        return MemoryStreams(len(self.flat(examples)) - self.ahead, self.window, settings, seed)

    def carry(self, rows: int) -> dict[str, Tensor]:
        self.carried = SegmentMemory(self.model, rows)
        return self.carried.tensors

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        rows = torch.from_numpy(np.stack([example["input_ids"] for example in examples]))
        seen, text = rows[:, : self.context], rows[:, self.context :]
        shown = 0 if self.context else getattr(self.model.config, "visible_prefix", 0)
        labels = hide_seen(text[:, 1:], shown)
        batch = {"input_ids": text[:, :-1].contiguous(), "labels": labels.contiguous()}
        return {**batch, "context_ids": seen.contiguous()} if self.context else batch

    def loss(self, batch: Batch) -> Loss:
        return Loss(*token_loss(self.scores(batch), batch["labels"]))

    def scores(self, batch: Batch) -> Tensor:
        given: dict[str, Any] = {"input_ids": batch["input_ids"]}
        if self.context:
            with torch.no_grad():
                given["past_key_values"] = self.model(input_ids=batch["context_ids"], use_cache=True).past_key_values
        elif self.carried is not None:
            given["past_key_values"] = self.carried.open(batch[CONTINUES])
        out = self.model(**given)
        if self.carried is not None:
            self.carried.close(out.past_key_values)
        logits: Tensor = out.logits
        return logits

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """Loss a token, over windows one after another; perplexity; bits a character of the text."""
        examples = self.prepared(rows)
        total = Total()
        with answering(self.model), self._apart(examples) as settings:
            for number, (_, batch) in enumerate(self.batches_of(examples, settings, progress)):
                if settings is not None:
                    batch[CONTINUES] = torch.full((settings.rows,), number > 0, device=self.model.device)
                total.add(self.loss(batch))
        share = total.count / max(len(self.flat(examples)), 1)  # what the windows leave over is not counted
        return {
            "loss": total.mean,
            "perplexity": perplexity(total.total, int(total.count)),
            "bits_per_character": bits_per_character(total.total, round(share * self.characters(rows))),
            **self._unknown(examples),
        }

    def _unknown(self, examples: Examples) -> Metrics:
        """The share of tokens that stand for what the vocabulary does not have, where it is one in a hundred or more:
        they are easily said, so that figures look better than they are."""
        flat, unknown = self.flat(examples), self.tokenizer.unknown_id
        share = 0.0 if unknown is None else float(np.mean(np.asarray(flat[:UNKNOWN]) == unknown))
        return {"unknown": round(share, 4)} if share >= 0.01 else {}

    @contextmanager
    def _apart(self, examples: Examples) -> Iterator[BatchConfig | None]:
        """Another text is read, with a memory of its own, in a few streams; None: in windows, each by itself."""
        if not self.settings.carry_memory:
            yield None
            return
        settings = BatchConfig(rows=STREAMS, shuffle=False)
        kept, rows = self.carried, MemoryStreams(len(self.flat(examples)) - self.ahead, self.window, settings, 0).rows
        self.carried = SegmentMemory(self.model, rows)
        try:
            yield settings.replace(rows=rows)
        finally:
            self.carried = kept

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        # Few tokens a step want a longer memory of the gradient's square than large batches do.
        more = {"schedule": "cosine", "warmup_steps": 100, "weight_decay": 0.1, "betas": (0.9, 0.99)}
        return {"batch_size": 12, "lr": 1e-3 if fresh else 1e-4, "min_lr": 1e-4 if fresh else 1e-5, **more}
