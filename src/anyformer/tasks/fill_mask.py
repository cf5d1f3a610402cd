"""Masked language modeling, with and without next-sentence prediction.

fill = af.task("fill-mask", "folder")
print(fill("The capital of France is [MASK]."))     # The capital of France is paris.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig, LengthGroupedSampler
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import FolderError, InputError
from anyformer.forward_context import IGNORED
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.language import perplexity
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer
from anyformer.tasks.base import (
    Batch,
    BatchPlan,
    Column,
    Loss,
    Metrics,
    Options,
    Progress,
    Reply,
    Source,
    Total,
    answering,
)
from anyformer.tasks.next_sentence import DocumentChunks, cut_documents, join_pairs
from anyformer.tasks.objectives import Masking, mask_tokens, special_tokens
from anyformer.tasks.stream import BREAK, StreamTask
from anyformer.tasks.text import TEXT_PAD_VALUES, softmax_scores, text_of, texts_of


@dataclass(frozen=True)
class FilledText(Answer):
    """The text with the most probable word in each gap. `choices` has the best words of each, with probabilities."""

    text: str
    choices: tuple[tuple[tuple[str, float], ...], ...]

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class MaskOptions(Options):
    mask_prob: float = 0.15  # the share of tokens that the model must say
    next_sentence: bool = False  # whether it must also say if the second half of a text follows the first (BERT)

    def check(self) -> None:
        self.require(0 < self.mask_prob < 1, f"mask_prob is {self.mask_prob}; it must be between 0 and 1.")


class FillMask(StreamTask[str, Reply]):
    name = "fill-mask"
    about = "predict masked tokens (masked language modeling, optionally with next-sentence prediction)"
    columns = (Column("text", StreamTask.columns_of_text),)
    options_class = MaskOptions
    settings: MaskOptions
    takes = ("top",)
    metric = "loss"
    larger_is_better = False
    steady = True
    wanted = "an encoder that supports a masked language modeling head"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        tok = self.tokenizer
        if tok.mask_id is None:
            raise InputError("The tokenizer has no mask token, such as [MASK].")
        self.masking = Masking(mask_id=tok.mask_id, vocab_size=len(tok), rate=self.settings.mask_prob)
        if self.settings.next_sentence:  # pairs are of uneven lengths
            self.steady, self.fills = False, MappingProxyType({**TEXT_PAD_VALUES, "labels": IGNORED})
        self._cut: tuple[Examples, DocumentChunks] | None = None

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return build.has_head("masked")(config)

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        if options.next_sentence and not build.has_head("pretraining")(config):
            raise InputError("task.next_sentence needs a model with a next-sentence head, such as bert-base.")
        return config.replace(head="pretraining" if options.next_sentence else "masked")

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        head = model.config.to_json().get("head")
        if head not in ("masked", "pretraining"):
            has = "without a head" if head is None else f'with the head "{head}"'
            raise FolderError(f"{path} holds a {model.family} model {has}, which predicts no tokens.")

    # Rows to loss. Without next sentences a window is a piece of the stream between [CLS] and [SEP].

    @property
    def window(self) -> int:
        return self.max_length - len(self.frame[0]) - len(self.frame[1])

    @property
    def frame(self) -> tuple[list[int], list[int]]:
        tok = self.tokenizer
        ends = tok.separator_id if tok.separator_id is not None else tok.end_id
        return ([tok.start_id] if tok.start_id is not None else []), ([ends] if ends is not None else [])

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        """Lines without ends: a blank one, or the mark between documents, has no tokens."""
        texts = ["" if text == BREAK else text for text in texts_of(rows, "text")]
        return [{"input_ids": ids} for ids in self.tokenizer.encode(texts, special=False)]

    def plan(self, examples: Examples, settings: BatchConfig, seed: int = 0) -> BatchPlan:
        if not self.settings.next_sentence:
            return super().plan(examples, settings, seed)
        return LengthGroupedSampler(self.pieces(examples).sizes, settings, seed)

    def gather(self, examples: Examples, numbers: Any) -> list[Example]:
        if not self.settings.next_sentence:
            return super().gather(examples, numbers)
        return [self.pieces(examples).example(examples, int(i)) for i in numbers]

    def pieces(self, examples: Examples) -> DocumentChunks:
        """The texts that next-sentence pairs are made of, cut once for the examples at hand."""
        if self._cut is None or self._cut[0] is not examples:
            self._cut = (examples, cut_documents(examples.sizes("input_ids"), self.max_length - 3))
        return self._cut[1]

    def row_of(self, examples: Examples, number: int) -> int:
        if not self.settings.next_sentence:
            return super().row_of(examples, number)
        return int(self.pieces(examples).first[number])

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        if self.settings.next_sentence:
            return self._collate_pairs(examples, generator)
        before, after = (torch.tensor(side, dtype=torch.int64).expand(len(examples), -1) for side in self.frame)
        middle = torch.from_numpy(np.stack([example["input_ids"] for example in examples]))
        return self.spoil(torch.cat([before, middle, after], dim=1), generator)

    def spoil(self, ids: Tensor, generator: Generator) -> Batch:
        return mask_tokens(ids, special_tokens(ids, self.framing), self.masking, generator)

    def _collate_pairs(self, examples: Sequence[Example], generator: Generator) -> Batch:
        rows, types, follows = join_pairs(examples, self.frame, self.max_length - 3, generator)
        made = [{"input_ids": ids, "token_type_ids": kinds} for ids, kinds in zip(rows, types, strict=True)]
        batch = self.pad(made if self.takes_types else [{"input_ids": ids} for ids in rows])
        spoiled = self.spoil(batch["input_ids"], generator)
        return {**batch, **spoiled, "next_sentence_label": torch.tensor(follows)}

    def loss(self, batch: Batch) -> Loss:
        """Words: the mean over masked tokens; with next sentences, plus their mean over pairs, as BERT adds them."""
        given = {name: value for name, value in batch.items() if name not in ("labels", "next_sentence_label")}
        out = self.model(**given)
        words, count = token_loss(self.words(out), batch["labels"])
        if "next_sentence_label" not in batch:
            return Loss(words, count)
        pairs = F.cross_entropy(out.seq_relationship_logits.float(), batch["next_sentence_label"])
        return Loss(words + pairs * count, count, {"words": words.detach(), "pairs": (pairs * count).detach()})

    @staticmethod
    def words(out: Any) -> Tensor:
        logits: Tensor = out.logits if "logits" in out else out.prediction_logits
        return logits

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """With the same gaps every time; `loss` is the mean over gaps."""
        total, right = Total(), 0
        pairs, followed = 0, 0
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                given = {k: v for k, v in batch.items() if k not in ("labels", "next_sentence_label")}
                out = self.model(**given)
                logits, labels = self.words(out), batch["labels"]
                total.add(Loss(*token_loss(logits, labels)))
                right += int((logits.argmax(dim=-1) == labels).sum())
                if "next_sentence_label" in batch:
                    pairs += len(labels)
                    said = out.seq_relationship_logits.argmax(dim=-1)
                    followed += int((said == batch["next_sentence_label"]).sum())
        figures: Metrics = {
            "loss": total.mean,
            "perplexity": perplexity(total.total, int(total.count)),
            "accuracy": right / total.count,
        }
        return {**figures, "next_sentence_accuracy": followed / pairs} if pairs else figures

    def answers(self, things: list[str], *, top: int = 5, **options: Any) -> list[Any]:
        """`top` is the number of words for each gap."""
        return [self._fill(text_of(one, "text"), top) for one in things]

    def _fill(self, text: str, top: int) -> FilledText:
        ids = self.tokenizer.encode(text, max_length=self.max_length)
        gaps = [i for i, token in enumerate(ids) if token == self.tokenizer.mask_id]
        if not gaps:
            raise InputError(
                f'"{text[:60]}" has no mask; write {self.tokenizer.names["mask_token"]} where a word is missing.'
            )
        with answering(self.model):
            logits = self.words(self.model(input_ids=torch.tensor([ids], device=self.model.device)))[0]
        best = softmax_scores(logits[gaps]).topk(min(top, logits.shape[-1]))
        choices = tuple(
            tuple((self.tokenizer.tokens([i])[0].strip(), score) for i, score in zip(row, scores, strict=True))
            for row, scores in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        )
        mark = self.tokenizer.names["mask_token"]
        for words in choices:
            text = text.replace(mark, words[0][0], 1)
        return FilledText(text, choices)

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        more = {"schedule": "linear", "warmup_steps": 1000, "weight_decay": 0.01}
        return {"batch_size": 32, "lr": 5e-4 if fresh else 5e-5, **more}
