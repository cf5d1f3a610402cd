"""Kill a process at its n-th file operation.

Python announces an operation before it happens (audit events); fsync and the safetensors library do not, so they are
wrapped. Each life is a fork of the test's process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyformer.checkpoints import files

EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Operations:
    """Counts file operations on paths that have `within` in them, and ends the process before the `at`-th; with
    `torn`, when half a file is written."""

    def __init__(self, at: int | None, torn: bool, within: str) -> None:
        self.at, self.torn, self.within, self.count, self.dying = at, torn, within, 0, False

    def seen(self, path: Any = None) -> None:
        if self.dying:
            return
        self.count += 1
        if self.count == self.at:
            self.dying = True
            if self.torn and isinstance(path, (str, Path)):
                with contextlib.suppress(OSError):  # what the operation itself would not have been able to open either
                    Path(path).write_bytes(b'{"half": ')
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not args or self.within not in str(args[0]):
            return
        if event in EVENTS:
            self.seen()
        elif event == "open" and isinstance(args[2], int) and args[2] & WRITES:
            self.seen(args[0])

    def install(self) -> None:
        """For the rest of the process's life."""
        save_file = files.save_file

        def watched_fsync(handle: int) -> None:
            self.seen()  # what a killed process wrote is there without it

        def watched_save(tensors: Any, path: Any, metadata: Any) -> None:
            self.seen(path)
            save_file(tensors, path, metadata)

        os.fsync = watched_fsync
        vars(files)["save_file"] = watched_save
        sys.addaudithook(self.hook)


@contextmanager
def _forked(operations: Operations, action: Callable[[], object]) -> Iterator[tuple[int, int]]:
    """The child's exit status, and how many operations it reported at its end."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            operations.install()
            action()
            os.write(writer, str(operations.count).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    try:
        _, status = os.waitpid(child, 0)
        yield status, int(os.read(reader, 16) or b"0")
    finally:
        os.close(reader)


def count_operations(action: Callable[[], object], within: str = "") -> int:
    with _forked(Operations(None, False, within), action) as (status, count):
        assert status == 0, "the action failed by itself"
        return count


def kill_at(at: int, action: Callable[[], object], torn: bool = False, within: str = "") -> None:
    """Run an action in a process that is killed (SIGKILL) at its `at`-th file operation."""
    with _forked(Operations(at, torn, within), action) as (status, _):
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"not killed at operation {at}"
