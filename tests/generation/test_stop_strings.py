"""A row stops when its text holds a stop string, whichever tokens spell it; the ids are those of transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.generation.stop_strings import StopStrings, make_stops
from anyformer.tokenizers.token_bytes import token_bytes
from tests.tokenizers.vocabularies import KINDS, TEXTS, make


def first_hit(stops: StopStrings, ids: list[int], prompt: int) -> int | None:
    """After how many tokens the table says stop."""
    row = torch.tensor([ids])
    state = stops.begin(row[:, :prompt])
    for n in range(prompt, len(ids)):
        hit, state = stops.step(state, row[:, n])
        if bool(hit):
            return n + 1
    return None


def expected_hit(spelled: list[bytes], strings: list[str], ids: list[int], prompt: int) -> int | None:
    """By the text itself: the first token after the prompt at whose end more strings are complete than before it."""
    for n in range(prompt, len(ids)):
        before, after = (b"".join(spelled[i] for i in ids[:m]) for m in (n, n + 1))
        for string in (text.encode() for text in strings):
            if after.find(string, max(len(before) - len(string) + 1, 0)) >= 0:
                return n + 1
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_finds_what_the_text_has(kind: str) -> None:
    tokenizer = make(kind)
    spelled = token_bytes(tokenizer.engine)
    draw = random.Random(4)
    found = 0
    for _ in range(300):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randint(2, 16))]
        ids += tokenizer.encode(draw.choice(TEXTS), special=False)
        text = b"".join(spelled[i] for i in ids).decode(errors="ignore")
        strings = []
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text))
            strings.append(text[at : at + draw.randint(1, 6)])
        stops = make_stops(strings, tokenizer)
        assert stops is not None
        expected = expected_hit(spelled, strings, ids, 2)
        assert first_hit(stops, ids, 2) == expected, (ids, strings)
        found += expected is not None
    assert found > 100


@pytest.mark.parametrize("kind", KINDS)
def test_spelled_tokens_make_the_text(kind: str) -> None:
    """Put together, the tokens' own bytes are what the tokenizer decodes, but for the spaces at the ends."""
    tokenizer = make(kind)
    spelled = token_bytes(tokenizer.engine)
    for text in TEXTS:
        ids = [i for i in tokenizer.encode(text) if kind != "suffix" or i]
        whole = b"".join(spelled[i] for i in ids).decode()
        assert whole.strip() == tokenizer.decode(ids, special=True).strip()


def test_half_a_character() -> None:
    """A stop of three bytes, each a token; a token that ends inside it does not count."""
    tokenizer = make("byte")
    stops = make_stops(["語"], tokenizer)
    assert stops is not None
    ids = tokenizer.encode("a日本語b")
    assert first_hit(stops, ids, 1) == len(ids) - 1


@pytest.fixture(scope="module", params=["bpe", "wordpiece", "unigram"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, af.Model, Any, Any]:
    """The same random decoder and the same tokenizer in both libraries."""
    transformers = pytest.importorskip("transformers")
    tokenizer = make(request.param)
    torch.manual_seed(2)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 96, "vocab_size": len(tokenizer) + 3}
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))
    with torch.no_grad():
        for parameter in theirs.double().eval().parameters():
            parameter.mul_(12.0 if parameter.dim() > 1 else 1.0)
    folder: Path = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.engine, pad_token="<pad>", eos_token="</s>")
    return theirs, af.load(folder), tokenizer, fast


@pytest.mark.parametrize("beams", [1, 3])
def test_ids_are_those_of_transformers(models: tuple[Any, af.Model, Any, Any], beams: int) -> None:
    """Strings cut at random out of what the model says without them: inside tokens, over several, over the prompt's."""
    theirs, ours, tokenizer, fast = models
    ids = torch.randint(3, len(tokenizer), (8, 5), generator=torch.Generator().manual_seed(6))
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "num_beams": beams}
    given |= {"max_new_tokens": 20, "pad_token_id": 2}  # with 0, transformers fills beams with the end
    free = ours.generate(**given)
    draw = random.Random(8)
    stopped = 0
    for _ in range(12):
        strings: list[str] = []
        for row in draw.sample(range(8), 2):
            text = b"".join(token_bytes(tokenizer.engine)[i] for i in free[row, 3:] if i < len(tokenizer))
            at = draw.randrange(len(text) - 4)
            strings.append(text[at : at + draw.randint(2, 6)].decode(errors="ignore") or "the")
        strings.append(".")  # with none that any token could end, transformers refuses
        expected = theirs.generate(**given, stop_strings=strings, tokenizer=fast)
        for mine in (tokenizer, fast):
            found = ours.generate(**given, stop_strings=strings, tokenizer=mine)
            assert found.tolist() == expected.tolist(), strings
        stopped += found.tolist() != free.tolist()
    assert stopped > 4, "the strings should stop something"


def test_mistakes_are_one_sentence(models: tuple[Any, af.Model, Any, Any]) -> None:
    ids = torch.tensor([[3, 4]])
    with pytest.raises(af.InputError, match=r"stop_strings .*tokenizer="):
        models[1].generate(ids, stop_strings=["a"])
    for odd in ([""], "", 7, 0, True, {"a": 1}, [["a"]]):
        with pytest.raises(af.InputError, match="stop_strings"):
            models[1].generate(ids, stop_strings=odd, tokenizer=models[2])
    with pytest.raises(af.InputError, match="Tokenizer"):
        models[1].generate(ids, stop_strings=["a"], tokenizer="gpt2")
