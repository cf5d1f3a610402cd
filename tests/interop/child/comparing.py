"""Our answer beside transformers': equal where anything is said, and brought into its form."""

from __future__ import annotations

from typing import Any

import departures
import torch
from torch import Tensor

from anyformer.core.cache import Cache

TOLERANCE = {torch.float32: 2e-5, torch.float64: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
STATE = "anyformer_state"  # what a cache of transformers carries along: our own memory of the same tokens
POOLED = ("pooler_output", "seq_relationship_logits", "logits")  # where they are [B, d]


class DifferentError(AssertionError):
    """Our answer is missing or another one."""


class Comparison:
    """One answer. `masks` say what is real, `kind` is "call" or "generate", `numbers` whether values can be compared
    (not where either side draws at random).
    """

    def __init__(self, kind: str, batch: dict[str, Any], numbers: bool) -> None:
        self.kind, self.batch, self.numbers = kind, batch, numbers
        self.kept: list[str] = []  # fields that stay transformers' own
        self.names: tuple[str, ...] = ()  # of a tuple's items
        self.layers = kind == "call"  # whether a `generate` was asked for what layers made

    def hand_over(self, ours: Any, theirs: Any) -> Any:
        """Ours in the form of theirs."""
        if not hasattr(theirs, "keys"):
            return self.value("answer", ours, theirs)
        fields = {*departures.FIELDS[self.kind], *(() if self.layers else departures.OF_LAYERS)}
        names = [name for name in theirs if name not in fields]
        self.kept += [name for name in theirs if name in fields]
        mine = [name for name in ours if name in theirs and name not in fields]
        self.check(mine == names, f"fields {mine} instead of {names}")
        taken = {name: theirs[name] for name in self.kept if name in theirs}
        return type(theirs)(**{name: self.value(name, ours[name], theirs[name]) for name in names}, **taken)

    def value(self, name: str, ours: Any, theirs: Any) -> Any:
        if isinstance(theirs, Tensor):
            self.check(isinstance(ours, Tensor), f"{name} is {type(ours).__name__}, not a tensor")
            return self.tensor(name, ours, theirs)
        if theirs == () and ours:
            self.kept.append("attentions, which transformers' fast attention does not show")
            return theirs
        if isinstance(theirs, (tuple, list)):
            self.check(isinstance(ours, (tuple, list)), f"{name} is {type(ours).__name__}, not {len(theirs)} items")
            self.check(len(ours) == len(theirs), f"{name} has {len(ours)} items instead of {len(theirs)}")
            known = self.names if name == "answer" and len(self.names) == len(ours) else ()
            names = known or [f"{name}[{i}]" for i in range(len(ours))]
            return type(theirs)(map(self.value, names, ours, theirs))
        if isinstance(ours, Cache):
            setattr(theirs, STATE, ours)
            return theirs
        self.check(theirs is None and ours is None, f"{name} is {ours!r:.60} instead of {theirs!r:.60}")
        return ours

    def tensor(self, name: str, ours: Tensor, theirs: Tensor) -> Tensor:
        self.check(ours.shape == theirs.shape, f"{name} is {list(ours.shape)} instead of {list(theirs.shape)}")
        self.check(ours.dtype == theirs.dtype, f"{name} is {ours.dtype} instead of {theirs.dtype}")
        if self.numbers and theirs.numel():
            keep = self.real(name, theirs)
            a, b = ours.detach().masked_fill(~keep, 0), theirs.detach().masked_fill(~keep, 0)
            self.close(name, a, b)
        return ours

    def close(self, name: str, a: Tensor, b: Tensor) -> None:
        if not b.dtype.is_floating_point:
            self.check(torch.equal(a, b), f"{name} is {a.tolist()!s:.200} instead of {b.tolist()!s:.200}")
            return
        self.check(torch.equal(a.isfinite(), b.isfinite()), f"{name} is infinite elsewhere")
        a, b = (x.double().masked_fill(~b.isfinite(), 0) for x in (a, b))
        worst = float((a - b).abs().max()) / max(float(b.abs().max()), 1e-6)
        dtype = self.batch.get("dtype", torch.float32)
        self.check(worst <= TOLERANCE[dtype], f"{name} is off by {worst:.1e} of the largest value")

    def real(self, name: str, value: Tensor) -> Tensor:
        """Where a field means something: padded tokens do not."""
        everything = torch.ones_like(value, dtype=torch.bool)
        mask = self.mask(name)
        if (self.kind == "generate" and not name.startswith("encoder")) or mask is None or value.dim() < 2:
            return everything
        if name in POOLED and value.dim() == 2:  # of the first token, where that is real
            first = mask[:, :1]
            return (first.reshape(value.shape) if value.numel() == len(first) else first) & everything
        queries = value.shape[2] if value.dim() == 4 else value.shape[1]
        mask = mask[:, -queries:]
        spans = name.endswith(("start_logits", "end_logits"))
        if value.shape[0] != len(mask) or mask.shape[1] != queries or (value.dim() == 2 and not spans):
            return everything
        shape = (len(mask), 1, queries, 1) if value.dim() == 4 else (*mask.shape, *[1] * (value.dim() - 2))
        return mask.reshape(shape) & everything

    def mask(self, name: str) -> Tensor | None:
        """Which of the tokens behind a field are real [B, T]."""
        decodes = self.batch["pair"] and not name.startswith("encoder")
        mask = self.batch.get("decoder_attention_mask" if decodes else "attention_mask")
        return mask.flatten(0, -2).bool() if mask is not None and mask.dim() in (2, 3) else None

    def check(self, right: bool, what: str) -> None:
        if not right:
            raise DifferentError(f"{self.kind}: {what}")
