"""What cannot be generated is said in one clear sentence, and a NaN with the place where it arose."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.generation.strategies import CHECK_EVERY

IDS = torch.randint(5, 250, (2, 7), generator=torch.Generator().manual_seed(1))


def says(model: af.Model, *words: str, **options: Any) -> None:
    with pytest.raises(af.Error) as caught:
        model.generate(**options)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message and message.endswith(".")


@pytest.fixture
def gpt2() -> af.Model:
    """128 places and 256 words."""
    return af.build("gpt2-tiny").eval()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 0}, ("num_beams is 0", "1 or more")),
        ({"num_beams": 2.5}, ("num_beams", "2.5")),
        ({"num_beams": 2, "num_return_sequences": 3}, ("num_return_sequences is 3", "num_beams, 2")),
        ({"num_return_sequences": 2}, ("num_return_sequences is 2", "num_beams, 1")),
        ({"num_beams": 2, "early_stopping": "soon"}, ("early_stopping", "soon", "never")),
        ({"temperature": -1.0}, ("temperature is -1",)),
        ({"temperature": -1.0, "do_sample": True}, ("temperature is -1",)),
        ({"temperature": 0.7}, ("temperature=0.7", "do_sample=True")),
        ({"temperature": 0.7, "do_sample": False}, ("temperature=0.7", "do_sample=True")),
        ({"top_p": 2.0, "do_sample": True}, ("top_p is 2", "at most 1")),
        ({"top_p": 2.0}, ("top_p is 2",)),
        ({"max_new_tokens": 5, "max_length": 20}, ("max_new_tokens", "max_length", "one of them")),
        ({"min_new_tokens": 5, "min_length": 20}, ("min_new_tokens", "min_length", "one of them")),
        ({"max_new_tokens": 0}, ("max_new_tokens is 0", "1 or more")),
        ({"max_new_tokens": -4}, ("max_new_tokens is -4",)),
        ({"max_new_tokens": "ten"}, ("max_new_tokens is 'ten'", "whole number")),
        ({"max_new_tokens": 3.5}, ("max_new_tokens is 3.5",)),
        ({"max_length": 7}, ("7 tokens", "max_length is 7")),
        ({"max_new_tokens": 3, "min_new_tokens": 5}, ("length 12", "max_length 10")),
        ({"max_new_tokens": 500}, ("7 tokens", "500", "128", "max_new_tokens=122")),
        ({"max_length": 500}, ("128", "max_new_tokens=122")),
        ({"eos_token_id": 256}, ("eos_token_id holds 256", "256 tokens", "eos_token_id=None")),
        ({"eos_token_id": [3, -1]}, ("eos_token_id holds -1",)),
        ({"pad_token_id": 999}, ("pad_token_id holds 999",)),
        ({"forced_eos_token_id": 300}, ("forced_eos_token_id holds 300",)),
        ({"suppress_tokens": [4, 400]}, ("suppress_tokens holds 400",)),
        ({"bad_words_ids": [[3], [4, 256]]}, ("bad_words_ids holds 256",)),
        ({"bad_words_ids": [7]}, ("bad_words_ids is [7]", "a list of ids")),
        ({"bad_words_ids": [[]]}, ("bad_words_ids is [[]]", "a list of ids")),
        ({"bad_words_ids": [["a"]]}, ("bad_words_ids holds 'a'",)),
        ({"eos_token_id": "x"}, ("eos_token_id holds 'x'", "an id")),
        ({"eos_token_id": [3, "x"]}, ("eos_token_id holds 'x'",)),
        ({"seed": "a", "do_sample": True}, ("seed is 'a'", "64 bits")),
        ({"seed": 2**70, "do_sample": True}, ("seed is", "64 bits")),
        ({"seed": 2**64 - 1, "do_sample": True}, ("seed is", "64 bits")),
        ({"seed": [1, "a"], "do_sample": True}, ("seed is 'a'",)),
        ({"streamer": 3}, ("streamer is 3", "put")),
        ({"prefix_allowed_tokens_fn": lambda row, said: []}, ("prefix_allowed_tokens_fn", "position 6", "row 0")),
        ({"temperature": 1e-40, "do_sample": True}, ("temperature is 1e-40", "1e-06 or more", "do_sample=False")),
        ({"temperature": float("nan"), "do_sample": True}, ("temperature is nan", "finite")),
        ({"temperature": True, "do_sample": True}, ("temperature is True", "number")),
        ({"top_p": float("nan"), "do_sample": True}, ("top_p is nan",)),
        ({"min_p": "some", "do_sample": True}, ("min_p is 'some'",)),
        ({"top_k": -1, "do_sample": True}, ("top_k is -1", "0 or more")),
        ({"do_sample": "yes"}, ("do_sample is 'yes'", "true or false")),
        ({"num_beams": 2, "length_penalty": float("nan")}, ("length_penalty is nan", "finite")),
        ({"num_beams": 2, "length_penalty": float("inf")}, ("length_penalty is inf", "finite")),
        ({"num_beams": 2, "length_penalty": 1e30}, ("length_penalty is 1e+30", "at most 10")),
        ({"num_beams": 10**9}, ("num_beams is 1000000000", "at most 1,024")),
        ({"num_return_sequences": 10**9, "do_sample": True}, ("num_return_sequences is 1000000000",)),
        ({"max_new_tokens": 10**400}, ("max_new_tokens is 1000", "at most")),
        ({"repetition_penalty": float("inf")}, ("repetition_penalty is inf", "finite")),
        ({"repetition_penalty": 0}, ("repetition_penalty is 0",)),
        ({"presence_penalty": float("-inf")}, ("presence_penalty is -inf",)),
        ({"no_repeat_ngram_size": 1.5}, ("no_repeat_ngram_size is 1.5", "whole number")),
        ({"suppress_tokens": list(range(256))}, ("suppress_tokens forbid all 256 tokens",)),
        ({"bad_words_ids": [[i] for i in range(256)]}, ("bad_words_ids forbid all 256 tokens",)),
        (
            {"suppress_tokens": list(range(100)), "begin_suppress_tokens": list(range(100, 256))},
            ("suppress_tokens and begin_suppress_tokens forbid all 256",),
        ),
        ({"max_new_token": 5}, ('"max_new_token"', 'Did you mean "max_new_tokens"?')),
        ({"decoder_input_ids": IDS}, ('"decoder_input_ids"', "input_ids")),
        ({"pixel_values": torch.zeros(2, 3, 8, 8)}, ('"pixel_values"',)),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
def test_options(options: dict[str, Any], words: tuple[str, ...], gpt2: af.Model) -> None:
    says(gpt2, *words, input_ids=IDS, **options)


def test_numbers_of_other_libraries(gpt2: af.Model) -> None:
    expected = gpt2.generate(IDS, max_new_tokens=4, eos_token_id=[70, 7]).tolist()
    for ends in (torch.tensor([70, 7]), np.array([70, 7]), [np.int64(70), torch.tensor(7)]):
        assert gpt2.generate(IDS, max_new_tokens=np.int64(4), eos_token_id=ends).tolist() == expected
    many = dict(gpt2.generate_many(list(IDS), max_new_tokens=np.int64(4), eos_token_id=torch.tensor([70, 7])))
    assert [many[i].tolist() for i in range(2)] == [
        gpt2.generate(row[None], max_new_tokens=4, eos_token_id=[70, 7])[0].tolist() for row in IDS
    ]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"max_new_tokens": "ten"}, ("Generation config", "max_new_tokens is 'ten'", "whole number")),
        ({"eos_token_id": "x"}, ("eos_token_id holds 'x'",)),
        ({"bad_words_ids": [7]}, ("bad_words_ids is [7]",)),
        ({"length_penalty": float("nan"), "num_beams": 2}, ("Generation config", "length_penalty is nan")),
        ({"temperature": 1e-40, "do_sample": True}, ("Generation config", "temperature is 1e-40")),
        ({"num_beams": "four"}, ("Generation config", "num_beams is 'four'")),
        ({"suppress_tokens": list(range(256))}, ("suppress_tokens forbid all 256",)),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_a_file_says(file: dict[str, Any], words: tuple[str, ...], gpt2: af.Model) -> None:
    gpt2.origin.generation = file
    says(gpt2, *words, input_ids=IDS)


def test_a_streamer_of_beams(gpt2: af.Model) -> None:
    class Streamer:
        def put(self, ids: torch.Tensor) -> None:
            raise AssertionError("nothing is told")

        end = put

    says(gpt2, "num_beams is 2", "streamer", input_ids=IDS, num_beams=2, streamer=Streamer())


@pytest.mark.parametrize(
    "prompt", ["hello", [1.5], {"input_ids": [3], "max_new_tokens": "ten"}, {"input_ids": [3], "seed": "a"}], ids=str
)
def test_many_prompts(prompt: Any, gpt2: af.Model) -> None:
    with pytest.raises(af.InputError, match=r"^Prompt 0: .*\.$"):
        list(gpt2.generate_many([prompt], max_new_tokens=3))


@pytest.mark.parametrize("continuations", [[5, 6], ["ab"], [["ab"]], [[5, 1.5]], None, 5, "ab"], ids=str)
def test_continuations(continuations: Any, gpt2: af.Model) -> None:
    with pytest.raises(af.InputError, match="continuations is"):
        gpt2.score(input_ids=IDS[:1], continuations=continuations)


def test_continuations_as_tensors(gpt2: af.Model) -> None:
    expected = gpt2.score(input_ids=IDS[:1], continuations=[[5, 6], [7]]).totals.tolist()
    found = gpt2.score(input_ids=IDS[:1], continuations=[torch.tensor([5, 6]), np.array([7])])
    assert found.totals.tolist() == expected


def test_empty_prompts(gpt2: af.Model) -> None:
    says(gpt2, "prompt is empty", input_ids=torch.zeros(1, 0, dtype=torch.long))
    says(gpt2, "prompt is empty", input_ids=torch.zeros(0, 5, dtype=torch.long))
    mask = torch.ones_like(IDS)
    mask[1] = 0
    says(gpt2, "Row 1", "empty", "attention_mask", input_ids=IDS, attention_mask=mask)


def test_prompts_that_are_none(gpt2: af.Model) -> None:
    says(gpt2, "needs input_ids", max_new_tokens=3)
    says(gpt2, "input_ids", "[batch, tokens]", input_ids=IDS[0])
    says(gpt2, "input_ids", input_ids=[[1, 2, 3]])
    says(gpt2, "input_ids holds 256", input_ids=torch.tensor([[1, 256]]))
    says(gpt2, "attention_mask", "[2, 3]", input_ids=IDS, attention_mask=torch.ones(2, 3))
    captioner = af.build("vision-encoder-decoder-tiny").eval()
    says(captioner, "needs pixel_values", max_new_tokens=3)
    says(captioner, "needs pixel_values", decoder_input_ids=IDS)
    says(captioner, "pixel_values has shape", pixel_values=torch.zeros(2, 1, 32, 32))
    pixels = torch.zeros(3, 3, 32, 32)
    says(captioner, "decoder_input_ids has 2 rows for 3", pixel_values=pixels, decoder_input_ids=IDS)
    says(captioner, "decoder_start_token_id holds 2 ids for 3", pixel_values=pixels, decoder_start_token_id=[1, 2])


def test_prompts_past_the_context(gpt2: af.Model) -> None:
    says(gpt2, "130 tokens", "128", input_ids=torch.ones(1, 130, dtype=torch.long))
    mixer = af.build("mlp-mixer-tiny").eval()
    says(mixer, "5000", "max_new_tokens=", input_ids=IDS, max_new_tokens=5000)


def test_the_last_place_is_used(gpt2: af.Model) -> None:
    """The last token is not read again, so one more than there are places can be written; padding takes no place."""
    full = torch.ones(1, 128, dtype=torch.long)
    assert gpt2.generate(full, max_new_tokens=1, eos_token_id=None).shape == (1, 129)
    assert gpt2.generate(IDS, max_new_tokens=122, eos_token_id=None).shape == (2, 129)
    wide = torch.cat([torch.zeros(2, 30, dtype=torch.long), IDS], dim=1)
    mask = torch.cat([torch.zeros(2, 30, dtype=torch.long), torch.ones_like(IDS)], dim=1)
    found = gpt2.generate(wide, attention_mask=mask, max_new_tokens=122, eos_token_id=None)
    assert found[:, 37:].tolist() == gpt2.generate(IDS, max_new_tokens=122, eos_token_id=None)[:, 7:].tolist()


def test_a_length_that_nobody_asked_for_is_cut(gpt2: af.Model) -> None:
    """Twenty new tokens by default, or what a folder says, but not past the places that there are."""
    assert gpt2.generate(torch.ones(1, 120, dtype=torch.long), eos_token_id=None).shape == (1, 128)
    captioner = af.build("vision-encoder-decoder-tiny").eval()
    captioner.origin.generation = {"max_length": 1000, "eos_token_id": None}
    assert captioner.generate(pixel_values=torch.zeros(1, 3, 32, 32), eos_token_id=None).shape == (1, 129)
    assert af.build("llama-tiny").eval().generate(IDS, max_new_tokens=200, eos_token_id=None).shape == (2, 207), (
        "it turns"
    )


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "early_stopping": True}, {"min_new_tokens": 4}], ids=str)
def test_a_model_without_an_end(options: dict[str, Any], gpt2: af.Model) -> None:
    """Nothing ends a text then but its length: no search needs an end."""
    assert gpt2.generate(IDS, eos_token_id=None, max_new_tokens=9, **options).shape == (2, 16)


def test_no_start() -> None:
    says(af.build("encoder-decoder-tiny", decoder_start=None).eval(), "decoder_start_token_id", input_ids=IDS)


def test_ids_of_a_file_that_no_word_has(gpt2: af.Model) -> None:
    """Small models are saved with the ids of large ones: an end that cannot come does not hurt."""
    expected = gpt2.generate(IDS, max_new_tokens=5, eos_token_id=None)
    gpt2.origin.generation = {"eos_token_id": 50256, "pad_token_id": -1, "suppress_tokens": [-1]}
    assert gpt2.generate(IDS, max_new_tokens=5).tolist() == expected.tolist()
    assert gpt2.generate(IDS, max_new_tokens=5, min_new_tokens=2, num_beams=2).shape == (2, 12)


def poisoned(name: str, path: str, index: Any = ..., **overrides: Any) -> af.Model:
    model = af.build(name, **overrides).eval()
    with torch.no_grad():
        dict(model.named_parameters())[path][index] = float("nan")
    return model


DECODER = "decoder"


@pytest.mark.parametrize(
    ("name", "path", "place"),
    [
        ("gpt2-tiny", f"{DECODER}.blocks.1.feedforward.down.weight", "decoder.blocks.1"),
        ("gpt2-tiny", f"{DECODER}.blocks.0.self.out.bias", "decoder.blocks.0"),
        ("gpt2-tiny", f"{DECODER}.final_norm.weight", "decoder.output"),
        ("gpt2-tiny", "decoder.inputs.positions.weight", "decoder.input"),
        ("llama-tiny", "language.words.weight", "the logits"),
        ("mamba-tiny", f"{DECODER}.blocks.1.mixer.out.weight", "decoder.blocks.1"),
        ("transformer-tiny", "encoder.blocks.1.self.out.weight", "encoder.blocks.1"),
        ("transformer-tiny", f"{DECODER}.blocks.0.cross.out.weight", "decoder.blocks.0"),
        ("vision-encoder-decoder-tiny", "bridge.inputs.project.weight", "bridge.input"),
    ],
)
@pytest.mark.parametrize("beams", [1, 2])
def test_nan_is_traced_to_its_layer(name: str, path: str, place: str, beams: int) -> None:
    model = poisoned(name, path)
    picture = {"pixel_values": torch.zeros(2, 3, 32, 32)}
    batch = picture if name.startswith("vision") else {"input_ids": IDS}
    says(model, "Row 0", "NaN", "at position 0", place, num_beams=beams, **batch)


@pytest.mark.parametrize("every", [1, CHECK_EVERY])
@pytest.mark.parametrize("beams", [1, 3])
def test_nan_is_traced_to_its_position(beams: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word whose vector is NaN, said as the tenth, is found there, also where we look only now and then."""
    model = poisoned("gpt2-tiny", "decoder.inputs.positions.weight", 10)
    monkeypatch.setattr("anyformer.generation.engine.check_every", lambda device: every)
    says(model, "Row 0", "position 10", "decoder.input", input_ids=IDS, num_beams=beams, eos_token_id=None)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7])  # the second row comes to its tenth place first
    says(model, "position 10", input_ids=IDS[1:], num_beams=beams, eos_token_id=None)
    says(model, "position 12", input_ids=IDS[:1], attention_mask=mask[:1], num_beams=beams, eos_token_id=None)


def test_nan_in_one_row_names_that_row() -> None:
    model = poisoned("gpt2-tiny", "decoder.inputs.words.weight", 77, tied=False)
    ids = IDS.masked_fill(IDS == 77, 78)
    ids[1, 4] = 77
    says(model, "Row 1", "position 4", "decoder.input", input_ids=ids)
    says(model, "Row 1", "position 4", "decoder.input", input_ids=ids, num_beams=2)


@pytest.mark.parametrize("ends", [[None], [1, None], [1.5], list(range(256))])
def test_ends_of_texts_that_make_no_sense(ends: list[Any]) -> None:
    model = af.build("gpt2-tiny").eval()
    with pytest.raises(af.InputError, match="eos_token_id"):
        model.generate(torch.tensor([[5, 6]]), eos_token_id=ends, num_beams=2)


def test_an_end_that_is_said_twice_counts_once() -> None:
    torch.manual_seed(0)
    model = af.build("gpt2-tiny").eval()
    once, often = (
        model.generate(torch.tensor([[5, 6]]), eos_token_id=ends, num_beams=2, max_new_tokens=5)
        for ends in ([1], [1] * 20_000)
    )
    assert torch.equal(once, often)


@pytest.mark.parametrize("options", [{"num_beams": 10**9}, {"num_return_sequences": 10**9, "do_sample": True}])
def test_more_than_any_memory_holds(options: dict[str, Any]) -> None:
    with pytest.raises(af.InputError, match=next(iter(options))):
        af.build("gpt2-tiny").eval().generate(torch.tensor([[5, 6]]), **options)
