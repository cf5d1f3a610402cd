"""What `model.generate` can tell beside ids, asked of a task: alignments, log-probabilities, several answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.core.taps import look
from anyformer.tasks.generated import generated
from tests.tasks.learn import begin, listed
from tests.training import picture_files as files
from tests.training.sound_files import tone

PAIRS = listed({"source": "a cat sleeps here", "target": "hier schläft"}, {"source": "it rains", "target": "es regnet"})
TEXT = "a cat sleeps"


@pytest.fixture(scope="module")
def translate() -> Any:
    task = begin(
        "translate", "transformer-tiny", PAIRS, vocab_size=300, options={"num_beams": 3, "max_target_length": 6}
    )
    task.model.eval()
    return task


def test_an_alignment_has_a_row_for_each_token(translate: Any, tmp_path: Path) -> None:
    answers = translate([TEXT, "rain"], alignment=True)
    for answer in answers:
        assert answer.alignment.shape == (len(answer.ids), len(answer.source_tokens))
        assert len(answer.tokens) == len(answer.ids)
        torch.testing.assert_close(answer.alignment.sum(dim=1), torch.ones(len(answer.ids)))
    assert [answer.text for answer in answers] == [answer.text for answer in translate([TEXT, "rain"])]
    first = answers[0]
    af.plot.alignment(first.alignment, first.source_tokens, first.tokens, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 1000


def test_the_alignment_is_what_the_decoder_attends_to(translate: Any) -> None:
    """Teacher forcing on the same ids shows the same cross-attention, in the last layer, mean of the heads."""
    answer = translate("rain", alignment=True)
    source = torch.tensor([translate.tokenizer.encode("rain")])
    with torch.no_grad(), look(translate.model, "decoder.blocks.*.cross.weights") as seen:
        translate.model(input_ids=source, decoder_input_ids=translate.model.shift_right(torch.tensor([[*answer.ids]])))
    expected = seen.log[-1][1][0].mean(dim=0)
    torch.testing.assert_close(answer.alignment, expected, atol=1e-5, rtol=0)


def test_logprobs_are_those_of_the_model(translate: Any) -> None:
    """Where nothing is forbidden: what an untrained model repeats would be written again without that."""
    answer = translate("rain", logprobs=True, num_beams=1, no_repeat_ngram_size=0)
    scores = translate.model.score(
        torch.tensor([translate.tokenizer.encode("rain")]), continuations=torch.tensor([[*answer.ids]])
    )
    assert answer.logprobs == pytest.approx(scores.tokens[0].tolist(), abs=1e-4)


def test_several_answers_to_a_text(translate: Any) -> None:
    """A list of answers for each text, the first of them the one that comes alone."""
    best = translate(TEXT)
    some = translate(TEXT, num_return_sequences=3)
    assert len(some) == 3 and some[0] == best and len({answer.ids for answer in some}) == 3
    many = translate([TEXT, "", "rain"], num_return_sequences=2)
    assert [len(answers) for answers in many] == [2, 2, 2] and [str(one) for one in many[1]] == ["", ""]
    drawn = translate(TEXT, num_return_sequences=2, do_sample=True, num_beams=1, seed=0, alignment=True)
    assert [one.alignment.shape[0] for one in drawn] == [len(one.ids) for one in drawn]
    assert translate(TEXT, num_return_sequences=1) == best
    with pytest.raises(af.InputError, match="num_return_sequences is 9"):
        translate(TEXT, num_return_sequences=9)
    with pytest.raises(af.InputError, match="num_return_sequences is '3'"):
        translate("", num_return_sequences="3")


def test_sentences_keep_their_alignments(translate: Any) -> None:
    """Read one by one, no sentence looks at another: the whole alignment is block-diagonal."""
    translate = type(translate)(translate.model, translate.tokenizer, translate.settings.replace(sentences=True))
    answer = translate("It rains now. A cat sleeps here.", alignment=True, logprobs=True)
    first, second = answer.sentences
    assert answer.alignment.shape == (len(answer.ids), len(answer.source_tokens)) and len(answer.logprobs) == len(
        answer.ids
    )
    rows, columns = first.alignment.shape
    assert not answer.alignment[:rows, columns:].any() and not answer.alignment[rows:, :columns].any()
    assert torch.equal(answer.alignment[rows:, columns:], second.alignment)
    both = translate("It rains now. A cat sleeps here.", num_return_sequences=2)
    assert [len(one.sentences) for one in both] == [2, 2] and both[0].text == answer.text


def test_a_file_that_asks_for_several(translate: Any) -> None:
    """What a folder's generation_config.json says is no wish of the caller's."""
    translate.model.origin.generation["num_return_sequences"] = 2
    try:
        assert translate(TEXT).source == TEXT and len(translate.write([TEXT, "rain"])) == 2
    finally:
        del translate.model.origin.generation["num_return_sequences"]


def test_tables_are_refused(translate: Any) -> None:
    for name in ("output_scores", "output_logits"):
        with pytest.raises(af.InputError, match=f"no {name};.*logprobs=True"):
            translate(TEXT, **{name: True})
    assert translate(TEXT, return_dict_in_generate=True) == translate(TEXT)


def test_given_tokens_have_no_numbers(translate: Any) -> None:
    first = translate(TEXT).ids[0]
    begun = torch.tensor([[translate.model.decoder_start, first]])
    batch = {"input_ids": torch.tensor([translate.tokenizer.encode(TEXT)])}
    options = {"decoder_input_ids": begun, "max_new_tokens": 3, "logprobs": True, "eos_token_id": None}
    [[one]] = generated(translate.model, batch, options, set())
    assert len(one.ids) == 4 and one.ids[0] == first and one.logprobs is not None and len(one.logprobs) == 3


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("caption", "cnn-transformer-tiny"), ("read", "line-reader-tiny"), ("ask-image", "metalm-tiny")],
)
def test_of_pictures(name: str, recipe: str, tmp_path: Path) -> None:
    for file, content in files.captioned().items():
        (tmp_path / file).write_bytes(content)
    data = next(path for path in tmp_path.iterdir() if path.suffix == ".json")
    kind: Any = af.tasks.find(name)
    data_settings = af.tasks.base.DEFAULT_SETUP.data.replace(columns="text=captions" if name == "read" else "")
    task = begin(name, recipe, kind.read(data, data_settings), vocab_size=290, options={"max_target_length": 5})
    task.model.eval()
    picture = files.square((200, 10, 10), 2)
    best = task(picture, num_beams=3)
    several = task([picture, picture], num_return_sequences=3, num_beams=3, logprobs=True)
    assert [len(some) for some in several] == [3, 3] and several[0][0].ids == best.ids
    assert [len(one.logprobs) for one in several[0]] == [len(one.ids) for one in several[0]]
    if name == "ask-image":
        with pytest.raises(af.InputError, match="no cross-attention"):
            task(picture, alignment=True)
    else:
        assert len(task(picture, alignment=True).alignment) == len(task(picture).ids)


def test_of_speech() -> None:
    rows = listed({"audio": tone(440), "text": "a cat"}, {"audio": tone(880), "text": "a dog"})
    task = begin("transcribe", "whisper-toy", rows, vocab_size=290)
    task.model.eval()
    with pytest.raises(af.InputError, match=r"transcribe .*num_return_sequences"):
        task(tone(440), num_return_sequences=2)


def test_the_plot_takes_whole_sequences(translate: Any) -> None:
    """`generate` gives the start token too, for which nothing was looked at."""
    batch = {"input_ids": torch.tensor([translate.tokenizer.encode(TEXT)])}
    for beams in (1, 3):
        out = translate.model.generate(**batch, alignment=True, num_beams=beams, max_new_tokens=4)
        source, target = (translate.tokenizer.tokens(ids[0]) for ids in (batch["input_ids"], out.sequences))
        figure = af.plot.alignment(out.alignment[0], source, target)
        shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
        assert shown == target[1:]
    with pytest.raises(af.InputError, match="the tokens require"):
        af.plot.alignment(out.alignment[0], source, target[2:])
