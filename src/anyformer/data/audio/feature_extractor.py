"""Audio feature extractors, read from and written to preprocessor_config.json. Features equal those of transformers."""

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

FILE, NESTED = "preprocessor_config.json", "processor_config.json"  # newer folders nest the first file in the second
FRAME, HOP = 400, 160  # samples; published extractors use these at 16 kHz
KINDS = {"ASTFeatureExtractor": "kaldi", "WhisperFeatureExtractor": "whisper"}
MOST = {"sampling_rate": 10**6, "n_mels": 1024, "n_frames": 200_000, "hop_length": 2**16, "n_fft": 2**16}
SAMPLES = 10**8  # per input: 100 minutes of speech
# Types of the fields in the file that are used before the settings are checked.
FIELDS: Mapping[str, Any] = {
    "feature_extractor": dict[str, Any] | None,
    "feature_extractor_type": str | None,
    **dict.fromkeys(("sampling_rate", "hop_length"), Annotated[int, Range(1, 10**6)]),
    "n_frames": Annotated[int, Range(0, 10**6)] | None,
    "chunk_length": Annotated[int, Range(1, 10**4)],  # seconds
}
AUDIOSET = (-4.2677393, 4.5689974)  # mean and standard deviation of AudioSet's features


def _load(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    saved = parse_object(files[name], name) if name in files else {}
    check_fields(saved, FIELDS, name)
    return saved


@dataclass(frozen=True, kw_only=True)
class AudioFeatureExtractor(Settings):
    """`kind` "kaldi": [B, frames, mels] for AST, truncated or zero-padded to `n_frames` before normalization;
    "whisper": [B, mels, frames] of the waveform padded with silence to `n_frames`."""

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
        self.require(samples <= SAMPLES, f"n_frames * hop_length is {samples:,}; the maximum is {SAMPLES:,}.")
        fixed = self.kind == "whisper" or (self.hop_length, self.n_fft) == (HOP, FRAME)
        self.require(fixed, f"n_fft and hop_length must be {FRAME} and {HOP} for kind kaldi.")

    @property
    def field(self) -> str:
        """The model's argument for the features."""
        return "input_values" if self.kind == "kaldi" else "input_features"

    @property
    def seconds(self) -> float:
        """The duration of one row."""
        return self.n_frames * self.hop_length / self.sampling_rate

    def __call__(self, waves: Sequence[Tensor]) -> Tensor:
        """Features of waveforms [n] at `sampling_rate`."""
        if self.kind == "whisper":
            return whisper_log_mel(self._fill(waves), self.sampling_rate, self.n_mels, self.n_fft, self.hop_length)
        return torch.stack([self._kaldi(wave) for wave in waves])

    def extract_all(self, wave: Tensor) -> Tensor:
        """[mels, frames] of a waveform of any length, for models that process it in windows."""
        return whisper_log_mel(wave[None], self.sampling_rate, self.n_mels, self.n_fft, self.hop_length)[0]

    def _fill(self, waves: Sequence[Tensor]) -> Tensor:
        samples = self.n_frames * self.hop_length
        return torch.stack([F.pad(wave[:samples], (0, samples - min(len(wave), samples))) for wave in waves])

    def _kaldi(self, wave: Tensor) -> Tensor:
        if len(wave) < FRAME:
            raise InputError(
                f"The audio has {len(wave)} samples; it must have {FRAME} or more"
                f" ({1000 * FRAME / self.sampling_rate:.0f} ms)."
            )
        logs = kaldi_log_mel(wave, self.sampling_rate, self.n_mels)[: self.n_frames]
        logs = F.pad(logs, (0, 0, 0, self.n_frames - len(logs)))
        return (logs - self.mean) / (2 * self.std) if self.do_normalize else logs

    @classmethod
    def read(cls, files: Mapping[str, bytes]) -> AudioFeatureExtractor | None:
        """Read the extractor from a folder's files; None if they describe none."""
        saved = _load(files, FILE)
        if "feature_extractor_type" not in saved and NESTED in files:
            saved = _load(files, NESTED).get("feature_extractor") or {}
            check_fields(saved, FIELDS, NESTED)
        name = saved.get("feature_extractor_type")
        if name is None:
            return None
        if name not in KINDS:
            raise ConfigError(
                f'{FILE} has the feature extractor "{name}"; supported are {", ".join(KINDS)}.'
                f"{nearest(str(name), KINDS)}"
            )
        return cls._whisper(saved) if KINDS[name] == "whisper" else cls._ast(saved)

    @classmethod
    def _ast(cls, saved: Mapping[str, Any]) -> AudioFeatureExtractor:
        mean, std = saved.get("mean", AUDIOSET[0]), saved.get("std", AUDIOSET[1])
        return cls(
            sampling_rate=saved.get("sampling_rate", 16_000),
            n_mels=saved.get("num_mel_bins", 128),
            n_frames=saved.get("max_length", 1024),
            do_normalize=saved.get("do_normalize", True),
            mean=mean,
            std=std,
        )

    @classmethod
    def _whisper(cls, saved: Mapping[str, Any]) -> AudioFeatureExtractor:
        for name in ("dither", "padding_value"):
            if saved.get(name):
                raise ConfigError(f'{FILE}: "{name}" is {saved[name]!r}; anyformer supports only 0.')
        rate, hop = saved.get("sampling_rate", 16_000), saved.get("hop_length", HOP)
        return cls(
            kind="whisper",
            sampling_rate=rate,
            n_mels=saved.get("feature_size", 80),
            n_frames=saved.get("n_frames") or saved.get("chunk_length", 30) * rate // hop,
            hop_length=hop,
            n_fft=saved.get("n_fft", FRAME),
        )

    def write(self) -> dict[str, bytes]:
        """The preprocessor_config.json for the class of transformers."""
        common = {"sampling_rate": self.sampling_rate, "padding_side": "right", "padding_value": 0.0}
        if self.kind == "kaldi":
            saved = {
                **{"feature_extractor_type": "ASTFeatureExtractor", "feature_size": 1},
                **{"num_mel_bins": self.n_mels, "max_length": self.n_frames, "do_normalize": self.do_normalize},
                **{"mean": self.mean, "std": self.std},
            }
        else:
            whole = self.n_frames * self.hop_length % self.sampling_rate == 0
            saved = {
                **{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": self.n_mels},
                **{
                    "chunk_length": -(-self.n_frames * self.hop_length // self.sampling_rate),
                    "hop_length": self.hop_length,
                },
                **{"n_fft": self.n_fft},
                **({} if whole else {"n_frames": self.n_frames}),  # transformers' class counts whole seconds only
            }
        text = json.dumps({**common, **saved, "return_attention_mask": False}, indent=2, sort_keys=True)
        return {FILE: f"{text}\n".encode()}
