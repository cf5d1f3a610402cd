"""A model's loss with labels and the loss of training are one number, computed by the same code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.heads import cross_entropy
from anyformer.heads.cross_entropy import token_loss


@pytest.mark.parametrize("name", ["gpt2-tiny", "bert-tiny", "transformer-tiny", "t5-tiny", "whisper-toy"])
def test_the_model_and_training_have_one_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = af.build(name, **({"head": "masked"} if name == "bert-tiny" else {})).eval()
    ids = torch.randint(5, 250, (2, 9))
    batch: dict[str, Any] = {"input_ids": ids}
    if name == "whisper-toy":
        batch = {"input_features": torch.randn(2, 16, 64)}
    labels = ids.clone()
    labels[0, 6:] = -100
    calls = []
    plain = cross_entropy.summed_cross_entropy
    monkeypatch.setattr(cross_entropy, "summed_cross_entropy", lambda *given: calls.append(1) or plain(*given))
    with torch.no_grad():
        out = model(**batch, labels=labels)
    shifted = name == "gpt2-tiny"
    logits, wanted = (out.logits[:, :-1], labels[:, 1:]) if shifted else (out.logits, labels)
    total, count = token_loss(logits, wanted)
    assert len(calls) == 2
    assert out.loss == total / count
    reference = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), wanted.reshape(-1))
    assert float(out.loss) == pytest.approx(float(reference), rel=1e-5)
