"""Every recipe that speaks: with its memory as without, in a batch as alone, a beam of one as greedy, in float64."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.generation import engine
from anyformer.generation.nan_trace import NaNTrace
from anyformer.generation.plan import GenerationPlan, make_plan, resolve, vocab_size, with_lengths
from anyformer.generation.requests import decoding_stage, encoder_decoder_prompt, processor_history
from anyformer.generation.strategies import BeamSearch, Greedy, make_strategy
from tests.batches import Batch, build, text
from tests.tiny import tiny_recipes

NEW, PAD, START = 12, 3, 4
SPEAKERS = (
    *("gpt1-tiny", "gpt2-tiny", "gpt3-tiny", "gptneox-tiny", "llama-tiny", "mistral-tiny", "qwen2-tiny", "qwen3-tiny"),
    *(
        "gemma-tiny",
        "gemma2-tiny",
        "gemma3-tiny",
        "dalle-tiny",
        "image-transformer-tiny",
        "imagegpt-tiny",
        "mamba-tiny",
        "transformer-xl-tiny",
        "mlp-mixer-tiny",
        "bilstm-tiny",
        "textcnn-tiny",
        "trocr-tiny",
    ),
    *("transformer-tiny", "bart-tiny", "t5-tiny", "encoder-decoder-tiny", "vision-encoder-decoder-tiny"),
    *("sutskever-tiny", "bahdanau-tiny", "luong-tiny", "bytenet-tiny", "convs2s-tiny"),
    *("git-tiny", "metalm-tiny", "line-reader-tiny", "show-tell-tiny", "show-attend-tell-tiny", "cnn-transformer-tiny"),
)
PICTURES = ("vision-encoder-decoder-tiny", "show-tell-tiny", "show-attend-tell-tiny", "cnn-transformer-tiny")
every_speaker = pytest.mark.parametrize("name", SPEAKERS)
both_sides = pytest.mark.parametrize("side", ["left", "right"])


def test_no_speaker_is_missing() -> None:
    tiny = [af.build(name).eval() for name in tiny_recipes()]
    speaking = {model.origin.recipe for model in tiny if any(stage.has_cache for stage in model.stages.values())}
    assert speaking == {*SPEAKERS, "whisper-toy"}  # which hears, and is looked at in test_speech


@functools.cache
def model_of(name: str) -> af.Model:
    return build(name)


def batch_of(name: str, side: str = "left") -> Batch:
    """Three uneven rows: prompts, sources or images."""
    if name == "line-reader-tiny":
        return {"pixel_values": torch.randn(3, 1, 16, 64, generator=torch.Generator().manual_seed(0)).double()}
    if name in PICTURES:
        return {"pixel_values": torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()}
    return text(side)


def options(**more: Any) -> dict[str, Any]:
    ids = {"eos_token_id": None, "pad_token_id": PAD, "decoder_start_token_id": START}
    return {"max_new_tokens": NEW, "no_repeat_ngram_size": 1, **ids, **more}  # not one word over and over


def alone(batch: Batch, row: int) -> Batch:
    """One row without its padding."""
    if "attention_mask" not in batch:
        return {name: value[row : row + 1] for name, value in batch.items()}
    return {"input_ids": batch["input_ids"][row : row + 1, batch["attention_mask"][row].bool()]}


def recompute(name: str, batch: Batch, **asked: Any) -> tuple[Tensor, list[Tensor]]:
    """Decoding without memory: every step reads everything from the start. The ids, and each step's scores."""
    model = model_of(name)
    decoder = decoding_stage(model)
    given = resolve(model, asked)
    prompt = encoder_decoder_prompt(model, dict(batch), given) if decoder.attends else batch["input_ids"]
    plan: GenerationPlan = with_lengths(make_plan(model, given), model, given, prompt.shape[1], len(prompt))
    mask = None if decoder.attends else batch["attention_mask"]
    strategy = make_strategy(plan.replace(history=processor_history(prompt, mask, vocab_size(model))), prompt)
    trail, scores = NaNTrace(model, batch, prompt), []
    while not strategy.done:
        ids, source = trail.replay()
        read = {key: value[source] for key, value in batch.items()}
        if not decoder.attends:
            grown = torch.ones(len(ids), ids.shape[1] - prompt.shape[1], dtype=torch.long)
            read["attention_mask"] = torch.cat([batch["attention_mask"][source], grown], dim=1)
        scores.append(model(**{**read, decoder.names[0]: ids}).logits[:, -1])
        trail.add(*strategy.advance(scores[-1]))
    return strategy.result(), scores


@every_speaker
@torch.no_grad()
def test_remembering_is_recomputing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step's scores within 1e-9, and the same ids."""
    seen: list[Tensor] = []
    monkeypatch.setattr(engine, "check_nan", lambda scores, trail, last=False: None if last else seen.append(scores))
    found = model_of(name).generate(**batch_of(name), **options())
    expected, scores = recompute(name, batch_of(name), **options())
    assert found.tolist() == expected.tolist()
    assert len(seen) == len(scores) == NEW
    for ours, theirs in zip(seen, scores, strict=True):
        assert float((ours - theirs).abs().max()) <= 1e-9 * max(1.0, float(theirs.abs().max()))


@every_speaker
@torch.no_grad()
def test_beams_remember_too(name: str) -> None:
    """Rows that are dropped, repeated and reordered go on from the right memory."""
    asked = options(num_beams=3, num_return_sequences=2, eos_token_id=list(range(5, 60)), length_penalty=0.7)
    asked |= {"suppress_tokens": [255]} if name == "metalm-tiny" else {}  # keeps the place of an image: never said
    found = model_of(name).generate(**batch_of(name), **asked)
    assert found.tolist() == recompute(name, batch_of(name), **asked)[0].tolist()


@both_sides
@every_speaker
def test_batched_is_alone(name: str, side: str) -> None:
    """Uneven rows, padded on either side, greedily and by beams."""
    model, batch = model_of(name), batch_of(name, side)
    for beams in (1, 3):
        together = model.generate(**batch, **options(num_beams=beams))[:, -NEW:]
        for row in range(3):
            one = model.generate(**alone(batch, row), **options(num_beams=beams))[0, -NEW:]
            assert together[row].tolist() == one.tolist(), f"row {row} with {beams} beam(s)"


@every_speaker
def test_a_beam_of_one_is_greedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = options(eos_token_id=list(range(5, 40)), early_stopping=True)
    greedy = model_of(name).generate(**batch_of(name), **asked)
    monkeypatch.setattr(engine, "make_strategy", BeamSearch)
    assert model_of(name).generate(**batch_of(name), **asked).tolist() == greedy.tolist()
    monkeypatch.setattr(engine, "make_strategy", Greedy)
    assert model_of(name).generate(**batch_of(name), **asked).tolist() == greedy.tolist()


@both_sides
@pytest.mark.parametrize(
    "rule", [{"repetition_penalty": 3.0}, {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2}]
)
def test_padding_was_not_said(rule: dict[str, Any], side: str) -> None:
    """Rules against repetition do not hear the padding of an uneven batch, be it the word that the model loves most."""
    model, batch = model_of("gpt2-tiny"), batch_of("gpt2-tiny", side)
    asked = {**options(), "no_repeat_ngram_size": 0, **rule}
    loved = int(model.generate(**alone(batch, 1), **asked)[0, -NEW])
    ids = batch["input_ids"].where(batch["attention_mask"].bool(), loved)
    together = model.generate(input_ids=ids, attention_mask=batch["attention_mask"], **asked)
    assert together[:, :9].tolist() == ids.tolist()
    assert together[1, -NEW:].tolist() == model.generate(**alone(batch, 1), **asked)[0, -NEW:].tolist()


@both_sides
def test_a_draft_out_of_an_uneven_prompt(side: str) -> None:
    """What is looked up in the prompt are its words, never the mark that rules see at the padding."""
    model, batch = model_of("gpt2-tiny"), batch_of("gpt2-tiny", side)
    asked = {**options(), "no_repeat_ngram_size": 0, "repetition_penalty": 1.3}
    drafted = model.generate(**batch, **asked, prompt_lookup_num_tokens=4)
    assert drafted.tolist() == model.generate(**batch, **asked).tolist()
