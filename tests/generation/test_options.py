"""Every option of transformers' `generate` gives its ids: random models in float64, greedy, by beams and sampled."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

import anyformer as af
from anyformer.generation.options import OPTIONS, REFUSED, GenerateKeywords
from tests.generation.families import PAD, PAIRS, VOCABULARY, models, prompts

pytestmark = pytest.mark.filterwarnings("ignore")
NEW, ROWS = 8, 6
ENDS = list(range(4, 36))  # often said, so that some rows end early
FAMILIES = ("gpt2", "t5", *(pytest.param(family, marks=pytest.mark.slow) for family in ("llama", "bart")))


@pytest.fixture(autouse=True)
def drawing_the_likeliest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both libraries draw differently from one seed; without noise, a sample is the likeliest token that is left."""

    def likeliest(probs: Tensor, num_samples: int, **kwargs: Any) -> Tensor:
        return probs.topk(num_samples, dim=-1).indices

    monkeypatch.setattr(torch, "multinomial", likeliest)
    monkeypatch.setattr("anyformer.generation.strategies.gumbel", lambda scores, generators: torch.zeros_like(scores))


def compare(family: str, batch: dict[str, Tensor] | None = None, **options: Any) -> Tensor:
    theirs, ours = models(family)
    batch = prompts(family, ROWS) if batch is None else batch
    asked = {"max_new_tokens": NEW, "eos_token_id": ENDS, "pad_token_id": PAD, **options}
    expected = theirs.generate(**{"do_sample": False, "num_beams": 1, **batch, **asked})
    found = ours.generate(**batch, **asked)
    expected = expected.masked_fill(expected == -1, PAD)  # which transformers' beams fill with if no token is an end
    assert found.tolist() == expected.tolist()
    return found


def both_last_tokens(ids: Tensor, scores: Tensor) -> Tensor:
    """A processor of the caller's, which depends on both of its arguments."""
    return (
        scores
        - 3.0 * torch.nn.functional.one_hot(ids[:, -1], scores.shape[1])
        + scores.roll(1, dims=1).clamp(min=-50) / 2
    )


def said_an_even_token(ids: Tensor, scores: object) -> Tensor:
    return ids[:, -1] % 2 == 0


BIASES = [[[token], float(token % 5)] for token in range(40, 100)] + [[[token, token + 1], 9.0] for token in range(150)]
RULES: list[dict[str, Any]] = [
    {"sequence_bias": BIASES},
    {"sequence_bias": {(7,): 20.0, (7, 8): 5.0, (7, 8, 9): 40.0}},
    {"exponential_decay_length_penalty": (2, 1.7)},
    {"encoder_repetition_penalty": 1.4, "suppress_tokens": [PAD]},
    {"encoder_repetition_penalty": 4.0, "suppress_tokens": [PAD]},
    {"encoder_no_repeat_ngram_size": 1, "suppress_tokens": [PAD]},
    {"encoder_no_repeat_ngram_size": 2},
    {"remove_invalid_values": True, "suppress_tokens": list(range(500))},
    {"logits_processor": [both_last_tokens]},
    {"logits_processor": [both_last_tokens], "no_repeat_ngram_size": 2, "renormalize_logits": True},
    {"logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5)])},
    {"logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(9.0)]), "repetition_penalty": 1.1},
    {"logits_processor": [MinLengthLogitsProcessor(14, ENDS)], "min_length": 10},
    {"stopping_criteria": [said_an_even_token]},
    {"stopping_criteria": [said_an_even_token], "eos_token_id": None},
    {"stopping_criteria": [lambda ids, scores: torch.full((len(ids),), ids.shape[1] > 11)]},
    {"max_time": 100.0, "use_cache": True},
    {"logits_to_keep": 1, "cache_implementation": "dynamic", "synced_gpus": False},
    {"generation_config": GenerationConfig(max_new_tokens=5, repetition_penalty=1.3, suppress_tokens=[PAD])},
]
SEARCHES: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"do_sample": True, "top_k": 30, "temperature": 1.3}]


DECODERS_ALONE = ("logits_to_keep", "min_length")  # of their encoder-decoders, not all take it; the prompt counts


def label(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={str(value)[:20]}" for name, value in options.items()) or "greedy"


@pytest.mark.parametrize("search", SEARCHES, ids=label)
@pytest.mark.parametrize("rules", RULES, ids=label)
@pytest.mark.parametrize("family", FAMILIES)
def test_rules(family: str, rules: dict[str, Any], search: dict[str, Any]) -> None:
    batch = prompts(family, ROWS)
    callers = [one for one in rules.get("logits_processor", []) if isinstance(one, RepetitionPenaltyLogitsProcessor)]
    if callers:  # transformers' own processors take padding for words, ours do not (decision 10)
        batch = {"input_ids": batch["input_ids"][:2], "attention_mask": torch.ones_like(batch["input_ids"][:2])}
    rules = {name: value for name, value in rules.items() if family not in PAIRS or name not in DECODERS_ALONE}
    compare(family, batch, **{**search, **rules})


def test_the_rules_change_the_ids() -> None:
    """Otherwise equal ids would say nothing about them."""
    changed = []
    for family in ("gpt2", "bart"):
        theirs, _ = models(family)
        asked = {**prompts(family, ROWS), "max_new_tokens": NEW, "eos_token_id": ENDS, "pad_token_id": PAD}
        plain = theirs.generate(**asked, do_sample=False).tolist()
        some = [{name: value for name, value in rules.items() if name not in DECODERS_ALONE} for rules in RULES]
        changed.append([theirs.generate(**{**asked, "do_sample": False, **rules}).tolist() != plain for rules in some])
    idle = ("max_time", "cache_implementation", "remove_invalid_values", "encoder_no_repeat_ngram_size")
    for rules, *differs in zip(RULES, *changed, strict=True):
        assert any(differs) or set(rules) & set(idle), rules


def test_processors_of_a_small_vocabulary() -> None:
    """Each against transformers' class, where sequences recur."""
    from transformers.generation import logits_process as theirs

    from anyformer.generation import logits_processors as ours

    made = torch.Generator().manual_seed(0)
    scores = torch.randn(6, 12, generator=made)
    ids, source = torch.randint(0, 12, (6, 9), generator=made), torch.randint(0, 12, (3, 30), generator=made)
    biases = {(token, token + 1): float(token) for token in range(10)} | {(3,): -2.0}
    pairs: list[tuple[Any, Any]] = [
        (theirs.EncoderNoRepeatNGramLogitsProcessor(n, source), partial(ours.no_repeat_ngram, n=n, source=source))
        for n in (1, 2, 3)
    ]
    penalty = partial(ours.encoder_repetition_penalty, source=source, penalty=1 / 1.5)
    pairs += [(theirs.EncoderRepetitionPenaltyLogitsProcessor(1.5, source), penalty)]
    biased = partial(ours.bias_sequences, biases=tuple(biases.items()))
    pairs += [(theirs.SequenceBiasLogitsProcessor(biases), biased)]
    decay = partial(ours.decay_length, ids=(3, 5), start=4, factor=1.3)
    pairs += [(theirs.ExponentialDecayLengthPenalty((2, 1.3), [3, 5], 2), decay)]
    pairs += [(theirs.TopHLogitsWarper(0.6), partial(ours.keep_top_h, h=0.6))]
    pairs += [(theirs.EpsilonLogitsWarper(0.1, min_tokens_to_keep=2), lambda s, h: ours.keep_above(s, 0.1, 2))]
    pairs += [(theirs.EtaLogitsWarper(0.3), lambda s, h: ours.keep_above(s, ours.eta(s, 0.3)))]
    for processor, function in pairs:
        expected, found = processor(ids, scores.clone()), function(scores.clone(), ids)
        torch.testing.assert_close(found, expected)
        assert not torch.equal(expected, scores), processor


SAMPLERS: list[dict[str, Any]] = [
    {"epsilon_cutoff": 0.01},
    {"epsilon_cutoff": 0.2},
    {"eta_cutoff": 0.05},
    {"eta_cutoff": 0.6},
    {"top_h": 0.3},
    {"top_h": 0.9, "top_k": 0},
    {"typical_p": 0.3, "epsilon_cutoff": 0.002, "top_p": 0.9, "min_p": 0.01},
]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("options", SAMPLERS, ids=label)
@pytest.mark.parametrize("family", ["llama", pytest.param("t5", marks=pytest.mark.slow)])
def test_what_sampling_leaves(family: str, options: dict[str, Any], beams: int) -> None:
    """The scores that both draw from, and the ids."""
    theirs, ours = models(family)
    asked = {**prompts(family, ROWS), "do_sample": True, "max_new_tokens": 4, "eos_token_id": ENDS, "num_beams": beams}
    asked |= {"return_dict_in_generate": True, "output_scores": True, "pad_token_id": PAD, **options}
    found, expected = ours.generate(**asked), theirs.generate(**asked)
    assert found.sequences.tolist() == expected.sequences.tolist()
    assert len(found.scores) == len(expected.scores)
    for mine, other in zip(found.scores, expected.scores, strict=True):
        assert torch.equal(mine == -torch.inf, other == -torch.inf)
        assert int((mine > -torch.inf).sum()) < mine.numel()
        torch.testing.assert_close(mine.float(), other.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"guidance_scale": 0.4}, {"do_sample": True, "top_k": 5}], ids=label)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_guidance(family: str, options: dict[str, Any]) -> None:
    ids = torch.randint(4, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(1))
    other = torch.randint(4, VOCABULARY, (3, 4), generator=torch.Generator().manual_seed(2))
    options = {"guidance_scale": 2.5, **options}
    alone = compare(family, {"input_ids": ids}, **options)
    assert alone.tolist() != compare(family, {"input_ids": ids}, negative_prompt_ids=other, **options).tolist()
    mask = torch.ones_like(other)
    compare(family, {"input_ids": ids}, negative_prompt_ids=other, negative_prompt_attention_mask=mask, **options)


@pytest.mark.parametrize("search", SEARCHES, ids=label)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_of_vectors(family: str, search: dict[str, Any]) -> None:
    theirs, _ = models(family)
    batch = prompts(family, ROWS)
    vectors = theirs.get_input_embeddings()(batch["input_ids"])
    given = {"inputs_embeds": vectors, "attention_mask": batch["attention_mask"]}
    for more in ({}, {"min_new_tokens": 4, "repetition_penalty": 1.3}, {"max_length": 15, "max_new_tokens": None}):
        found = compare(family, given, **search, **more)
        if family not in PAIRS and not more:  # the continuation of the same prompt as ids, which come first there
            whole = compare(family, batch, **search)
            assert whole[:, batch["input_ids"].shape[1] :].tolist() == found.tolist()


@pytest.mark.parametrize("search", [*SEARCHES, {"do_sample": True, "num_return_sequences": 2}], ids=label)
def test_types_and_positions_of_the_callers(search: dict[str, Any]) -> None:
    """They go on behind the prompt: the last type, and the next positions."""
    batch = prompts("gpt2", ROWS)
    full = torch.ones_like(batch["attention_mask"])
    types = torch.randint(0, 9, full.shape, generator=torch.Generator().manual_seed(3))
    positions = (full.cumsum(dim=1) * 2).contiguous()
    plain = compare("gpt2", {"input_ids": batch["input_ids"], "attention_mask": full}, **search)
    for more in ({"token_type_ids": types}, {"position_ids": positions}):
        given = {"input_ids": batch["input_ids"], "attention_mask": full, **more}
        assert compare("gpt2", given, **search).tolist() != plain.tolist()
    compare("llama", {"input_ids": batch["input_ids"], "attention_mask": full, "position_ids": positions}, **search)


FIELDS = ("attentions", "hidden_states", "encoder_attentions", "encoder_hidden_states", "decoder_attentions")
FIELDS = (*FIELDS, "cross_attentions", "decoder_hidden_states")


def flat(value: Any) -> Iterator[Tensor]:
    for one in value:
        if isinstance(one, Tensor):
            yield one
        else:
            yield from flat(one)


@pytest.mark.parametrize("search", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=label)
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_of_every_step(family: str, search: dict[str, Any]) -> None:
    theirs, ours = models(family)
    theirs.set_attn_implementation("eager")
    ids = torch.randint(4, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))
    asked = {"input_ids": ids, "max_new_tokens": 5, "eos_token_id": None, "pad_token_id": PAD, **search}
    asked |= {"return_dict_in_generate": True, "output_attentions": True, "output_hidden_states": True}
    expected, found = theirs.generate(**asked), ours.generate(**asked)
    theirs.set_attn_implementation("sdpa")
    names = [name for name in FIELDS if expected.get(name) is not None]
    assert len(names) == (2 if family in ("gpt2", "llama") else 5)
    assert [name for name in expected if name in found] == [name for name in found if name in expected]
    for name in names:
        mine, other = list(flat(found[name])), list(flat(expected[name]))
        assert [one.shape for one in mine] == [one.shape for one in other], name
        for one, two in zip(mine, other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)  # Llama's weights are float32 there
    assert ours.generate(**{**asked, "output_attentions": None, "output_hidden_states": None}).hidden_states is None


def test_a_length_criterion_of_transformers_takes_the_place_of_ours() -> None:
    found = compare("gpt2", stopping_criteria=[MaxLengthCriteria(25)], eos_token_id=None)
    assert found.shape[1] == 25


def test_criteria_see_the_scores() -> None:
    seen: list[int] = []

    def criterion(ids: Tensor, scores: tuple[Tensor, ...] | None) -> bool:
        seen.append(-1 if scores is None else len(scores))
        return False

    ours = models("gpt2")[1]
    for beams in (1, 2):
        asked = {**prompts("gpt2", 2), "max_new_tokens": 3, "eos_token_id": None, "num_beams": beams}
        ours.generate(**asked, stopping_criteria=[criterion], output_scores=True)
        ours.generate(**asked, stopping_criteria=criterion)
    assert seen == [1, 2, 3, -1, -1, -1] * 2


def test_time_ends_a_call() -> None:
    class Slow:
        def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
            time.sleep(0.02)
            return scores

    ours, asked = models("gpt2")[1], {**prompts("gpt2", 2), "eos_token_id": None, "max_new_tokens": 40}
    for search in ({}, {"num_beams": 2}):
        found = ours.generate(**asked, **search, max_time=0.1, logits_processor=[Slow()])
        assert 9 < found.shape[1] < 40


class BrokenError(Exception):
    pass


def breaks(ids: Tensor, scores: Any) -> Any:
    if ids.shape[1] > 11:
        raise BrokenError
    return scores if isinstance(scores, Tensor) else False


@pytest.mark.parametrize("option", ["logits_processor", "stopping_criteria"])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_model_survives_what_the_caller_raises(family: str, option: str) -> None:
    ours, batch = models(family)[1], prompts(family, 4)
    searches: list[dict[str, Any]] = [{}, {"num_beams": 2}, {"output_attentions": True}, {"output_scores": True}]
    searches += [{"prompt_lookup_num_tokens": 2}, {"do_sample": True, "seed": 1}]
    for search in searches:
        expected = ours.generate(**batch, **search, max_new_tokens=14, eos_token_id=None)
        with pytest.raises(BrokenError):
            ours.generate(**batch, **search, max_new_tokens=14, eos_token_id=None, **{option: [breaks]})
        again = ours.generate(**batch, **search, max_new_tokens=14, eos_token_id=None)
        assert torch.equal(*(one if isinstance(one, Tensor) else one.sequences for one in (expected, again)))
    assert ours.training is False and not torch.is_inference_mode_enabled()


def test_the_signature_lists_every_option() -> None:
    shown = inspect.signature(models("gpt2")[1].generate).parameters
    theirs = inspect.signature(models("gpt2")[0].generate).parameters
    order = [name for name in theirs if name not in ("custom_generate", "kwargs")]
    assert [name for name, one in shown.items() if one.kind == one.POSITIONAL_OR_KEYWORD] == order
    assert {*OPTIONS} - {"stamps"} <= set(shown) and set(GenerateKeywords.__annotations__) <= set(shown)
    described = af.Model.generate.__doc__ or ""
    assert [name for name in shown if name not in described] == []
    assert not [name for name, one in shown.items() if "Any" in str(one.annotation)]


def test_positional_use() -> None:
    ours, batch = models("gpt2")[1], prompts("gpt2", 2)
    config = GenerationConfig(max_new_tokens=4, num_beams=2)
    found = ours.generate(batch["input_ids"], config, [both_last_tokens], attention_mask=batch["attention_mask"])
    named = ours.generate(**batch, max_new_tokens=4, num_beams=2, logits_processor=[both_last_tokens])
    assert found.tolist() == named.tolist()
    assert ours.generate(**batch, generation_config={"max_new_tokens": 4, "num_beams": 2}).shape == (2, 13)
    out = ours.generate(**batch, generation_config={"return_dict_in_generate": True, "output_scores": True})
    assert isinstance(out, af.Output) and len(out.scores) == 20


IDS, VECTORS = torch.ones(2, 5, dtype=torch.long), torch.zeros(2, 5, 32, dtype=torch.float64)
REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"inputs_embeds": VECTORS, "input_ids": IDS}, "inputs_embeds and input_ids"),
    ({"inputs_embeds": VECTORS[0]}, r"inputs_embeds is \[5, 32\]"),
    ({"inputs_embeds": VECTORS[:, :0]}, r"inputs_embeds is \[2, 0, 32\]"),
    ({"inputs_embeds": VECTORS[..., :8]}, r"inputs_embeds.*\[2, 5, 8\].*32"),
    ({"inputs_embeds": [[0.5]]}, "inputs_embeds is list"),
    ({"inputs_embeds": VECTORS, "attention_mask": IDS[:, :3]}, r"attention_mask has shape \[2, 3\].*\[2, 5\]"),
    ({"inputs_embeds": VECTORS, "prompt_lookup_num_tokens": 3}, "inputs_embeds cannot"),
    ({"inputs_embeds": VECTORS, "guidance_scale": 2.0}, "negative_prompt_ids"),
    ({"inputs_embeds": VECTORS, "encoder_repetition_penalty": 2.0}, "encoder_repetition_penalty.*input_ids"),
    ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 5, 5)}, r"attention_mask has shape \[2, 1, 5, 5\]"),
    ({"input_ids": IDS, "token_type_ids": IDS[:, :2]}, r"token_type_ids has shape \[2, 2\].*\[2, 5\]"),
    ({"input_ids": IDS, "position_ids": torch.ones(3, 5)}, r"position_ids has shape \[3, 5\].*\[2, 5\]"),
    ({"input_ids": IDS, "position_ids": "all"}, "position_ids has shape str"),
    ({"input_ids": IDS, "logits_processor": [3]}, "logits_processor holds 3"),
    ({"input_ids": IDS, "logits_processor": [lambda ids, scores: None]}, "logits processor <lambda> returned NoneType"),
    ({"input_ids": IDS, "logits_processor": [lambda ids, scores: ids]}, r"returned \[2, 5\].*\[2, 1000\]"),
    ({"input_ids": IDS, "stopping_criteria": "end"}, "stopping_criteria holds 'end'"),
    ({"input_ids": IDS, "stopping_criteria": [lambda ids, scores: None]}, "criterion <lambda> returned NoneType"),
    ({"input_ids": IDS, "stopping_criteria": [lambda ids, scores: ids]}, r"returned \[2, 6\].*2 rows"),
    ({"input_ids": IDS, "generation_config": 3}, "generation_config is 3.*to_dict"),
    ({"input_ids": IDS, "generation_config": {"num_beams": 0}}, "num_beams is 0"),
    ({"input_ids": IDS, "max_time": 0}, "max_time is 0"),
    ({"input_ids": IDS, "sequence_bias": {}}, r"sequence_bias is \{\}"),
    ({"input_ids": IDS, "sequence_bias": {(3,): "x"}}, "sequence_bias is"),
    ({"input_ids": IDS, "sequence_bias": {(1000,): 1.0}}, "sequence_bias holds 1000"),
    ({"input_ids": IDS, "exponential_decay_length_penalty": 3}, "exponential_decay_length_penalty is 3"),
    ({"input_ids": IDS, "exponential_decay_length_penalty": (3, "x")}, "exponential_decay_length_penalty is"),
    ({"input_ids": IDS, "epsilon_cutoff": 0.1}, "epsilon_cutoff=0.1.*do_sample"),
    ({"input_ids": IDS, "epsilon_cutoff": 1.5, "do_sample": True}, "epsilon_cutoff is 1.5"),
    ({"input_ids": IDS, "cache_implementation": "quantized"}, "cache_implementation is 'quantized'"),
    ({"input_ids": IDS, "guidance_scale": 2.0, "num_beams": 2}, "guidance_scale.*num_beams"),
    ({"input_ids": IDS, "negative_prompt_ids": IDS}, "negative_prompt_ids.*guidance_scale"),
    ({"input_ids": IDS, "negative_prompt_ids": IDS[0], "guidance_scale": 2.0}, "negative_prompt_ids must"),
    ({"input_ids": IDS, "output_attentions": True, "prompt_lookup_num_tokens": 2}, "output_attentions"),
    *(({"input_ids": IDS, name: "x"}, f"takes? no|{name}='x'; use .* instead") for name in REFUSED),
]


@pytest.mark.parametrize(("options", "words"), REFUSALS, ids=lambda value: value if isinstance(value, str) else "")
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(af.Error, match=words) as caught:
        models("gpt2")[1].generate(**{"max_new_tokens": 3, **options})
    assert len(str(caught.value)) < 400 and str(caught.value).endswith(".")
