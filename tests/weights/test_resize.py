"""A model with more words says the same about those it had."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.weights.resize import resize_vocabulary


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "transformer-tiny", "llama-tiny", "t5-tiny"])
def test_old_words_keep_their_scores(name: str) -> None:
    model = af.build(name)
    words = model.config.vocab_size  # type: ignore[attr-defined]
    batch = {"input_ids": torch.randint(2, words, (2, 6))}
    if "decoder_input_ids" in model.names:
        batch["decoder_input_ids"] = torch.randint(2, words, (2, 5))
    field = "prediction_logits" if name == "bert-tiny" else "logits"
    larger = resize_vocabulary(model, words + 7)
    before, after = model(**batch)[field], larger(**batch)[field]
    assert after.shape[-1] == words + 7
    torch.testing.assert_close(after[..., :words], before)
    torch.testing.assert_close(after[..., words:], before.mean(dim=-1, keepdim=True).expand_as(after[..., words:]))
    back = resize_vocabulary(larger, words)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), back.state_dict().values(), strict=True))


def test_tied_tables_stay_tied() -> None:
    larger = resize_vocabulary(af.build("gpt2-tiny"), 300)
    assert larger.heads["language"].words.weight is larger.stages["decoder"].inputs.words.weight  # type: ignore[union-attr]
    larger(input_ids=torch.tensor([[299]]))


def test_what_cannot_be() -> None:
    with pytest.raises(af.ConfigError, match="no vocab_size"):
        resize_vocabulary(af.build("vit-tiny"), 10)
    with pytest.raises(af.ConfigError, match="must be 1 or more"):
        resize_vocabulary(af.build("gpt2-tiny"), 0)
