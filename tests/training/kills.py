"""Run the toy again and again, killing it: at random moments, and at the n-th time that it touches the disk or is
inside an evaluation. Each life is a fork, so that torch is imported once.

    python -m tests.training.kills FOLDER KILLS SEED [streams]      prints a JSON object with what happened
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from anyformer import saving
from anyformer.training import checkpoint, trainer
from tests.training.toy import ReadingToy, Toy, fingerprint, settings

SETTINGS = settings(steps=60, save_every=3, eval_every=4, gradient_accumulation=2, ema_decay=0.9)
TOUCHES = 40  # a life's last touch of the disk that it is killed at; about six saves


def live(folder: Path, touches: int | None) -> None:
    """One life: to the end, or to a touch of the disk."""
    toy = ReadingToy() if "streams" in sys.argv[4:] else Toy()
    if touches is not None:
        die = _countdown(touches)
        for module in (checkpoint, saving):
            vars(module)["flush"] = die(module.flush)
        vars(checkpoint)["write_safetensors"] = die(checkpoint.write_safetensors)
        vars(checkpoint)["_rename"] = die(checkpoint._rename)
        checkpoint.shutil = _Wrapped(shutil, rmtree=die(shutil.rmtree))  # type: ignore[assignment]
        toy.evaluate = die(toy.evaluate)  # type: ignore[method-assign]
    trainer.train(toy, SETTINGS, folder=folder, resume=True)
    (folder / "hash").write_text(fingerprint(toy.model))


class _Wrapped:
    """A module with some of its functions changed."""

    def __init__(self, module: Any, **changed: Any) -> None:
        self.module, self.changed = module, changed

    def __getattr__(self, name: str) -> Any:
        return self.changed.get(name) or getattr(self.module, name)


def _countdown(touches: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    left = [touches]

    def die(action: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return action(*args, **options)

        return touch

    return die


def fork(folder: Path, touches: int | None) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            live(folder, touches)
            code = 0
        finally:
            os._exit(code)
    return child


def one_run(folder: Path, kills: int, chance: random.Random) -> int:
    """Live until the run is done; how many lives were taken on the way, at most `kills`."""
    taken = 0
    while not (folder / "hash").exists():
        touches = chance.randrange(1, TOUCHES) if chance.random() < 0.5 and taken < kills else None
        child = fork(folder, touches)
        if touches is None and taken < kills:
            time.sleep(chance.uniform(0.0, 0.4))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            taken += 1
        elif os.WEXITSTATUS(status):
            raise SystemExit("a life ended in an error")
    return taken


def main() -> None:
    torch.set_num_threads(1)
    folder, kills, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    one_run(folder / "never", 0, chance)
    hashes, taken, runs = [], 0, 0
    while taken < kills:
        taken += one_run(folder / f"killed-{runs}", kills - taken, chance)
        hashes.append((folder / f"killed-{runs}" / "hash").read_text())
        runs += 1
    drafts = [str(path) for path in folder.rglob(".draft-*")]
    never = (folder / "never" / "hash").read_text()
    print(json.dumps({"never": never, "hashes": hashes, "kills": taken, "drafts": drafts}))


if __name__ == "__main__":
    main()
