"""Named points to watch inside a model, such as "decoder.blocks.3.cross.weights".

Every part holds a `Taps` that knows the part's own name. `see(point, value)` costs one truth test while nobody looks.
Who looks is a context variable: watching is a property of the call, and the model itself never changes by it.
Attention computes its weights only for the layers that are watched, beside its fast kernel and not instead of it, so
looking changes nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

from torch import Tensor, nn

from anyformer.core.packing import Packing
from anyformer.errors import InputError, nearest


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
    """One model, as its watchers know it. It holds nothing; a copy of the model has another one."""


class Watcher:
    """Globs that one caller asks about in one model, until `stop`."""

    def __init__(self, watch: Watch, globs: tuple[str, ...], seen: Seen) -> None:
        self.watch, self.globs, self.seen = watch, globs, seen
        self._found: dict[str, bool] = {}  # points that were asked about

    def wants(self, point: str) -> bool:
        if point not in self._found:
            self._found[point] = any(fnmatch.fnmatchcase(point, glob) for glob in self.globs)
        return self._found[point]

    def stop(self) -> None:
        """Want nothing more, whichever contexts this one was copied to."""
        self.globs, self._found = (), {}


# Who watches the current call: a thread or a task sees its own watchers only.
_WATCHERS: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
# Whoever watches in this process. While it is empty, no part asks further: it is quick, and all that a compiled graph
# depends on.
_ANYWHERE: list[Watcher] = []


def is_watched(model: nn.Module) -> bool:
    """Whether the current call is watched at some point of the model."""
    assert isinstance(model.watch, Watch)
    return _watched(model.watch)


def _watched(watch: Watch) -> bool:
    return bool(_ANYWHERE) and any(one.watch is watch and one.globs for one in _WATCHERS.get())


class Taps:
    """A part's own view of the model's watchers."""

    def __init__(self, watch: Watch, path: str) -> None:
        self.watch = watch
        self.path = path

    def name(self, part: nn.Module) -> str:
        """What a state calls the part; outside a model it has no name of its own."""
        return self.path or f"{type(part).__name__} {id(part)}"

    @property
    def watched(self) -> bool:
        """Whether the current call is watched at some point of the model."""
        return _watched(self.watch)

    def is_watched(self, point: str) -> bool:
        return bool(_ANYWHERE) and bool(self._seekers(f"{self.path}.{point}"))

    def record(self, point: str, value: Tensor, packing: Packing | None = None) -> Tensor:
        """Show a value to whoever watches; packed tokens are shown padded. Returns the value itself."""
        if _ANYWHERE:
            for seen in self._seekers(f"{self.path}.{point}"):
                seen.add(f"{self.path}.{point}", value if packing is None else packing.unpack(value))
        return value

    def _seekers(self, point: str) -> list[Seen]:
        return [one.seen for one in _WATCHERS.get() if one.watch is self.watch and one.wants(point)]


NO_TAPS = Taps(Watch(), "")


def name_taps(root: nn.Module, watch: Watch) -> list[str]:
    """Give every part below `root` that has tap points its taps. Returns the names of all points."""
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
    """`look` without asking whether anything matches; what is seen goes into `seen`, where that is given."""
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
    """Keeps nothing."""

    def add(self, point: str, value: Tensor) -> None:
        pass


def recomputing() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For blocks that are computed again for gradients (`context_fn` of torch.utils.checkpoint), maybe in another
    thread: they do what they did when they were watched, and nobody sees it a second time."""
    return nullcontext(), _again([(one.watch, one.globs) for one in _WATCHERS.get()])


@contextmanager
def _again(wanted: list[tuple[Watch, tuple[str, ...]]]) -> Iterator[None]:
    now = _WATCHERS.set(())
    try:
        with _among(*(Watcher(watch, globs, Unseen()) for watch, globs in wanted)):
            yield
    finally:
        _WATCHERS.reset(now)
