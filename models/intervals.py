"""95% intervals of test scores of texts: 300 samples of as many rows, with replacement (bootstrap).

    python models/intervals.py en-de en-fr dialogues        # about two minutes of one core each

The rows selected nothing: Multi30k's test 2016, and the half of SAMSum's validation rows whose id has an odd SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
import sys
from typing import Any
from unittest import mock

import numpy as np
from held_out import data_folder, lines

from anyformer.data.rows import ListRows, Rows
from anyformer.tasks import find, task

SAMPLES = 300
SCORERS = {"translate": "bleu", "summarize": "rouge"}  # in the task's module: the metrics of answers and references


def test_rows(name: str) -> Rows:
    data = data_folder()
    if name != "dialogues":
        files = [str(data / "multi30k" / f"test_2016_flickr.{one}.gz") for one in name.split("-")]
        return find("translate").read(files)
    rows = [json.loads(line) for line in lines(data / "samsum" / "validation.jsonl.gz") if line]
    odd = [row for row in rows if int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % 2]
    return ListRows([{"source": row["dialogue"], "target": row["summary"]} for row in odd])


def measure(name: str) -> str:
    kind = "summarize" if name == "dialogues" else "translate"
    rows, ready = test_rows(name), task(kind, name)
    module = importlib.import_module(f"anyformer.tasks.{kind}")
    score = getattr(module, SCORERS[kind])
    calls: list[tuple[Any, Any, Any]] = []

    def spy(answers: Any, references: Any, **options: Any) -> Any:
        calls.append((answers, references, options))
        return score(answers, references, **options)

    with mock.patch.object(module, SCORERS[kind], spy):
        found = float(ready.evaluate(rows)[ready.metric])
    answers, references, options = next(call for call in calls if len(call[0]) == len(rows))
    draw = random.Random(0)
    values = []
    for _ in range(SAMPLES):
        some = draw.choices(range(len(rows)), k=len(rows))
        values.append(score([answers[i] for i in some], [references[i] for i in some], **options)[ready.metric])
    low, high = np.percentile(values, [2.5, 97.5])
    return f"{name}: {ready.metric} {found:.2f} ({low:.2f} to {high:.2f}) on {len(rows):,} rows"


if __name__ == "__main__":
    for chosen in sys.argv[1:]:
        print(measure(chosen), flush=True)
