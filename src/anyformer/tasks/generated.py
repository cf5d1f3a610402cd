"""Generated texts split into fields for the answers of a task: ids up to the end and, on request, the log-probability
and the cross-attention of each id."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.forward_context import Output
from anyformer.model import Model

TABLES = ("output_scores", "output_logits")  # [rows, vocabulary] a step, which an answer does not hold


@dataclass(frozen=True)
class Generated:
    """`logprobs` has one number for each id, `alignment` is [ids, source]; tokens given in decoder_input_ids have
    neither."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    alignment: Tensor | None = None

    def cut(self, length: int) -> Generated:
        """Its first ids alone."""
        logprobs = None if self.logprobs is None else self.logprobs[:length]
        return Generated(self.ids[:length], logprobs, None if self.alignment is None else self.alignment[:length])


def generated(
    model: Model, batch: Mapping[str, Tensor], options: Mapping[str, Any], ends: Set[int | None], start: int = 1
) -> list[list[Generated]]:
    """For each row of the batch its `num_return_sequences` texts. The first `start` tokens of a sequence belong to the
    prompt; a text ends before the first of `ends`."""
    many = count(options)
    table = next((name for name in TABLES if options.get(name)), None)
    if table is not None:
        raise InputError(f"A task's answer has no {table}; use logprobs=True, or call model.generate.")
    out = model.generate(**{**batch, **options, "num_return_sequences": many})  # whatever the folder's file says
    out = out if isinstance(out, Output) else Output(sequences=out)
    rows = [_row(out, row, start, ends) for row in range(len(out.sequences))]
    if "attention_mask" in batch:  # a source alone, without its padding
        sizes = batch["attention_mask"].sum(dim=1).repeat_interleave(many).tolist()
        rows = [_narrow(one, size) for one, size in zip(rows, sizes, strict=True)]
    return [rows[i : i + many] for i in range(0, len(rows), many)]


def count(options: Mapping[str, Any]) -> int:
    """How many texts the caller wants of each input."""
    many = options.get("num_return_sequences")
    if many is not None and (type(many) is not int or many < 1):
        raise InputError(f"num_return_sequences is {many!r}; it must be an integer, 1 or more.")
    return many or 1


def _row(out: Any, row: int, start: int, ends: Set[int | None]) -> Generated:
    whole = out.sequences[row, start:].tolist()
    ids = whole[: next((i for i, token in enumerate(whole) if token in ends), len(whole))]
    steps = next((out[name].shape[1] for name in ("logprobs", "alignment") if name in out), len(whole))
    new = max(len(ids) - (len(whole) - steps), 0)  # ids that the caller did not give
    logprobs = None if "logprobs" not in out else tuple(out.logprobs[row, :new].tolist())
    return Generated(tuple(ids), logprobs, None if "alignment" not in out else out.alignment[row, :new].cpu())


def _narrow(one: Generated, size: int) -> Generated:
    return one if one.alignment is None else Generated(one.ids, one.logprobs, one.alignment[:, :size])
