"""Files larger than the memory that is left: read, walked through and prepared all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer

CODE = """
import resource, sys
from pathlib import Path
from anyformer.data.examples import prepare
from anyformer.data.rows import read

path, cache = Path(sys.argv[1]), Path(sys.argv[2])
now = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) * 1024
room = 96 * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (now + room, now + room))
try:
    bytearray(2 * room)
    raise SystemExit("the limit does not hold")
except MemoryError:
    pass
rows = read(path, cache=cache, names=("text",))
examples = prepare(rows, lambda some: [{"ids": [len(row["text"])] * 100} for row in some], cache=cache)
print(len(rows), len(examples), examples[len(rows) - 1]["ids"][0], examples.fields["ids"].flat.nbytes, rows.where(7))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are set as Linux has them")
@pytest.mark.parametrize("name", ["x.tsv", "x.tsv.gz"])
def test_a_file_larger_than_memory(name: str, tmp_path: Path) -> None:
    """160 MB of text and 160 MB of ids with 96 MB to spare."""
    lines = 400_000
    line = ("word " * 79 + "w\t1\n").encode()
    with (tmp_path / "x.tsv").open("wb") as stream:
        stream.write(b"text\tlabel\n")
        for _ in range(lines // 1000):
            stream.write(line * 1000)
    if name.endswith(".gz"):
        subprocess.run(["gzip", "-1", tmp_path / "x.tsv"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(Path(anyformer.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / name), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split()[:4] == [str(lines), str(lines), "396", str(lines * 400)]
    assert run.stdout.strip().endswith(f"{name}, line 9")
