"""Ids on real weights: SmolLM2-135M from its GGUF file, written as a folder that transformers reads too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.tokenizers import samples

pytestmark = pytest.mark.slow
TEXTS = [
    "The capital of France is",
    "Once upon a time there was a small robot who",
    "def fibonacci(n):\n",
    "Water boils at",
    "Roses are red,",
    "The three primary colors are",
    "To make bread you need flour,",
    "Dear Sir or Madam,",
    "Ein kleiner Hund",
    "1, 2, 3, 4,",
    "In 1969 the first man",
    "Q: What is a transformer?\nA:",
]
OPTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 24},
    {"max_new_tokens": 24, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    {"max_new_tokens": 16, "num_beams": 4},
    {"max_new_tokens": 16, "num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.6, "early_stopping": True},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, af.Model]:
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    folder: Path = tmp_path_factory.mktemp("smollm2")
    af.load(samples.smollm2(), dtype="float32").save(folder, format="hf")
    theirs = llama.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    return theirs, af.load(folder, dtype="float64")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ids_are_those_of_transformers(models: tuple[Any, af.Model], options: dict[str, Any]) -> None:
    theirs, ours = models
    tokenizer = af.Tokenizer.load(samples.smollm2())
    rows = [tokenizer.encode(text) for text in TEXTS]
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[2] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    batch = {"input_ids": ids, "attention_mask": mask, "pad_token_id": 2, "eos_token_id": 2, **options}
    found = ours.generate(**batch)
    assert found.tolist() == theirs.generate(**{"do_sample": False, "num_beams": 1, **batch}).tolist()
    if options == OPTIONS[0]:
        assert "Paris" in tokenizer.decode(found[0, longest:].tolist())
