"""PyTorch's own LSTM and GRU over rows that end at different tokens.

`run_cell` tells PyTorch how long each row is, which the host must know. `run_cell_static` needs no number on the host,
so that a step can be recorded: it goes over all slots, and where none is real the gates hold the state as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from anyformer.core.host import host_copy
from anyformer.layers.right_padded import gather_tokens

CellType = Literal["lstm", "gru"]
RNNState = dict[str, Tensor]  # "hidden" and, of an LSTM, "cell", each [B, layers, d]; "fed" [B, d]

CLOSED_GATE = 1e4  # what opens or shuts a gate whatever else it is given: its sigmoid is 1 or 0 in every precision


class CellConfig(Protocol):
    @property
    def cell(self) -> CellType: ...
    @property
    def d_hidden(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def dropout(self) -> float: ...


def make_cell(config: CellConfig, d_in: int, *, bidirectional: bool = False) -> nn.RNNBase:
    kind = nn.LSTM if config.cell == "lstm" else nn.GRU
    dropout = config.dropout if config.n_layers > 1 else 0.0
    return kind(d_in, config.d_hidden, config.n_layers, batch_first=True, dropout=dropout, bidirectional=bidirectional)


def run_cell(cell: nn.RNNBase, x: Tensor, carry: RNNState, sizes: Tensor | None = None) -> tuple[Tensor, RNNState]:
    """All of x [B, T, d] from `carry` on; rows have `sizes` real tokens, and end with the state after the last one."""
    names = _names(cell)
    before = [carry[name].transpose(0, 1).contiguous() for name in names if name in carry]
    if sizes is None:
        y, after = _layers(cell, x, before) if cell.training and cell.dropout else _whole(cell, x, before)
    else:
        whole = host_copy(sizes).clamp(min=1).cpu()  # PyTorch takes no empty rows; what they give is taken back below
        y, after = _whole(cell, pack_padded_sequence(x, whole, batch_first=True, enforce_sorted=False), before)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
    new = {name: part.transpose(0, 1) for name, part in zip(names, after, strict=True)}
    return y, new if sizes is None else update_moved_rows(sizes > 0, new, carry)


def _names(cell: nn.RNNBase) -> tuple[str, ...]:
    """Of what it hands on."""
    return ("hidden", "cell") if isinstance(cell, nn.LSTM) else ("hidden",)


def _whole(cell: nn.RNNBase, x: Any, before: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor]]:
    y, after = cell(x, None if not before else tuple(before) if len(before) > 1 else before[0])
    return y, after if isinstance(after, tuple) else (after,)


def _layers(cell: nn.RNNBase, x: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """The same, with dropout between layers drawn from the generator that all else is drawn from: cuDNN has one of its
    own, which is set up on the host anew after each seed, where a recorded step may not be."""
    ways = 2 if cell.bidirectional else 1
    ends: list[Sequence[Tensor]] = []
    starts = before or [x.new_zeros(cell.num_layers * ways, len(x), cell.hidden_size)] * len(_names(cell))
    for layer in range(cell.num_layers):
        here = slice(layer * ways, (layer + 1) * ways)
        weights: list[Tensor] = [one for way in cell.all_weights[here] for one in way]
        x, *after = _layer(cell, _dropped(cell, x, layer), [start[here] for start in starts], weights)
        ends.append(after)
    return x, [torch.cat(parts) for parts in zip(*ends, strict=True)]


def _layer(cell: nn.RNNBase, x: Tensor, states: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
    """One layer, in all its directions: what it gives out, and its states after that."""
    flags = (True, 1, 0.0, cell.training, cell.bidirectional, True)
    return torch.lstm(x, states, weights, *flags) if len(states) > 1 else torch.gru(x, states[0], weights, *flags)


def _dropped(cell: nn.RNNBase, x: Tensor, layer: int) -> Tensor:
    """What a layer is given of the one below."""
    return x if layer == 0 else F.dropout(x, cell.dropout, cell.training)


def update_moved_rows(moved: Tensor, new: RNNState, old: RNNState) -> RNNState:
    """The new values where a row moved [B], the old ones (or zeros) elsewhere."""
    kept = {}
    for name, value in new.items():
        where = moved.view(-1, *[1] * (value.dim() - 1))
        kept[name] = torch.where(where, value, old.get(name, torch.zeros_like(value)))
    return kept


def run_cell_static(cell: nn.RNNBase, x: Tensor, real: Tensor) -> tuple[Tensor, RNNState]:
    """As `run_cell` from nothing, with the rows' real tokens, which stand first, told by `real` [B, T].

    Layer by layer: a further input is 1 where no token is real, and its weights shut every gate that would change what
    is remembered. What a cell gives out still moves there (a GRU's by rounding), so the last real one is looked up.
    """
    empty, last = (~real).to(x.dtype).unsqueeze(-1), (real.sum(dim=1, keepdim=True) - 1).clamp(min=0)
    ways, d = 2 if cell.bidirectional else 1, cell.hidden_size
    nothing = [x.new_zeros(ways, len(x), d)] * len(_names(cell))
    carry: dict[str, list[Tensor]] = {name: [] for name in _names(cell)}
    for layer in range(cell.num_layers):
        given = torch.cat([_dropped(cell, x, layer), empty], dim=-1)
        weights = [one for way in range(ways) for one in _weights(cell, layer, way)]
        x, hidden, *inside = _layer(cell, given, nothing, weights)
        carry["hidden"] += [gather_tokens(x, last)[..., :d].transpose(0, 1), hidden[1:]]
        if inside:
            carry["cell"] += inside
    new = {name: torch.cat(parts).transpose(0, 1) for name, parts in carry.items()}
    return x, update_moved_rows(real.any(dim=1), new, {})


def _weights(cell: nn.RNNBase, layer: int, way: int) -> list[Tensor]:
    """Of one layer in one direction, with a column more for the slots that are not real."""
    end = f"_l{layer}{'_reverse' if way else ''}"
    into, again, into_bias, again_bias = (
        getattr(cell, f"{name}{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    part = torch.zeros(cell.hidden_size, 1, dtype=into.dtype, device=into.device)
    # LSTM: what comes in, what stays, the candidate, the output. GRU: what is read, what stays, the candidate.
    column = (
        [part - CLOSED_GATE, part + CLOSED_GATE, part, part]
        if isinstance(cell, nn.LSTM)
        else [part, part + CLOSED_GATE, part]
    )
    return [torch.cat([into, torch.cat(column)], dim=1), again, into_bias, again_bias]
