"""Every decoder family: greedy ids are those of transformers, cached steps a whole pass, padding changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.cache import Cache, SelfAttentionCache
from tests.checkpoints.oracles import make_oracle, save_oracle
from tests.checkpoints.oracles_decoders import ARCHITECTURES

PAD, LENGTH, NEW = 0, 7, 12
Models = dict[str, tuple[Any, af.Model]]

# Windows of 4 tokens, so that what is generated has to forget; a stretched rotation, and one that grows on the way.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{architecture: (architecture, {}) for architecture in ARCHITECTURES},
    "llama3": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            }
        },
    ),
    "dynamic": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0},
            "max_position_embeddings": 9,
        },
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    made = {}
    for name, (architecture, changes) in CASES.items():
        oracle = make_oracle(architecture, seed=3, pad_token_id=PAD, eos_token_id=1, **changes).double()
        made[name] = oracle, af.load(save_oracle(oracle, tmp_path_factory.mktemp("model")))
    return made


def prompts(batch: int = 8) -> Tensor:
    return torch.randint(2, 60, (batch, LENGTH), generator=torch.Generator().manual_seed(5))


def left_mask(ids: Tensor) -> Tensor:
    """Row i has i % length padded places on the left."""
    lost = torch.arange(len(ids)) % ids.shape[1]
    return (torch.arange(ids.shape[1])[None] >= lost[:, None]).long()


@pytest.mark.parametrize("name", CASES)
def test_greedy_ids_are_those_of_transformers(name: str, models: Models) -> None:
    theirs, ours = models[name]
    ids = prompts()
    options = {"max_new_tokens": NEW, "pad_token_id": PAD}
    expected = theirs.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    found = ours.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    assert found.tolist() == expected.tolist()
    assert len({tuple(row) for row in found[:, LENGTH:].tolist()}) > 3, "the rows should differ"


@pytest.mark.parametrize("name", [name for name in CASES if name != "OpenAIGPTLMHeadModel"])
def test_left_padded_ids_are_those_of_transformers(name: str, models: Models) -> None:
    """GPT-1's class numbers the slots, whatever the mask says; all others count real tokens."""
    if name == "dynamic":
        pytest.skip("its rotation depends on the longest row")
    if name == "Gemma2ForCausalLM":
        pytest.skip("transformers' eager attention gives NaN in double for a query whose window is all padding")
    theirs, ours = models[name]
    ids = prompts()
    mask = left_mask(ids)
    options = {"max_new_tokens": NEW, "pad_token_id": PAD, "eos_token_id": None}
    ids = ids.masked_fill(mask == 0, PAD)
    expected = theirs.generate(input_ids=ids, attention_mask=mask, **options)
    assert ours.generate(input_ids=ids, attention_mask=mask, **options).tolist() == expected.tolist()


@pytest.mark.parametrize("name", [name for name in CASES if name != "dynamic"])
def test_left_padded_right_padded_and_alone_are_the_same(name: str, models: Models) -> None:
    """Between a prompt padded on the right and its continuation lie slots that no window may count."""
    model, ids = models[name][1], prompts()
    mask = left_mask(ids)
    order = torch.argsort(mask, dim=1, descending=True, stable=True)
    options = {"max_new_tokens": NEW, "pad_token_id": PAD, "eos_token_id": None}
    left = model.generate(input_ids=ids, attention_mask=mask, **options)[:, LENGTH:]
    right = model.generate(input_ids=ids.gather(1, order), attention_mask=mask.gather(1, order), **options)[:, LENGTH:]
    alone = [model.generate(ids[i : i + 1, mask[i] == 1], **options)[0, -NEW:] for i in range(len(ids))]
    assert left.tolist() == right.tolist() == torch.stack(alone).tolist()


@pytest.mark.parametrize("name", [name for name in CASES if name != "dynamic"])
def test_cached_is_uncached(name: str, models: Models) -> None:
    """Token by token, in pieces and at once: the same numbers, past the window too."""
    model = models[name][1]
    ids = torch.randint(2, 60, (3, 20), generator=torch.Generator().manual_seed(1))
    state = Cache()
    with torch.no_grad():
        whole = model(input_ids=ids).logits
        pieces = [ids[:, :6], ids[:, 6:10], *ids[:, 10:].split(1, dim=1)]
        steps = torch.cat([model(input_ids=piece, past_key_values=state).logits for piece in pieces], dim=1)
    assert float((whole - steps).abs().max()) < 1e-9


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["MistralForCausalLM", "Gemma3ForCausalLM"])
def test_a_window_that_forgets_changes_nothing(name: str, padded: bool, models: Models) -> None:
    """Far past the point where keys behind the window are let go, and with padding between prompt and continuation."""
    model = models[name][1]
    ids = torch.randint(2, 60, (2, 300), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 110:190] = 1 - int(padded)
    state = Cache()
    with torch.no_grad():
        whole = model(input_ids=ids, attention_mask=mask).logits
        steps = [
            model(input_ids=ids[:, a:b], attention_mask=mask[:, a:b], past_key_values=state).logits
            for a, b in [(0, 190), *((i, i + 1) for i in range(190, 300))]
        ]
    real = mask.bool()
    assert float((whole - torch.cat(steps, dim=1))[real].abs().max()) < 1e-9
    held = [
        layer.num_held
        for layer in state.layers.values()
        if isinstance(layer, SelfAttentionCache) and layer.span is not None
    ]
    assert held and max(held) < 200


@pytest.mark.parametrize("name", ["gpt3-tiny", "mistral-tiny", "gemma3-tiny", "gptneox-tiny"])
def test_fresh_models_generate_by_their_own_settings(name: str) -> None:
    torch.manual_seed(0)
    found = af.build(name).eval().generate(torch.randint(5, 250, (2, 9)), max_new_tokens=8, eos_token_id=None)
    assert found.shape == (2, 17)


def test_rotary_tables_are_made_once_a_pass(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that turn alike share their sines and cosines; Gemma's two kinds make two."""
    from anyformer.core.rope import RopeConfig

    made = []
    plain = RopeConfig.rates
    monkeypatch.setattr(RopeConfig, "rates", lambda self, *args: made.append(self) or plain(self, *args))
    for name, times in (("LlamaForCausalLM", 1), ("Gemma3ForCausalLM", 2)):
        made.clear()
        models[name][1](input_ids=prompts())
        assert len(made) == times


def test_saved_and_loaded_decodes_the_same(models: Models, tmp_path: Path) -> None:
    model = models["Qwen2ForCausalLM"][1]
    model.save(tmp_path)
    options = {"max_new_tokens": NEW, "pad_token_id": PAD}
    assert af.load(tmp_path).generate(prompts(), **options).tolist() == model.generate(prompts(), **options).tolist()
