"""Encoder-decoders of three families: greedy ids are transformers', and the cache changes nothing."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.core.cache import Cache

VOCABULARY, PAD, END = 40, 0, 1
_SIDES = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))}
_BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
}
_IDS = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
_T5 = {**_IDS, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
_FFN = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "forced_eos_token_id": END, "max_position_embeddings": 64}
PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": (
        "bart",
        "BartForConditionalGeneration",
        {**_SIDES, **_FFN, **_IDS, "d_model": 32, "vocab_size": VOCABULARY},
    ),
    "t5": ("t5", "T5ForConditionalGeneration", _T5),
    "t5-v1.1": (
        "t5",
        "T5ForConditionalGeneration",
        {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "bert2bert": (
        "encoder_decoder",
        "EncoderDecoderModel",
        {**_IDS, "encoder": _BERT, "decoder": {**_BERT, "is_decoder": True, "add_cross_attention": True}},
    ),
}


@pytest.fixture(scope="module", params=PAIRS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, af.Model]:
    home, name, values = PAIRS[request.param]
    pytest.importorskip("transformers")
    modeling = importlib.import_module(f"transformers.models.{home}.modeling_{home}")
    configuration = importlib.import_module(f"transformers.models.{home}.configuration_{home}")
    config_class = name.replace("ForConditionalGeneration", "Config").replace("Model", "Config")
    torch.manual_seed(3)
    theirs = getattr(modeling, name)(getattr(configuration, config_class)(**values)).double().eval()
    with torch.no_grad():
        for path, parameter in theirs.named_parameters():
            if parameter.dim() > 1:  # large, so that the tokens vary and some rows end early
                parameter.normal_(std=(6.0 if "relative" in path else 2.0) * parameter.shape[-1] ** -0.5)
    folder: Path = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    return theirs, af.load(folder)


def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Uneven sources, padded on the right."""
    made = torch.Generator().manual_seed(5)
    ids = torch.randint(2, VOCABULARY, (24, 9), generator=made)
    mask = (torch.arange(9)[None] < torch.randint(3, 10, (24, 1), generator=made)).long()
    return ids.masked_fill(mask == 0, PAD), mask


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 25},
        {"max_new_tokens": 25, "eos_token_id": [3, 4, 5, 6, 7, 8], "pad_token_id": PAD},
        {"max_length": 12, "min_new_tokens": 8},
    ],
    ids=str,
)
def test_greedy_ids_are_those_of_transformers(models: tuple[Any, af.Model], options: dict[str, Any]) -> None:
    theirs, ours = models
    ids, mask = prompts()
    expected = theirs.generate(input_ids=ids, attention_mask=mask, do_sample=False, num_beams=1, **options)
    found = ours.generate(input_ids=ids, attention_mask=mask, **options)
    assert found.tolist() == expected.tolist()
    assert len({tuple(row) for row in found.tolist()}) > 3, "the rows should differ, or the test says little"


def test_cached_is_uncached(models: tuple[Any, af.Model]) -> None:
    """The decoder fed token by token, with its own past and the encoder's keys remembered, and at once."""
    model = models[1]
    ids, mask = prompts()
    target = torch.randint(2, VOCABULARY, (24, 11), generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
        state: Cache = model.encode(input_ids=ids, attention_mask=mask)
        pieces = [model(decoder_input_ids=target[:, i : i + 1], past_key_values=state).logits for i in range(11)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-9)


def test_padding_does_not_matter(models: tuple[Any, af.Model]) -> None:
    """A source alone gives what it gives in an uneven batch."""
    model = models[1]
    ids, mask = prompts()
    target = torch.randint(2, VOCABULARY, (24, 6), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        together = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
        for row in range(4):
            alone = model(input_ids=ids[row : row + 1, mask[row].bool()], decoder_input_ids=target[row : row + 1])
            torch.testing.assert_close(alone.logits[0], together[row], rtol=0, atol=1e-9)
