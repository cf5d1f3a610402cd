"""Many prompts through a few rows: the ids of each prompt are those that it gets alone, and nobody waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.rope import RopeConfig
from anyformer.generation.cache_rows import SPARE
from anyformer.generation.continuous_batching import ContinuousBatcher, RequestQueue, run
from anyformer.generation.plan import resolve
from tests.generation.test_engine import PAD, VOCABULARY, gpt2, marian  # noqa: F401 - fixtures
from tests.tokenizers.vocabularies import KINDS, make

ENDS = [7, 8, 9, 10, 11, 12]


def many(
    n: int, seed: int = 5, longest: int = 12, vocabulary: int = VOCABULARY, new: tuple[int, int] = (1, 15)
) -> list[dict[str, Any]]:
    """Prompts of uneven lengths, each with a limit of its own."""
    chance = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, longest + 1, (n,), generator=chance).tolist()
    news = torch.randint(new[0], new[1] + 1, (n,), generator=chance).tolist()
    return [
        {"input_ids": torch.randint(2, vocabulary, (size,), generator=chance), "max_new_tokens": limit}
        for size, limit in zip(sizes, news, strict=True)
    ]


def compare(model: af.Model, prompts: list[dict[str, Any]], rows: int = 6, **options: Any) -> list[list[int]]:
    """Every prompt's ids, which are those of `generate` for it alone."""
    found = dict(model.generate_many(prompts, rows, **options))
    assert sorted(found) == list(range(len(prompts)))
    seed = options.pop("seed", None)
    for i, prompt in enumerate(prompts):
        own = dict(prompt)
        if seed is not None:
            own.setdefault("seed", seed + i)
        alone = model.generate(own.pop("input_ids")[None], **{**options, **own})
        assert found[i].tolist() == alone[0].tolist(), i
    return [found[i].tolist() for i in range(len(prompts))]


def loud(model: af.Model) -> None:
    """Large weights, so that the tokens vary."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)


# Windows and memories of a few tokens, so that what is generated has to forget.
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2-tiny": {},
    "mistral-tiny": {"window": 4},
    "gemma3-tiny": {"window": 4},
    "mamba-tiny": {},
    "transformer-xl-tiny": {"mem_len": 6},
    "mlp-mixer-tiny": {},
    "transformer-tiny": {"decoder_start": 3},
    "t5-tiny": {},
    "sutskever-tiny": {},
    "bahdanau-tiny": {},
    "luong-tiny": {},
    "convs2s-tiny": {},
    "bytenet-tiny": {},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_says_what_it_says_alone(name: str) -> None:
    torch.manual_seed(0)
    model = af.build(name, **FAMILIES[name]).double().eval()
    loud(model)
    found = compare(model, many(30), eos_token_id=ENDS, pad_token_id=PAD)
    assert len(set(itertools.chain(*found))) > 12, "the rows should differ, or the test says little"


OPTIONS: list[dict[str, Any]] = [
    {},
    {"eos_token_id": ENDS},
    {"eos_token_id": ENDS, "min_new_tokens": 5},
    {"eos_token_id": ENDS, "min_length": 9},
    {"repetition_penalty": 3.0},
    {"presence_penalty": 30.0, "frequency_penalty": 9.0},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[7], [11, 12], [3, 4, 5]], "suppress_tokens": [20, 21]},
    {"begin_suppress_tokens": list(range(2, 30))},
    {"forced_bos_token_id": 5, "forced_eos_token_id": 6},
]
DRAWN: list[dict[str, Any]] = [
    {"temperature": 20.0},
    {"temperature": 20.0, "top_k": 5, "eos_token_id": ENDS},
    {"temperature": 20.0, "top_p": 0.7, "repetition_penalty": 1.3},
    {"temperature": 20.0, "min_p": 0.05},
    {"temperature": 20.0, "typical_p": 0.6},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_every_option_means_what_it_means_alone(
    family: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Rules count from each row's own prompt and read its own words, not its neighbors' or the padding."""
    compare(request.getfixturevalue(family)[1], many(24, new=(8, 20)), **{"pad_token_id": PAD, **options})


@pytest.mark.parametrize("options", DRAWN, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_a_draw_depends_on_its_own_seed_alone(
    family: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    prompts = many(24)
    prompts[3]["seed"] = 77
    compare(request.getfixturevalue(family)[1], prompts, do_sample=True, seed=11, pad_token_id=PAD, **options)


def test_draws_without_a_seed_follow_from_pytorchs_own(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    options = {"do_sample": True, "temperature": 20.0, "eos_token_id": None}
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append({i: ids.tolist() for i, ids in gpt2[1].generate_many(many(9), 3, **options)})
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("rows", [1, 2, 16, 100])
def test_any_number_of_rows(rows: int, gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    compare(gpt2[1], many(40), rows, eos_token_id=ENDS, pad_token_id=PAD)


@pytest.mark.parametrize("rules", [{}, {"repetition_penalty": 5.0, "no_repeat_ngram_size": 2}], ids=str)
def test_masked_prompts(rules: dict[str, Any], gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    """A mask of the caller's, with holes, on either side; and padding that no mask names."""
    prompts = many(12, longest=9)
    for i, prompt in enumerate(prompts):
        ids = prompt["input_ids"]
        holes = [torch.nn.functional.pad(ids, side, value=PAD) for side in ((2, 0), (0, 3), (0, 0))][i % 3]
        prompt["input_ids"] = holes
        if i % 2:
            prompt["attention_mask"] = (holes != PAD).long()
    options: dict[str, Any] = {"eos_token_id": None, "pad_token_id": PAD, **rules}
    found = dict(gpt2[1].generate_many(prompts, 4, **options))
    for i, prompt in enumerate(prompts):
        alone = gpt2[1].generate(**{name: v if isinstance(v, int) else v[None] for name, v in prompt.items()},
                                 **options)  # fmt: skip
        assert found[i].tolist() == alone[0].tolist()


def test_prompts_as_lists_rows_and_batches_of_one(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    ids, options = [5, 6, 7], {"max_new_tokens": 4, "eos_token_id": None}
    ways: list[Any] = [ids, torch.tensor(ids), torch.tensor([ids]), {"input_ids": ids}, {"input_ids": [ids]}]
    found = [row.tolist() for _, row in gpt2[1].generate_many(ways, **options)]
    assert found == [gpt2[1].generate(torch.tensor([ids]), **options)[0].tolist()] * len(ways)


@pytest.mark.parametrize("recorded", [False, True])
def test_rows_that_fill_the_table_of_positions(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 positions, and every third row uses all of them; a row that waits for its next prompt never runs past."""
    monkeypatch.setattr("anyformer.generation.continuous_batching.can_capture", lambda *_: recorded)
    model = af.build("gpt2-tiny", n_layers=1, d_model=16, n_heads=2, vocab_size=32, max_length=24).double().eval()
    prompts = many(90, longest=8, vocabulary=32)
    for prompt in prompts[::3]:
        prompt["max_new_tokens"] = 24 - len(prompt["input_ids"])
    compare(model, prompts, rows=24, eos_token_id=None)


def test_looking_seldom_changes_nothing(
    gpt2: tuple[Any, af.Model],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU rows that have ended go on for a few steps before anybody looks."""
    monkeypatch.setattr("anyformer.generation.continuous_batching.check_every", lambda device: 8)
    compare(gpt2[1], many(40), eos_token_id=ENDS, pad_token_id=PAD)
    compare(gpt2[1], many(20), eos_token_id=ENDS, pad_token_id=PAD, do_sample=True, temperature=20.0, seed=1)


@pytest.mark.parametrize("name", ["gpt2-tiny", "mistral-tiny", "transformer-tiny"])
def test_recorded_steps_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the step is replayed on a state of fixed size, out of which rows are taken when others come.

    What is recorded runs here step by step. 150 new tokens do not fit into the 128 columns that it begins with, and
    others decode with the same model in between.
    """
    monkeypatch.setattr("anyformer.generation.continuous_batching.can_capture", lambda *_: True)
    monkeypatch.setattr("anyformer.generation.continuous_batching.check_every", lambda device: 8)
    torch.manual_seed(0)
    model = af.build(name, max_length=256).double().eval()
    loud(model)
    options: dict[str, Any] = {"eos_token_id": None, "pad_token_id": PAD}
    prompts = many(40, new=(1, 60))
    prompts[1]["max_new_tokens"] = 150
    refill = ContinuousBatcher(model, RequestQueue(model, prompts, 8, resolve(model, options)))
    found, widths = {}, set()
    for index, ids in run(refill):
        found[index] = ids.tolist()
        widths |= {recording.state.columns for recording in refill.kept.values()}
        model.generate(prompts[0]["input_ids"].expand(8, -1), max_new_tokens=9, **options)
    assert widths == {128, 256}
    for i, prompt in enumerate(prompts):
        alone = model.generate(prompt["input_ids"][None], max_new_tokens=prompt["max_new_tokens"], **options)
        assert found[i] == alone[0].tolist(), i


@pytest.fixture(scope="module")
def small() -> af.Model:
    torch.manual_seed(0)
    return af.build("gpt2-tiny", n_layers=1, d_model=16, n_heads=2, vocab_size=32, max_length=512).eval()


def geometric(n: int, mean: int = 32) -> list[dict[str, Any]]:
    prompts = many(n, vocabulary=32)
    news = torch.empty(n).geometric_(1 / mean, generator=torch.Generator().manual_seed(1)).clamp(max=400)
    return [{**prompt, "max_new_tokens": int(new)} for prompt, new in zip(prompts, news, strict=True)]


def test_half_the_work_of_static_batches(small: af.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 answers of geometric lengths: less than half the passes, and half the rows in them, prompts included."""
    from anyformer.generation import continuous_batching

    passes: list[int] = []

    def counted(name: str) -> Any:
        work = getattr(continuous_batching, name)

        def count(*args: Any) -> Any:
            passes.append(len(args[2]) if name == "decode_step" else len(args[1]["input_ids"]))
            return work(*args)

        return count

    for name in ("decode_step", "prefill"):
        monkeypatch.setattr(continuous_batching, name, counted(name))
    prompts = geometric(1000)
    found = dict(small.generate_many(prompts, rows=32, eos_token_id=None))
    wanted = [prompt["max_new_tokens"] for prompt in prompts]
    assert [len(found[i]) - len(p["input_ids"]) for i, p in enumerate(prompts)] == wanted
    batches = [wanted[first : first + 32] for first in range(0, 1000, 32)]
    assert sum(max(batch) for batch in batches) >= 2 * len(passes)
    assert sum(max(batch) * len(batch) for batch in batches) >= 2 * sum(passes)


def test_the_state_stays_as_wide_as_its_longest_row(small: af.Model) -> None:
    prompts = many(150, vocabulary=32, longest=20, new=(1, 40))
    refill = ContinuousBatcher(small, RequestQueue(small, prompts, 8, resolve(small, {"eos_token_id": None})))
    longest = max(len(prompt["input_ids"]) + prompt["max_new_tokens"] for prompt in prompts)
    widths = []
    for _ in run(refill):
        widths.append(refill.state.length)
    assert len(widths) == 150 and max(widths) <= longest + 2 * SPARE


def test_the_queue_is_read_as_rows_become_free(small: af.Model) -> None:
    """It need not end; and the caller's code runs outside of inference mode."""
    read = 0

    def endless() -> Iterator[Tensor]:
        nonlocal read
        while True:
            assert not torch.is_inference_mode_enabled()
            read += 1
            yield torch.tensor([read % 30, 3])

    for done, (_, ids) in enumerate(small.generate_many(endless(), 4, max_new_tokens=5, eos_token_id=None), start=1):
        assert not torch.is_inference_mode_enabled() and not ids.is_inference()
        assert read <= done - 1 + 2 * 4 + 4
        if done == 50:
            break


def test_prompts_of_similar_length_go_together(small: af.Model) -> None:
    prompts = [[1] * n for n in (5, 9, 1, 4, 5, 30, 6)]
    jobs = RequestQueue(small, prompts, 7, resolve(small, {}))
    jobs.prefetch()
    assert [job.index for job in jobs.next_rows(3)] == [0, 4, 3]  # the first in the queue, and those nearest to it
    assert [job.index for job in jobs.next_rows(2)] == [1, 6]
    assert [job.index for job in jobs.next_rows(9)] == [2, 5]


def test_nothing_in_nothing_out(small: af.Model) -> None:
    assert list(small.generate_many([])) == []


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ([[1]], {"num_beams": 4}, "num_beams is 4"),
        ([[1]], {"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
        ([[1]], {"rows": 0}, "rows is 0"),
        ([[1]], {"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ([[1], []], {}, "Prompt 1: .*empty"),
        ([[1], [[1], [2]]], {}, r"Prompt 1: input_ids has shape \[2, 1\]"),
        ([{"input_ids": [1], "max_new_token": 3}], {}, 'Did you mean "max_new_tokens"'),
        ([{"input_ids": [1, 2], "attention_mask": [1]}], {}, "1 entries for 2 tokens"),
        ([{"input_ids": [1], "seed": 3}], {}, "Prompt 0: seed"),
        ([[1]], {"temperature": 0.5}, "temperature=0.5"),
        ([[1], [2], [3]], {"seed": [1, 2], "do_sample": True}, "Prompt 2: seed has 2 entries"),
        ([[1], {"input_ids": [1], "min_new_tokens": 9, "max_new_tokens": 4}], {}, "Prompt 1: .*length 10"),
        ([[1], [1] * 9], {"max_length": 6}, "Prompt 1: .*max_length"),
    ],
    ids=str,
)
def test_mistakes_are_said_with_the_prompts_number(
    prompts: list[Any], options: dict[str, Any], words: str, small: af.Model
) -> None:
    with pytest.raises(af.InputError, match=words):
        list(small.generate_many(prompts, **options))


def test_models_that_cannot_be_refilled() -> None:
    with pytest.raises(af.InputError, match="bert"):
        af.build("bert-tiny").generate_many([[1]])
    with pytest.raises(af.InputError, match="rope_type dynamic"):
        af.build("llama-tiny", ropes=(RopeConfig(rope_type="dynamic", factor=2.0),)).generate_many([[1]])


def test_stop_strings_end_rows_where_they_end_alone() -> None:
    tokenizer = make(next(iter(KINDS)))
    torch.manual_seed(0)
    model = af.build("gpt2-tiny", vocab_size=len(tokenizer)).double().eval()
    loud(model)
    prompts = many(30, vocabulary=len(tokenizer), new=(20, 40))
    options: dict[str, Any] = {"stop_strings": ["e", "th"], "tokenizer": tokenizer, "eos_token_id": None}
    found = compare(model, prompts, pad_token_id=PAD, **options)
    limits = [len(prompt["input_ids"]) + prompt["max_new_tokens"] for prompt in prompts]
    assert any(len(ids) < limit for ids, limit in zip(found, limits, strict=True))


def test_nan_is_said() -> None:
    model = af.build("gpt2-tiny").eval()
    with torch.no_grad():
        model.stages["decoder"].stack.final_norm.weight.fill_(float("nan"))
    with pytest.raises(af.InputError, match=r"token 2 of prompt 0 .*NaN"):
        list(model.generate_many([[1, 2, 3]]))
