"""Decoding gives the ids of transformers' generate, under the same options, for a decoder and for a pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.cache import Cache

VOCABULARY, PAD, END = 40, 0, 1


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, af.Model]:
    config = pytest.importorskip("transformers.models.gpt2.configuration_gpt2").GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
    return _both(lambda: GPT2LMHeadModel(config(**sizes, bos_token_id=END, eos_token_id=END)), tmp_path_factory)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, af.Model]:
    config = pytest.importorskip("transformers.models.marian.configuration_marian").MarianConfig
    from transformers.models.marian.modeling_marian import MarianMTModel

    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in _SIDE.items()}
    ids = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD, "forced_eos_token_id": END}
    made = config(**sizes, **ids, d_model=32, vocab_size=VOCABULARY, max_position_embeddings=64)
    return _both(lambda: MarianMTModel(made), tmp_path_factory)


_SIDE = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


def _both(make: Callable[[], Any], folders: pytest.TempPathFactory) -> tuple[Any, af.Model]:
    """The same random model in both libraries; large weights, so that the tokens vary and some rows end early."""
    torch.manual_seed(3)
    theirs = make().double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() > 1 and parameter.requires_grad:
                parameter.mul_(12.0)
    folder = folders.mktemp("model")
    theirs.save_pretrained(folder)
    return theirs, af.load(folder)


def prompts(batch: int = 24, length: int = 7) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(5))


def left_mask(ids: Tensor) -> Tensor:
    """Row i has i % length padded places on the left."""
    lost = torch.arange(len(ids)) % ids.shape[1]
    return (torch.arange(ids.shape[1])[None] >= lost[:, None]).long()


def compare(models: tuple[Any, af.Model], **options: Any) -> Tensor:
    theirs, ours = models
    expected, found = theirs.generate(**options), ours.generate(**options)
    assert found.tolist() == expected.tolist()
    return found


def test_looking_seldom_whether_all_is_done_changes_nothing(
    gpt2: tuple[Any, af.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the loop runs a few steps too far and cuts them off."""
    options = {"max_new_tokens": 30, "eos_token_id": list(range(3, 30)), "pad_token_id": PAD}
    expected = gpt2[1].generate(prompts(), **options)
    assert expected.shape[1] < 37
    monkeypatch.setattr("anyformer.generation.strategies.check_every", lambda device: 8)
    assert gpt2[1].generate(prompts(), **options).tolist() == expected.tolist()


def test_uneven_prompts_padded_on_the_left(gpt2: tuple[Any, af.Model]) -> None:
    ids = prompts()
    mask = left_mask(ids)
    ids = ids.masked_fill(mask == 0, PAD)
    compare(gpt2, input_ids=ids, attention_mask=mask, max_new_tokens=15, pad_token_id=PAD)
    compare(gpt2, input_ids=ids, max_new_tokens=15, pad_token_id=PAD)  # the mask follows from the padding id


def test_uneven_sources(marian: tuple[Any, af.Model]) -> None:
    ids = prompts()
    mask = left_mask(ids).flip(1)
    ids = ids.masked_fill(mask == 0, PAD)
    compare(marian, input_ids=ids, attention_mask=mask, max_new_tokens=15)
    compare(marian, input_ids=ids, max_new_tokens=15)


def test_left_padded_right_padded_and_alone_are_the_same(gpt2: tuple[Any, af.Model]) -> None:
    model, ids = gpt2[1], prompts()
    mask = left_mask(ids)
    order = torch.argsort(mask, dim=1, descending=True, stable=True)
    options = {"max_new_tokens": 10, "pad_token_id": PAD, "eos_token_id": None}
    left = model.generate(input_ids=ids, attention_mask=mask, **options)[:, 7:]
    right = model.generate(input_ids=ids.gather(1, order), attention_mask=mask.gather(1, order), **options)[:, 7:]
    alone = [model.generate(ids[i : i + 1, mask[i] == 1], **options)[0, -10:] for i in range(len(ids))]
    assert left.tolist() == right.tolist() == torch.stack(alone).tolist()


@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_cached_steps_are_a_whole_pass(family: str, request: pytest.FixtureRequest) -> None:
    """Each generated token is the most probable one in a pass over everything before it, without a cache."""
    model = request.getfixturevalue(family)[1]
    ids = prompts(4)
    found = model.generate(ids, max_new_tokens=12, eos_token_id=None, forced_eos_token_id=None)
    with torch.no_grad():
        read = {"input_ids": found} if family == "gpt2" else {"input_ids": ids, "decoder_input_ids": found}
        best = model(**read).logits.argmax(-1)
    first = 6 if family == "gpt2" else 0
    assert best[:, first:-1].tolist() == found[:, first + 1 :].tolist()


def test_the_folder_says_how_to_generate(marian: tuple[Any, af.Model], tmp_path: Path) -> None:
    theirs, ours = marian
    ours.save(tmp_path, format="hf")
    file = tmp_path / "generation_config.json"
    config = {**json.loads(file.read_text()), "max_new_tokens": 9, "eos_token_id": [3, 4, 5]}
    file.write_text(json.dumps(config))
    again, ids = af.load(tmp_path), prompts()
    options = {"max_new_tokens": 9, "eos_token_id": [3, 4, 5]}
    assert again.generate(ids).tolist() == theirs.generate(ids, **options).tolist()
    assert again.generate(ids, max_new_tokens=4).shape[1] == 5, "what the caller says wins"


def test_a_fresh_model_generates_by_its_own_settings() -> None:
    torch.manual_seed(0)
    model = af.build("transformer-tiny", end=5, decoder_start=3).eval()
    found = model.generate(prompts())
    assert (found[:, 0] == 3).all() and found.shape[1] <= 21


def _after_end(ids: Tensor) -> Tensor:
    ends = ids == END
    return ends.cumsum(dim=1) - ends.long() > 0


@pytest.mark.parametrize("more", [{}, {"repetition_penalty": 1.3, "length_penalty": 0.5}, {"num_beams": 1}], ids=str)
def test_scores_are_normalized_again(marian: tuple[Any, af.Model], more: dict[str, Any], tmp_path: Path) -> None:
    """renormalize_logits, from the caller and from a file, as Marian's folders have it."""
    common = [[token] for token in range(4, 30)]
    options = {"max_new_tokens": 12, "num_beams": 4, "bad_words_ids": common, "pad_token_id": PAD, **more}
    theirs, found = (model.generate(input_ids=prompts(), renormalize_logits=True, **options) for model in marian)
    # transformers fills up with the end where padding is id 0, so rows are compared up to their end
    assert found.tolist() == torch.where(_after_end(theirs), PAD, theirs).tolist()
    if options["num_beams"] > 1:
        assert found.tolist() != marian[1].generate(prompts(), **options).tolist()
    marian[1].save(tmp_path, format="hf")
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "renormalize_logits": True}))
    assert af.load(tmp_path).generate(prompts(), **options).tolist() == found.tolist()


def test_beams_are_drawn_from_normalized_scores(gpt2: tuple[Any, af.Model]) -> None:
    """Of two words at a low temperature one is all but certain: by its chance among them each step costs nothing."""
    options = {"num_beams": 2, "do_sample": True, "temperature": 0.01, "top_k": 2, "max_new_tokens": 5, "logprobs": 1}
    out = gpt2[1].generate(prompts(2), renormalize_logits=True, eos_token_id=None, **options)
    assert out.sequences_scores.abs().max() < 1


def test_fields_of_a_file_that_say_nothing(gpt2: tuple[Any, af.Model], recwarn: pytest.WarningsRecorder) -> None:
    model, ids = gpt2[1], prompts(2)
    expected = model.generate(ids, max_new_tokens=4).tolist()
    model.origin.generation, before = {"disable_compile": True, "chat_format": "chatml"}, model.origin.generation
    try:
        assert model.generate(ids, max_new_tokens=4).tolist() == expected and not recwarn.list
        model.origin.generation = {"is_funny": True}
        with pytest.warns(UserWarning, match="is_funny"):
            assert model.generate(ids, max_new_tokens=4).tolist() == expected
        model.origin.generation = {"penalty_alpha": 0.6}
        with pytest.raises(af.InputError, match=r"penalty_alpha=0\.6.*top_k"):
            model.generate(ids, max_new_tokens=4)
    finally:
        model.origin.generation = before


def test_what_is_not_there_is_refused(gpt2: tuple[Any, af.Model], marian: tuple[Any, af.Model], tmp_path: Path) -> None:
    model, ids = gpt2[1], prompts(2)
    for options, instead in (({"penalty_alpha": 0.6}, "top_k"), ({"force_words_ids": [[3]]}, "sequence_bias")):
        with pytest.raises(af.InputError, match=f"{next(iter(options))}=.*{instead}"):
            model.generate(ids, **options)
    with pytest.raises(af.InputError, match='Did you mean "max_new_tokens"'):
        model.generate(ids, max_new_token=3)
    with pytest.raises(af.InputError, match="max_length is 5"):
        model.generate(ids, max_length=5)
    with pytest.raises(af.InputError, match="input_ids"):
        af.build("gpt2-tiny").generate(max_new_tokens=5)  # the other knows the token that begins a text
    with pytest.raises(af.InputError, match="bert"):
        af.build("bert-tiny").generate(ids)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 0}, "num_beams is 0"),
        ({"num_beams": 4, "num_beam_groups": 0}, "num_beam_groups is 0"),
        ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty 0.0"),
        ({"num_beams": 4, "diversity_penalty": 0.5}, "num_beam_groups is 1"),
        ({"num_beams": 4, "num_beam_groups": 3, "diversity_penalty": 0.5}, "num_beam_groups, 3"),
        ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "do_sample": True}, "do_sample"),
        ({"temperature": -1.0, "do_sample": True}, "temperature is -1"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 2.0, "do_sample": True}, "top_p is 2"),
        ({"top_k": -3, "do_sample": True}, "top_k is -3"),
        ({"temperature": 0.7}, "do_sample=True"),
        ({"num_return_sequences": 3, "num_beams": 2}, "num_return_sequences is 3"),
        ({"max_new_tokens": 3, "min_new_tokens": 5}, "max_length 10"),
        ({"seed": [1, 2, 3], "do_sample": True}, "3 entries for 2 rows"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any], words: str, gpt2: tuple[Any, af.Model]) -> None:
    """One clear sentence each."""
    with pytest.raises(af.InputError, match=words):
        gpt2[1].generate(prompts(2), **options)


def test_an_empty_prompt(gpt2: tuple[Any, af.Model]) -> None:
    with pytest.raises(af.InputError, match="empty"):
        gpt2[1].generate(torch.zeros(1, 0, dtype=torch.long))


def test_nan_is_said() -> None:
    """Instead of garbage text."""
    model = af.build("gpt2-tiny").eval()
    with torch.no_grad():
        model.stages["decoder"].stack.final_norm.weight.fill_(float("nan"))
    with pytest.raises(af.InputError, match="NaN"):
        model.generate(prompts(2))


def test_a_generation_config_is_honoured(gpt2: tuple[Any, af.Model], tmp_path: Path) -> None:
    """What a folder asks for is done; what belongs to sampling is not heard by a search that does not sample."""
    theirs, model, ids = *gpt2, prompts(4)
    model.save(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"num_beams": 4, "temperature": 0.6, "length_penalty": 2.0}')
    again = af.load(tmp_path)
    beams = {"num_beams": 4, "length_penalty": 2.0, "eos_token_id": END, "pad_token_id": END}
    assert again.generate(ids, eos_token_id=END).tolist() == theirs.generate(ids, **beams).tolist()
    assert again.generate(ids, num_beams=1, eos_token_id=END).tolist() == model.generate(ids).tolist()
    (tmp_path / "generation_config.json").write_text('{"penalty_alpha": 0.6}')
    with pytest.raises(af.InputError, match="penalty_alpha"):
        af.load(tmp_path).generate(ids)


def test_the_encoder_runs_once(marian: tuple[Any, af.Model]) -> None:
    model = marian[1]
    with af.look(model, "encoder.output", "decoder.output") as seen:
        model.generate(prompts(3), max_new_tokens=8, eos_token_id=None)
    points = [point for point, _ in seen.log]
    assert points.count("encoder.output") == 1 and points.count("decoder.output") == 8
    assert all(value.shape[1] == 1 for point, value in seen.log if point == "decoder.output")


def test_state_is_public(gpt2: tuple[Any, af.Model]) -> None:
    """A step is a plain call of the model with a State: what other searches will build on."""
    state, model, ids = Cache(), gpt2[1], prompts(2)
    model(input_ids=ids, past_key_values=state)
    assert state.length == ids.shape[1]
