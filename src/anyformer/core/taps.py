"""Named points to watch inside a model, such as "decoder.blocks.3.cross.weights".

Every part holds a `Taps` that knows the part's own name. `see(point, value)` costs one truth test while nobody looks.
Attention computes its weights only for the layers that are watched, beside its fast kernel and not instead of it, so
looking changes nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from anyformer.errors import InputError, nearest
from anyformer.tokens import Packing


class Seen(dict[str, Tensor]):
    """What was seen: the latest value at each point. `log` has every one, in the order they came."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, Tensor]] = []

    def add(self, point: str, value: Tensor) -> None:
        self[point] = value
        self.log.append((point, value))

    def matching(self, pattern: str) -> tuple[Tensor, ...]:
        """Everything seen at the points that match, in order."""
        return tuple(value for point, value in self.log if fnmatch.fnmatchcase(point, pattern))


class Watch:
    """The watchers of one model, shared by all of its taps."""

    def __init__(self) -> None:
        self.patterns: list[tuple[tuple[str, ...], Seen]] = []
        self.found: dict[str, list[Seen]] = {}  # points that were asked about since the patterns last changed

    def seekers(self, point: str) -> list[Seen]:
        if point not in self.found:
            seekers = [s for globs, s in self.patterns if any(fnmatch.fnmatchcase(point, glob) for glob in globs)]
            self.found[point] = seekers
        return self.found[point]

    def change(self, patterns: list[tuple[tuple[str, ...], Seen]]) -> None:
        self.patterns, self.found = patterns, {}


class Taps:
    """A part's own view of the model's watchers."""

    def __init__(self, watch: Watch, path: str) -> None:
        self.watch = watch
        self.path = path

    def name(self, part: nn.Module) -> str:
        """What a state calls the part; outside a model it has no name of its own."""
        return self.path or f"{type(part).__name__} {id(part)}"

    def wants(self, point: str) -> bool:
        return bool(self.watch.patterns) and bool(self.watch.seekers(f"{self.path}.{point}"))

    def see(self, point: str, value: Tensor, packing: Packing | None = None) -> Tensor:
        """Show a value to whoever watches; packed tokens are shown padded. Returns the value itself."""
        if self.watch.patterns:
            for seen in self.watch.seekers(f"{self.path}.{point}"):
                seen.add(f"{self.path}.{point}", value if packing is None else packing.unpack(value))
        return value


NO_TAPS = Taps(Watch(), "")

# The points of each kind of part, for listing and for hints.
POINTS = {
    "Attention": ("query", "key", "value", "weights", "output"),
    "FeedForward": ("hidden",),
    "StateSpace": ("output",),
    "Recurrent": ("output",),
    "RecurrentDecoder": ("output",),
    "AttentiveDecoder": ("weights", "output"),
    "GatedConvolution": ("output",),
    "Bottleneck": ("output",),
    "Lookup": ("weights", "output"),
    "Align": ("output",),
    "PositionMix": ("output",),
    "AttentionPool": ("weights",),
    "Residual": ("output",),
    "ResNet": ("features",),
    "Block": ("output",),
    "Stage": ("input", "output"),
}


def brief(path: str) -> str:
    """The name of a part or a parameter as people say it, in taps, key tables and files.

    stages.encoder.stack.blocks.0.sublayers.self.part.out.weight -> encoder.blocks.0.self.out.weight
    """
    words = path.split(".")
    return ".".join(word for i, word in enumerate(words) if word not in _SCAFFOLD and (i or word not in _ROOMS))


_SCAFFOLD = frozenset({"stack", "sublayers", "part"})
_ROOMS = frozenset({"stages", "heads"})


def name_taps(root: nn.Module, watch: Watch) -> list[str]:
    """Give every part below `root` its taps. Returns all points."""
    points = []
    for path, part in root.named_modules():
        kind = type(part).__name__
        if kind in POINTS:
            part.taps = Taps(watch, brief(path))
            points += [f"{brief(path)}.{point}" for point in POINTS[kind]]
    return points


@contextmanager
def look(model: nn.Module, *patterns: str) -> Iterator[Seen]:
    """Watch the points that match the globs while the block runs.

    with look(model, "*.self.weights") as seen:
        model(**batch)
    seen["encoder.blocks.0.self.weights"]       # [batch, heads, queries, keys]
    """
    watch, points = model.watch, model.points
    assert isinstance(watch, Watch) and isinstance(points, list)
    for pattern in patterns:
        if not fnmatch.filter(points, pattern):
            raise InputError(
                f'No point of this model matches "{pattern}".{nearest(pattern, points)}'
                f" It has {len(points)} points; model.points lists them, {points[0]} among them."
            )
    with watching(watch, *patterns) as seen:
        yield seen


@contextmanager
def watching(watch: Watch, *patterns: str, seen: Seen | None = None) -> Iterator[Seen]:
    """`look` without asking whether anything matches; what is seen goes into `seen`, where that is given."""
    seen = Seen() if seen is None else seen
    if patterns:
        watch.change([*watch.patterns, (patterns, seen)])
    try:
        yield seen
    finally:  # by identity: two watchers of the same points hold equal dictionaries
        if patterns:
            watch.change([entry for entry in watch.patterns if entry[1] is not seen])
