"""Time limits and cancellation of requests, checked before every block of the model."""

from __future__ import annotations

import time
from threading import Event, Lock

from anyformer.errors import StoppedError


class Deadline:
    """A time limit that can also be canceled."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.canceled = Event()

    def cancel(self) -> None:
        """Cancel the work, for example because the client disconnected."""
        self.canceled.set()

    def check(self) -> None:
        """Raise StoppedError after the time limit or a cancellation."""
        if self.canceled.is_set():
            raise StoppedError("The request was canceled.")
        if time.monotonic() > self.until:
            raise StoppedError(
                f"The request took longer than {self.seconds:.0f} s and was stopped; use a shorter input."
            )

    def acquire(self, lock: Lock) -> None:
        """Acquire a lock, with checks of the deadline while waiting."""
        while not lock.acquire(timeout=0.05):
            self.check()
