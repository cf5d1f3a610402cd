"""Encoders build the head of every use that their settings can name, and refuse the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer import registry
from anyformer.recipes.bert import BERTConfig
from anyformer.recipes.builders import encoder
from tests.batches import text

FIELDS = {
    "base": "last_hidden_state",
    "pretraining": "prediction_logits",
    "span": "start_logits",
}


def _uses() -> Iterator[tuple[str, str]]:
    for name in ("bert-tiny", "roberta-tiny", "distilbert-tiny", "mpnet-tiny", "roformer-tiny", "electra-tiny"):
        config: Any = registry.recipe(name).config
        yield from ((name, use) for use in config.uses)


@pytest.mark.parametrize(("name", "use"), list(_uses()))
def test_every_use_of_every_encoder_runs(name: str, use: str) -> None:
    batch = text()
    if use == "choice":
        batch = {key: value.unsqueeze(1).expand(-1, 2, -1) for key, value in batch.items()}
    with torch.no_grad():
        out = af.build(name, head=use).eval()(**batch)
    assert out[FIELDS.get(use, "logits")].isfinite().all()


def test_a_family_of_ones_own_with_berts_settings() -> None:
    """The default head of BERT's settings is that of pre-training, as in BERT itself."""
    config = BERTConfig(n_layers=2, d_model=64, n_heads=4, d_hidden=128, vocab_size=256, max_length=128)
    mine = encoder(config, "mine")
    bert = af.build("bert-tiny").eval()
    mine.load_state_dict(bert.state_dict())
    batch = {**text(), "labels": text()["input_ids"], "next_sentence_label": torch.tensor([0, 1, 0])}
    ours, theirs = mine.eval()(**batch), bert(**batch)
    assert list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_head_that_the_family_does_not_have_is_refused() -> None:
    with pytest.raises(af.Error, match='head "replaced_tokens" is not one of'):
        BERTConfig(n_layers=1, d_model=32, n_heads=2, d_hidden=32, head="replaced_tokens")
