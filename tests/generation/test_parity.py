"""`generate` gives transformers' ids: six families, 100 uneven prompts each, in float64, greedy and by beams."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from tests.generation.families import (
    END,
    FAMILIES,
    PAD,
    PAIRS,
    START,
    VOCABULARY,
    compare,
    every_family,
    models,
    new_tokens,
    prompts,
)

pytestmark = pytest.mark.filterwarnings("ignore")
NEW = 12
ENDS = list(range(4, 36))  # often said, so that many rows end early

GREEDY: list[dict[str, Any]] = [
    {},
    {"eos_token_id": ENDS},
    {"eos_token_id": ENDS, "min_new_tokens": 6},
    {"eos_token_id": None},
    {"eos_token_id": list(range(VOCABULARY))},
    # transformers takes padding for words that were said (decision 10): here nobody may say it.
    {"repetition_penalty": 1.5, "suppress_tokens": [PAD]},
    {"no_repeat_ngram_size": 2, "max_new_tokens": 30},
    {"no_repeat_ngram_size": 1, "suppress_tokens": [PAD]},
    {"suppress_tokens": list(range(4, VOCABULARY, 3))},
    {"begin_suppress_tokens": list(range(4, VOCABULARY, 2))},
    {"forced_bos_token_id": 9, "forced_eos_token_id": 11},
    {"forced_bos_token_id": 9, "begin_suppress_tokens": list(range(4, VOCABULARY, 2)), "eos_token_id": ENDS},
]
BEAMS: list[dict[str, Any]] = [
    {"num_beams": 4},
    {"num_beams": 2, "eos_token_id": ENDS},
    {"num_beams": 4, "eos_token_id": ENDS, "early_stopping": True},
    {"num_beams": 4, "eos_token_id": ENDS, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 3, "eos_token_id": ENDS, "early_stopping": True, "length_penalty": 0.0},
    {"num_beams": 5, "eos_token_id": ENDS, "length_penalty": -1.0},
    {"num_beams": 4, "eos_token_id": ENDS, "num_return_sequences": 4, "min_new_tokens": 5},
    {"num_beams": 4, "eos_token_id": None, "num_return_sequences": 2},
    {"num_beams": 4, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "suppress_tokens": [PAD]},
    {"num_beams": 3, "forced_bos_token_id": 9, "forced_eos_token_id": 11, "eos_token_id": ENDS},
    {"num_beams": 3, "suppress_tokens": list(range(4, VOCABULARY, 3)), "early_stopping": True, "length_penalty": 0.6},
    {"num_beams": 20, "max_new_tokens": 5},
]


def label(options: dict[str, Any]) -> str:
    return " ".join(f"{name}={value if not isinstance(value, list) else '[…]'}" for name, value in options.items())


@every_family
def test_the_words_vary(family: str) -> None:
    """Otherwise equal ids say little: at least half of a row's tokens are distinct, and half of the rows differ."""
    for beams in (1, 4):
        new = new_tokens(family, models(family)[1].generate(**prompts(family), max_new_tokens=NEW, num_beams=beams))
        rows = [[token for token in row if token != PAD] for row in new.tolist()]
        assert sum(len(set(row)) for row in rows) >= 0.5 * sum(len(row) for row in rows)
        assert len({tuple(row) for row in rows}) >= len(rows) / 2


@every_family
def test_some_rows_end_early(family: str) -> None:
    """Otherwise what happens to finished rows would go untested."""
    found = models(family)[1].generate(**prompts(family), max_new_tokens=NEW, eos_token_id=ENDS)
    ended = (found[:, -1] == PAD).sum()
    assert 5 <= int(ended) <= 95


@pytest.mark.parametrize("options", GREEDY, ids=label)
@every_family
def test_greedy(family: str, options: dict[str, Any]) -> None:
    compare(family, **{"max_new_tokens": NEW, **options})


@pytest.mark.parametrize("options", BEAMS, ids=label)
@every_family
def test_beams(family: str, options: dict[str, Any]) -> None:
    compare(family, **{"max_new_tokens": NEW, **options})


@pytest.mark.parametrize("beams", [1, 3])
@every_family
def test_lengths_count_the_prompt(family: str, beams: int) -> None:
    compare(family, max_length=17, min_length=14, eos_token_id=ENDS, num_beams=beams)
    compare(family, num_beams=beams)  # twenty new ones, where nobody says how many


@pytest.mark.parametrize("beams", [1, 4])
@every_family
def test_banned_words(family: str, beams: int) -> None:
    """Words that the model would say, of one, two and three tokens."""
    plain = new_tokens(family, models(family)[1].generate(**prompts(family), max_new_tokens=NEW, num_beams=beams))
    said = [[token for token in row if token > 3] for row in plain[:12].tolist()]
    words = [row[i : i + 1 + n % 3] for n, row in enumerate(said) for i in (0, 3) if len(row) > i + 2]
    assert len(words) > 8
    found = new_tokens(family, compare(family, max_new_tokens=NEW, num_beams=beams, bad_words_ids=words))
    assert found.tolist() != plain.tolist()


@pytest.mark.parametrize("beams", [1, 3])
@every_family
def test_only_what_a_function_allows(family: str, beams: int) -> None:
    thirds = [list(range(first, VOCABULARY, 3)) for first in range(3)]

    def allowed(row: int, said: Tensor) -> list[int]:
        return thirds[(row - int(said[-1])) % 3]

    found = compare(family, max_new_tokens=NEW, num_beams=beams, prefix_allowed_tokens_fn=allowed, eos_token_id=None)
    pairs = found[:, -5:-1] + found[:, -4:]
    assert (pairs % 3 == (torch.arange(len(found)) % 3)[:, None]).all()


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("family", PAIRS)
def test_answers_that_begin_as_told(family: str, beams: int) -> None:
    """With the start token in front or without it; under a second name where the encoder reads no text."""
    begin = torch.randint(4, VOCABULARY, (100, 4), generator=torch.Generator().manual_seed(6))
    options = {"max_new_tokens": NEW, "num_beams": beams, "eos_token_id": ENDS}
    found = compare(family, decoder_input_ids=begin, **options)
    assert found[:, 1:5].tolist() == begin.tolist() and (found[:, 0] == START).all()
    begin[:, 0] = START
    assert compare(family, decoder_input_ids=begin, **options)[:, :4].tolist() == begin.tolist()
    if family == "vision-encoder-decoder":
        again = models(family)[1].generate(**prompts(family), input_ids=begin, **options)
        assert again.tolist() == compare(family, input_ids=begin, **options).tolist()


@pytest.mark.parametrize("family", ["t5", "vision-encoder-decoder"])
def test_answers_that_begin_unevenly(family: str) -> None:
    """Padded on either side, as alone. (transformers numbers GPT-2's and BART's slots here, whatever the mask says.)"""
    model, batch = models(family)[1], prompts(family, 12)
    begin = torch.randint(4, VOCABULARY, (12, 4), generator=torch.Generator().manual_seed(6))
    begin[:, 0] = START
    mask = (torch.arange(4) < 1 + torch.arange(12)[:, None] % 4).long()
    options: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}
    right = model.generate(**batch, decoder_input_ids=begin, decoder_attention_mask=mask, **options)[:, 4:]
    order = torch.argsort(mask, dim=1, stable=True)
    turned = {"decoder_input_ids": begin.gather(1, order), "decoder_attention_mask": mask.gather(1, order)}
    left = model.generate(**batch, **turned, **options)[:, 4:]
    alone = [
        model.generate(
            **{name: value[row : row + 1] for name, value in batch.items()},
            decoder_input_ids=begin[row : row + 1, mask[row] == 1],
            **options,
        )[0, -NEW:]
        for row in range(12)
    ]
    assert left.tolist() == right.tolist() == torch.stack(alone).tolist()
    if family == "t5":
        theirs = models(family)[0].generate(**batch, **turned, **options, do_sample=False)[:, 4:]
        assert theirs.tolist() == left.tolist()


@every_family
def test_inputs_go_by_several_names(family: str) -> None:
    """Without a name, as `inputs`, or as what an encoder made of them before."""
    theirs, model = models(family)
    batch = prompts(family, 10)
    expected = model.generate(**batch, max_new_tokens=NEW).tolist()
    main, rest = next(iter(batch)), {name: value for name, value in batch.items() if name == "attention_mask"}
    assert model.generate(batch[main], **rest, max_new_tokens=NEW).tolist() == expected
    assert model.generate(inputs=batch[main], **rest, max_new_tokens=NEW).tolist() == expected
    with pytest.raises(af.InputError, match=f"{main} once"):
        model.generate(batch[main], **{main: batch[main]})
    if family in PAIRS:
        with torch.no_grad():
            encoded = theirs.get_encoder()(**batch)
        for form in (encoded, (encoded[0],), encoded[0]):
            assert model.generate(encoder_outputs=form, **rest, max_new_tokens=NEW).tolist() == expected


@every_family
def test_the_generation_config_is_heard(family: str, tmp_path: Path) -> None:
    """What the folder's file says is done, and what the caller says wins over it."""
    theirs, ours = models(family)
    ours.save(tmp_path, format="hf")
    file = tmp_path / "generation_config.json"
    asked = {"max_new_tokens": 9, "eos_token_id": ENDS, "num_beams": 3, "length_penalty": 0.5, "early_stopping": True}
    own = json.loads(file.read_text())
    file.write_text(json.dumps({**own, **asked}))
    again, batch = af.load(tmp_path), prompts(family)
    assert again.generate(**batch).tolist() == theirs.generate(**batch, **asked).tolist()
    more = {"num_beams": 1, "eos_token_id": END, "max_new_tokens": 5}
    assert again.generate(**batch, **more).tolist() == theirs.generate(**batch, **more).tolist()


@every_family
def test_a_file_with_max_new_tokens_and_a_call_with_max_length(family: str, tmp_path: Path) -> None:
    """The count of new tokens wins, whoever gives it, as in transformers; a length without effect is warned about."""
    theirs, ours = models(family)
    ours.save(tmp_path, format="hf")
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_new_tokens": 6, "eos_token_id": None}))
    again, oracle, batch = af.load(tmp_path), type(theirs).from_pretrained(tmp_path).eval(), prompts(family, 3)
    length = 4 + batch["input_ids"].shape[1] if family not in PAIRS else 5
    with pytest.warns(UserWarning, match="max_length=.*max_new_tokens=6"):
        found = again.generate(**batch, max_length=length)
    assert found.tolist() == oracle.generate(**batch, max_length=length).tolist()
    assert again.generate(**batch, max_length=length, max_new_tokens=None).shape[1] == length
    assert again.generate(**batch, max_new_tokens=2).tolist() == oracle.generate(**batch, max_new_tokens=2).tolist()


def test_every_family_of_the_suite_is_there() -> None:
    assert list(FAMILIES) == ["gpt2", "llama", "marian", "bart", "t5", "vision-encoder-decoder"]
