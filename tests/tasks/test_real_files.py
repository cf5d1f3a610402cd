"""The data sets that people use, as they are published: every row found, under the task's own names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anyformer.data.settings import DataSettings
from anyformer.tasks import find

DATA = Path(os.environ.get("ANYFORMER_DATA", "/nowhere"))


@pytest.mark.parametrize(
    ("task", "files", "count", "columns"),
    [
        ("classify-text", "sst2/train.tsv.gz", 67_349, ""),
        ("classify-text", "sst2/dev.tsv", 872, ""),
        ("classify-text", "glue_cola/train.tsv", 8_551, "text=4,label=2"),
        ("classify-pair", "glue_mrpc/train.tsv", 3_668, ""),
        ("classify-pair", "glue_rte/train.tsv", 2_490, ""),
        ("classify-pair", "glue_stsb/train.tsv", 5_749, ""),
        ("embed", "glue_stsb/dev.tsv", 1_500, ""),
        ("tag", "conll2003/eng.train.gz", 14_041, ""),
        ("tag", "conll2003/eng.testa.gz", 3_250, ""),
        ("answer", "squad11/train_subset.json.gz", 11_877, ""),
        ("answer", "squad11/dev_half.json.gz", 5_665, ""),
        ("summarize", "samsum/train.jsonl.gz", 14_731, ""),
        ("translate", "multi30k/train.en.gz,multi30k/train.de.gz", 29_000, ""),
        ("translate", "tatoeba_en_de/train.tsv.gz", 162_938, ""),
        ("generate", "wikitext-2/train.txt.gz", 36_718, ""),
        ("generate", "tinyshakespeare/input.txt", 40_000, ""),
        ("fill-mask", "classic_stories/valid.txt.gz", 5_436, ""),
    ],
)
def test_every_row_is_found(task: str, files: str, count: int, columns: str) -> None:
    """As many as the data sets say themselves."""
    paths = [DATA / file for file in files.split(",")]
    if not all(path.exists() for path in paths):
        pytest.skip(f"{files} is not under ANYFORMER_DATA")
    kind = find(task)
    rows = kind.read(paths, DataSettings(columns=columns))
    assert len(rows) == count
    assert {column.name for column in kind.columns if not column.optional} <= set(rows.columns)
    for row in (rows[0], rows[-1]):
        assert all(value is not None for value in row.values())


def test_tokens_are_counted_as_published() -> None:
    """CoNLL's 203,621 tokens, and SQuAD's answers where they say they stand."""
    if not (DATA / "conll2003").exists() or not (DATA / "squad11").exists():
        pytest.skip("conll2003 and squad11 are not under ANYFORMER_DATA")
    sentences = find("tag").read(DATA / "conll2003" / "eng.train.gz")
    assert sum(len(row["tokens"]) for row in sentences) == 203_621
    for row in find("answer").read(DATA / "squad11" / "train_subset.json.gz")[:500]:
        for answer in row["answers"]:
            start = answer["answer_start"]
            assert row["context"][start : start + len(answer["text"])] == answer["text"]
