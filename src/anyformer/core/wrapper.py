"""Modules around another module that add no level to the names of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from torch import nn


class Wrapper(nn.Module):
    """Base of modules around one other module, such as a sublayer around its attention: the parameter is named
    `blocks.0.self.out.weight` and not `blocks.0.self.part.out.weight`.

    Both modules share one dictionary of children, so that a tool that replaces `blocks.0.self.out` replaces it for
    both. `modules()` visits the inner module too, under the name of the outer one.
    """

    _inner: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self._own: dict[str, list[str]] = {}  # kind of children -> names of those that the inner module does not have

    def wrap(self, name: str, module: nn.Module) -> None:
        """Hold `module` as attribute `name`, and its children and parameters as if they were our own."""
        for kind in ("_modules", "_parameters", "_buffers"):
            own, inner = getattr(self, kind), getattr(module, kind)
            both = own.keys() & inner.keys()
            assert not both, f"{type(self).__name__} and {type(module).__name__} both have {', '.join(both)}"
            merged = {**own, **inner}
            inner.clear()
            inner.update(merged)
            object.__setattr__(self, kind, inner)
            self._own[kind] = list(own)
        object.__setattr__(self, name, module)
        self._inner = name

    def release(self) -> nn.Module:
        """Give the inner module up; each then has its own children again."""
        module = self.inner
        assert module is not None and self._inner is not None
        for kind, names in self._own.items():
            shared = getattr(self, kind)
            object.__setattr__(self, kind, {name: shared.pop(name) for name in names})
        self.__dict__[self._inner] = None
        self._inner = None
        return module

    @property
    def inner(self) -> nn.Module | None:
        return None if self._inner is None else self.__dict__[self._inner]

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        inner = self.inner
        if inner is not None:
            yield from inner.named_modules(memo, prefix, remove_duplicate)
        else:
            for name, module in self._modules.items():
                if module is not None:
                    yield from module.named_modules(memo, prefix + ("." if prefix else "") + name, remove_duplicate)

    def train(self, mode: bool = True) -> Self:
        inner = self.inner
        if inner is not None:
            inner.train(mode)  # reaches the shared children
            self.training = mode
            return self
        return super().train(mode)

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        inner = self.inner
        if inner is None:
            return super().apply(fn)
        inner.apply(fn)
        fn(self)
        return self

    def _get_name(self) -> str:
        inner = self.inner
        return super()._get_name() if inner is None else f"{super()._get_name()}[{inner._get_name()}]"


def innermost(module: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    while isinstance(module, Wrapper) and module.inner is not None:
        module = module.inner
    return module
