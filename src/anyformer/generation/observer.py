"""What decoding can tell besides ids: how sure it was of each token, and where in the source it looked.

    out = model.generate(ids, num_beams=4, logprobs=True, alignment=True)
    out.sequences           # [rows, length], as without; out.lengths: of each row, without what fills it up
    out.sequences_scores    # [rows], of beams: what they were ranked by
    out.logprobs            # [rows, new tokens]; out.raw_logprobs: as the model says, before rules and temperature
    out.alignment           # [rows, new tokens, source]: cross-attention of the step that wrote each token

Nothing is worked out twice: each step keeps a few numbers a row, and the end picks those of the rows that are returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.taps import Seen, watching
from anyformer.errors import InputError
from anyformer.forward_context import Output
from anyformer.generation.ranking import exact
from anyformer.generation.strategies import BeamSearch, SingleSequence, Strategy

if TYPE_CHECKING:  # the model imports this package, when it is asked to generate
    from anyformer.model import Model

OUTPUT_FLAGS = ("return_dict_in_generate", "output_scores", "output_logits", "logprobs", "alignment")

FIRST = ("sequences", "sequences_scores", "scores", "logits", "beam_indices")  # in transformers' order

NAMES = {"logprobs": "logprobs", "raw": "raw_logprobs"}  # what is kept, and what it is called outside

LayerHead = tuple[int, int | None]  # a decoder layer, and one of its heads or all of them


@dataclass(frozen=True)
class OutputFlags:
    """What the caller wants to know. `scores` and `logits` are whole tables, [rows, vocabulary] a step."""

    scores: bool = False
    logits: bool = False
    logprobs: bool = False
    alignment: bool | int | tuple[LayerHead, ...] = False


def pop_output_flags(options: dict[str, Any]) -> OutputFlags | None:
    """The options that ask for more than ids, taken out of the others."""
    given = {name: options.pop(name, None) for name in OUTPUT_FLAGS}
    asked = [name for name in OUTPUT_FLAGS if given[name] is not None and given[name] is not False]
    if not asked:
        return None
    if given["return_dict_in_generate"] is False:
        raise InputError(f"{asked[0]} comes in an Output; leave return_dict_in_generate out, or make it True.")
    places = given["alignment"] if "alignment" in asked else False
    places = tuple(tuple(place) for place in places) if isinstance(places, (list, tuple)) else places
    scores = bool(given["output_scores"])
    return OutputFlags(scores, bool(given["output_logits"]), bool(given["logprobs"]) or scores, places)


@contextmanager
def observing(model: Model, flags: OutputFlags | None) -> Iterator[Observer | None]:
    """Watches the cross-attention that is wanted, from the first token on."""
    if flags is None:
        yield None
        return
    places = find_layers_and_heads(model, flags.alignment)
    with watching(model.watch, *places) as seen:
        yield Observer(flags, seen, places)


def find_layers_and_heads(model: Model, wanted: bool | int | tuple[LayerHead, ...]) -> dict[str, list[int | None]]:
    """Points to watch, and the heads to keep at each: True is the last layer, a number another one."""
    if wanted is False:
        return {}
    points = [point for point in model.points if point.endswith(".cross.weights")]
    if not points:
        raise InputError(f"This {model.family} model has no cross-attention, so there is no alignment to show.")
    pairs = wanted if isinstance(wanted, tuple) else ((-1 if wanted is True else wanted, None),)
    places: dict[str, list[int | None]] = {}
    for layer, head in pairs:
        if not -len(points) <= layer < len(points):
            raise InputError(f"alignment asks for layer {layer}; the decoder has layers 0 to {len(points) - 1}.")
        places.setdefault(points[layer], []).append(head)
    return places


class Observer:
    """Keeps what each step shows; `report` puts it together for the rows that came out."""

    def __init__(self, flags: OutputFlags, seen: Seen, places: Mapping[str, list[int | None]]) -> None:
        self.flags, self.seen, self.places = flags, seen, places
        self.kept: dict[str, list[Tensor]] = {}

    def record(self, scores: Tensor, strategy: Strategy, tokens: Tensor, query: int = -1) -> None:
        """After a step: the model's own scores [R, V], and the strategy that has chosen by them. `query`: which of the
        tokens that the model read last they come after.
        """
        if isinstance(strategy, BeamSearch):
            source, token, order = strategy.considered
            self._keep(source=source, token=token, order=order)
            row = torch.arange(len(source), device=source.device)[:, None] * strategy.beams + source
        else:
            row, token = torch.arange(len(tokens), device=tokens.device)[:, None], tokens[:, None]
        count = len(strategy.processed)
        if self.flags.logprobs:
            self._record_logprobs(scores, strategy, row, token)
        if self.flags.scores:
            self._keep(scores=strategy.processed.clone())
        if self.flags.logits:
            self._keep(logits=_spread(exact(scores), count).clone())
        if self.places:
            self._keep(alignment=_spread(self._cross_attention(query), count))

    def _record_logprobs(self, scores: Tensor, strategy: Strategy, row: Tensor, token: Tensor) -> None:
        """How likely the tokens were: by what they were chosen by, and as the model said it."""
        ruled = strategy.processed is not scores
        if isinstance(strategy, BeamSearch):  # normalized already, and then changed by the rules
            ruled = bool(strategy.processors or strategy.limits)
            logprobs = strategy.processed[row, token]
        else:
            logprobs = _logprobs(strategy.processed, row, token)
        raw = _logprobs(_spread(scores, len(strategy.processed)), row, token) if ruled else logprobs
        self._keep(logprobs=logprobs, raw=raw)

    def _cross_attention(self, query: int) -> Tensor:
        """The mean over what is watched, of one query: [R, source]."""
        looks = []
        for point, heads in self.places.items():
            weights = self.seen[point][:, :, query]
            for head in heads:
                if head is not None and not -weights.shape[1] <= head < weights.shape[1]:
                    raise InputError(f"alignment asks for head {head} of {point}, which has {weights.shape[1]}.")
                looks.append(weights.mean(dim=1) if head is None else weights[:, head])
        self.seen.log.clear()
        return looks[0] if len(looks) == 1 else torch.stack(looks).mean(dim=0)

    def _keep(self, **values: Tensor) -> None:
        for name, value in values.items():
            self.kept.setdefault(name, []).append(value)

    def build_output(self, strategy: Strategy) -> Output:
        out = Output(sequences=strategy.result())
        steps = out.sequences.shape[1] - strategy.plan.prompt_length
        if isinstance(strategy, BeamSearch):
            best = strategy.returned()
            out["lengths"] = strategy.end_lengths.gather(1, best).flatten()
            out["sequences_scores"] = strategy.end_scores.gather(1, best).flatten()
            self._follow(out, strategy, out.lengths - strategy.plan.prompt_length, steps)
        elif isinstance(strategy, SingleSequence):
            out["lengths"] = strategy.lengths
            written = (strategy.lengths - strategy.plan.prompt_length)[:, None]
            real = torch.arange(steps, device=written.device) < written
            for name, ours in NAMES.items():
                if name in self.kept:
                    out[ours] = torch.where(real, torch.cat(self.kept[name], dim=1)[:, :steps], 0.0)
            if "alignment" in self.kept:
                out["alignment"] = torch.stack(self.kept["alignment"], dim=1)[:, :steps] * real[..., None]
        for name in ("scores", "logits"):
            if name in self.kept:  # beams are searched on beyond what comes out, and all steps are shown
                out[name] = tuple(self.kept[name] if isinstance(strategy, BeamSearch) else self.kept[name][:steps])
        return Output((name, out[name]) for name in (*FIRST, *out) if name in out)

    def _follow(self, out: Output, strategy: BeamSearch, lengths: Tensor, steps: int) -> None:
        """Each returned row, from its first token on: which beam it was at each step, and what that one showed.

        Beams of one source differ in what they say, so the tokens themselves tell which candidate is meant.
        """
        ids = out.sequences[:, strategy.plan.prompt_length :]
        batch = torch.arange(len(ids), device=ids.device) // strategy.plan.num_return_sequences
        alike = torch.ones(len(ids), strategy.beams, dtype=torch.bool, device=ids.device)  # beams that say the same
        columns: dict[str, list[Tensor]] = {"beam_indices": []}
        for step in range(steps):
            source, token, order = (self.kept[name][step][batch] for name in ("source", "token", "order"))
            meant = alike.gather(1, source) & (token == ids[:, step, None])  # [rows, candidates]
            pick = meant.long().argmax(dim=1, keepdim=True)
            row = batch * strategy.beams + source.gather(1, pick)[:, 0]
            real = step < lengths
            columns["beam_indices"].append(torch.where(real, row, -1))
            for name, ours in NAMES.items():
                if name in self.kept:
                    value = self.kept[name][step][batch].gather(1, pick)[:, 0]
                    columns.setdefault(ours, []).append(torch.where(real, value, 0.0))
            if "alignment" in self.kept:
                columns.setdefault("alignment", []).append(self.kept["alignment"][step][row] * real[:, None])
            alike = meant.gather(1, order)
        out.update({name: torch.stack(column, dim=1) for name, column in columns.items() if column})
        if "beam_indices" in out:
            out["beam_indices"] = out.beam_indices.int()  # as transformers has them


def _logprobs(scores: Tensor, row: Tensor, token: Tensor) -> Tensor:
    scores = exact(scores)
    return scores[row, token] - scores.logsumexp(dim=-1)[row]


def _spread(x: Tensor, rows: int) -> Tensor:
    """After the prompt all beams of a row are one."""
    return x if len(x) == rows else x.repeat_interleave(rows // len(x), dim=0)
