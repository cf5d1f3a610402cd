"""Audio classification: a spoken word, a bird, a machine that is about to break.

classify = af.task("classify-audio", "folder")
print(classify("yes.wav"))              # yes (0.97)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.audio import augment
from anyformer.data.audio.audio_file import as_audio
from anyformer.data.audio.feature_extractor import AudioFeatureExtractor
from anyformer.data.audio.read import read_audio
from anyformer.data.files import Paths
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import Error
from anyformer.model import Model
from anyformer.tasks.base import Batch, Column, Options
from anyformer.tasks.inputs import AudioInput
from anyformer.tasks.labeled import LabeledTask
from anyformer.tasks.schedule_presets import schedule_for

MEASURED = 256  # sounds whose mean loudness and its spread stand for all
LABELS = ("labels", "class", "category", "target", "word", "digit", "speaker_id", "species")


@dataclass(frozen=True, kw_only=True)
class SpecAugmentSettings(Settings):
    """Random changes of spectrograms during training, as fractions of their length and of their mels."""

    time_mask: float = 0.15  # blotted out at most, twice
    mel_mask: float = 0.15
    shift: float = 0.15  # earlier or later at most
    noise: float = 0.2  # strongest


@dataclass(frozen=True, kw_only=True)
class ClassifyAudioOptions(Options):
    augment: SpecAugmentSettings = SpecAugmentSettings()


class ClassifyAudio(LabeledTask[AudioInput]):
    name = "classify-audio"
    about = "classify audio"
    columns = (Column("audio", ("sound", "file", "path")), Column("label", LABELS))
    options_class = ClassifyAudioOptions
    settings: ClassifyAudioOptions
    heads = ("classify", "classify-audio")
    column = "audio"
    steady = True
    wanted = "an audio encoder that supports a classification head, such as ast-small"

    @classmethod
    def thing(cls, value: Any) -> Any:
        return as_audio(value)

    @classmethod
    def reads_such(cls, config: Settings) -> bool:
        return "n_mels" in config.field_names()

    @classmethod
    def find_files(cls, paths: Paths, column: str | None, **asked: Any) -> Rows:
        return read_audio(paths, audio=column, **asked)

    @classmethod
    def find_reader(cls, model: Model, rows: Rows | None, data: DataSettings) -> AudioFeatureExtractor:
        return find_extractor(model, rows)

    def features(self, row: Row) -> dict[str, Any]:
        return {self.reader.field: extract_features(self.reader, row["audio"]).numpy()}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        if generator is None:
            return batch
        name, whisper = self.reader.field, self.reader.kind == "whisper"
        x = batch[name].transpose(1, 2) if whisper else batch[name]
        x = spec_augment(x, self.settings.augment, generator)
        return {**batch, name: x.transpose(1, 2) if whisper else x}

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        size, lr = 64 if rows > 1000 else 16, 1e-3 if fresh else 5e-5
        return schedule_for(
            rows, 200 if fresh else 10, size=size, lr=lr, evals=20, weight_decay=0.05, label_smoothing=0.1
        )


def extract_features(extractor: AudioFeatureExtractor, audio: Any) -> Tensor:
    """Features of one sound; whatever is wrong with it names it."""
    try:
        return extractor([audio.open(extractor.sampling_rate)])[0]
    except Error as error:
        said = str(error)
        raise type(error)(said if audio.name in said else f"{audio.name}: {said}") from None


def spec_augment(x: Tensor, how: SpecAugmentSettings, generator: Generator) -> Tensor:
    """Spectrograms [B, frames, mels], each changed in its own way."""
    _, frames, mels = x.shape
    x = augment.shift(x, int(how.shift * frames), generator)
    x = augment.add_noise(x, how.noise, generator)
    x = augment.mask_time(x, int(how.time_mask * frames), generator, times=2)
    return augment.mask_frequency(x, int(how.mel_mask * mels), generator, times=2)


def find_extractor(model: Model, rows: Rows | None) -> AudioFeatureExtractor:
    """The folder's own; else one of the model's size, whose numbers lie around zero for the sounds at hand."""
    found = AudioFeatureExtractor.read(model.origin.files)
    if found is not None:
        return found
    settings = model.config.to_json()
    if "source_length" in settings:  # a model that hears 30 seconds, or as many as it was made for
        return AudioFeatureExtractor(kind="whisper", n_mels=settings["n_mels"], n_frames=2 * settings["source_length"])
    extractor = AudioFeatureExtractor(n_mels=settings["n_mels"], n_frames=settings["n_frames"])
    if rows is None:
        return extractor
    plain = extractor.replace(do_normalize=False)
    step = max(len(rows) // MEASURED, 1)
    heard = torch.stack([extract_features(plain, rows[i]["audio"]) for i in range(0, len(rows), step)])
    real = heard[heard.abs().sum(dim=2) > 0]  # frames of sound, without what rows are filled up with
    return extractor.replace(mean=float(real.mean()), std=float(real.std().clamp(min=1e-3)))
