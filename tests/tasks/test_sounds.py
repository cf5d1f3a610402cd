"""Sounds with classes and speech with words: learned by heart, saved, loaded, and as the published folders have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.audio.feature_extractor import AudioFeatureExtractor
from anyformer.tasks import find
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.classify_audio import ClassifyAudioOptions, SpecAugmentSettings, spec_augment
from anyformer.tasks.transcribe import TranscribeOptions
from tests.training.sound_files import spoken, tone

STILL = SpecAugmentSettings(time_mask=0, mel_mask=0, shift=0, noise=0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name, content in spoken(8).items():
        (tmp_path / name).write_bytes(content)
    return tmp_path / "x.tsv"


def learn(task: Any, rows: Any, steps: int, lr: float = 3e-3) -> None:
    examples = task.prepare(rows)
    batch = task.ready(task.collate(task.gather(examples, range(len(rows))), torch.Generator()), None)
    optimizer = torch.optim.Adam(task.model.parameters(), lr=lr)
    task.model.train()
    for _ in range(steps):
        loss = task.loss(batch)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    task.model.eval()


@pytest.mark.parametrize("recipe", ["ast-tiny", "perceiver-sound", "whisper-toy"])
def test_classes_learned_by_heart(recipe: str, data: Path, tmp_path: Path) -> None:
    """One recipe after another tells low tones from high ones, also from its folder, stereo and of another rate."""
    torch.manual_seed(0)
    kind = find("classify-audio")
    rows = kind.read(data)
    task: Any = kind.begin(recipe, rows, setup=TaskSetup(task=ClassifyAudioOptions(augment=STILL)))
    assert task.labels == ("high", "low")
    learn(task, rows, 30, 1e-3)
    assert task.evaluate(rows)["accuracy"] == 1.0
    task.save(tmp_path / "model")
    again = af.task("classify-audio", tmp_path / "model")
    wave = 0.5 * np.sin(2 * np.pi * 1510 * np.arange(6615) / 22_050)
    (tmp_path / "low.wav").write_bytes(tone(260))
    answers = again([tmp_path / "low.wav", (22_050, np.stack([wave, wave]))])
    assert [answer.label for answer in answers] == ["low", "high"]
    assert str(answers[0]).startswith("low (") and answers[0].scores.keys() == {"low", "high"}


def test_features_lie_around_zero(data: Path) -> None:
    """The extractor of a fresh model is measured on the rows, and goes into the folder as the published class's."""
    kind = find("classify-audio")
    rows = kind.read(data)
    task: Any = kind.begin("ast-tiny", rows)
    heard = torch.stack([torch.as_tensor(one["input_values"]) for one in task.gather(task.prepare(rows), range(8))])
    real = heard[:, :28]  # 0.3 s; the rest is filled up
    assert abs(float(real.mean())) < 0.05 and abs(float(real.std()) - 0.5) < 0.05
    saved = json.loads(task.model.origin.files["preprocessor_config.json"])
    assert saved["feature_extractor_type"] == "ASTFeatureExtractor" and saved["num_mel_bins"] == 32


def test_changes_leave_shape_and_seed() -> None:
    x = torch.randn(4, 50, 20)
    made = spec_augment(x, SpecAugmentSettings(), torch.Generator().manual_seed(1))
    assert made.shape == x.shape and not torch.equal(made, x)
    assert torch.equal(made, spec_augment(x, SpecAugmentSettings(), torch.Generator().manual_seed(1)))
    assert torch.equal(spec_augment(x, STILL, torch.Generator()), x)


def test_speech_learned_by_heart(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    kind = find("transcribe")
    rows = kind.read(data)
    config = af.registry.recipe("whisper-toy").config
    options = TranscribeOptions(augment=STILL, seconds=0.4)
    task: Any = kind.begin("whisper-toy", rows, setup=TaskSetup(model=config, task=options))
    assert task.extractor.seconds == pytest.approx(0.4)
    learn(task, rows, 60)
    figures = task.evaluate(rows)
    assert figures["wer"] == figures["cer"] == 0.0
    task.save(tmp_path / "model")
    again = af.task("transcribe", tmp_path / "model")
    assert str(again((8000, np.zeros(10)))) is not None  # silence and next to nothing: an answer all the same
    assert [str(one) for one in again([rows[0]["audio"], rows[1]["audio"]])] == ["the low one", "the high one"]
    # Longer than it hears at a time, and no times learned: one window after another.
    rate, window = again.extractor.sampling_rate, again.extractor.n_frames * again.extractor.hop_length
    waves = [rows[i]["audio"].open(rate) for i in (0, 1)]
    both = torch.cat([torch.nn.functional.pad(wave, (0, window - len(wave))) for wave in waves])
    assert str(again((rate, both.numpy()))) == "the low one the high one"


def test_too_short_names_the_file(data: Path, tmp_path: Path) -> None:
    kind = find("classify-audio")
    task: Any = kind.begin("ast-tiny", kind.read(data))
    (tmp_path / "click.wav").write_bytes(tone(300, seconds=0.01))
    with pytest.raises(af.Error, match=r"click\.wav: .*160 .*400"):
        task(tmp_path / "click.wav")


def test_whisper_folder(tmp_path: Path) -> None:
    """A published folder: its feature extractor, its tokenizer with times, its own ids for the words."""
    from tests.generation import test_speech as speech
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet[: speech.END])}, merges=[]))
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>"]
    names += ["<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    engine.add_special_tokens([AddedToken(name, special=True) for name in names])
    engine.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", special=False) for i in range(speech.STAMPS)])
    speech.models()[0].float().save_pretrained(tmp_path)
    engine.save(str(tmp_path / "tokenizer.json"))
    extractor = AudioFeatureExtractor(kind="whisper", n_mels=8, n_frames=2 * speech.TOKENS)
    files = json.loads(extractor.write()["preprocessor_config.json"]) | {"chunk_length": 1, "hop_length": 400}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(files))
    transcribe: Any = af.task("transcribe", tmp_path)
    assert transcribe.extractor.n_frames == 2 * speech.TOKENS and transcribe.extractor.hop_length == 400
    wave = torch.randn(40_000, generator=torch.Generator().manual_seed(0)).numpy()  # 2.5 windows of 1 s
    said = transcribe((16_000, wave), language="de", max_new_tokens=6)
    assert said.chunks and said.chunks[-1].start > 0.4 and "<|" not in said.text
    features = transcribe.extractor.extract_all(torch.from_numpy(wave))
    theirs = speech.models()[0].generate(features[None], language="de", max_new_tokens=6)
    speech.models()[0].double()
    words = [token for token in theirs[0].tolist() if token < speech.FIRST]
    assert said.text == transcribe.tokenizer.decode(words).strip()
    timed = transcribe((16_000, wave), timestamps=True, max_new_tokens=6)
    assert len(str(timed).splitlines()) == len(timed.chunks) and str(timed).startswith("0.0")
    assert transcribe.opening == [speech.ENGLISH, speech.TRANSCRIBE, speech.NO_STAMPS]


def test_ast_folder(tmp_path: Path) -> None:
    """A published folder: its feature extractor and its labels give the scores of transformers' own."""
    from transformers.models.audio_spectrogram_transformer import (
        feature_extraction_audio_spectrogram_transformer as extraction,
    )

    from tests.checkpoints.oracles import make_oracle

    labels = dict(enumerate(("cat", "dog", "cow")))
    oracle = make_oracle("ASTForAudioClassification", id2label=labels, label2id={v: k for k, v in labels.items()})
    extractor = extraction.ASTFeatureExtractor(max_length=40, num_mel_bins=24, mean=-3.0, std=2.0)
    oracle.save_pretrained(tmp_path)
    extractor.save_pretrained(tmp_path)
    wave = 0.3 * torch.randn(5000, generator=torch.Generator().manual_seed(0)).numpy()
    with torch.no_grad():
        features = extractor(wave, sampling_rate=16_000, return_tensors="pt")
        theirs = oracle(**features).logits.softmax(dim=-1)[0].tolist()
    answer = af.task("classify-audio", tmp_path)((16_000, wave))
    assert answer.scores == pytest.approx(dict(zip(("cat", "dog", "cow"), theirs, strict=True)), abs=1e-5)
