"""Recurrent layers around PyTorch's LSTM and GRU: an encoder, and two decoders that start from its last state.

`RNNDecoder` receives only the last state of the source (Sutskever et al. 2014), or receives it at every step too (Cho
et al. 2014). `AttentionRNNDecoder` attends to the source at every step, before the cell (Bahdanau et al. 2015) or after
it (Luong et al. 2015). With input feeding it receives its previous output, and must run step by step. Its context may
be gated, and its attention may be hard (Xu et al. 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.attend import attend, attention_weights
from anyformer.core.cache import Cache
from anyformer.core.linear import Linear
from anyformer.core.masks import NO_MASK, Mask, Padding
from anyformer.core.score import AdditiveScore, GeneralScore
from anyformer.core.taps import NO_TAPS
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.layers.right_padded import RightPadded
from anyformer.layers.rnn import CellType, RNNState, make_cell, run_cell, run_cell_static, update_moved_rows


@dataclass(frozen=True, kw_only=True)
class RNNEncoderConfig(Settings):
    """Settings of an RNN encoder. Its tokens are the states at every token, its summary the last states of all
    layers."""

    d_model: int
    d_hidden: int
    cell: CellType = "lstm"
    n_layers: int = 1
    bidirectional: bool = False
    reverse: bool = False  # read from the last token to the first
    dropout: float = 0.0  # between layers

    @property
    def width(self) -> int:
        return 2 * self.d_hidden if self.bidirectional else self.d_hidden


@dataclass(frozen=True, kw_only=True)
class RNNDecoderConfig(Settings):
    d_model: int
    d_hidden: int
    d_context: int  # width of the source's tokens
    cell: CellType = "lstm"
    n_layers: int = 1
    context_every_step: bool = False  # whether every step receives the source's last state, and not only the first
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class AttentionRNNDecoderConfig(Settings):
    """Settings of a recurrent decoder with attention.

    `attend` "before": s' = cell(s, [token, context(s)]), out = maxout(s, token, context), as in Bahdanau's appendix
    A.2.2; with `deep_output` out = tanh(W [s', token, context]), as in Xu's §3.1.2.

    "after": s' = cell(s, token), out = tanh(W [context(s'), s']), as in Luong's §3; with `input_feeding` the cell also
    receives the previous out.
    """

    d_model: int
    d_hidden: int
    d_context: int
    d_out: int
    cell: CellType = "lstm"
    n_layers: int = 1
    attend: Literal["before", "after"] = "after"
    score: Literal["dot", "general", "additive"] = "dot"
    input_feeding: bool = False
    # The source's last states, a projection of the backward state at its first token, or projections of its mean token.
    init_state: Literal["last", "first", "mean"] = "last"
    deep_output: bool = False
    gate: bool = False  # multiply the context by σ(w·s), a scalar per step
    hard_attention: bool = False  # sample one source token in training, take the most probable one otherwise
    track_attention: bool = False  # return an AttentionSummary for the loss
    dropout: float = 0.0

    def check(self) -> None:
        same = self.score != "dot" or self.d_hidden == self.d_context
        self.require(same, f"the dot score needs d_hidden {self.d_hidden} = d_context {self.d_context}.")
        one = self.init_state != "first" or (self.n_layers == 1 and self.cell == "gru")
        self.require(one, 'start "first" gives one state, for one layer of GRU.')
        early = self.attend == "before" or not (
            self.deep_output or self.gate or self.hard_attention or self.track_attention
        )
        self.require(early, 'deep, gate, hard and note go with ask "before".')


@dataclass(frozen=True)
class AttentionSummary:
    """Attention statistics of a decoder for a loss: the weights summed over the target tokens [B, S], the
    log-probability of the sampled source tokens and the entropy of the weights, both summed over the target tokens [B].
    """

    coverage: Tensor
    log_prob: Tensor
    entropy: Tensor

    def to_tensor(self) -> Tensor:
        """The statistics as a tensor [B, 1, S + 2], for the summary of a decoder's tokens."""
        return torch.cat([self.coverage, self.log_prob[:, None], self.entropy[:, None]], dim=1).unsqueeze(1)

    @classmethod
    def from_tensor(cls, summary: Tensor) -> AttentionSummary:
        return cls(summary[:, 0, :-2], summary[:, 0, -2], summary[:, 0, -1])


@dataclass(frozen=True)
class AttentionStep:
    """Attention of target tokens to the source: the weights, and the weights used for the context, which differ with
    hard attention (both [B, T, S])."""

    weights: Tensor
    context_weights: Tensor

    @classmethod
    def concat(cls, looks: Sequence[AttentionStep]) -> AttentionStep | None:
        if not looks:
            return None
        return cls(torch.cat([x.weights for x in looks], dim=1), torch.cat([x.context_weights for x in looks], dim=1))

    def summarize(self, real: Tensor | None) -> AttentionSummary:
        """Sum over the real target tokens; `real` is [B, T], None if all are real."""
        counts = torch.ones_like(self.weights[..., 0]) if real is None else real.to(self.weights.dtype)
        logs = self.weights.clamp(min=1e-9).log()
        log_prob, entropy = (self.context_weights.detach() * logs).sum(dim=-1), -(self.weights * logs).sum(dim=-1)
        coverage = (self.weights * counts.unsqueeze(-1)).sum(dim=1)
        return AttentionSummary(coverage, (log_prob * counts).sum(dim=1), (entropy * counts).sum(dim=1))


def last_positions(rows: RightPadded, cache: Cache | None) -> Tensor | None:
    """The lengths of rows for a forward cell, or None if they are not needed: if no cache continues from the last
    states, the states at the padding do not matter. A captured step must not read them."""
    return None if rows.full or (cache is None and rows.mask is not None) else rows.sizes


class RNNEncoder(nn.Module):
    tap_points = ("output",)
    crosses = False

    def __init__(self, config: RNNEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = False
        self.cell = make_cell(config, config.d_model, bidirectional=config.bidirectional)

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tokens:
        rows = RightPadded.from_tokens(tokens)
        x = rows.reverse(rows.x) if self.config.reverse else rows.x
        real = rows.real if rows.mask is not None else None
        if real is not None:
            y, carry = run_cell_static(self.cell, x, real)
        else:
            y, carry = run_cell(self.cell, x, {}, None if rows.full else rows.sizes)
        y = rows.restore(rows.reverse(y) if self.config.reverse else y)
        self.taps.record("output", y, tokens.packing)
        return tokens._replace(x=y, summary=torch.cat(list(carry.values()), dim=1))


class Recurrent(nn.Module):
    """An LSTM or GRU over rows as a part of a block: in one direction, or in both with half of the width each."""

    tap_points = ("output",)
    crosses = False

    def __init__(self, d_model: int, cell: CellType = "lstm", bidirectional: bool = False) -> None:
        super().__init__()
        self.taps = NO_TAPS
        self.has_cache = not bidirectional
        width = d_model // 2 if bidirectional else d_model
        self.cell = make_cell(
            RNNEncoderConfig(d_model=d_model, d_hidden=width, cell=cell), d_model, bidirectional=bidirectional
        )

    def forward(self, tokens: Tokens, memory: Tokens | None = None, cache: Cache | None = None) -> Tensor:
        rows = RightPadded.from_tokens(tokens)
        entry: RNNState = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        real = rows.real
        if rows.mask is not None and real is not None and not entry:
            y, carry = run_cell_static(self.cell, rows.x, real)
        else:
            y, carry = run_cell(self.cell, rows.x, entry, None if rows.full else rows.sizes)
        entry.update(carry)
        return self.taps.record("output", rows.restore(y), tokens.packing)


def initial_state(source: Tokens, n_layers: int, cell: CellType) -> RNNState:
    """The encoder's last states as the decoder's initial states."""
    parts = ("hidden", "cell") if cell == "lstm" else ("hidden",)
    if source.summary is None or source.summary.shape[1] != n_layers * len(parts):
        raise InputError("The decoder starts from its encoder's last states; give input_ids, not encoder_outputs.")
    return dict(zip(parts, source.summary.split(n_layers, dim=1), strict=True))


class RNNDecoder(nn.Module):
    tap_points = ("output",)
    crosses = True

    def __init__(self, config: RNNDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = True
        self.cell = make_cell(config, config.d_model + (config.d_hidden if config.context_every_step else 0))

    def forward(self, tokens: Tokens, memory: Tokens, cache: Cache | None = None) -> Tensor:
        config, rows = self.config, RightPadded.from_tokens(tokens)
        start = initial_state(memory, config.n_layers, config.cell)
        entry: RNNState = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        x = rows.x
        if config.context_every_step:
            last = start["hidden"][:, -1:].expand(-1, x.shape[1], -1)
            x = torch.cat([x, last], dim=-1)
        y, carry = run_cell(self.cell, x, entry or start, last_positions(rows, cache))
        entry.update(carry)
        return self.taps.record("output", rows.restore(y), tokens.packing)


class AttentionRNNDecoder(nn.Module):
    tap_points = ("weights", "output")
    crosses = True

    def __init__(self, config: AttentionRNNDecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = NO_TAPS
        self.has_cache = True
        before = config.attend == "before"
        d_in = config.d_model + (config.d_context if before else 0) + (config.d_out if config.input_feeding else 0)
        self.cell = make_cell(config, d_in)
        self.score: nn.Module | None = None  # None: the dot product, which attend computes by itself
        if config.score == "general":
            self.score = GeneralScore(config.d_hidden, config.d_context)
        elif config.score == "additive":
            self.score = AdditiveScore(config.d_hidden, config.d_context, config.d_hidden)
        self.start: Linear | None = None
        if config.init_state == "first":
            self.start = Linear(config.d_context // 2, config.d_hidden)
        elif config.init_state == "mean":
            states = config.n_layers * (2 if config.cell == "lstm" else 1)
            self.start = Linear(config.d_context, states * config.d_hidden)
        self.gate = Linear(config.d_hidden, 1) if config.gate else None
        d_read = config.d_hidden + config.d_context + (config.d_model if before else 0)
        maxout = before and not config.deep_output
        self.out = Linear(d_read, 2 * config.d_out if maxout else config.d_out, bias=before)

    def forward(self, tokens: Tokens, memory: Tokens, cache: Cache | None = None) -> Tensor | Tokens:
        rows, source = RightPadded.from_tokens(tokens), memory.pad()
        entry: RNNState = cache.recurrent(self.taps.name(self)) if cache is not None else {}
        carry = dict(entry) if entry else self._start(source)
        if self.config.attend == "after" and not self.config.input_feeding:
            y, look, carry = self._decode_parallel(rows, source, carry, last_positions(rows, cache))
        else:
            y, look, carry = self._step_by_step(rows, source, carry)
        entry.update(carry)
        if look is not None and self.taps.is_watched("weights"):
            shown = rows.restore(look.context_weights)
            shown = tokens.packing.unpack(shown) if tokens.packing is not None else shown
            self.taps.record("weights", shown.unsqueeze(1))
        out = self.taps.record("output", rows.restore(y), tokens.packing)
        if look is None or not self.config.track_attention:
            return out
        return tokens._replace(x=out, summary=look.summarize(rows.real).to_tensor())

    def _start(self, source: Tokens) -> RNNState:
        if self.start is None:
            carry = initial_state(source, self.config.n_layers, self.config.cell)
        elif self.config.init_state == "mean":
            states = torch.tanh(self.start(_mean(source))).unflatten(1, (-1, self.config.d_hidden))
            names = ("hidden", "cell")[: states.shape[1] // self.config.n_layers]
            carry = dict(zip(names, states.split(self.config.n_layers, dim=1), strict=True))
        else:
            carry = {"hidden": torch.tanh(self.start(_backward_at_first(source))).unsqueeze(1)}
        if self.config.input_feeding:
            carry["fed"] = source.x.new_zeros(source.x.shape[0], self.config.d_out)
        return carry

    def _decode_parallel(
        self, rows: RightPadded, source: Tokens, carry: RNNState, sizes: Tensor | None
    ) -> tuple[Tensor, AttentionStep | None, RNNState]:
        """Decode all target tokens at once, which is possible if no step depends on the attention of the previous
        one."""
        hidden, carry = run_cell(self.cell, rows.x, carry, sizes)
        found, look = self._attend(hidden, source)
        return self._read_after(found, hidden), look, carry

    def _step_by_step(
        self, rows: RightPadded, source: Tokens, carry: RNNState
    ) -> tuple[Tensor, AttentionStep | None, RNNState]:
        real, outputs, seen = rows.real, [], []
        for t in range(rows.x.shape[1]):
            made, look, new = self._step(rows.x[:, t : t + 1], source, carry)
            outputs.append(made)
            seen += [] if look is None else [look]
            carry = new if real is None else update_moved_rows(real[:, t], new, carry)
        return torch.cat(outputs, dim=1), AttentionStep.concat(seen), carry

    def _step(self, word: Tensor, source: Tokens, carry: RNNState) -> tuple[Tensor, AttentionStep | None, RNNState]:
        """Decode one token [B, 1, d]."""
        if self.config.attend == "before":
            old = carry["hidden"][:, -1:]
            found, look = self._attend(old, source)
            found = found if self.gate is None else found * self.gate(old).sigmoid()
            _, new = run_cell(self.cell, torch.cat([word, found], dim=-1), carry)
            if self.config.deep_output:
                read = self.out(torch.cat([new["hidden"][:, -1:], word, found], dim=-1))
                return self._drop(torch.tanh(read)), look, new
            pairs: Tensor = self.out(torch.cat([old, word, found], dim=-1))
            return self._drop(pairs.unflatten(-1, (-1, 2)).amax(dim=-1)), look, new
        fed = [carry["fed"].unsqueeze(1)] if self.config.input_feeding else []
        hidden, new = run_cell(self.cell, torch.cat([word, *fed], dim=-1), carry)
        found, look = self._attend(hidden, source)
        made = self._read_after(found, hidden)
        return made, look, {**new, "fed": made[:, 0]}

    def _attend(self, query: Tensor, source: Tokens) -> tuple[Tensor, AttentionStep | None]:
        """Attend from queries [B, Q, d] to the source; return the contexts, and the weights if they are needed."""
        mask: Mask = NO_MASK if source.mask is None else Padding(source.mask)
        one_head, keys = query.unsqueeze(1), source.x.unsqueeze(1)
        explicit = self.config.hard_attention or self.config.track_attention
        if not explicit and not self.taps.is_watched("weights"):
            return attend(one_head, keys, keys, mask, scale=1.0, score=self.score).squeeze(1), None
        weights = attention_weights(one_head, keys, mask, scale=1.0, score=self.score).squeeze(1)
        taken = self._sample_attention(weights) if self.config.hard_attention else weights
        if explicit:
            return taken @ source.x, AttentionStep(weights, taken)
        found = attend(one_head, keys, keys, mask, scale=1.0, score=self.score).squeeze(1)
        return found, AttentionStep(weights, taken)

    def _sample_attention(self, weights: Tensor) -> Tensor:
        """One-hot weights [B, 1, S]: sampled in training, where half of the rows use the expectation to reduce the
        variance of the gradient (Xu et al. 2015, §4.1); otherwise the most probable source token."""
        if not self.training:
            return F.one_hot(weights.argmax(dim=-1), weights.shape[-1]).to(weights.dtype)
        flat = weights.detach().flatten(0, 1)
        drawn = torch.multinomial(flat.float() + 1e-9, 1).view(weights.shape[:2])
        chosen = F.one_hot(drawn, weights.shape[-1]).to(weights.dtype)
        soft = torch.rand(len(weights), 1, 1, device=weights.device) < 0.5
        return torch.where(soft, weights, chosen)

    def _read_after(self, found: Tensor, hidden: Tensor) -> Tensor:
        return self._drop(torch.tanh(self.out(torch.cat([found, hidden], dim=-1))))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout, self.training)


def _mean(source: Tokens) -> Tensor:
    if source.mask is None:
        return source.x.mean(dim=1)
    real = source.mask.unsqueeze(-1)
    return (source.x * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


def _backward_at_first(source: Tokens) -> Tensor:
    """The backward state of a bidirectional encoder at the first real token, after reading the whole row."""
    backward = source.x[..., source.x.shape[-1] // 2 :]
    if source.mask is None:
        return backward[:, 0]
    first = source.mask.int().argmax(dim=1)
    found = backward[torch.arange(len(first), device=first.device), first]
    return found.masked_fill(~source.mask.any(dim=1, keepdim=True), 0.0)
