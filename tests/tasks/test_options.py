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
    with pytest.raises(af.Error, match=r'"max_new_token"\. Did you mean "max_new_tokens"'):
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


SEVERAL = ("classify-pair", "match")  # a text and its choices, an image and its texts


@pytest.mark.parametrize(
    ("name", "things"),
    [(name, things) for name in sorted(TASKS) for things in ((), ("a", "b", "c")) if not (things and name in SEVERAL)],
)
def test_too_many_inputs_or_none_are_refused(name: str, things: tuple[str, ...]) -> None:
    kind = find(name)
    with pytest.raises(af.InputError, match=f"{name} takes one (input|pair)"):
        kind.__new__(kind)(*things)


@pytest.mark.parametrize("name", sorted(name for name in TASKS if find(name).asks == 1 and find(name).beside is None))
def test_a_task_that_reads_one_thing_refuses_two(name: str) -> None:
    kind = find(name)
    with pytest.raises(af.InputError, match=f"{name} takes one input"):
        kind.__new__(kind)("a", "b")


@pytest.mark.parametrize("name", pretrained.PAIRS)
def test_a_pair_may_be_two_arguments(name: str) -> None:
    if pretrained.default(name).problem is not None:
        pytest.skip(f"no model for {name} is here")
    work = af.task(name)
    pair = ("Who baked cookies?", "Amanda baked cookies.")
    assert work(*pair) == work(pair) == work([pair])[0] == work("\t".join(pair))
    for wrong in ("Who", None, 3, {"question": "Who?"}, ("Who",), ("Who", None), (["Who"], ["Amanda"])):
        with pytest.raises(af.InputError):
            work(wrong)


@pytest.mark.parametrize(("name", "option"), [("match", "texts"), ("ask-image", "question")])
def test_what_is_said_beside_a_picture_may_follow_it(name: str, option: str, monkeypatch: Any) -> None:
    """The second argument is the option of that name, in Python as on the command line."""
    kind, seen = find(name), []
    monkeypatch.setattr(kind, "respond", lambda self, thing, **options: seen.append((thing, options)))
    task = kind.__new__(kind)
    task("a.png", "a cat")
    assert seen == [("a.png", {option: "a cat"})]
    with pytest.raises(af.InputError, match=f"{name} takes one input"):
        task("a.png", "a cat", **{option: "a dog"})


def test_several_texts_may_follow_a_picture(monkeypatch: Any) -> None:
    seen: list[Any] = []
    kind = find("match")
    monkeypatch.setattr(kind, "respond", lambda self, thing, **options: seen.append((thing, options)))
    kind.__new__(kind)("a.png", "a cat", "two dogs")
    assert seen == [("a.png", {"texts": ("a cat", "two dogs")})]


def test_two_lists_are_a_list_of_pairs(monkeypatch: Any) -> None:
    seen: list[Any] = []
    kind = find("answer")
    monkeypatch.setattr(kind, "respond", lambda self, thing, **options: seen.append(thing))
    task = kind.__new__(kind)
    task(["Who?", "When?"], ["She did.", "Today."])
    assert seen == [[("Who?", "She did."), ("When?", "Today.")]]
    with pytest.raises(af.InputError, match="have 2 and 1 entries"):
        task(["Who?", "When?"], ["She did."])
