"""Train the toy on several processes that talk by gloo. Each process is a fork, so that torch is imported once.

python -m tests.training.ranks FOLDER       prints a JSON object: name of a run -> its losses, rows, weights' hash
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from anyformer.training.callbacks import Callback, Progress
from anyformer.training.step_metrics import StepMetrics
from anyformer.training.trainer import train
from tests.training.toy import PictureToy, ReadingToy, Toy, fingerprint, settings

STEPS, CUT, MANY = 50, 23, 100_000


class Losses(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.metrics: list[float] = []

    def on_log(self, metrics: StepMetrics, progress: Progress) -> None:
        self.losses.append(metrics.loss)

    def on_evaluate(self, progress: Progress, metrics: dict[str, Any]) -> None:
        self.metrics.append(metrics["loss"])


class StopError(Exception):
    pass


class Cut(Losses):
    def on_step_end(self, progress: Progress) -> None:
        if progress.step == CUT:
            raise StopError


def make(name: str) -> Toy:
    if "norms" in name:
        return PictureToy()
    if "streams" in name:
        return ReadingToy(dropout=0.0, dtype=torch.float64)
    return Toy(rows=21, batch_size=5, dropout=0.0, dtype=torch.float64)


def run(out: Path, name: str, folder: Path | None, resume: bool = False, **changes: Any) -> None:
    """One run; what it gave stands in `name.RANK.json`. Batches of 5 rows: shares of unequal size."""
    toy = make(name)
    if name.endswith("-unused"):
        toy.model.spare = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    cut = changes.pop("cut", False)
    watcher = Cut() if cut else Losses()
    usual = {"steps": STEPS, "eval_every": 10, "save_every": 10, "max_grad_norm": 0.5, "weight_decay": 0.1}
    chosen = settings(**{**usual, **changes})
    trained: list[int] = []
    collate = toy.collate

    def watched(rows: Any, generator: torch.Generator) -> Any:
        if toy.model.training:
            trained.extend(int(row) for row in rows)
        return collate(rows, generator)

    toy.collate = watched  # type: ignore[method-assign]
    with contextlib.suppress(StopError):
        train(toy, chosen, folder=folder, resume=resume, callback=watcher)
    whole = "" if cut or "fsdp" in name else fingerprint(toy.model)
    found = {"losses": watcher.losses, "metrics": watcher.metrics, "rows": trained, "hash": whole}
    (out / f"{name}.{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


def launch(ranks: int, out: Path, jobs: list[dict[str, Any]], run: Callable[..., None] = run) -> None:
    """Do the jobs in so many processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
                os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
                if sys.platform == "linux":  # where a machine's own name leads nowhere, this still does
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
                torch.distributed.init_process_group("gloo")
                for job in jobs:
                    run(out, **job)
                torch.distributed.destroy_process_group()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"a process of {ranks} failed")


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    kinds = ("ddp", "fsdp")
    alone = [{"name": "one", "folder": out / "one"}]
    alone += [{"name": "one-streams", "folder": None}]
    launch(1, out, [*alone, {"name": "one-accumulated", "folder": out / "one-a", "gradient_accumulation": 2}])
    two = [{"name": kind, "folder": out / kind, "parallel": kind} for kind in kinds]
    two += [
        {"name": f"{k}-accumulated", "folder": out / f"{k}-a", "parallel": k, "gradient_accumulation": 2} for k in kinds
    ]
    two += [{"name": f"{kind}-cut", "folder": out / f"{kind}-cut", "parallel": kind, "cut": True} for kind in kinds]
    two += [{"name": f"{k}-streams", "folder": out / f"{k}-s", "parallel": k, "cut": True} for k in kinds]
    two += [{"name": "ddp-unused", "folder": None}]
    two += [{"name": "ddp-minutes", "folder": None, "max_minutes": 0.004, "log_every": 2, "steps": MANY}]
    two += [{"name": "norms", "folder": out / "norms"}]
    two += [{"name": "norms-cut", "folder": out / "norms-cut", "cut": True}]
    two += [{"name": "norms-on", "folder": out / "norms-cut", "resume": True}]
    launch(2, out, two)
    for ranks in (1, 3):
        jobs = []
        for kind in kinds:
            copy = out / f"{kind}-on-{ranks}"
            shutil.copytree(out / f"{kind}-cut", copy)
            jobs.append({"name": copy.name, "folder": copy, "parallel": kind, "resume": True})
            copy = out / f"{kind}-streams-on-{ranks}"
            shutil.copytree(out / f"{kind}-s", copy)
            jobs.append({"name": copy.name, "folder": copy, "parallel": kind, "resume": True})
        launch(ranks, out, jobs)
    print(json.dumps({path.stem: json.loads(path.read_text()) for path in sorted(out.glob("*.json"))}))


if __name__ == "__main__":
    main()
