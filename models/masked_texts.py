"""Write the texts that the model "masks" learns from, and those that select and test it.

    python models/masked_texts.py OUT       # OUT/train.txt, OUT/valid.txt, OUT/test.txt

Paragraphs of SQuAD 1.1 (Wikipedia), English sentences of Tatoeba, TinyStories and a tenth of the classic stories. A
paragraph of SQuAD's development half is for selection or for the test by the first byte of its SHA-256.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import sys
from pathlib import Path

from held_out import data_folder, held_out, lines, tatoeba

CLASSICS = 10  # every so many-th line of the classic stories
MARK = "<|endoftext|>"


def paragraphs(split: str) -> list[str]:
    with gzip.open(data_folder() / "squad11" / f"{split}.json.gz", "rt", encoding="utf-8") as stream:
        articles = json.load(stream)["data"]
    return [" ".join(part["context"].split()) for article in articles for part in article["paragraphs"]]


def for_test(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


def train_texts() -> list[str]:
    """The training texts in random order, which is the same each time."""
    apart = held_out()
    pairs = [*tatoeba("de", "train"), *tatoeba("fr", "train")]
    sentences = sorted({english for english, _ in pairs if not apart.has(english)})
    stories = [line for line in lines(data_folder() / "tinystories_sample" / "train.txt.gz") if line and line != MARK]
    classics = lines(data_folder() / "classic_stories" / "train.txt.gz")[::CLASSICS]
    texts = [*paragraphs("train_subset"), *sentences, *stories, *(line for line in classics if line != MARK)]
    random.Random(0).shuffle(texts)
    return texts


def write(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    unseen = paragraphs("dev_half")
    parts = {
        "train": train_texts(),
        "valid": [text for text in unseen if not for_test(text)],
        "test": [text for text in unseen if for_test(text)],
    }
    for name, texts in parts.items():
        (out / f"{name}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        print(f"{name}: {len(texts):,} texts, {sum(map(len, texts)) / 1e6:.1f} M characters")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
