"""What stands between a wave and a model: a feature extractor as data, read from a folder's preprocessor config and
written back; its numbers are those of the published one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.config import Settings
from anyformer.data.audio.spectrogram import kaldi_log_mel, whisper_log_mel
from anyformer.errors import ConfigError, InputError, nearest
from anyformer.jsonfile import parse_object
from anyformer.schema import Range, check_fields

FILE, NESTED = "preprocessor_config.json", "processor_config.json"  # the second holds the first in newer folders
FRAME, HOP = 400, 160  # samples, in everything published for 16,000 a second
KINDS = {"ASTFeatureExtractor": "kaldi", "WhisperFeatureExtractor": "whisper"}
MOST = {"sampling_rate": 10**6, "n_mels": 1024, "n_frames": 200_000, "hop_length": 2**16, "n_fft": 2**16}
SAMPLES = 10**8  # at a time: 100 minutes of speech
# What stands in the file and is computed with before it is a setting.
SAID: Mapping[str, Any] = {
    "feature_extractor": dict[str, Any] | None,
    "feature_extractor_type": str | None,
    **dict.fromkeys(("sampling_rate", "hop_length"), Annotated[int, Range(1, 10**6)]),
    "n_frames": Annotated[int, Range(0, 10**6)] | None,
    "chunk_length": Annotated[int, Range(1, 10**4)],  # seconds
}
AUDIOSET = (-4.2677393, 4.5689974)  # mean and deviation of AudioSet's features


def _said(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    held = parse_object(files[name], name) if name in files else {}
    check_fields(held, SAID, name)
    return held


@dataclass(frozen=True, kw_only=True)
class AudioFeatureExtractor(Settings):
    """`kind` "kaldi": [B, frames, mels] for AST, cut or filled with zeros to `n_frames` before the mean is taken off;
    "whisper": [B, mels, frames], the wave filled with silence up to `n_frames` first."""

    kind: Literal["kaldi", "whisper"] = "kaldi"
    sampling_rate: int = 16_000
    n_mels: int = 128
    n_frames: int = 1024
    hop_length: int = HOP
    n_fft: int = FRAME
    do_normalize: bool = True
    mean: float = AUDIOSET[0]
    std: float = AUDIOSET[1]

    def check(self) -> None:
        for name, most in MOST.items():
            value = getattr(self, name)
            self.require(0 < value <= most, f"{name} is {value}; it must be above 0 and at most {most:,}.")
        samples = self.n_frames * self.hop_length
        self.require(samples <= SAMPLES, f"it hears {samples:,} samples at a time; the most is {SAMPLES:,}.")
        fixed = self.kind == "whisper" or (self.hop_length, self.n_fft) == (HOP, FRAME)
        self.require(fixed, f"Kaldi's frames are {FRAME} samples long, {HOP} apart.")

    @property
    def field(self) -> str:
        """The name under which a model takes the features."""
        return "input_values" if self.kind == "kaldi" else "input_features"

    @property
    def seconds(self) -> float:
        """How much sound one row holds."""
        return self.n_frames * self.hop_length / self.sampling_rate

    def __call__(self, waves: Sequence[Tensor]) -> Tensor:
        """Features of waves [n] at `rate`."""
        if self.kind == "whisper":
            return whisper_log_mel(self._fill(waves), self.sampling_rate, self.n_mels, self.n_fft, self.hop_length)
        return torch.stack([self._kaldi(wave) for wave in waves])

    def extract_all(self, wave: Tensor) -> Tensor:
        """[mels, frames] of a wave of any length, for a model that hears it window by window."""
        return whisper_log_mel(wave[None], self.sampling_rate, self.n_mels, self.n_fft, self.hop_length)[0]

    def _fill(self, waves: Sequence[Tensor]) -> Tensor:
        samples = self.n_frames * self.hop_length
        return torch.stack([F.pad(wave[:samples], (0, samples - min(len(wave), samples))) for wave in waves])

    def _kaldi(self, wave: Tensor) -> Tensor:
        if len(wave) < FRAME:
            raise InputError(
                f"A sound of {len(wave)} samples is too short: the model looks at {FRAME} at a time,"
                f" {1000 * FRAME / self.sampling_rate:.0f} ms."
            )
        logs = kaldi_log_mel(wave, self.sampling_rate, self.n_mels)[: self.n_frames]
        logs = F.pad(logs, (0, 0, 0, self.n_frames - len(logs)))
        return (logs - self.mean) / (2 * self.std) if self.do_normalize else logs

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> AudioFeatureExtractor | None:
        """From a folder's small files; None where they say nothing about sound."""
        held = _said(files, FILE)
        if "feature_extractor_type" not in held and NESTED in files:
            held = _said(files, NESTED).get("feature_extractor") or {}
            check_fields(held, SAID, NESTED)
        name = held.get("feature_extractor_type")
        if name is None:
            return None
        if name not in KINDS:
            raise ConfigError(
                f'{FILE} is of a "{name}", which anyformer does not know.{nearest(str(name), KINDS)} It knows:'
                f" {', '.join(KINDS)}."
            )
        return cls._whisper(held) if KINDS[name] == "whisper" else cls._ast(held)

    @classmethod
    def _ast(cls, held: Mapping[str, Any]) -> AudioFeatureExtractor:
        mean, std = held.get("mean", AUDIOSET[0]), held.get("std", AUDIOSET[1])
        return cls(
            sampling_rate=held.get("sampling_rate", 16_000),
            n_mels=held.get("num_mel_bins", 128),
            n_frames=held.get("max_length", 1024),
            do_normalize=held.get("do_normalize", True),
            mean=mean,
            std=std,
        )

    @classmethod
    def _whisper(cls, held: Mapping[str, Any]) -> AudioFeatureExtractor:
        for name in ("dither", "padding_value"):
            if held.get(name):
                raise ConfigError(f'{FILE}: "{name}" is {held[name]!r}; anyformer supports only 0.')
        rate, hop = held.get("sampling_rate", 16_000), held.get("hop_length", HOP)
        return cls(
            kind="whisper",
            sampling_rate=rate,
            n_mels=held.get("feature_size", 80),
            n_frames=held.get("n_frames") or held.get("chunk_length", 30) * rate // hop,
            hop_length=hop,
            n_fft=held.get("n_fft", FRAME),
        )

    def write(self) -> dict[str, bytes]:
        """The small file that the published class reads."""
        common = {"sampling_rate": self.sampling_rate, "padding_side": "right", "padding_value": 0.0}
        if self.kind == "kaldi":
            held = {
                **{"feature_extractor_type": "ASTFeatureExtractor", "feature_size": 1},
                **{"num_mel_bins": self.n_mels, "max_length": self.n_frames, "do_normalize": self.do_normalize},
                **{"mean": self.mean, "std": self.std},
            }
        else:
            whole = self.n_frames * self.hop_length % self.sampling_rate == 0
            held = {
                **{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": self.n_mels},
                **{
                    "chunk_length": -(-self.n_frames * self.hop_length // self.sampling_rate),
                    "hop_length": self.hop_length,
                },
                **{"n_fft": self.n_fft},
                **({} if whole else {"n_frames": self.n_frames}),  # theirs counts whole seconds alone
            }
        text = json.dumps({**common, **held, "return_attention_mask": False}, indent=2, sort_keys=True)
        return {FILE: f"{text}\n".encode()}
