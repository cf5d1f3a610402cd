"""`dir(af)` shows what there is; each name is documented, and what users call is typed."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import anyformer as af

NAMES = [name for name in dir(af) if name != "__version__"]
FIXED = (  # names that documents, tests and users rely on
    "Attention AttentionConfig Block Error FeedForward FeedForwardConfig Stack Stage Sublayer Tokenizer Tokens attend"
    " attention_weights build evaluate load look masks path_length plot positions recipes register task train"
).split()
# Values of any kind by their nature: JSON, and what PyTorch hands through.
FREE = {"to_dict", "to_json", "to_tuple", "state_dict", "forward", "describe"}
TYPED = ("Attention", "Block", "FeedForward", "Model", "Stack", "Stage", "Sublayer", "Tokens")


def test_dir_shows_the_fixed_names() -> None:
    assert set(FIXED) <= set(dir(af)) and set(dir(af)) == set(af.__all__)
    assert all(getattr(af, name) is not None for name in dir(af))


@pytest.mark.parametrize("name", NAMES)
def test_every_name_has_a_docstring(name: str) -> None:
    found = getattr(af, name)
    own = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    assert own and not own.startswith(f"{name}("), f"af.{name} has no docstring of its own"


def public_functions() -> Iterator[tuple[str, Any]]:
    """Those of the package and of the classes that users build with and call."""
    return ((name, f) for name, f in all_functions() if name.split(".")[-1] not in FREE and "._" not in name)


def all_functions() -> Iterator[tuple[str, Any]]:
    for name in NAMES:
        found = getattr(af, name)
        if isinstance(found, types.FunctionType):
            yield f"af.{name}", found
        elif name in TYPED:
            for cls in (one for one in found.__mro__ if one.__module__.startswith("anyformer")):
                yield from ((f"af.{name}.{m}", f) for m, f in vars(cls).items() if inspect.isfunction(f))


@pytest.mark.parametrize(("name", "function"), public_functions())
def test_public_signatures_have_no_any(name: str, function: Any) -> None:
    hints = inspect.get_annotations(function)
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name not in ("self", "cls")]
    assert all(one.name in hints or one.annotation is not one.empty for one in parameters) and "return" in hints
    untyped = [one for one, hint in hints.items() if "Any" in str(hint).replace("Callable[[Any]", "")]
    assert not untyped, f"{name}: {untyped}"


def test_every_argument_of_a_forward_is_typed() -> None:
    for name in ("bert-tiny", "vit-tiny", "whisper-toy", "detr-tiny"):
        shown = inspect.signature(af.build(name, device="meta").forward).parameters
        assert all(typing.Any not in (one.annotation, *typing.get_args(one.annotation)) for one in shown.values())
