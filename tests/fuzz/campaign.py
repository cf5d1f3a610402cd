"""A run of the fuzzer: seeds in a scratch folder, mutations in worker processes that are watched from outside."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import anyformer as af
from tests.fuzz.mutate import mutate
from tests.fuzz.targets import SECRET, Target, check_message

SECONDS = 5.0  # of the processor, for one mutation
PATIENCE = 4 * SECONDS  # by the clock: the machine may be busy, but a pipe that nobody writes to blocks for ever
MEMORY = 3 * 2**29  # bytes, resident, more than before the case
ADDRESSES = 4 * 2**30  # bytes that may be asked for, beyond what the process has at the start


@dataclass(frozen=True)
class Result:
    """One mutation. `problem` is empty where it was refused with af.Error, or did no harm."""

    target: str
    number: int
    done: str
    refused: str = ""
    problem: str = ""
    where: str = ""
    seconds: float = 0.0
    clock: float = 0.0
    memory: int = 0


@dataclass
class Report:
    seed: int
    results: int = 0
    refused: int = 0
    slowest: Result | None = None
    longest: Result | None = None
    largest: Result | None = None
    problems: list[Result] = field(default_factory=list)
    by_target: Counter[str] = field(default_factory=Counter)

    def add(self, one: Result) -> None:
        self.results += 1
        self.by_target[one.target] += 1
        self.refused += bool(one.refused)
        self.problems += [one] if one.problem else []
        self.slowest = max(filter(None, (self.slowest, one)), key=lambda r: r.seconds)
        self.longest = max(filter(None, (self.longest, one)), key=lambda r: r.clock)
        self.largest = max(filter(None, (self.largest, one)), key=lambda r: r.memory)

    def text(self) -> str:
        lines = [self._group(found) for found in self.groups()]
        assert self.slowest and self.longest and self.largest
        return "\n".join([
            *lines,
            f"{self.results:,} mutations of {len(self.by_target)} targets: {self.refused:,} refused,"
            f" {len(self.problems):,} problems in {len(lines)} places.",
            f"Slowest {self.slowest.seconds:.2f} s of the processor ({self.slowest.target}:{self.slowest.number}),"
            f" {self.longest.clock:.2f} s by the clock ({self.longest.target}:{self.longest.number}); most memory"
            f" {self.largest.memory / 2**20:,.0f} MB ({self.largest.target}:{self.largest.number}).",
        ])  # fmt: skip

    def groups(self) -> list[list[Result]]:
        """Problems that end at one place are one."""
        found: dict[str, list[Result]] = {}
        for one in self.problems:
            found.setdefault(f"{one.problem.split(':')[0]} {one.where}", []).append(one)
        return sorted(found.values(), key=len, reverse=True)

    def _group(self, found: Sequence[Result]) -> str:
        one = found[0]
        names = Counter(result.target for result in found).most_common(4)
        return (
            f"--- {len(found)} times, {', '.join(f'{name} ({n})' for name, n in names)}\n{one.problem[:500]}\n"
            f"    at {one.where}\n    after {one.done[:300]!r}\n"
            f"    again: python -m tests.fuzz --replay {one.target}:{self.seed}:{one.number}\n"
        )


class Campaign:
    def __init__(self, targets: Sequence[Target], seed: int = 0, root: Path | None = None) -> None:
        self.seed = seed
        self.root = Path(tempfile.mkdtemp(prefix="anyformer-fuzz-")) if root is None else root
        self.targets = {target.name: target for target in targets}
        os.environ["ANYFORMER_CACHE"] = str(self.root / "cache")
        maker = get_context("fork").Process(target=self._make_all)  # this process keeps no threads: it is forked
        maker.start()
        maker.join()
        if maker.exitcode:
            self.close()
            raise RuntimeError("a seed could not be made, or is refused as it is")

    def _make_all(self) -> None:
        own_threads()
        for target in self.targets.values():
            try:
                self._make(target)
            except BaseException:
                print(f"The seed of {target.name}:", file=sys.stderr)
                raise

    def _make(self, target: Target) -> None:
        home = self._home(target)
        (home / "seed").mkdir(parents=True)
        (home / "fixed").mkdir()
        torch.manual_seed(0)
        with quietly():
            target.make(home / "seed", home / "fixed")
        scratch = home / "whole" / "x"
        shutil.copytree(home / "seed", scratch)
        with quietly(), pytest.raises(af.Error) if target.refused else contextlib.nullcontext():
            target.act(scratch, home / "fixed", Random(0))  # a seed that is refused whole would test nothing

    def _home(self, target: Target) -> Path:
        return self.root / target.name.replace("/", "-")

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    # In a worker.

    def run(self, name: str, number: int, loud: bool = False) -> Result:
        """One mutation, in this process."""
        target, chance = self.targets[name], Random(f"{self.seed}:{name}:{number}")
        home = Path(tempfile.mkdtemp(prefix="case-", dir=self.root))
        try:
            shutil.copytree(self._home(target) / "seed", home / "x")
            (home / "secret.txt").write_text(SECRET)
            done = "; ".join(mutate(home / "x", chance))
            if loud:
                print(f"{name}:{self.seed}:{number}: {done!r}", flush=True)
            return self._act(target, number, done, home, chance, loud)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    def _act(self, target: Target, number: int, done: str, home: Path, chance: Random, loud: bool) -> Result:
        reset_peak()
        held, spent, clock = peak(), time.process_time(), time.monotonic()
        refused = problem = where = ""
        torch.manual_seed(0)
        try:
            with quietly():
                target.act(home / "x", self._home(target) / "fixed", chance)
        except af.Error as error:
            refused = str(error)
            try:
                check_message(error)
            except (AssertionError, UnicodeError) as odd:
                problem, where = f"message: {odd}", place_of(error)
            if loud:
                print(f"refused: {refused!r}")
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            problem, where = f"{type(error).__name__}: {str(error)[:300]!r}", place_of(error)
            if loud:
                traceback.print_exc()
        seconds, clock, memory = time.process_time() - spent, time.monotonic() - clock, peak() - held
        if not problem and (seconds > SECONDS or memory > MEMORY):
            problem = f"too much: {seconds:.1f} s of the processor, {memory / 2**20:,.0f} MB"
        return Result(target.name, number, done, refused, problem, where, seconds, clock, memory)

    def work(self, pipe: Connection, stacks: str) -> None:
        with open(stacks, "w") as stream:
            faulthandler.enable(stream)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders written in C say what they think
            own_threads()
            bound_memory()
            while (case := pipe.recv()) is not None:
                pipe.send(self.run(*case))

    # In the parent.

    def go(self, seconds: float | None, mutations: int | None, jobs: int = 1, first: int = 0) -> Report:
        report, cases = Report(self.seed), self._cases(first, mutations)
        end = None if seconds is None else time.monotonic() + seconds
        workers = [Worker(self, i) for i in range(jobs)]
        busy = [worker for worker in workers if worker.give(next(cases, None))]
        with contextlib.suppress(KeyboardInterrupt):  # whoever ends a long run sees what it found
            while busy:
                wait([worker.pipe for worker in busy], timeout=0.5)
                for worker in list(busy):
                    found = worker.result()
                    if found is None:
                        continue
                    if found.problem and worker.again():  # in a new process, on a machine that may be less busy
                        continue
                    report.add(found)
                    more = None if end is not None and time.monotonic() > end else next(cases, None)
                    if not worker.give(more):
                        busy.remove(worker)
        for worker in workers:
            worker.end()
        return report

    def _cases(self, first: int, mutations: int | None) -> Iterator[tuple[str, int]]:
        """Every target in turn."""
        count, number = 0, first
        while True:
            for name in self.targets:
                if mutations is not None and count >= mutations:
                    return
                yield name, number
                count += 1
            number += 1


class Worker:
    """A process that does one case after another; one that hangs or dies is replaced."""

    def __init__(self, campaign: Campaign, index: int) -> None:
        self.campaign = campaign
        self.stacks = campaign.root / f"stacks-{index}.txt"
        self.case: tuple[str, int] | None = None
        self.last: tuple[str, int] | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = get_context("fork").Pipe()
        self.process = get_context("fork").Process(
            target=self.campaign.work, args=(theirs, str(self.stacks)), daemon=True
        )
        self.process.start()
        theirs.close()

    def again(self) -> bool:
        """Give a case that hung or died a second chance; False for one that had it."""
        assert self.case is not None
        if self.alive or self.case == self.last:
            return False
        self.last = self.case
        return self.give(self.case)

    def give(self, case: tuple[str, int] | None) -> bool:
        self.case, self.since, self.alive = case, time.monotonic(), True
        if case is not None:
            self.pipe.send(case)
        return case is not None

    def result(self) -> Result | None:
        """What came of the case; None: it is still at work."""
        assert self.case is not None
        try:
            if self.pipe.poll():
                found: Result = self.pipe.recv()
                return found
        except (EOFError, OSError):
            return self._ended("the process died")
        if time.monotonic() - self.since > PATIENCE:
            return self._ended(f"hang: more than {PATIENCE:.0f} s")
        return None

    def _ended(self, how: str) -> Result:
        assert self.case is not None
        clock = time.monotonic() - self.since
        if self.process.is_alive() and self.process.pid is not None:
            os.kill(self.process.pid, signal.SIGABRT)  # faulthandler writes the stack
            self.process.join(2)
            self.process.kill()
        self.process.join()
        stack = self.stacks.read_text() if self.stacks.exists() else ""
        self.alive = False
        self._start()
        return Result(*self.case, "see the replay", problem=how, where=_innermost(stack), clock=clock)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(5)
        self.process.kill()


def _innermost(stack: str) -> str:
    """The innermost line of our own code in what faulthandler wrote."""
    current = stack.split("Current thread")[-1]
    lines = [line.strip() for line in current.splitlines() if "/anyformer/" in line]
    return lines[0].replace(str(Path(af.__file__).parent) + "/", "") if lines else "somewhere else"


def place_of(error: BaseException) -> str:
    """The innermost line of our own code."""
    home = str(Path(af.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(home)] or frames
    return f"{ours[-1].filename.removeprefix(home + '/')}:{ours[-1].lineno} {ours[-1].name}" if ours else "?"


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without warnings and output."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def own_threads() -> None:
    """In a forked process: PyTorch replaces the pool of threads that did not come along when it is first asked for one,
    which fails now and then ("Invalid thread pool!") where two threads ask at once. So this one asks, alone."""
    torch.set_num_threads(1)


def bound_memory() -> None:
    """What asks for more is told so by a MemoryError, before the machine suffers."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESSES, resource.RLIM_INFINITY))


def reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most memory that was resident since the last reset."""
    found = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(found[0].split()[1]) * 1024


def replay(campaign: Campaign, name: str, number: int) -> Any:
    """One case in this process, with its traceback; a hang is shown after a while."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True, file=sys.__stderr__)
    bound_memory()
    found = campaign.run(name, number, loud=True)
    faulthandler.cancel_dump_traceback_later()
    return found
