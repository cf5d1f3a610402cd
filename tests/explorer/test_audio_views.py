"""Sounds: the spectrogram drawn, and what is attended to in it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("PIL", reason="spectrograms are drawn with Pillow")

import anyformer as af
from anyformer.errors import Error
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from tests.explorer.models import audio_file, unpack, view

Models = dict[str, LoadedModel]


def test_patches_of_a_spectrogram(opened: Models) -> None:
    one = opened["spectrogram"]
    batch = one.model_input(ViewRequest(audio=audio_file()), Deadline(60)).batch
    with torch.no_grad(), af.look(one.model, "encoder.blocks.0.self.weights") as seen:
        out = one.model(**batch)
    got = view(one, "input", audio=audio_file())
    cells = got["rows"] * got["columns"]
    assert got["predictions"][0]["probability"] == pytest.approx(out.logits[0].softmax(-1).max().item(), abs=1e-5)
    assert list(batch["input_values"].shape[1:]) == got["size"][::-1]  # mels down, time along
    maps = unpack(view(one, "attention_map", audio=audio_file(), stage="encoder", position=0)["maps"])
    wanted = seen["encoder.blocks.0.self.weights"][0, :, 0, -cells:].double()
    torch.testing.assert_close(maps.flatten(1), wanted, atol=2e-5, rtol=0)


def test_words_over_a_sound(opened: Models) -> None:
    """What a word attends to is a row of frames."""
    one = opened["whisper"]
    got = view(one, "word_attention", audio=audio_file(), target="5 9")
    maps = unpack(got["maps"])
    assert maps.shape[:2] == (len(got["words"]), 1)
    torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(len(maps), dtype=torch.float64), atol=2e-2, rtol=0)
    batch = one.model_input(ViewRequest(audio=audio_file(), target="5 9"), Deadline(60)).batch
    with torch.no_grad(), af.look(one.model, "decoder.blocks.0.cross.weights") as seen:
        one.model(**batch)
    wanted = seen["decoder.blocks.0.cross.weights"][0].mean(0).double()
    torch.testing.assert_close(maps[:, 0], wanted, atol=2e-5, rtol=0)


@pytest.mark.parametrize("target", [None, "5 9"])
def test_what_is_said_follows_its_opening(opened: Models, monkeypatch: pytest.MonkeyPatch, target: str | None) -> None:
    """The start token, the language that is heard, the task and no times stand before the words, as in generate."""
    one = opened["whisper"]
    said = {"lang_to_id": {"<|en|>": 40}, "task_to_id": {"transcribe": 50}, "task": "transcribe"}
    monkeypatch.setattr(one.model.origin, "generation", {**said, "no_timestamps_token_id": 60})
    for new in (1, 3):
        ask = ViewRequest(audio=audio_file(), target=target, new_tokens=new)
        subject = one.model_input(ask, Deadline(60))
        given = subject.batch["decoder_input_ids"]
        assert given.dtype == torch.long and given[0, :4].tolist() == [1, 40, 50, 60]
        with torch.no_grad():
            best = one.model(**subject.batch).logits[0, 3:].argmax(-1)
        answers = [word.id for word in subject.answers]
        assert answers[3:] == (best.tolist() if target is None else [5, 9, 0])


def test_nothing_is_said(opened: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    one = opened["whisper"]
    monkeypatch.setattr(one, "generate", lambda *_: [])
    subject = one.model_input(ViewRequest(audio=audio_file()), Deadline(60))
    assert subject.batch["decoder_input_ids"].tolist() == [[1]]
    assert [word.id for word in subject.answers] == [0]


def test_a_sound_must_be_one(opened: Models) -> None:
    with pytest.raises(Error, match="needs audio"):
        view(opened["whisper"], "word_attention")
    with pytest.raises(Error):
        view(opened["spectrogram"], "input", audio="aGVsbG8=")
