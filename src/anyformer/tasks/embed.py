"""Sentences as vectors: the folders of sentence-transformers (modules.json and the pooling's config), or any encoder.

embed = af.task("embed", "folder")
embed("A man rides a bicycle.")             # [d]
embed(["A man rides a bicycle.", "…"])      # [n, d]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from anyformer.core.linear import pack_weights
from anyformer.errors import FolderError, InputError
from anyformer.heads.embed import POOLS, SentenceHead
from anyformer.inputs.text import TextInput
from anyformer.model import Model, Stage
from anyformer.text.tokenizer import Tokenizer
from anyformer.weights.files import read_json
from anyformer.weights.folder import load as load_model

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
class Plan:
    """What a sentence-transformers folder says: where the encoder lies, how its tokens become one vector."""

    encoder: Path
    pools: tuple[str, ...] = ("mean",)
    normalise: bool = False
    max_length: int | None = None
    lower: bool = False


def read_plan(folder: Path) -> Plan:
    """From modules.json; a folder without one is an encoder whose mean is taken, as sentence-transformers does."""
    if not (folder / "modules.json").exists():
        return Plan(folder)
    found: dict[str, Path] = {}
    for kind, place in read_modules(folder / "modules.json"):
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise FolderError(f'{folder / "modules.json"} has a "{kind}" module, which anyformer does not know.')
        found[kind] = folder / place
    encoder = found.get("Transformer", folder)
    limits = encoder / "sentence_bert_config.json"
    said = read_json(limits) if limits.exists() else {}
    pools = read_pools(found["Pooling"] / "config.json") if "Pooling" in found else ("mean",)
    return Plan(encoder, pools, "Normalize" in found, said.get("max_seq_length"), bool(said.get("do_lower_case")))


def read_modules(path: Path) -> list[tuple[str, str]]:
    """Kind and folder of each module, in order."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        modules = sorted(listed, key=lambda module: int(module["idx"]))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in modules]
    except (ValueError, TypeError, KeyError):
        raise FolderError(f"{path} is not a list of modules, each with idx, type and path.") from None


def read_pools(path: Path) -> tuple[str, ...]:
    config = read_json(path)
    said = config.get("pooling_mode")
    pools = [said] if isinstance(said, str) else said
    if pools is None:
        pools = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    for mode in pools:
        if mode not in POOLS:
            raise FolderError(f'{path} asks for "{mode}" pooling; anyformer has {", ".join(POOLS)}.')
    return tuple(pools)


class Embed:
    """Called with one text or several; texts of like length go through the model together."""

    def __init__(self, model: Model, tokenizer: Tokenizer, plan: Plan, tokens: int = TOKENS) -> None:
        if len(model.stages) != 1:
            raise FolderError(f"{plan.encoder} holds a {model.family} model, which is not one encoder.")
        (name,) = model.stages
        # Tokens are pooled where they are, packed or not; the model's own head has nothing to say here.
        model.heads = nn.ModuleDict({"sentence": SentenceHead(name, plan.pools, plan.normalise)})
        self.model, self.plan, self.tokens = model, plan, tokens
        pack_weights(model, tokens)
        self.engine = tokenizer.engine
        self.engine.no_padding()
        self.engine.enable_truncation(_limit(model, plan))

    def __call__(self, texts: str | Sequence[str], tokens: int | None = None) -> Tensor:
        """[d] for a text, [n, d] for n of them; `tokens` is how many make a batch."""
        if isinstance(texts, str):
            return self([texts], tokens)[0]
        if not all(isinstance(text, str) for text in texts):
            raise InputError("embed takes a text or a list of texts.")
        if not texts:
            return torch.empty(0)
        lowered = [text.lower() for text in texts] if self.plan.lower else list(texts)
        rows = [code.ids for code in self.engine.encode_batch_fast(lowered)]
        order, parts = [], []
        with torch.no_grad():
            for batch in batches([len(row) for row in rows], tokens or self.tokens):
                order += batch
                parts.append(self._vectors([rows[i] for i in batch]))
        return torch.cat(parts)[torch.tensor(order).argsort().to(parts[0].device)]

    def _vectors(self, rows: list[list[int]]) -> Tensor:
        longest = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        batch: dict[str, Any] = {"input_ids": ids.to(self.model.device)}
        lengths = torch.tensor([len(row) for row in rows])
        if int(lengths.min()) < longest:
            batch["attention_mask"] = (torch.arange(longest) < lengths[:, None]).to(self.model.device)
        vectors: Tensor = self.model(**batch).sentence_embedding
        return vectors


def _limit(model: Model, plan: Plan) -> int:
    """The shorter of what the folder says and what the position table can hold."""
    inputs = cast("Stage", next(iter(model.stages.values()))).inputs
    first = inputs.config.first_position if isinstance(inputs, TextInput) else 0
    table = int(model.config.to_json().get("max_length", 512)) - first
    return min(table, plan.max_length if plan.max_length is not None else table)


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


def load(
    path: str | PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    weights: str | None = None,
    tokens: int = TOKENS,
) -> Embed:
    plan = read_plan(Path(path))
    model = load_model(plan.encoder, device=device, dtype=dtype, weights=weights)
    return Embed(model, Tokenizer.load(plan.encoder), plan, tokens)
