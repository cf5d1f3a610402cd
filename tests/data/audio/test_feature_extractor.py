"""Spectrograms equal those of the published feature extractors, whose folders are read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.audio.feature_extractor import FILE, AudioFeatureExtractor
from anyformer.data.audio.spectrogram import mel_filters
from tests.data.audio.waves import noise, speech_like, tone


def theirs(kind: str, **options: Any) -> Any:
    from transformers.models.audio_spectrogram_transformer import (
        feature_extraction_audio_spectrogram_transformer as ast,
    )
    from transformers.models.whisper import feature_extraction_whisper as whisper

    found = {"kaldi": ast.ASTFeatureExtractor, "whisper": whisper.WhisperFeatureExtractor}
    return found[kind](**options)


def extract(extractor: Any, waves: list[torch.Tensor]) -> torch.Tensor:
    made = extractor([wave.numpy() for wave in waves], sampling_rate=extractor.sampling_rate, return_tensors="pt")
    found: torch.Tensor = made[extractor.model_input_names[0]]
    return found


def folder(extractor: Any, path: Path) -> dict[str, bytes]:
    extractor.save_pretrained(path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


WAVES = [speech_like(0.7), tone(1.3), noise(0.3, seed=1), torch.zeros(9000), speech_like(2.5, seed=3) * 0.01]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": 100, "num_mel_bins": 64},
        {"do_normalize": False},
        {"mean": 1.5, "std": 0.25, "max_length": 64},
    ],
)
def test_ast(options: dict[str, Any], tmp_path: Path) -> None:
    oracle = theirs("kaldi", **options)
    ours = AudioFeatureExtractor.read(folder(oracle, tmp_path))
    assert ours is not None and ours.field == "input_values"
    torch.testing.assert_close(ours(WAVES), extract(oracle, WAVES).float(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"feature_size": 128}, {"chunk_length": 2}, {"hop_length": 80, "n_fft": 256}])
def test_whisper(options: dict[str, Any], tmp_path: Path) -> None:
    oracle = theirs("whisper", **options)
    ours = AudioFeatureExtractor.read(folder(oracle, tmp_path))
    assert ours is not None and ours.field == "input_features"
    torch.testing.assert_close(ours(WAVES), extract(oracle, WAVES), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["kaldi", "whisper"])
def test_written_back(kind: str, tmp_path: Path) -> None:
    """What we write, their class reads, with the same numbers."""
    ours = AudioFeatureExtractor(kind=kind, n_mels=40, n_frames=200, mean=-3.0, std=2.0)  # type: ignore[arg-type]
    (tmp_path / FILE).write_bytes(ours.write()[FILE])
    oracle = type(theirs(kind)).from_pretrained(tmp_path)
    torch.testing.assert_close(ours(WAVES), extract(oracle, WAVES).float(), rtol=1e-5, atol=2e-5)
    again = AudioFeatureExtractor.read(ours.write())
    assert again is not None and again(WAVES[:1]).equal(ours(WAVES[:1]))


def test_newer_folders(tmp_path: Path) -> None:
    """Processors put the extractor's settings into a file of their own."""
    held = folder(theirs("whisper", feature_size=128), tmp_path)
    nested = {"processor_config.json": json.dumps({"feature_extractor": json.loads(held[FILE])}).encode()}
    found = AudioFeatureExtractor.read(nested)
    assert found is not None and found.n_mels == 128
    assert AudioFeatureExtractor.read({}) is None
    assert AudioFeatureExtractor.read({FILE: b'{"image_processor_type": "ViTImageProcessor"}'}) is None


def test_what_is_not_supported() -> None:
    with pytest.raises(af.Error, match=r'"dither" is 0\.001'):
        AudioFeatureExtractor.read({FILE: b'{"feature_extractor_type": "WhisperFeatureExtractor", "dither": 0.001}'})
    with pytest.raises(af.Error, match="Wav2Vec2FeatureExtractor"):
        AudioFeatureExtractor.read({FILE: b'{"feature_extractor_type": "Wav2Vec2FeatureExtractor"}'})


@pytest.mark.parametrize("kind", ["WhisperFeatureExtractor", "ASTFeatureExtractor"])
@pytest.mark.parametrize(
    "changes",
    [
        {"feature_extractor_type": ["a"]},
        {"feature_extractor_type": 3},
        {"sampling_rate": 0},
        {"sampling_rate": "16000"},
        {"sampling_rate": 10**9},
        {"hop_length": 0},
        {"chunk_length": 10**9},
        {"chunk_length": [30]},
        {"n_frames": -1},
    ],
)
def test_what_makes_no_sense(kind: str, changes: dict[str, Any]) -> None:
    held = {"feature_extractor_type": kind, **changes}
    for files in ({FILE: held}, {"processor_config.json": {"feature_extractor": held}}):
        with pytest.raises(af.ConfigError, match=next(iter(changes))):
            AudioFeatureExtractor.read({name: json.dumps(value).encode() for name, value in files.items()})


@pytest.mark.parametrize("said", [[1], "a", 3])
def test_a_nested_extractor_that_is_none(said: Any) -> None:
    with pytest.raises(af.ConfigError, match="feature_extractor"):
        AudioFeatureExtractor.read({"processor_config.json": json.dumps({"feature_extractor": said}).encode()})


def test_more_sound_than_fits_into_memory() -> None:
    for changes in ({"n_frames": 10**6}, {"kind": "whisper", "n_frames": 200_000, "hop_length": 2**16, "n_fft": 2**16}):
        with pytest.raises(af.ConfigError, match=r"n_frames"):
            AudioFeatureExtractor(**changes)  # type: ignore[arg-type]


def test_too_short_and_silent() -> None:
    with pytest.raises(af.Error, match=r"399 .*25 ms"):
        AudioFeatureExtractor()([torch.zeros(399)])
    for kind in ("kaldi", "whisper"):
        made = AudioFeatureExtractor(kind=kind, n_frames=200, n_mels=80)([torch.zeros(8000)])  # type: ignore[arg-type]
        assert bool(torch.isfinite(made).all())


def test_filters() -> None:
    """Triangles: Slaney's have area 1 in hertz where bins are fine, Kaldi's reach 1."""
    fine = mel_filters(16_001, 20, 0.0, 8000.0, 16_000, "slaney")
    np.testing.assert_allclose(fine.sum(dim=0).numpy() * 0.5, 1.0, atol=1e-3)
    assert float(mel_filters(8193, 20, 20.0, 8000.0, 16_000, "kaldi").max(dim=0).values.min()) > 0.99
