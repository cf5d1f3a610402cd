"""Recurrent, convolutional, fully connected and state-space layers on one text: what each can see, by every head."""

from __future__ import annotations

import pytest
import torch

import anyformer as af

ANCESTORS = ("bilstm-tiny", "textcnn-tiny", "mlp-mixer-tiny", "mamba-tiny")
HEADS = ("language", "base", "classify", "tag")
ids = torch.randint(1, 250, (2, 9), generator=torch.Generator().manual_seed(0))


def built(name: str, head: str, **options: object) -> af.Model:
    torch.manual_seed(0)
    return af.build(name, head=head, n_labels=3, **options).eval().double()


def answer(model: af.Model, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    with torch.no_grad():
        out = model(input_ids=tokens, attention_mask=mask)
    found: torch.Tensor = out["logits"] if "logits" in out else out["last_hidden_state"]
    return found


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ANCESTORS)
def test_padding_changes_nothing(name: str, head: str) -> None:
    model = built(name, head)
    for side in (slice(0, 4), slice(5, 9)):
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[0, side] = 0
        together, alone = answer(model, ids, mask)[0], answer(model, ids[:1, mask[0].bool()])[0]
        together = together[mask[0].bool()] if together.dim() == 2 else together
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ANCESTORS)
def test_only_the_decoders_are_causal(name: str) -> None:
    """A changed last token changes what comes before it where a layer reads both ways: all but Mamba, which has one."""
    other = ids.clone()
    other[:, -1] += 1
    for head, sees_all in (("language", False), ("tag", name != "mamba-tiny")):
        model = built(name, head)
        apart = (answer(model, ids) - answer(model, other))[:, :-1].abs().max()
        assert (float(apart) > 1e-6) == sees_all, head


@pytest.mark.parametrize("name", ANCESTORS)
def test_settings_of_every_family_and_none_of_attention(name: str) -> None:
    for options in ({"norm": "rms"}, {"norm_order": "sandwich"}, {"positions": "learned", "max_length": 32}):
        assert answer(built(name, "tag", **options), ids).shape == (2, 9, 3)
    for options in ({"n_heads": 2}, {"mask": "window:4"}, {"score": "cosine"}, {"positions": "alibi"}):
        with pytest.raises(af.ConfigError, match=next(iter(options))):
            built(name, "tag", **options)
