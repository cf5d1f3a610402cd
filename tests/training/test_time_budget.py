"""The place in the schedule of a run that has minutes, by clocks that are made up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from anyformer.training.callbacks import Progress
from anyformer.training.optim import learning_rate
from anyformer.training.settings import TrainSettings
from anyformer.training.state import TrainState
from anyformer.training.time_budget import FIRST, TimeBudget
from anyformer.training.trainer import train
from tests.training.test_trainer import Notes
from tests.training.toy import DeadError, Toy, fingerprint, settings

# A run on a GPU: 9 minutes for 10,000 steps, of which some 6,600 fit.
GIVEN = TrainSettings(steps=10_000, max_minutes=9, warmup_steps=2000, lr=0.002, schedule="inverse_sqrt")
Durations = Callable[[int], float]  # the seconds that a step takes, by its number


def play(chosen: TrainSettings, takes: Durations, state: TrainState, until: float | None = None) -> list[int]:
    """The places of the steps that one start of a run makes, until its time is up or it is cut off."""
    pace, places = TimeBudget(chosen, state), []
    end = 60 * chosen.max_minutes if until is None else until
    while state.seconds < end and state.step < chosen.steps:
        places.append(pace.place(state.step + 1, state.seconds))
        state.step += 1
        state.seconds += takes(state.step)
    return places


def leaps(places: list[int]) -> list[int]:
    return [after - before for before, after in itertools.pairwise(places)]


def set_up(step: int) -> float:
    """A minute of compiling and recording, in the first steps."""
    return 30.0 if step in (1, 4) else 0.08


def test_steps_that_fit_are_the_places() -> None:
    assert play(GIVEN, lambda _: 0.05, TrainState()) == list(range(1, 10_001))
    assert play(GIVEN.replace(max_minutes=0.0), set_up, TrainState(), until=300.0)[:3] == [1, 2, 3]


def test_the_rate_does_not_jump_after_the_warm_up() -> None:
    """The warm-up is that of the steps; then time leads to the end, evenly."""
    places = play(GIVEN, set_up, TrainState())
    assert places[:2000] == list(range(1, 2001))
    # 480 seconds of steps are 6,000: 2,000 warm it up, and 4,000 are left for 8,000 places.
    assert set(leaps(places)[2000:]) <= {1, 2, 3} and places[-1] in (9998, 9999, 10_000)
    rates = [learning_rate(place, GIVEN) for place in places]
    assert rates.index(max(rates)) == 1999 and max(rates) == 0.002
    assert max(abs(a - b) for a, b in itertools.pairwise(rates)) < 0.002 / 1000
    assert rates[-1] == pytest.approx(0.002 * (2000 / 10_000) ** 0.5, rel=1e-3)


def test_setting_up_is_no_progress() -> None:
    """Without a warm-up the first steps are the schedule's first, however long they took."""
    places = play(GIVEN.replace(warmup_steps=0, schedule="cosine"), set_up, TrainState())
    assert places[: FIRST + 1] == list(range(1, FIRST + 2)) and max(leaps(places)) <= 5 and places[-1] > 9990


def test_a_warm_up_takes_half_of_the_minutes_at_most() -> None:
    """Where only 540 steps fit, some 270 of them go up, and the rate comes down again."""
    places = play(GIVEN, lambda _: 1.0, TrainState())
    top = next(i for i, place in enumerate(places) if place >= 2000)
    assert 265 <= top <= 280 and places[-1] > 9900
    assert max(leaps(places[:top])) <= 8 and max(leaps(places)) <= 31


def test_a_break_moves_nothing() -> None:
    """A run that goes on sets up again, which takes time and is no progress; the end stays the end."""
    state = TrainState()
    first = play(GIVEN, set_up, state, until=300.0)
    before = state.step
    second = play(GIVEN, lambda step: set_up(step - before), state)
    assert all(0 <= leap <= 4 for leap in leaps([*first, *second])) and 9990 <= second[-1] <= 10_000


def test_more_minutes_than_before() -> None:
    """A run that had ended goes on as one that was given as many at once would, not at the rate it ended with."""
    state = TrainState()
    assert play(GIVEN, set_up, state)[-1] > 9990
    longer = play(GIVEN.replace(max_minutes=14), lambda _: 0.08, state)
    assert 6000 < longer[0] < 7500 and longer[-1] > 9990


def test_a_state_that_knows_no_anchor_goes_on() -> None:
    """As of a run that had no minutes, or was begun before there were anchors."""
    places = play(GIVEN, lambda _: 0.2, TrainState.from_json({"step": 3000, "seconds": 240.0}))
    assert places[0] == 3001 and min(leaps(places)) >= 0 and max(leaps(places)) <= 8 and places[-1] > 9900


def test_minutes_that_are_never_up_change_nothing(tmp_path: Path) -> None:
    """To the bit, cut off and continued too."""

    def die(progress: Progress) -> None:
        if progress.step == 13:
            raise DeadError

    plain, cut, rates = Toy(), Toy(), Notes()
    train(plain, settings())
    with pytest.raises(DeadError):
        train(Toy(), settings(max_minutes=600.0), folder=tmp_path, on_step=die)
    train(cut, settings(max_minutes=600.0, average_checkpoints=1), folder=tmp_path, resume=True, callback=rates)
    assert fingerprint(plain.model) == fingerprint(cut.model)
    assert [figures.lr for figures in rates.figures] == [learning_rate(n, settings()) for n in range(11, 21)]
