"""Where a run that has minutes stands in its schedule: time takes it on where its steps would not get to the end."""

from __future__ import annotations

from anyformer.training.settings import TrainSettings
from anyformer.training.state import TrainState

FIRST = 5  # steps of a start that set things up: compile, record, choose kernels


class TimeBudget:
    """A straight line of time leads from the anchor, a time and a place that are in the state, to the end of the
    schedule at the end of the minutes; a run whose steps are ahead of it is where its steps are.

    The warm-up goes by steps, because what it waits for, the optimizer's averages, comes of steps and not of minutes;
    so the line begins where it ended, and the rate does not jump there. Only where it would take more than half of the
    minutes does time lead through it, so that the rate comes down again at all.

    The first steps of a start take long and lead nowhere: the anchor moves along until they are over. Whatever else
    takes time, an evaluation say, counts.
    """

    def __init__(self, settings: TrainSettings, state: TrainState) -> None:
        self.state, self.steps, self.limit = state, settings.steps, 60 * settings.max_minutes
        self.warmup = min(settings.warmup_steps, settings.steps)
        self.begun = 0  # steps of this start

    @property
    def settling(self) -> bool:
        return self.begun <= FIRST

    def place(self, number: int, seconds: float) -> int:
        """Of the step with this number, that begins after so many seconds of work."""
        if not self.limit:
            return number
        state = self.state
        if self.begun == 0:  # where the line leads by what is allowed now, which may be more than it was
            state.reached = self._line(seconds)
        if self.settling:
            state.since = seconds
        self.begun += 1
        place = max(float(number), self._line(seconds))
        if state.reached < self.warmup <= place:
            state.since, state.reached = seconds, float(self.warmup)
        return int(place)

    def _line(self, seconds: float) -> float:
        state = self.state
        left = self.limit - state.since
        end, time = (self.warmup, left / 2) if state.reached < self.warmup else (self.steps, left)
        share = (seconds - state.since) / time if time > 0 else 1.0
        return state.reached + (end - state.reached) * min(share, 1.0)
