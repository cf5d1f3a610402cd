"""One pass through a model: the batch that came in, what the stages made of it, and what goes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node
from torch.utils.weak import WeakIdKeyDictionary

from anyformer.core.cache import Cache
from anyformer.core.host import host_copy, is_capturing, remember_host_copy
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError

FORBIDDEN = -1000.0  # numbers up to this one in a floating-point mask forbid a pair
IGNORED = -100  # label that is ignored by the loss

# Fields that come after all others, in this order: transformers' tuples, indices and unpacking count on it.
LAST = tuple(
    "mask ids_restore cache_params past_key_values hidden_states attentions decoder_hidden_states decoder_attentions"
    " cross_attentions encoder_last_hidden_state encoder_hidden_states encoder_attentions".split()
)


class Output(dict[str, Any]):
    """What a model gives: `out.logits`, `out["logits"]` and `out[0]`, under the ecosystem's names.

    It is used as transformers' ModelOutput: it iterates over the names and has the same order. A field that the model
    could give but was not asked for is None as an attribute, and not among the items; other names are errors.
    """

    absent: frozenset[str] = frozenset()  # fields that were not asked for

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in self.absent:
            return None
        raise AttributeError(f"this output has {', '.join(self)}; it has no {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "absent":
            super().__setattr__(name, value)
        else:
            self[name] = value

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self, *self.absent]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in transformers' order; outputs inside an output become tuples too."""
        return tuple(value.to_tuple() if isinstance(value, Output) else value for value in self.values())

    def ordered(self, possible: Iterable[str] = ()) -> Output:
        """The same fields in transformers' order; those of `possible` that it does not have are None."""
        first = [name for name in self if name not in LAST]
        return Output((name, self[name]) for name in (*first, *LAST) if name in self).without(possible)

    def without(self, possible: Iterable[str]) -> Output:
        """The output itself, on which those of `possible` that it does not have are None."""
        self.absent = frozenset(possible) - self.keys()
        return self

    def clone(self) -> Output:
        """With tensors of its own."""
        return Output((name, _clone(value)) for name, value in self.items()).without(self.absent)


_Names = tuple[tuple[str, ...], tuple[str, ...]]  # of the fields that there are, and of those that are None


def _names(output: Output) -> _Names:
    return tuple(output), tuple(sorted(output.absent))


def _flatten(output: Output) -> tuple[list[Any], _Names]:
    return list(output.values()), _names(output)


def _flatten_with_keys(output: Output) -> tuple[list[tuple[Any, Any]], _Names]:
    return [(MappingKey(name), value) for name, value in output.items()], _names(output)


def _unflatten(values: Iterable[Any], names: _Names) -> Output:
    return Output(zip(names[0], values, strict=True)).without(names[1])


# torch.export, torch.func and DDP look for tensors inside.
register_pytree_node(
    Output,
    _flatten,
    _unflatten,
    serialized_type_name="anyformer.Output",
    flatten_with_keys_fn=_flatten_with_keys,
)


def _clone(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_clone(one) for one in value)
    return value.clone() if isinstance(value, Tensor) else value


class ForwardContext:
    """The workspace of one pass. Inputs read from it, stages write their tokens to it, heads read those."""

    def __init__(self, batch: dict[str, Any], state: Cache | None, training: bool) -> None:
        self.batch = batch
        self.state = state
        self.training = training
        self.tokens: dict[str, Tokens] = {}  # each stage's result
        self.layers: dict[str, list[Tokens]] = {}  # and its tokens after every block
        self.outputs: dict[str, Tensor] = {}  # fields of the output that inputs add: what MAE dropped

    def tensor(self, name: str) -> Tensor | None:
        value = self.batch.get(name)
        if value is not None and not isinstance(value, Tensor):
            raise InputError(f"{name} must be a tensor; it is a {type(value).__name__}.")
        return value

    def require_one(self, *names: str) -> tuple[str, Tensor]:
        """The one of several alternatives that was given: input_ids or inputs_embeds."""
        given = [name for name in names if self.batch.get(name) is not None]
        if len(given) != 1:
            how = "none" if not given else "more than one"
            raise InputError(f"Give exactly one of {' and '.join(names)}; {how} was given.")
        value = self.tensor(given[0])
        assert value is not None
        return given[0], value

    def padded(self, stage: str) -> Tensor:
        """A stage's tokens as [B, T, d], zeros at the padding."""
        return zero_padding(self.tokens[stage])


def zero_padding(tokens: Tokens) -> Tensor:
    """Values at padded positions mean nothing: show zeros."""
    if tokens.packed:
        return tokens.pad().x
    if tokens.mask is None:
        return tokens.x
    if torch.compiler.is_compiling() or not tokens.x.is_inference():
        return tokens.x.masked_fill(~tokens.mask.unsqueeze(-1), 0.0)
    if tokens.x not in _ZEROED:  # an encoder's output is shown again at every decoding step
        _ZEROED[tokens.x] = tokens.x.masked_fill(~tokens.mask.unsqueeze(-1), 0.0)
    zeroed: Tensor = _ZEROED[tokens.x]
    return zeroed


_ZEROED = WeakIdKeyDictionary()  # vectors -> the same with zeros at the padding


def to_bool_mask(attention_mask: Tensor | None, shape: tuple[int, int], name: str) -> Tensor | None:
    """The ecosystem's mask (1 = a real token) as a boolean one; None where nothing is padded."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2 or tuple(attention_mask.shape) != shape:
        raise InputError(f"{name} has shape {list(attention_mask.shape)}; it must be {list(shape)} (batch, tokens).")
    if is_capturing(attention_mask):
        return attention_mask.to(torch.bool)
    known = host_copy(attention_mask).to(torch.bool)
    if bool(known.all()):
        return None
    return known if known.device == attention_mask.device else remember_host_copy(attention_mask.to(torch.bool), known)


def to_square_mask(attention_mask: Tensor, batch: int, length: int, past: int, name: str) -> Tensor:
    """A mask of queries and keys [B or 1, 1, T, past + T] as a boolean one: True, 1 or 0.0 where a query may attend."""
    shape, keys = list(attention_mask.shape), past + length
    if shape[0] not in (1, batch) or shape[1:] != [1, length, keys]:
        raise InputError(f"{name} has shape {shape}; with 4 dimensions, it must be {[batch, 1, length, keys]}.")
    if not attention_mask.is_floating_point():
        return attention_mask.to(torch.bool)
    allowed = attention_mask == 0
    if not is_capturing(attention_mask) and not bool((allowed | (attention_mask <= FORBIDDEN)).all()):
        raise InputError(f"{name} holds other numbers than 0.0, may attend, and those below {FORBIDDEN}, may not.")
    return allowed


def check_labels(
    labels: Tensor, n: int, name: str, ignored: int = IGNORED, means: str = "a place that does not count"
) -> None:
    if labels.is_cuda or labels.numel() == 0 or is_capturing(labels):
        return
    real = labels[labels != ignored]
    if real.numel() and (int(real.min()) < 0 or int(real.max()) >= n):
        worst = int(real.min()) if int(real.min()) < 0 else int(real.max())
        raise InputError(f"{name} holds {worst}; allowed are 0 to {n - 1}, or {ignored} for {means}.")


def check_shape(x: Tensor, name: str, *shape: int | str, why: str = "") -> None:
    """Raise InputError unless `x` has this shape, in which a word stands for any length."""
    wrong = x.dim() != len(shape) or any(isinstance(n, int) and n != m for n, m in zip(shape, x.shape, strict=True))
    if wrong:
        raise InputError(f"{name} has shape {list(x.shape)}; it must be [{', '.join(map(str, shape))}]{why}.")
