"""Advice by rounds through the rows, and for runs that are given their number of steps."""

from __future__ import annotations

from anyformer.tasks.rounds import paced, rounds


def test_rounds_are_steps() -> None:
    found = rounds(50_000, 200, size=256, lr=1e-3, evals=40, saves=10)
    assert found == {
        "batch_size": 256,
        "steps": 39_062,
        "lr": 1e-3,
        "warmup": 1953,
        "eval_every": 976,
        "save_every": 3906,
    }


def test_a_run_of_given_length_keeps_its_shares() -> None:
    usual = {**rounds(50_000, 200, size=256, lr=1e-3, evals=40, saves=10), "ema": 0.999}
    assert paced(usual, usual["steps"]) == usual
    half = paced(usual, 19_531)
    assert (half["warmup"], half["eval_every"], half["save_every"], half["ema"]) == (976, 488, 1953, 0.999)
    short = paced(usual, 1000)
    assert (short["warmup"], short["eval_every"], short["save_every"], short["ema"]) == (50, 100, 100, 0.0)


def test_the_papers_warm_up_is_no_share() -> None:
    usual = {"steps": 8000, "warmup": 1000, "schedule": "inverse_sqrt", "eval_every": 50}
    assert paced(usual, 80_000) == {**usual, "eval_every": 500}
    assert paced(usual, 800) == {**usual, "warmup": 100, "eval_every": 50}
    assert paced({"lr": 1.0}, 5) == {"lr": 1.0}
