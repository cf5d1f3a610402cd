"""Optional outputs of decoding: log-probabilities of the tokens, scores, and alignment with the source.

    out = model.generate(ids, num_beams=4, logprobs=True, alignment=True)
    out.sequences           # [rows, length], as without; out.lengths: of each row, without padding
    out.sequences_scores    # [rows], of beams: the scores by which they were ranked
    out.hidden_states       # with output_hidden_states: of each step, of each layer, as in transformers
    out.logprobs            # [rows, new tokens]; out.raw_logprobs: before logits processors and temperature
    out.alignment           # [rows, new tokens, source]: cross-attention of the step that generated each token

Nothing is computed twice: each step keeps a few numbers per row, and the end selects those of the returned rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.taps import Seen, watching
from anyformer.errors import InputError
from anyformer.forward_context import Output
from anyformer.generation.ranking import exact
from anyformer.generation.strategies import BeamSearch, SingleSequence, Strategy

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

OUTPUT_FLAGS = (
    *("return_dict_in_generate", "output_scores", "output_logits", "logprobs", "alignment"),
    *("output_attentions", "output_hidden_states"),
)
# What the model returns at each step, and what its encoder returned once.
STEP_FIELDS = ("decoder_attentions", "cross_attentions", "decoder_hidden_states", "attentions", "hidden_states")
ENCODER_FIELDS = ("encoder_attentions", "encoder_hidden_states")

FIRST = (  # in transformers' order
    *("sequences", "sequences_scores", "scores", "logits", "beam_indices"),
    *(*ENCODER_FIELDS, *STEP_FIELDS),
)

NAMES = {"logprobs": "logprobs", "raw": "raw_logprobs"}  # name inside the observer -> name in the Output

POSSIBLE = (*FIRST, *NAMES.values(), "alignment", "segments", "past_key_values")  # None if not asked for

LayerHead = tuple[int, int | None]  # a decoder layer, and one of its heads; None: the mean over heads


@dataclass(frozen=True)
class OutputFlags:
    """Which outputs the caller asks for. `scores` and `logits` hold [rows, vocabulary] per step."""

    scores: bool = False
    logits: bool = False
    logprobs: bool = False
    alignment: bool | int | tuple[LayerHead, ...] = False
    layers: dict[str, bool] = field(default_factory=dict)  # what every pass of the model is asked for


def pop_output_flags(options: dict[str, Any]) -> OutputFlags | None:
    """Pop the options that ask for more than ids; None if there are none."""
    given = {name: options.pop(name, None) for name in OUTPUT_FLAGS}
    asked = [name for name in OUTPUT_FLAGS if given[name] is not None and given[name] is not False]
    if not asked:
        return None
    if given["return_dict_in_generate"] is False:
        raise InputError(f"{asked[0]} is returned in an Output; pass return_dict_in_generate=True or leave it out.")
    watched = given["alignment"] if "alignment" in asked else False
    watched = tuple(tuple(pair) for pair in watched) if isinstance(watched, (list, tuple)) else watched
    scores = bool(given["output_scores"])
    layers = {name: True for name in ("output_attentions", "output_hidden_states") if given[name]}
    return OutputFlags(scores, bool(given["output_logits"]), bool(given["logprobs"]) or scores, watched, layers)


@contextmanager
def observing(model: Model, flags: OutputFlags | None) -> Iterator[Observer | None]:
    """Watch the requested cross-attention while decoding."""
    if flags is None:
        yield None
        return
    watched = find_layers_and_heads(model, flags.alignment)
    with watching(model.watch, *watched) as seen:
        yield Observer(flags, seen, watched)


def find_layers_and_heads(model: Model, wanted: bool | int | tuple[LayerHead, ...]) -> dict[str, list[int | None]]:
    """Return the taps to watch and the heads to keep at each. True means the last layer, a number another layer."""
    if wanted is False:
        return {}
    points = [point for point in model.points if point.endswith(".cross.weights")]
    if not points:
        raise InputError(f"This {model.family} model has no cross-attention; leave out alignment.")
    pairs = wanted if isinstance(wanted, tuple) else ((-1 if wanted is True else wanted, None),)
    watched: dict[str, list[int | None]] = {}
    for layer, head in pairs:
        if not -len(points) <= layer < len(points):
            raise InputError(f"alignment asks for layer {layer}; the decoder has layers 0 to {len(points) - 1}.")
        watched.setdefault(points[layer], []).append(head)
    return watched


class Observer:
    """Record the requested outputs of each step; `build_output` selects those of the returned rows."""

    def __init__(self, flags: OutputFlags, seen: Seen, watched: Mapping[str, list[int | None]]) -> None:
        self.flags, self.seen, self.watched = flags, seen, watched
        self.kept: dict[str, list[Tensor]] = {}
        self.passes: list[Output] = []  # of the model

    def collect(self, out: Output) -> None:
        """Record what a pass of the model returned beside its scores."""
        if self.flags.layers:
            self.passes.append(Output((name, out[name]) for name in (*STEP_FIELDS, *ENCODER_FIELDS) if name in out))

    def record(self, scores: Tensor, strategy: Strategy, tokens: Tensor, query: int = -1) -> None:
        """Record a step: the model's scores [R, V] and the strategy that chose by them. `query` is the index of the
        input token, among those read last, that gave the scores.
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
        if self.watched:
            self._keep(alignment=_spread(self._cross_attention(query), count))

    def _record_logprobs(self, scores: Tensor, strategy: Strategy, row: Tensor, token: Tensor) -> None:
        """Record the log-probability of the chosen tokens, before and after the logits processors."""
        ruled = strategy.processed is not scores
        if isinstance(strategy, BeamSearch):  # already normalized, then changed by the processors
            ruled = bool(strategy.processors or strategy.limits)
            logprobs = strategy.processed[row, token]
        else:
            logprobs = _logprobs(strategy.processed, row, token)
        raw = _logprobs(_spread(scores, len(strategy.processed)), row, token) if ruled else logprobs
        self._keep(logprobs=logprobs, raw=raw)

    def _cross_attention(self, query: int) -> Tensor:
        """Return the attention of one query, averaged over the watched layers and heads: [R, source]."""
        found = []
        for point, heads in self.watched.items():
            weights = self.seen[point][:, :, query]
            for head in heads:
                if head is not None and not -weights.shape[1] <= head < weights.shape[1]:
                    raise InputError(f"alignment asks for head {head} of {point}, which has {weights.shape[1]} heads.")
                found.append(weights.mean(dim=1) if head is None else weights[:, head])
        self.seen.log.clear()
        return found[0] if len(found) == 1 else torch.stack(found).mean(dim=0)

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
            if name in self.kept:  # beam search may run longer than the returned rows; all steps are returned
                out[name] = tuple(self.kept[name] if isinstance(strategy, BeamSearch) else self.kept[name][:steps])
        out.update(self._layers(strategy, None if isinstance(strategy, BeamSearch) else steps))
        return Output((name, out[name]) for name in (*FIRST, *out) if name in out).without(POSSIBLE)

    def _layers(self, strategy: Strategy, steps: int | None) -> dict[str, Any]:
        """Return the values of layers: of the encoder with a row per source, of each step with a row per sequence."""
        first, rows = self.passes[0] if self.passes else Output(), len(strategy.processed)
        many = strategy.plan.num_return_sequences if isinstance(strategy, SingleSequence) else 1
        found: dict[str, Any] = {
            name: tuple(x[::many] for x in first[name]) for name in ENCODER_FIELDS if name in first
        }
        for name in STEP_FIELDS:
            if first.get(name):
                found[name] = tuple(tuple(_spread(x, rows) for x in step[name]) for step in self.passes[:steps])
        return found

    def _follow(self, out: Output, strategy: BeamSearch, lengths: Tensor, steps: int) -> None:
        """Collect the recorded values of each returned row, following its beam from step to step.

        Beams of one prompt differ in their tokens, so the tokens identify the candidate.
        """
        ids = out.sequences[:, strategy.plan.prompt_length :]
        batch = torch.arange(len(ids), device=ids.device) // strategy.plan.num_return_sequences
        alike = torch.ones(len(ids), strategy.beams, dtype=torch.bool, device=ids.device)  # equal so far
        columns: dict[str, list[Tensor]] = {"beam_indices": []}
        for step in range(steps):
            source, token, order = (self.kept[name][step][batch] for name in ("source", "token", "order"))
            match = alike.gather(1, source) & (token == ids[:, step, None])  # [rows, candidates]
            pick = match.long().argmax(dim=1, keepdim=True)
            row = batch * strategy.beams + source.gather(1, pick)[:, 0]
            real = step < lengths
            columns["beam_indices"].append(torch.where(real, row, -1))
            for name, ours in NAMES.items():
                if name in self.kept:
                    value = self.kept[name][step][batch].gather(1, pick)[:, 0]
                    columns.setdefault(ours, []).append(torch.where(real, value, 0.0))
            if "alignment" in self.kept:
                columns.setdefault("alignment", []).append(self.kept["alignment"][step][row] * real[:, None])
            alike = match.gather(1, order)
        out.update({name: torch.stack(column, dim=1) for name, column in columns.items() if column})
        if "beam_indices" in out:
            out["beam_indices"] = out.beam_indices.int()  # the dtype of transformers


def _logprobs(scores: Tensor, row: Tensor, token: Tensor) -> Tensor:
    scores = exact(scores)
    return scores[row, token] - scores.logsumexp(dim=-1)[row]


def _spread(x: Tensor, rows: int) -> Tensor:
    """Repeat rows per beam: after the prompt, all beams of a prompt share one row."""
    return x if len(x) == rows else x.repeat_interleave(rows // len(x), dim=0)
