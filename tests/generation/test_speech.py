"""Writing down speech: the ids, segments and times of transformers' Whisper from the same folder, in float64."""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation.speech import compression_ratio, cut_segments
from anyformer.generation.speech_prompt import language_id
from anyformer.generation.timestamps import TimestampRules, apply_timestamp_rules

END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, BEFORE, SILENCE, NO_STAMPS = range(120, 129)
FIRST, STAMPS, TOKENS = 129, 21, 20  # times 0.00 to 0.40 seconds, for windows of 20 tokens
GENERATION = {
    **{"eos_token_id": END, "pad_token_id": END, "bos_token_id": END, "decoder_start_token_id": START},
    **{"lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN}, "is_multilingual": True},
    **{"task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE}, "no_timestamps_token_id": NO_STAMPS},
    **{"prev_sot_token_id": BEFORE, "suppress_tokens": [1, 2, START, BEFORE], "begin_suppress_tokens": [7, END]},
    **{"max_initial_timestamp_index": 5, "max_length": 40, "alignment_heads": [[0, 1]]},
}


@functools.cache
def models(seed: int = 0) -> tuple[Any, af.Model]:
    from transformers import GenerationConfig
    from transformers.models.whisper import configuration_whisper as configuration
    from transformers.models.whisper import modeling_whisper as modeling

    config = configuration.WhisperConfig(
        **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_source_positions": TOKENS},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_target_positions": 40},
        **{"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8, "vocab_size": FIRST + STAMPS},
        **{"pad_token_id": END, "bos_token_id": END, "eos_token_id": END, "decoder_start_token_id": START},
    )
    torch.manual_seed(seed)
    theirs = modeling.WhisperForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if not parameter.requires_grad:
                continue
            # Spreads found by trial, so that words and times depend on what is heard and was said.
            spread = 1.2 if "embed_tokens" in name else 4.0 if "encoder_attn" in name else 1.5
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
            plain = parameter.dim() == 1
            parameter.copy_(torch.randn_like(parameter) * (0.1 if plain else spread * fan_in**-0.5))
            if plain and name.endswith("weight"):
                parameter.add_(1.0)
    theirs.generation_config = GenerationConfig(**GENERATION)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, af.load(folder, dtype=torch.float64)


def sound(frames: int = 2 * TOKENS, rows: int = 6, seed: int = 1) -> Tensor:
    return torch.randn(rows, 8, frames, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def both(features: Tensor, **options: Any) -> tuple[Any, Any]:
    theirs, ours = models()
    return ours.generate(features, **options), theirs.generate(features, **options)


SHORT: list[dict[str, Any]] = [
    {},
    {"language": "de"},
    {"language": "German", "task": "translate"},
    {"language": ["en", "de", "de", "en", "en", "de"]},
    {"task": "transcribe"},
    {"return_timestamps": True},
    {"return_timestamps": True, "language": "<|en|>"},
    {"num_beams": 3, "language": "en"},
    {"num_beams": 3, "return_timestamps": True},
    {"num_beams": 2, "num_return_sequences": 1, "length_penalty": 0.5, "return_timestamps": True},
    {"max_new_tokens": 5},
    {"max_length": 12},
    {"prompt_ids": torch.tensor([BEFORE, 30, 31])},
    {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "language": "en"},
    {"suppress_tokens": [3, 4, 5], "language": "en"},
    {"num_beams": 2, "num_return_sequences": 2, "language": "en"},
]


@pytest.mark.parametrize("options", SHORT, ids=str)
def test_one_window(options: dict[str, Any]) -> None:
    ours, theirs = both(sound(), **options)
    assert torch.equal(ours, theirs)


def away_from_the_last(ids: Tensor, scores: Tensor) -> Tensor:
    last = torch.nn.functional.one_hot(ids[:, -1], scores.shape[1])
    return scores - 2.0 * last + scores.roll(1, dims=1).clamp(min=-50) / 2


@pytest.mark.parametrize("timed", [False, True])
def test_options_of_text(timed: bool) -> None:
    """Rules of the caller's act behind those for times."""
    from transformers import GenerationConfig

    config = GenerationConfig(**{**GENERATION, "repetition_penalty": 1.3})
    given: list[dict[str, Any]] = [
        {"logits_processor": [away_from_the_last]},
        {"sequence_bias": [[[5], 9.0], [[6, 7], 3.0]], "exponential_decay_length_penalty": (2, 1.5)},
        {"stopping_criteria": [lambda ids, scores, **more: ids.sum(dim=1) % 3 == 0]},
        {"generation_config": config},
    ]
    for options in given:
        ours, theirs = both(sound(), return_timestamps=timed, **options)
        assert torch.equal(ours, theirs), options


@pytest.mark.parametrize(
    "changes",
    [
        {"forced_decoder_ids": [[1, GERMAN], [2, TRANSLATE]]},  # how older folders say it
        {"forced_decoder_ids": [[1, None], [2, TRANSCRIBE]]},  # the language is heard
        {"lang_to_id": None, "task_to_id": None, "is_multilingual": False},  # English alone
        {"language": "de", "task": "translate"},
        {"max_initial_timestamp_index": None, "return_timestamps": True},
    ],
    ids=str,
)
def test_what_a_folder_says(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GenerationConfig

    theirs, ours = models()
    said = {name: value for name, value in {**GENERATION, **changes}.items() if value is not None}
    monkeypatch.setattr(theirs, "generation_config", GenerationConfig(**said))
    monkeypatch.setattr(ours.origin, "generation", said)
    assert torch.equal(ours.generate(sound(rows=3)), theirs.generate(sound(rows=3)))


def test_the_words_vary() -> None:
    """Or the tests here would compare one word with itself."""
    ours = models()[1].generate(sound(), return_timestamps=True)
    assert len(set(ours.flatten().tolist())) > 25
    assert bool((ours >= FIRST).any()) and bool(((ours < END) & (ours > 0)).any())


LONG: list[dict[str, Any]] = [
    {"return_timestamps": True},
    {"language": "de"},
    {"num_beams": 2},
    {"condition_on_prev_tokens": True},
    {"condition_on_prev_tokens": True, "prompt_ids": torch.tensor([BEFORE, 30, 31])},
    {
        "condition_on_prev_tokens": True,
        "prompt_ids": torch.tensor([BEFORE, 30, 31]),
        "prompt_condition_type": "all-segments",
    },
    {"prompt_ids": torch.tensor([BEFORE, 30, 31])},
    {"temperature": 0.0, "logprob_threshold": -1.0},
    {"temperature": (0.0, 0.0), "logprob_threshold": -0.5, "compression_ratio_threshold": 0.6},
    {"temperature": 0.0, "logprob_threshold": -0.1, "no_speech_threshold": 1e-9},
    {"temperature": 0.0, "logprob_threshold": -2.0, "no_speech_threshold": 0.001},
    {"num_beams": 2, "temperature": 0.0, "logprob_threshold": -0.2, "no_speech_threshold": 0.0005},
]


@pytest.mark.parametrize("options", LONG, ids=str)
def test_long_sound(options: dict[str, Any]) -> None:
    """Several windows, alone: ids, segments and their times."""
    ours, theirs = both(sound(110, rows=1), return_segments=True, **options)
    assert torch.equal(ours.sequences, theirs["sequences"])
    assert len(ours.segments) == len(theirs["segments"]) == 1
    for mine, yours in zip(ours.segments[0], theirs["segments"][0], strict=True):
        assert mine["tokens"] == yours["tokens"].tolist()
        assert mine["start"] == pytest.approx(float(yours["start"]))
        assert mine["end"] == pytest.approx(float(yours["end"]))


@pytest.mark.parametrize("options", [{}, {"condition_on_prev_tokens": True}, {"num_beams": 2}], ids=str)
def test_several_long_sounds(options: dict[str, Any]) -> None:
    """Rows of uneven length; each as alone, and as theirs."""
    mask = torch.ones(3, 130, dtype=torch.long)
    mask[1, 50:] = 0
    mask[2, 100:] = 0
    features = sound(130, rows=3)
    ours, theirs = both(features, attention_mask=mask, return_timestamps=True, return_segments=True, **options)
    assert torch.equal(ours.sequences, theirs["sequences"])
    if "condition_on_prev_tokens" in options:
        return  # there the longest past of the batch says how much room is left, as in theirs
    for row, frames in enumerate((130, 50, 100)):
        alone = models()[1].generate(features[row : row + 1, :, :frames], return_segments=True, **options)
        assert [one["tokens"] for one in ours.segments[row]] == [one["tokens"] for one in alone.segments[0]]


def test_warmer_tries() -> None:
    """What is bad at temperature 0 is drawn again, and what is drawn last stays; the same seed, the same words."""
    model = models()[1]
    features = sound(rows=3)
    cold = model.generate(features)
    options: dict[str, Any] = {"temperature": (0.0, 1.0), "seed": 5}
    kept = model.generate(features, **options, logprob_threshold=-1e9)
    drawn = model.generate(features, **options, logprob_threshold=0.0)
    assert torch.equal(kept, cold) and not (drawn.shape == cold.shape and torch.equal(drawn, cold))
    assert torch.equal(drawn, model.generate(features, **options, logprob_threshold=0.0))


def test_languages() -> None:
    known = {"<|en|>": 4, "<|my|>": 5}
    assert language_id("English", known) == language_id("en", known) == language_id("<|en|>", known) == 4
    assert language_id("Burmese", known) == 5
    with pytest.raises(af.Error, match=r'language "Englsh".*"english".*: en, my'):
        language_id("Englsh", known)


def test_mistakes() -> None:
    model, features = models()[1], sound(rows=2)
    for options, said in (
        ({"task": "translat"}, 'task "translat".*translate'),
        ({"is_multilingual": False, "language": "en"}, "is_multilingual"),
        ({"language": ["en"]}, "1 entries for 2 rows"),
        ({"prompt_condition_type": "all-segments"}, "condition_on_prev_tokens"),
        ({"no_speech_threshold": 0.5}, "logprob_threshold"),
        ({"max_new_tokens": 400}, "max_new_tokens="),
    ):
        with pytest.raises(af.Error, match=said):
            model.generate(features, **options)
    long = sound(100, rows=2)
    with pytest.raises(af.Error, match="attention_mask"):
        model.generate(long)
    with pytest.raises(af.Error, match="return_timestamps=True"):
        model.generate(long[:1], return_timestamps=False)
    with pytest.raises(af.Error, match=r"\[batch, mels, frames\]"):
        model.generate(features[0])
    with pytest.raises(af.Error, match=r"must be \[batch, 8, 40\].*generate"):
        model(input_features=long, decoder_input_ids=torch.tensor([[START]] * 2))


BEGUN = torch.tensor([[START, ENGLISH, TRANSCRIBE, NO_STAMPS, 33]] * 6)
MORE: list[dict[str, Any]] = [
    {},
    {"output_scores": True},
    {"output_scores": True, "output_logits": True, "language": "de"},
    {"output_scores": True, "num_beams": 3},
    {"output_scores": True, "num_beams": 2, "num_return_sequences": 2},
    {"output_scores": True, "prompt_ids": torch.tensor([BEFORE, 30, 31])},
    {"output_scores": True, "decoder_input_ids": BEGUN},
    {"output_scores": True, "decoder_input_ids": BEGUN[:, -2:], "max_new_tokens": 5},
]


@pytest.mark.parametrize("options", MORE, ids=lambda options: " ".join(options))
def test_scores_of_one_window(options: dict[str, Any]) -> None:
    """The opening and the end are in the ids, as in transformers; one window is one call (an option there)."""
    theirs, ours = models()
    out = ours.generate(sound(), return_dict_in_generate=True, **options)
    wanted = theirs.generate(sound(), return_dict_in_generate=True, force_unique_generate_call=True, **options)
    assert torch.equal(out.sequences, wanted.sequences)
    assert (wanted.get("scores") is None) == (out.scores is None)
    for name in ("scores", "logits"):
        for found, one in zip(out.get(name) or (), wanted.get(name) or (), strict=True):
            torch.testing.assert_close(found, one, rtol=1e-6, atol=1e-6, check_dtype=False)
    if wanted.get("sequences_scores") is not None:
        torch.testing.assert_close(out.sequences_scores, wanted.sequences_scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("frames", [2 * TOKENS, 5 * TOKENS])
def test_scores_of_segments(frames: int) -> None:
    features, options = sound(frames, rows=1), {"return_timestamps": True, "output_scores": True}
    theirs, ours = models()
    out = ours.generate(features, return_dict_in_generate=True, **options)
    wanted = theirs.generate(features, return_dict_in_generate=True, **options)
    assert torch.equal(out.sequences, wanted["sequences"])
    assert len(out.segments[0]) == len(wanted["segments"][0]) > 0
    for found, one in zip(out.segments[0], wanted["segments"][0], strict=True):
        assert found["tokens"] == one["tokens"].tolist() and found["idxs"] == tuple(one["idxs"])
        assert torch.equal(found["result"].sequences, one["result"]["sequences"])
        scores = torch.stack(found["result"].scores), torch.stack(one["result"]["scores"])
        torch.testing.assert_close(*scores, rtol=1e-6, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize("more", [{}, {"num_beams": 2}, {"return_timestamps": True}, {"max_new_tokens": 4}], ids=str)
@pytest.mark.parametrize("begun", [BEGUN, BEGUN[:, 3:]], ids=["whole opening", "any tokens"])
def test_an_answer_that_is_begun(begun: Tensor, more: dict[str, Any]) -> None:
    """New tokens alone come out, and no start token is put in front, as in transformers."""
    ours, theirs = both(sound(), decoder_input_ids=begun, **more)
    assert torch.equal(ours, theirs)


def test_bad_openings() -> None:
    model = models()[1]
    with pytest.raises(af.Error, match=r"\[2, tokens\]"):
        model.generate(sound(rows=2), decoder_input_ids=BEGUN)
    with pytest.raises(af.Error, match="with decoder_input_ids"):
        model.generate(sound(rows=2), decoder_attention_mask=torch.ones(2, 3))
    with pytest.raises(af.Error, match=r"temperature is \(0.0, 0.4\)"):
        model.generate(sound(rows=2), output_scores=True, temperature=(0.0, 0.4), logprob_threshold=-1.0)


def test_a_remembered_step_is_a_recomputed_one() -> None:
    """The scores of each step with the cache, and from the start."""
    model = models()[1]
    begin = torch.tensor([[START, ENGLISH, NO_STAMPS]] * 2)
    out = model.generate(
        sound(rows=2), decoder_input_ids=begin, output_logits=True, max_new_tokens=8, suppress_tokens=None
    )
    whole = model(input_features=sound(rows=2), decoder_input_ids=out.sequences).logits
    for step, scores in enumerate(out.logits):
        torch.testing.assert_close(scores, whole[:, begin.shape[1] - 1 + step], rtol=1e-9, atol=1e-9)


def test_segments_by_hand() -> None:
    """<0.00> a b <0.10> <0.10> c <0.20> <0.20> d: what follows the last pair is heard again from 0.20 on."""
    first = 100
    said = [100, 1, 2, 105, 105, 3, 110, 110, 4]
    segments, moved = cut_segments(said, first, 5.0, 40)
    assert [segment["tokens"] for segment in segments] == [[100, 1, 2, 105], [105, 3, 110, 110]]
    times = [(round(segment["start"], 2), round(segment["end"], 2)) for segment in segments]
    assert times == [(5.0, 5.1), (5.1, 5.2)] and moved == 20
    ended = cut_segments([100, 1, 105, 105, 3, 110], first, 0.0, 40)  # a single time at the end: nothing follows
    assert [segment["tokens"] for segment in ended[0]] == [[100, 1, 105], [105, 3, 110]] and ended[1] == 40
    assert cut_segments([1, 2], first, 0.0, 30) == ([{"start": 0.0, "end": 0.3, "tokens": [1, 2]}], 30)


def test_times_are_kept_in_order() -> None:
    """Against transformers' rule on random histories."""
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = GenerationConfig(**GENERATION)
    rule = WhisperTimeStampLogitsProcessor(config, begin_index=3)
    stamps = TimestampRules(timestamp_begin=FIRST, no_timestamps_id=NO_STAMPS, end=END, max_initial_timestamp=5)
    generator = torch.Generator().manual_seed(0)
    for length in range(6):
        history = torch.randint(FIRST - 8, FIRST + 8, (200, 3 + length), generator=generator)
        scores = torch.randn(200, FIRST + STAMPS, generator=generator, dtype=torch.float64) * 3
        assert torch.equal(apply_timestamp_rules(scores.clone(), history, stamps, 3), rule(history, scores))


def test_compression() -> None:
    assert compression_ratio([7] * 200, 51865) > 10 > 2 > compression_ratio(torch.randperm(200).tolist(), 51865)
