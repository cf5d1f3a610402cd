"""How long somebody is ready to wait: work that takes too long, or that nobody waits for any more, ends at the next
block of the model."""

from __future__ import annotations

import time
from threading import Event, Lock

from anyformer.errors import StoppedError


class Deadline:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.cancelled = Event()

    def cancel(self) -> None:
        """Whoever asked has left."""
        self.cancelled.set()

    def check(self) -> None:
        if self.cancelled.is_set():
            raise StoppedError("The request was canceled.")
        if time.monotonic() > self.until:
            raise StoppedError(f"This took longer than {self.seconds:.0f} s and was stopped; give it a shorter input.")

    def acquire(self, lock: Lock) -> None:
        """Wait for a model that somebody else is using."""
        while not lock.acquire(timeout=0.05):
            self.check()
