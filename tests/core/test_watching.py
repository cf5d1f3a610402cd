"""Watching belongs to a call, not to the model: other threads, tasks and copies are not watched."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer import look
from anyformer.core.taps import is_watched
from tests.batches import BATCHES, build

BATCH = BATCHES["bert-tiny"]("right")


def _hooked(model: af.Model, act: Callable[[], None]) -> None:
    """Call `act` in the middle of the model's next pass, once."""

    def hook(*_: Any) -> None:
        handle.remove()
        act()

    handle = model.stages["encoder"].stack.blocks[1].register_forward_pre_hook(hook)


def _in_thread(act: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()))
    thread.start()
    thread.join(60)
    return found[0]


def test_another_thread_is_not_watched() -> None:
    model = build("bert-tiny")
    with look(model, "*") as seen:
        assert is_watched(model)
        assert not _in_thread(lambda: is_watched(model))
        _in_thread(lambda: model(**BATCH))
        assert not seen.log
        model(**BATCH)
        assert set(seen) == set(model.points)


def test_two_threads_see_their_own_passes() -> None:
    """Each of many threads looks at other points of one model, all at the same time, and sees its own batch."""
    model, start = build("bert-tiny"), threading.Barrier(4)
    rows = [BATCH["input_ids"][:1, : 3 + n] for n in range(4)]
    found: dict[int, Any] = {}

    def work(n: int) -> None:
        with torch.no_grad(), look(model, "*.self.weights" if n % 2 else "encoder.blocks.0.output") as seen:
            start.wait(60)
            for _ in range(10):
                model(rows[n])
        found[n] = seen

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for n, seen in found.items():
        points = [f"encoder.blocks.{block}.self.weights" for block in (0, 1)] if n % 2 else ["encoder.blocks.0.output"]
        assert [point for point, _ in seen.log] == points * 10
        assert all(value.shape[2 if n % 2 else 1] == 3 + n for _, value in seen.log)


def test_tasks_of_one_loop_are_not_watched() -> None:
    model = build("bert-tiny")

    async def looks(ready: asyncio.Event, done: asyncio.Event) -> int:
        with look(model, "*") as seen:
            ready.set()
            await done.wait()
        return len(seen.log)

    async def runs(ready: asyncio.Event, done: asyncio.Event) -> None:
        await ready.wait()
        model(**BATCH)
        done.set()

    async def both() -> int:
        ready, done = asyncio.Event(), asyncio.Event()
        return (await asyncio.gather(looks(ready, done), runs(ready, done)))[0]

    assert asyncio.run(both()) == 0


def test_a_context_that_is_carried_over_is_watched() -> None:
    """As by asyncio.to_thread: the call goes on in another thread."""
    model = build("bert-tiny")
    with look(model, "encoder.blocks.0.output") as seen:
        context = contextvars.copy_context()
        _in_thread(lambda: context.run(lambda: model(**BATCH)))
    assert len(seen.log) == 1
    context.run(lambda: model(**BATCH))  # the block has been left, whoever still holds the context
    assert len(seen.log) == 1


@pytest.mark.parametrize("again", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_made_while_looking_is_not_watched(again: Callable[[af.Model], af.Model]) -> None:
    model = build("bert-tiny")
    with look(model, "*") as seen:
        other = again(model)
        assert not is_watched(other)
        other(**BATCH)
        assert not seen.log
    other(**BATCH)
    assert not seen.log
    with look(other, "*.self.weights") as theirs:
        model(**BATCH)
        assert not theirs.log
        other(**BATCH)
    assert len(theirs.log) == 2


def test_output_attentions_leaves_the_model_alone() -> None:
    """While one caller gets attentions, another, and a copy, give what they always give; nobody gets another's."""
    model, before, inside = build("bert-tiny"), build("bert-tiny")(**BATCH), []

    def act() -> None:
        inside.append(_in_thread(lambda: is_watched(model)))
        inside.append(_in_thread(lambda: model(**BATCH)))
        inside.append(copy.deepcopy(model)(**BATCH))
        inside.append(_in_thread(lambda: model(**BATCH, output_attentions=True)))

    _hooked(model, act)
    out = model(**BATCH, output_attentions=True)
    watched, plain, copied, other = inside
    assert not watched and "attentions" not in plain and "attentions" not in copied
    assert torch.equal(plain.prediction_logits, before.prediction_logits)
    assert len(out.attentions) == len(other.attentions) == 2
    assert all(torch.equal(a, b) for a, b in zip(out.attentions, other.attentions, strict=True))


def test_two_models_are_not_taken_for_each_other() -> None:
    one, two = build("bert-tiny"), build("bert-tiny")
    with look(one, "*.self.weights") as seen:
        assert is_watched(one) and not is_watched(two)
        two(**BATCH)
        assert not seen.log
        with look(two, "encoder.blocks.0.output") as other:
            one(**BATCH)
            assert len(seen.log) == 2 and not other.log


def test_blocks_left_in_another_order() -> None:
    """Of two that overlap, each sees what ran while it was open."""
    model = build("bert-tiny")
    first, second = look(model, "encoder.blocks.0.output"), look(model, "encoder.blocks.0.output")
    one, two = first.__enter__(), second.__enter__()
    model(**BATCH)
    first.__exit__(None, None, None)
    model(**BATCH)
    second.__exit__(None, None, None)
    model(**BATCH)
    assert len(one.log) == 1 and len(two.log) == 2 and not is_watched(model)


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_of_blocks_that_are_computed_again(inside: bool) -> None:
    """With gradient checkpointing a watched pass has the gradients of an unwatched one, and each point is seen once."""
    grads: list[dict[str, Tensor]] = []
    for globs in ((), ("*.self.weights", "*.feedforward.hidden")):
        model = build("bert-tiny").train()
        model.stages["encoder"].stack.gradient_checkpointing = True
        torch.manual_seed(0)
        batch = {**BATCH, "labels": BATCH["input_ids"], "next_sentence_label": torch.tensor([0, 1, 0])}
        with look(model, *globs) as seen:
            loss = model(**batch).loss
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        assert len(seen.log) == 2 * len(globs)
        grads.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert grads[0].keys() == grads[1].keys() and len(grads[0]) > 10
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """What is compiled here does not count for other tests."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_can_be_watched_and_goes_back_to_its_graph() -> None:
    """Unwatched it is one graph; watched it gives the same numbers and shows its points."""
    model, graphs = build("gpt2-tiny", torch.float32, n_layers=1), []

    def count(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=count)
    row = BATCH["input_ids"][:1]
    plain = compiled(row).logits
    assert len(graphs) == 1
    with look(model, "decoder.blocks.0.self.weights") as seen:
        watched = compiled(row).logits
    assert len(seen.log) == 1 and torch.equal(watched, plain)
    made = len(graphs)
    assert torch.equal(compiled(row).logits, plain) and len(graphs) == made
