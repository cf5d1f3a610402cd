"""ELECTRA's pre-training (Clark et al. 2020): a small model fills masks, a larger one detects the replaced tokens.

spot = af.task("electra", "folder")
print(spot("The chef ate the delicious meal."))     # which words does it doubt?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.rows import Rows
from anyformer.errors import ConfigError, FolderError
from anyformer.model import Model
from anyformer.recipes.electra_joint import copy_generator
from anyformer.tasks import build
from anyformer.tasks.answers import Answer
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Loss, Metrics, Progress, Source, TaskSetup, Total, answering
from anyformer.tasks.fill_mask import FillMask, MaskOptions
from anyformer.tasks.objectives import replaced_tokens, special_tokens
from anyformer.tasks.text import text_of


@dataclass(frozen=True)
class ReplacedTokens(Answer):
    """The tokens of a text with the probability that each was replaced; those above one half are printed in
    brackets."""

    pieces: tuple[str, ...]
    scores: tuple[float, ...] = field(repr=False)

    def __str__(self) -> str:
        pairs = zip(self.pieces, self.scores, strict=True)
        return " ".join(f"[{piece}]" if score > 0.5 else piece for piece, score in pairs)


@dataclass(frozen=True, kw_only=True)
class ElectraOptions(MaskOptions):
    # Of a folder whose model is taken further: the discriminator begins as the generator is, which has to be of its
    # size (§3.3). So one can train a generator first (model.weight=0), then both.
    from_generator: bool = False


class Electra(FillMask[ReplacedTokens]):
    name = "electra"
    about = "detect replaced tokens (ELECTRA pre-training)"
    options_class = ElectraOptions
    settings: ElectraOptions
    wanted = "a generator and a discriminator in one"

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return {"discriminator", "generator"} <= set(config.field_names())

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: ElectraOptions) -> Settings:
        return config

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        if getattr(setup.task, "from_generator", False) and not build.is_folder(source):
            raise ConfigError("task.from_generator needs a trained model; give --recipe a folder.")
        return super().begin(source, rows, valid, setup)

    @classmethod
    def take_further(
        cls, model: Model, labels: tuple[str, ...], options: ElectraOptions
    ) -> tuple[Model, tuple[str, ...]]:
        model, labels = super().take_further(model, labels, options)
        if options.from_generator:
            copy_generator(model)
        return model, labels

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        if not cls.fits(model.config) and model.config.to_json().get("head") != "replaced_tokens":
            raise FolderError(f"{path} holds a {model.family} model, which has no head for replaced tokens.")

    @property
    def joint(self) -> bool:
        return self.fits(self.model.config)

    def spoil(self, ids: Tensor, generator: Generator) -> Batch:
        return replaced_tokens(ids, special_tokens(ids, self.framing), self.masking, generator)

    def loss(self, batch: Batch) -> Loss:
        """The paper's sum, in a form that adds up over batches: each token bears its share of both losses, where the
        number of gaps stands for its expectation."""
        out = self.model(**batch)
        tokens = batch["input_ids"].numel()
        gaps = (batch["labels"] >= 0).sum()
        weight = self.model.config.weight  # type: ignore[attr-defined]
        words = out["generator_loss"] * gaps / self.settings.mask_prob
        found = out["discriminator_loss"] * tokens
        parts = {"words": words.detach(), "replaced": found.detach()}
        return Loss(words + weight * found, torch.full((), tokens, device=words.device), parts)

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        total, right, gaps_found, gaps = Total(), 0, 0, 0
        chance = torch.get_rng_state()
        torch.manual_seed(0)  # the words that the generator draws
        try:
            with answering(self.model):
                for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                    out = self.model(**batch)
                    total.add(self.loss(batch))
                    said = out.logits > 0
                    right += int((said == out["replaced"]).sum())
                    gaps_found += int((said & out["replaced"]).sum())
                    gaps += int(out["replaced"].sum())
        finally:
            torch.set_rng_state(chance)
        return {
            "loss": total.mean,
            "generator_loss": total.parts["words"] / total.count,
            "discriminator_loss": total.parts["replaced"] / total.count,
            "accuracy": right / total.count,
            "replaced_found": gaps_found / max(gaps, 1),
        }

    def answers(self, things: list[str], **options: Any) -> list[Any]:
        return [self._doubts(text_of(one, "text")) for one in things]

    def _doubts(self, text: str) -> ReplacedTokens:
        ids = self.tokenizer.encode(text, max_length=self.max_length)
        with answering(self.model):
            logits = self.model(input_ids=torch.tensor([ids], device=self.model.device)).logits[0]
        framing = self.framing
        inner = [i for i, token in enumerate(ids) if token not in framing]
        return ReplacedTokens(
            tuple(self.tokenizer.tokens([ids[i] for i in inner])), tuple(logits[inner].float().sigmoid().tolist())
        )
