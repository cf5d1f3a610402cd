"""Sentence embeddings: folders of sentence-transformers (modules.json and pooling config), or any encoder.

    embed = af.task("embed", "folder")
    embed("A man rides a bicycle.")             # [d]
    embed(["A man rides a bicycle.", "…"])      # [n, d]

Training needs pairs: each text is to be closest to its partner within the batch (in-batch negatives), or, if pairs have
a score, their cosine similarity is to match it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anyformer.checkpoints.folder import load as load_model
from anyformer.config import Settings
from anyformer.core import rewrites
from anyformer.data.examples import Example, Examples
from anyformer.data.rows import Rows, map_rows
from anyformer.data.tables.formats import Row
from anyformer.errors import FolderError, InputError
from anyformer.heads.embed import SENTENCE_POOLS, SentenceEmbeddingHead
from anyformer.jsonfile import check_inside, read_json, read_object
from anyformer.metrics.classification import pearson, spearman
from anyformer.metrics.retrieval import ranks, warn_of_nan
from anyformer.model import Model
from anyformer.schema import Range, check_fields
from anyformer.tasks import build
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    POOLING,
    Batch,
    Column,
    Loss,
    Metrics,
    Options,
    Progress,
    Source,
    TaskSetup,
    answering,
    fit,
)
from anyformer.tasks.negatives import everyone
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import TextTask, list_of_texts, texts_of
from anyformer.tokenizers.padding import pad
from anyformer.tokenizers.tokenizer import Tokenizer
from anyformer.upgrades import upgrade

TOKENS = 1024  # a batch: long enough for full speed, short enough for the caches of a CPU

# The pooling config's older spelling, in the order in which several are put side by side.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class SentenceTransformerConfig:
    """The configuration of a sentence-transformers folder: the encoder's folder and the pooling."""

    encoder: Path
    poolings: tuple[str, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    lower: bool = False


def read_sentence_transformer_config(folder: Path) -> SentenceTransformerConfig:
    """From modules.json; a folder without one is an encoder whose mean is taken, as sentence-transformers does."""
    if not (folder / "modules.json").exists():
        return SentenceTransformerConfig(folder)
    found: dict[str, Path] = {}
    for kind, place in read_modules(folder / "modules.json"):
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise FolderError(f'{folder / "modules.json"} has a "{kind}" module, which is not supported.')
        found[kind] = folder / place
        check_inside(found[kind], folder)
    encoder = found.get("Transformer", folder)
    limits = encoder / "sentence_bert_config.json"
    said = read_object(limits, folder=folder) if limits.exists() else {}
    check_fields(said, {"max_seq_length": Annotated[int, Range(1)] | None}, str(limits), error=FolderError)
    pools = read_pools(found["Pooling"] / "config.json") if "Pooling" in found else ("mean",)
    return SentenceTransformerConfig(
        encoder, pools, "Normalize" in found, said.get("max_seq_length"), bool(said.get("do_lower_case"))
    )


def write_plan(plan: SentenceTransformerConfig, width: int, max_length: int) -> dict[str, bytes]:
    """The files of a sentence-transformers folder that say so."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling", **({"Normalize": "2_Normalize"} if plan.normalize else {})}
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, place) in enumerate(kinds.items())
    ]
    flags = {flag: mode in plan.poolings for flag, mode in _FLAGS.items()}
    said = {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": width, **flags},
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": plan.lower},
    }
    return {name: (json.dumps(value, indent=2) + "\n").encode() for name, value in said.items()}


def read_modules(path: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module, in order."""
    try:
        listed = read_json(path)
        modules = sorted(listed, key=lambda module: int(module["idx"]))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, TypeError, KeyError, OverflowError):
        raise FolderError(f"{path} must be a list of modules with idx, type and path.") from None


def read_pools(path: Path) -> tuple[str, ...]:
    config = read_object(path)
    said = config.get("pooling_mode")
    pools = [said] if isinstance(said, str) else said
    if pools is None:
        pools = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    for mode in pools if isinstance(pools, list) else [pools]:
        if not isinstance(mode, str) or mode not in SENTENCE_POOLS:
            raise FolderError(f'{path} has "{mode}" pooling; supported are {", ".join(SENTENCE_POOLS)}.')
    return tuple(pools)


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    pooling: Literal["auto", "mean", "cls", "max"] = "auto"  # "auto": as a sentence encoder was trained, else the mean
    normalize: bool = True
    scale: float = 20.0  # of cosines, before they compete
    max_score: float | None = None  # the score that means "the same"; None: the largest that the rows have


FIRST = Column("first", ("sentence1", "anchor", "query", "question", "text1", "premise", "#1 string"))
ALONE = Column("text", ("sentence", "content", "body", "document", "title", FIRST.name, *FIRST.also))


class Embed(TextTask[str, Tensor]):
    """Texts of similar length are embedded in one batch."""

    name = "embed"
    about = "compute sentence embeddings"
    columns = (
        FIRST,
        Column("second", ("sentence2", "positive", "answer", "context", "text2", "hypothesis", "#2 string")),
        Column("negative", ("hard_negative",), optional=True),
        Column("score", ("similarity", "similarity_score"), optional=True),
    )
    options_class = EmbedOptions
    settings: EmbedOptions
    takes = ("tokens",)
    wanted = "one encoder"
    text_columns = ("first", "second", "negative")
    sequences = ("input_ids", "second_ids")
    sides = ("first", "second")

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        options: EmbedOptions | None = None,
        *,
        plan: SentenceTransformerConfig | None = None,
        tokens: int = TOKENS,
        **more: Any,
    ) -> None:
        super().__init__(model, tokenizer, options, **more)
        if len(model.stages) != 1:
            raise FolderError(f"embed needs an encoder; this is a {model.family} model.")
        pool = "mean" if self.settings.pooling == "auto" else self.settings.pooling
        self.recipe = plan or SentenceTransformerConfig(Path(), (pool,), self.settings.normalize)
        self.tokens, self.cuts = tokens, True
        (self.stage,) = model.stages
        # Tokens are pooled where they are, packed or not.
        head = SentenceEmbeddingHead(self.stage, self.recipe.poolings, self.recipe.normalize)
        model.set_heads({**model.heads, "sentence": head})
        self.metric = "spearman" if self.settings.max_score is not None else "recall_at_1"
        self.contrastive = self.settings.max_score is None

    @classmethod
    def load(
        cls,
        path: Source,
        *,
        device: str | torch.device = "cpu",
        dtype: torch.dtype | str | None = None,
        weights: str | None = None,
        tokens: int = TOKENS,
        **options: Any,
    ) -> Embed:
        """Ready to answer: the model's own head has nothing to say here, and on a CPU weights are packed."""
        plan = read_sentence_transformer_config(Path(path))
        model = load_model(plan.encoder, device=device, dtype=dtype, weights=weights)
        tokenizer = Tokenizer.load(plan.encoder)
        build.check_words(tokenizer, model.config)
        said, chosen = cls.chosen(model, options)
        if chosen.pooling != "auto":
            plan = SentenceTransformerConfig(plan.encoder, (chosen.pooling,), chosen.normalize)
        limit = plan.max_length or said.get("max_length") or build.max_positions(model) or 512
        task = cls(model, tokenizer, chosen, plan=plan, tokens=tokens, max_length=limit)
        model.set_heads({"sentence": model.heads["sentence"]})
        if model.auto_optimize:
            rewrites.apply("optimize_products", model, tokens)
        task.tokenizer.engine.enable_truncation(task.max_length)  # faster than cutting texts here
        task.cuts = False
        return task

    def save(self, folder: Source) -> None:
        """Also for sentence-transformers, if the folder is written for Hugging Face."""
        self.model.origin.files.update(write_plan(self.recipe, self.model.config.to_json()["d_model"], self.max_length))
        super().save(folder)

    # Rows to loss.

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        if "score" in rows.columns and options.max_score is None:
            options = options.replace(max_score=max(map_rows(rows, _score)))
        if options.pooling == "auto":
            options = options.replace(pooling=_trained_pool(source))
        return super().begin(source, rows, valid, replace(setup, task=options))

    @classmethod
    def questions(cls, rows: Rows, chosen: Mapping[str, str]) -> Rows:
        """One text a row, where rows to train on have pairs."""
        text = chosen.get("text", chosen.get("first"))
        return fit(rows, (ALONE,), {} if text is None else {"text": text}, cls.name)

    @classmethod
    def fits(cls, config: Settings) -> bool:
        """One tower: no settings of a second one."""
        towers = [name for name in config.field_names() if isinstance(getattr(config, name), Settings)]
        return build.has_head("base")(config) and not towers

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: EmbedOptions) -> Settings:
        """Without a head; of an encoder-decoder the encoder alone."""
        return config.replace(head="encoder" if build.has_head("encoder")(config) else "base")

    def inferred(self) -> dict[str, str]:
        highest = self.settings.max_score
        scores = {} if highest is None else {"score": f"{highest:g} means the same (task.max_score)"}
        return {**super().inferred(), **scores, "pooling": ", ".join(POOLING[one] for one in self.recipe.poolings)}

    def examples(self, rows: list[Row]) -> Sequence[Example]:
        names = {"input_ids": "first", "second_ids": "second", "negative_ids": "negative"}
        sides = {
            ours: self.tokenizer.encode(texts_of(rows, theirs), max_length=self.max_length)
            for ours, theirs in names.items()
            if theirs in rows[0]
        }
        made: list[dict[str, Any]] = [dict(zip(sides, ids, strict=True)) for ids in zip(*sides.values(), strict=True)]
        if "score" in rows[0]:
            for example, row in zip(made, rows, strict=True):
                example["score"] = _score(row) / float(self.settings.max_score or 1.0)
        return made

    def min_rows(self, examples: Examples) -> int:
        return 1 if "negative_ids" in examples.fields else super().min_rows(examples)

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch: Batch = {}
        for name, mask in (("input_ids", "attention_mask"), ("second_ids", "second_mask"), ("negative_ids", "no_mask")):
            if name in examples[0]:
                padded = pad([example[name] for example in examples], self.tokenizer.pad_id or 0)
                batch |= {name: padded["input_ids"], mask: padded["attention_mask"]}
        if "score" in examples[0]:
            batch["score"] = torch.tensor([float(example["score"]) for example in examples])
        return batch

    def vectors(self, ids: Tensor, mask: Tensor) -> Tensor:
        found: Tensor = self.model(input_ids=ids, attention_mask=mask).sentence_embedding
        return F.normalize(found.to(torch.promote_types(found.dtype, torch.float32)), dim=-1)

    def loss(self, batch: Batch) -> Loss:
        """Each first text must find its second among all of the batch, over all processes, its negative among them
        (Henderson et al. 2017); with scores, the squared distance of their cosine to the score."""
        first = self.vectors(batch["input_ids"], batch["attention_mask"])
        second = self.vectors(batch["second_ids"], batch["second_mask"])
        count = torch.full((), len(first), device=first.device)
        if "score" in batch:
            return Loss(((first * second).sum(dim=1) - batch["score"]).square().sum(), count)
        every = everyone(second, batch, self.model.training)
        others = [every.rows]
        if "negative_ids" in batch:
            negative = self.vectors(batch["negative_ids"], batch["no_mask"])
            others.append(everyone(negative, batch, self.model.training).rows)
        scores = first @ torch.cat(others).T * self.settings.scale
        return Loss(F.cross_entropy(scores, every.own(len(first)), reduction="sum"), count)

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """With scores, how the cosines correlate with them; else how often the nearest second text is the right one.
        Ties count against a model, so that one that gives every text the same vector finds nothing."""
        first, second = (self._sides(texts_of(rows, name)) for name in ("first", "second"))
        if "score" in rows.columns:
            cosines = (first * second).sum(dim=1).tolist()
            wanted = [_score(row) for row in rows]
            return {"pearson": pearson(cosines, wanted), "spearman": spearman(cosines, wanted)}
        warn_of_nan(first, second)
        texts = {text: i for i, text in enumerate(dict.fromkeys(row["second"] for row in rows))}
        same = torch.tensor([texts[row["second"]] for row in rows])  # an equal text is as right
        places = []
        for some in torch.arange(len(first)).split(1024):
            scores = first[some] @ second.T
            places.append(ranks(scores, scores.gather(1, some[:, None])[:, 0], same[some, None] != same))
        place = torch.cat(places)
        return {"recall_at_1": float((place == 1).float().mean()), "mrr": float((1 / place).mean())}

    def _sides(self, texts: list[str]) -> Tensor:
        return F.normalize(self(texts).float().cpu(), dim=-1)

    def __call__(self, *things: str | Iterable[str], **options: object) -> Tensor:  # type: ignore[override]
        """[d] for a text, [n, d] for n of them; `tokens` is how many make a batch."""
        found: Tensor = super().__call__(*things, **options)  # type: ignore[arg-type]
        return found

    def respond(self, thing: Any, *, tokens: int | None = None, **options: Any) -> Tensor:
        """One vector, or a vector for each text."""
        if isinstance(thing, str):
            return self.respond([thing], tokens=tokens)[0]
        texts = list_of_texts(thing, self.name)
        if not texts:
            return torch.empty(0)
        lowered = [text.lower() for text in texts] if self.recipe.lower else texts
        rows = self.tokenizer.encode(lowered, max_length=self.max_length if self.cuts else None)
        order, parts = [], []
        with answering(self.model):
            for batch in batches([len(row) for row in rows], tokens or self.tokens):
                order += batch
                parts.append(self._vectors([rows[i] for i in batch]))
        return torch.cat(parts)[torch.tensor(order).argsort().to(parts[0].device)]

    def _vectors(self, rows: list[list[int]]) -> Tensor:
        batch = pad(rows, 0)
        if len({len(row) for row in rows}) == 1:
            del batch["attention_mask"]
        batch = {name: value.to(self.model.device) for name, value in batch.items()}
        vectors: Tensor = self.model(**batch).sentence_embedding
        return vectors

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        return schedule_for(rows, 3, size=64, lr=5e-4 if fresh else 5e-5, schedule="linear", warm=10)


def _trained_pool(source: Source) -> str:
    """The pooling that a folder was trained with, here or by sentence-transformers; else the mean."""
    config = Path(source) / "config.json"
    said = read_json(config).get("task") if config.is_file() else None
    saved = upgrade(EmbedOptions, said) if isinstance(said, dict) and said.get("name") == Embed.name else {}
    pools = (saved["pooling"],) if "pooling" in saved else read_sentence_transformer_config(Path(source)).poolings
    if len(pools) > 1:
        raise FolderError(f"{source} has {' and '.join(pools)} pooling; choose one with task.pooling.")
    return str(pools[0])


def _score(row: Mapping[str, Any]) -> float:
    try:
        score = float(row["score"])
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f'the score "{row["score"]}" is not a number.')
    return score


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Row numbers, longest first, each batch of at most `tokens` tokens (or of one row)."""
    batch: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
