"""PyTorch's LSTM and GRU over rows of different lengths.

`run_cell` passes row lengths to PyTorch, which needs them on the host. `run_cell_static` needs no values on the host,
so that a step can be captured: it processes all slots, and at the padding the gates keep the state unchanged.
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
RNNState = dict[str, Tensor]  # "hidden", and "cell" for an LSTM, each [B, layers, d]; "fed" [B, d]

CLOSED_GATE = 1e4  # added to a gate's input to open or close it: its sigmoid is 1 or 0 in every precision


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
    """Run the cell over x [B, T, d] from the state `carry`. Rows have `sizes` real tokens; their new state is that
    after the last one."""
    names = _names(cell)
    before = [carry[name].transpose(0, 1).contiguous() for name in names if name in carry]
    if sizes is None:
        y, after = _layers(cell, x, before) if cell.training and cell.dropout else _whole(cell, x, before)
    else:
        whole = host_copy(sizes).clamp(min=1).cpu()  # PyTorch rejects empty rows; their states are restored below
        y, after = _whole(cell, pack_padded_sequence(x, whole, batch_first=True, enforce_sorted=False), before)
        y, _ = pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
    new = {name: part.transpose(0, 1) for name, part in zip(names, after, strict=True)}
    return y, new if sizes is None else update_moved_rows(sizes > 0, new, carry)


def _names(cell: nn.RNNBase) -> tuple[str, ...]:
    """Names of the cell's states."""
    return ("hidden", "cell") if isinstance(cell, nn.LSTM) else ("hidden",)


def _whole(cell: nn.RNNBase, x: Any, before: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor]]:
    y, after = cell(x, None if not before else tuple(before) if len(before) > 1 else before[0])
    return y, after if isinstance(after, tuple) else (after,)


def _layers(cell: nn.RNNBase, x: Tensor, before: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Run layer by layer, with dropout between layers that uses PyTorch's default generator. cuDNN has a generator of
    its own, which the host initializes after each seed; a captured step must not do that."""
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
    """Run one layer in all its directions; return its outputs and its new states."""
    flags = (True, 1, 0.0, cell.training, cell.bidirectional, True)
    return torch.lstm(x, states, weights, *flags) if len(states) > 1 else torch.gru(x, states[0], weights, *flags)


def _dropped(cell: nn.RNNBase, x: Tensor, layer: int) -> Tensor:
    """The input of a layer: the output of the layer below, after dropout."""
    return x if layer == 0 else F.dropout(x, cell.dropout, cell.training)


def update_moved_rows(moved: Tensor, new: RNNState, old: RNNState) -> RNNState:
    """The new values for rows that moved [B], the old ones (or zeros) for other rows."""
    kept = {}
    for name, value in new.items():
        where = moved.view(-1, *[1] * (value.dim() - 1))
        kept[name] = torch.where(where, value, old.get(name, torch.zeros_like(value)))
    return kept


def run_cell_static(cell: nn.RNNBase, x: Tensor, real: Tensor) -> tuple[Tensor, RNNState]:
    """As `run_cell` from zero states, with the rows' real tokens, which come first, marked by `real` [B, T].

    In each layer, an additional input is 1 at the padding, and its weights close every gate that would change the
    state. A cell's output still changes there (a GRU's by rounding), so the output at the last real token is gathered.
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
    """Weights of one layer in one direction, with a column for the input that marks the padding."""
    end = f"_l{layer}{'_reverse' if way else ''}"
    into, again, into_bias, again_bias = (
        getattr(cell, f"{name}{end}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    part = torch.zeros(cell.hidden_size, 1, dtype=into.dtype, device=into.device)
    # LSTM: input gate, forget gate, candidate, output gate. GRU: reset gate, update gate, candidate.
    column = (
        [part - CLOSED_GATE, part + CLOSED_GATE, part, part]
        if isinstance(cell, nn.LSTM)
        else [part, part + CLOSED_GATE, part]
    )
    return [torch.cat([into, torch.cat(column)], dim=1), again, into_bias, again_bias]
