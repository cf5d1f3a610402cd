"""Advice by rounds through the rows, and for runs that are given their number of steps."""

from __future__ import annotations

from anyformer.tasks.schedule_presets import scale_schedule, schedule_for


def test_rounds_are_steps() -> None:
    found = schedule_for(50_000, 200, size=256, lr=1e-3, evals=40, saves=10)
    assert found == {
        "batch_size": 256,
        "steps": 39_062,
        "lr": 1e-3,
        "warmup_steps": 1953,
        "eval_every": 976,
        "save_every": 3906,
    }


def test_a_run_of_given_length_keeps_its_shares() -> None:
    usual = {**schedule_for(50_000, 200, size=256, lr=1e-3, evals=40, saves=10), "ema_decay": 0.999}
    assert scale_schedule(usual, usual["steps"]) == usual
    half = scale_schedule(usual, 19_531)
    assert (half["warmup_steps"], half["eval_every"], half["save_every"], half["ema_decay"]) == (976, 488, 1953, 0.999)
    short = scale_schedule(usual, 1000)
    assert (short["warmup_steps"], short["eval_every"], short["save_every"], short["ema_decay"]) == (50, 100, 100, 0.0)


def test_a_longer_run_is_looked_at_as_often() -> None:
    usual = schedule_for(50_000, 200, size=256, lr=1e-3, evals=40, saves=10)
    assert scale_schedule(usual, 10**6) == usual
