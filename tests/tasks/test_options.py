"""Options of a task's call that it does not take are refused, with the nearest that it does."""

from __future__ import annotations

from typing import Any

import pytest

import anyformer as af
from anyformer import pretrained
from anyformer.tasks import TASKS, WRITING, find

SILENT = sorted(set(TASKS) - WRITING)


@pytest.mark.parametrize("name", SILENT)
def test_no_task_ignores_an_option(name: str) -> None:
    """Without a model: what is not taken is refused before anything is looked at."""
    kind = find(name)
    with pytest.raises(af.InputError, match=rf'{name} takes no "foo"'):
        kind.__new__(kind)("anything", foo=1)


@pytest.mark.parametrize("name", sorted(WRITING))
def test_no_writing_task_ignores_an_option(name: str, tmp_path: Any) -> None:
    if not any(model.task == name and model.problem is None for model in pretrained.models()):
        pytest.skip(f"no model for {name} is here")
    model = pretrained.default(name)
    with pytest.raises(af.Error, match=r'no (field )?"max_new_token"\. Did you mean "max_new_tokens"'):
        af.task(name)(model.input(), max_new_token=3)


def test_the_nearest_is_said() -> None:
    with pytest.raises(af.InputError, match=r'Did you mean "top"\? It takes: top\.'):
        find("fill-mask").__new__(find("fill-mask"))("a", topp=3)


def test_an_option_of_the_task_itself_says_where_it_goes() -> None:
    with pytest.raises(af.InputError, match=r'takes no "normalize" in a call.*af\.task\("embed", normalize='):
        find("embed").__new__(find("embed"))("x", normalize=False)


def test_as_a_user_types_it() -> None:
    if find("embed") and pretrained.default("embed").problem is not None:
        pytest.skip("minilm is not here")
    embed = af.task("embed")
    assert embed("x").shape == (384,)
    assert embed(["x"], tokens=100).shape == (1, 384)
    for wrong in ({"normalize": False}, {"token": 100}, {"foo": 1}):
        with pytest.raises(af.InputError, match="embed takes no"):
            embed("x", **wrong)
