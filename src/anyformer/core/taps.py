"""Taps: named points inside a model whose values can be recorded, such as "decoder.blocks.3.cross.weights".

Every part has a `Taps` with the part's name. `record(point, value)` costs one test if nothing is watched. Watchers are
stored in a context variable: watching is a property of the call and does not change the model. Attention computes its
weights only for watched layers, in addition to its fast kernel, so that watching does not change results. Gradients
pass through what is watched.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import Tensor, nn

from anyformer.core.packing import Packing
from anyformer.errors import InputError, nearest

if TYPE_CHECKING:
    from anyformer.core.tokens import Tokens


class Seen(dict[str, Tensor]):
    """Recorded values: the latest value of each point. `log` contains all values in order."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[str, Tensor]] = []

    def add(self, point: str, value: Tensor) -> None:
        self[point] = value
        self.log.append((point, value))

    def matching(self, pattern: str) -> tuple[Tensor, ...]:
        """All recorded values of the points that match, in order."""
        return tuple(value for point, value in self.log if fnmatch.fnmatchcase(point, pattern))


class Watch:
    """Identity of a model for its watchers. It has no data; a copy of the model gets a new one."""


class Watcher:
    """Globs that one caller watches in one model, until `stop`."""

    def __init__(self, watch: Watch, globs: tuple[str, ...], seen: Seen) -> None:
        self.watch, self.globs, self.seen = watch, globs, seen
        self._found: dict[str, bool] = {}  # cached results by point

    def wants(self, point: str) -> bool:
        if point not in self._found:
            self._found[point] = any(fnmatch.fnmatchcase(point, glob) for glob in self.globs)
        return self._found[point]

    def stop(self) -> None:
        """Stop watching, in all contexts that this watcher was copied to."""
        self.globs, self._found = (), {}


# Watchers of the current call: a thread or a task has its own.
_WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
# All watchers in this process. Parts first test whether it is empty, which is fast and is the only state that a
# compiled graph depends on.
_ANYWHERE: list[Watcher] = []


def is_watched(model: nn.Module) -> bool:
    """Whether the current call is watched at some point of the model."""
    assert isinstance(model.watch, Watch)
    return _watched(model.watch)


def _watched(watch: Watch) -> bool:
    return bool(_ANYWHERE) and any(one.watch is watch and one.globs for one in _WATCHERS.get())


class Taps:
    """The watchers of a model, as one part uses them."""

    def __init__(self, watch: Watch, path: str) -> None:
        self.watch = watch
        self.path = path

    def name(self, part: nn.Module) -> str:
        """The part's name in a cache, or a default name outside of a model."""
        return self.path or f"{type(part).__name__} {id(part)}"

    @property
    def watched(self) -> bool:
        """Whether the current call is watched at some point of the model."""
        return _watched(self.watch)

    def is_watched(self, point: str) -> bool:
        return bool(_ANYWHERE) and bool(self._seekers(f"{self.path}.{point}"))

    def record(self, point: str, value: Tensor, packing: Packing | None = None, heads: bool = False) -> Tensor:
        """Record a value if the point is watched, packed tokens (or `heads` [1, H, N, d]) as padded ones. Returns the
        value to go on with, so that what is watched lies on the way to the output, for gradients."""
        seekers = self._seekers(f"{self.path}.{point}") if _ANYWHERE else []
        if not seekers:
            return value
        pack, unpack = _as_it_is, _as_it_is
        if packing is not None:
            pack, unpack = (packing.pack_heads, packing.unpack_heads) if heads else (packing.pack, packing.unpack)
        shown = unpack(value)
        for seen in seekers:
            seen.add(f"{self.path}.{point}", shown)
        return pack(shown)

    def record_tokens(self, point: str, tokens: Tokens) -> Tokens:
        """As `record`, for the vectors of tokens."""
        x = self.record(point, tokens.x, tokens.packing)
        return tokens if x is tokens.x else tokens.replace(x)

    def _seekers(self, point: str) -> list[Seen]:
        return [one.seen for one in _WATCHERS.get() if one.watch is self.watch and one.wants(point)]


def _as_it_is(x: Tensor) -> Tensor:
    return x


NO_TAPS = Taps(Watch(), "")


def name_taps(root: nn.Module, watch: Watch) -> list[str]:
    """Set the taps of every part below `root` that has tap points. Returns the names of all points."""
    names = []
    for path, part in root.named_modules():
        points: tuple[str, ...] = getattr(type(part), "tap_points", ())
        if points:
            part.taps = Taps(watch, path)
            names += [f"{path}.{point}" for point in points]
    return names


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
    """As `look`, but patterns may match nothing; values are recorded in `seen` if it is given."""
    seen = Seen() if seen is None else seen
    if not patterns:
        yield seen
        return
    watcher = Watcher(watch, patterns, seen)
    with _among(watcher):
        yield seen


@contextmanager
def _among(*watchers: Watcher) -> Iterator[None]:
    _ANYWHERE.extend(watchers)
    _WATCHERS.set((*_WATCHERS.get(), *watchers))
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.stop()
            _ANYWHERE.remove(watcher)
        _WATCHERS.set(tuple(one for one in _WATCHERS.get() if one not in watchers))


class Unseen(Seen):
    """Discards all values."""

    def add(self, point: str, value: Tensor) -> None:
        pass


def recomputing() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for blocks that are recomputed for gradients (`context_fn` of torch.utils.checkpoint), possibly in
    another thread: they run as if they were watched, and nothing is recorded twice."""
    return nullcontext(), _again([(one.watch, one.globs) for one in _WATCHERS.get()])


@contextmanager
def _again(wanted: list[tuple[Watch, tuple[str, ...]]]) -> Iterator[None]:
    now = _WATCHERS.set(())
    try:
        with _among(*(Watcher(watch, globs, Unseen()) for watch, globs in wanted)):
            yield
    finally:
        _WATCHERS.reset(now)
