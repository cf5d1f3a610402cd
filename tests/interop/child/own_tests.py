"""A pytest plugin for transformers' own tests: what they are handed is our answer to the same question.

It is loaded by `-p own_tests` into a process that runs in transformers' checkout. Each outermost `model(...)` and
`model.generate(...)` is asked of both libraries, compared, and answered with ours. What happened is written as JSON to
the file named in ANYFORMER_OWN_TESTS.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import departures
import pytest
import torch
from answering import answer, asked, plainly

calls: defaultdict[str, Counter[str]] = defaultdict(Counter)  # test -> "GPT2LMHeadModel.generate" -> how often answered
kept: Counter[str] = Counter()  # fields that stayed transformers' own
left_out: Counter[str] = Counter()  # classes taken out of tests that go through all of a family
results: dict[str, dict[str, Any]] = {}
now = {"test": "", "inside": 0}


def pytest_configure(config: pytest.Config) -> None:
    from transformers import GenerationMixin, PreTrainedModel

    PreTrainedModel.__call__ = handing(PreTrainedModel.__call__, "call")
    GenerationMixin.generate = handing(GenerationMixin.generate, "generate")


def handing(original: Any, kind: str) -> Any:
    @functools.wraps(original)
    def handed(model: Any, *args: Any, **options: Any) -> Any:
        if now["inside"] or not now["test"]:
            return original(model, *args, **options)
        check_class(model)
        now["inside"] += 1
        try:
            return ours(original, kind, model, args, options)
        finally:
            now["inside"] -= 1

    return handed


def check_class(model: Any) -> None:
    name = type(model).__name__
    if name in departures.CLASSES:
        pytest.skip(f"departure: {departures.CLASSES[name]}: {name}")
    if name not in departures.ANSWERED:
        raise AssertionError(f"{name} is neither answered nor among the departures")
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        pytest.skip(f"departure: {departures.TRACED}")


def ours(original: Any, kind: str, model: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Both are asked, with the same draws; an error of transformers' is the answer to a question without one."""
    given = asked(model.forward if kind == "call" else original.__get__(model), args, options)
    given = plainly(kind, model, given)
    before = torch.get_rng_state()
    theirs = original(model, **given)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    handed, comparison = answer(kind, model, given, theirs)
    torch.set_rng_state(after)
    calls[now["test"]][f"{type(model).__name__}.{kind}"] += 1
    kept.update(f"{kind}.{name}" for name in comparison.kept)
    return handed


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    case = item.instance  # type: ignore[attr-defined]
    begin = case.setUp

    def set_up() -> None:
        begin()
        take_out(case)
        tester = getattr(case, "model_tester", None)
        if hasattr(tester, "initializer_factor"):  # T5's weights are so small that all words are equally likely: ties
            tester.initializer_factor = 1.0

    case.setUp = set_up
    now["test"], now["inside"] = item.nodeid, 0
    yield
    now["test"] = ""


def take_out(case: Any) -> None:
    """Classes that we do not load leave the list that a test goes through."""
    classes = getattr(case, "all_model_classes", None) or ()
    out = [one for one in classes if one.__name__ in departures.CLASSES]
    left_out.update(one.__name__ for one in out)
    if len(out) == len(classes) > 0:
        pytest.skip(f"departure: {departures.CLASSES[out[0].__name__]}: {out[0].__name__}")
    if out:
        case.all_model_classes = tuple(one for one in classes if one not in out)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        family = Path(str(item.fspath)).parent.name
        for pattern, reason in departures.TESTS.items():
            if fnmatch.fnmatchcase(f"{family}: {item.name}", pattern):
                item.add_marker(pytest.mark.skip(reason=f"departure: {reason}"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that failed in one of its parts has failed, whatever is reported after that."""
    if results.get(report.nodeid, {}).get("outcome") == "failed":
        return
    if report.when == "call" or report.outcome != "passed":
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
        results[report.nodeid] = {"outcome": report.outcome, "why": why, "calls": calls.get(report.nodeid, {})}


def pytest_sessionfinish() -> None:
    told = {"results": results, "kept": kept, "left_out": left_out}
    Path(os.environ["ANYFORMER_OWN_TESTS"]).write_text(json.dumps(told, indent=1), encoding="utf-8")
