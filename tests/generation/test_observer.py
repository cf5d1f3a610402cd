"""Log-probabilities, sequence scores and alignment are transformers', for rows that are chosen, drawn and searched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.core.taps import is_watched
from anyformer.generation.engine import stream
from tests.generation.test_engine import END, PAD, gpt2, left_mask, marian, prompts  # noqa: F401 - fixtures

FILL = 2  # with 0, transformers takes the padding id for none and fills with the first end
ENDS = [3, 4, 5, 6, 7, 8]
ASK = {"return_dict_in_generate": True, "output_scores": True}
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 3, "max_new_tokens": 15, "eos_token_id": ENDS},
    {"num_beams": 4, "max_new_tokens": 20, "num_return_sequences": 3, "eos_token_id": ENDS, "length_penalty": 0.5},
    {"num_beams": 4, "max_new_tokens": 12, "num_return_sequences": 4, "no_repeat_ngram_size": 2},
    {"num_beams": 4, "max_new_tokens": 12, "repetition_penalty": 1.3, "early_stopping": True, "eos_token_id": ENDS},
    {"num_beams": 20, "max_new_tokens": 6, "num_return_sequences": 20, "forced_eos_token_id": 9},
]
LINES: list[dict[str, Any]] = [
    {"max_new_tokens": 15, "eos_token_id": ENDS},
    {"max_new_tokens": 15, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
]


def both(models: tuple[Any, af.Model], ask: dict[str, Any], **options: Any) -> tuple[Any, af.Output]:
    ids = prompts(12)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pad_token_id": FILL, **options}
    return models[0].generate(**given, **ASK, **ask), models[1].generate(**given, logprobs=True, **ASK)


def real(sequences: Tensor, prompt: int, ends: list[int]) -> Tensor:
    """Which new tokens come before an end or are the first one; the others are filling."""
    end = torch.isin(sequences[:, prompt:], torch.tensor(ends))
    return end.cumsum(dim=1) - end.long() == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", SEARCHES, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_beams_are_as_sure_as_transformers(
    family: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    models = request.getfixturevalue(family)
    theirs, ours = both(models, {}, **options)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    torch.testing.assert_close(ours.sequences_scores, theirs.sequences_scores, rtol=0, atol=1e-5)
    expected = models[0].compute_transition_scores(theirs.sequences, theirs.scores, theirs.beam_indices)
    torch.testing.assert_close(ours.logprobs, expected, rtol=0, atol=1e-5)
    written = (theirs.beam_indices >= 0).sum(dim=1)
    assert ours.lengths.tolist() == (written + ours.sequences.shape[1] - ours.logprobs.shape[1]).tolist()
    assert ours.beam_indices.tolist() == theirs.beam_indices[:, : ours.beam_indices.shape[1]].tolist()
    for mine, his in zip(ours.scores, theirs.scores, strict=True):
        torch.testing.assert_close(mine, his, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", LINES, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "marian"])
def test_greedy_is_as_sure_as_transformers(
    family: str, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    models = request.getfixturevalue(family)
    theirs, ours = both(models, {"output_logits": True}, **options)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    prompt = 7 if family == "gpt2" else 1
    counts = real(ours.sequences, prompt, options.get("eos_token_id", [END]))
    for name, kept in (("logprobs", theirs.scores), ("raw_logprobs", theirs.logits)):
        expected = models[0].compute_transition_scores(theirs.sequences, kept, normalize_logits=True)
        assert ours.lengths.tolist() == (counts.sum(dim=1) + prompt).tolist()
        torch.testing.assert_close(ours[name][counts], expected[counts].to(ours[name].dtype), rtol=0, atol=1e-5)
        assert not ours[name][~counts].any()


def test_samples_are_scored_by_what_they_were_drawn_from(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    """Against the model run over the finished rows: temperature and top-k count, and not in the raw ones."""
    model, ids = gpt2[1], prompts(6)
    out = model.generate(
        ids, do_sample=True, temperature=0.7, top_k=5, seed=1, max_new_tokens=9, eos_token_id=None, logprobs=True
    )
    with torch.no_grad():
        logits = model(input_ids=out.sequences).logits[:, 6:-1]
    written = out.sequences[:, 7:, None]
    torch.testing.assert_close(out.raw_logprobs, logits.log_softmax(-1).gather(2, written)[..., 0])
    best, which = (logits / 0.7).topk(5)
    place = (which == written).long().argmax(-1, keepdim=True)
    torch.testing.assert_close(out.logprobs, best.log_softmax(-1).gather(2, place)[..., 0])


def their_looks(theirs: Any, layer: int, head: int | None) -> Tensor:
    """[steps, rows, source] of transformers' cross-attentions, of each step's last query."""
    looks = [step[layer][:, :, -1] for step in theirs.cross_attentions]
    return torch.stack([look.mean(dim=1) if head is None else look[:, head] for look in looks])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("wanted", "layer", "head"), [(True, -1, None), (0, 0, None), ([(1, 2)], 1, 2)], ids=str)
@pytest.mark.parametrize("beams", [1, 4])
def test_alignment_is_the_cross_attention_of_transformers(
    marian: tuple[Any, af.Model],  # noqa: F811
    beams: int,
    wanted: Any,
    layer: int,
    head: int | None,
) -> None:
    ids = prompts(12)
    mask = left_mask(ids).flip(1)
    ids = ids.masked_fill(mask == 0, PAD)
    marian[0].set_attn_implementation("eager")
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 12, "num_beams": beams}
    given |= {"eos_token_id": ENDS, "pad_token_id": FILL, "num_return_sequences": min(beams, 2)}
    theirs = marian[0].generate(**given, return_dict_in_generate=True, output_attentions=True, output_scores=True)
    ours = marian[1].generate(**given, alignment=wanted)
    assert ours.sequences.tolist() == theirs.sequences.tolist()
    looks = their_looks(theirs, layer, head)  # [steps, rows, source]
    for row, length in enumerate(real(ours.sequences, 1, ENDS).sum(dim=1).tolist()):
        for step in range(length):
            beam = row if beams == 1 else int(theirs.beam_indices[row, step])
            torch.testing.assert_close(ours.alignment[row, step], looks[step, beam], rtol=0, atol=1e-7)
        assert not ours.alignment[row, length:].any()


def test_looking_changes_no_ids(marian: tuple[Any, af.Model]) -> None:  # noqa: F811
    for options in ({}, {"num_beams": 3}, {"do_sample": True, "seed": 3}):
        given = {"max_new_tokens": 12, "pad_token_id": FILL, **options}
        plain = marian[1].generate(prompts(), **given)
        seen = marian[1].generate(prompts(), **given, logprobs=True, alignment=True)
        assert seen.sequences.tolist() == plain.tolist()
        assert not is_watched(marian[1])


@pytest.mark.parametrize("name", ["bahdanau-tiny", "convs2s-tiny", "t5-tiny"])
def test_other_families_align(name: str) -> None:
    """Each generated token's weights over the source sum to one."""
    torch.manual_seed(0)
    model = af.build(name).double().eval()
    out = model.generate(
        torch.randint(3, 50, (3, 6)), max_new_tokens=5, num_beams=2, alignment=True, eos_token_id=None, pad_token_id=0
    )
    assert out.alignment.shape[:2] == (3, 5)
    torch.testing.assert_close(out.alignment.sum(dim=2), torch.ones(3, 5, dtype=torch.double))


def test_mistakes_are_one_sentence(gpt2: tuple[Any, af.Model], marian: tuple[Any, af.Model]) -> None:  # noqa: F811
    ids = prompts(2)
    with pytest.raises(af.InputError, match=r"gpt2.*alignment"):
        gpt2[1].generate(ids, alignment=True)
    with pytest.raises(af.InputError, match="layers 0 to 1"):
        marian[1].generate(ids, alignment=5)
    with pytest.raises(af.InputError, match=r"head 9 .* 4 heads"):
        marian[1].generate(ids, alignment=[(0, 9)])
    with pytest.raises(af.InputError, match="return_dict_in_generate"):
        gpt2[1].generate(ids, logprobs=True, return_dict_in_generate=False)
    with pytest.raises(af.InputError, match="num_beams is 2"):
        stream(gpt2[1], ids, num_beams=2)
    with pytest.raises(af.InputError, match="logprobs"):
        stream(gpt2[1], ids, logprobs=True)


def test_a_stream_gives_the_ids_of_generate(gpt2: tuple[Any, af.Model], marian: tuple[Any, af.Model]) -> None:  # noqa: F811
    for model in (gpt2[1], marian[1]):
        options = {"max_new_tokens": 15, "eos_token_id": ENDS, "pad_token_id": FILL}
        whole = model.generate(prompts(), **options)
        pieces = []
        for tokens in stream(model, prompts(), **options):
            assert not torch.is_inference_mode_enabled(), "the caller's own code runs as it would without"
            pieces.append(tokens)
        assert torch.stack(pieces, dim=1).tolist() == whole[:, -len(pieces) :].tolist()
    with pytest.raises(af.InputError, match="temperature"):
        stream(gpt2[1], prompts(), temperature=-1.0, do_sample=True)  # at once, not at the first token


def test_a_streamer_is_told_every_token(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    """As transformers calls it: the prompt first, then each token, then the end."""

    class Told(list[Any]):
        def put(self, ids: Tensor) -> None:
            self.append(ids.tolist())

        def end(self) -> None:
            self.append("end")

    mine, his = Told(), Told()
    options = {"max_new_tokens": 6, "pad_token_id": FILL, "eos_token_id": END}
    gpt2[1].generate(prompts(1), streamer=mine, **options)
    gpt2[0].generate(prompts(1), streamer=his, **options)
    assert mine == his


def test_a_state_is_continued(gpt2: tuple[Any, af.Model]) -> None:  # noqa: F811
    """What an earlier call has read is not read again, and the ids are the same."""
    model, ids = gpt2[1], prompts(3, 9)
    options = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": FILL}
    with torch.inference_mode():
        state = model(input_ids=ids[:, :5], use_cache=True).past_key_values
    expected = model.generate(ids, **options)
    assert model.generate(ids, past_key_values=state, **options).tolist() == expected.tolist()
    assert state.length == 9 + 5
    with pytest.raises(af.InputError, match="past_key_values has read 14 tokens"):
        model.generate(ids, past_key_values=state, **options)
