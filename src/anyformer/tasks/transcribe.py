"""Speech recognition.

transcribe = af.task("transcribe", "folder")
print(transcribe("talk.wav"))                               # what was said
transcribe("talk.wav", timestamps=True).chunks                   # (0.0, 4.2, "what was said"), …
transcribe("vortrag.flac", language="de", task="translate")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.audio.audio_file import Audio, as_audio
from anyformer.data.audio.feature_extractor import AudioFeatureExtractor
from anyformer.data.audio.read import read_audio
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.examples import Example
from anyformer.data.files import Paths
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import FolderError, InputError
from anyformer.forward_context import IGNORED
from anyformer.generation.speech_prompt import language_id
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.error_rates import cer_and_wer
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Column,
    Loss,
    Metrics,
    Options,
    Progress,
    Source,
    Task,
    TaskSetup,
    Total,
    answering,
)
from anyformer.tasks.classify_audio import SpecAugmentSettings, extract_features, find_extractor, spec_augment
from anyformer.tasks.decoded import DecodedTask
from anyformer.tasks.inputs import AudioInput
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import WritingTask, pad_labels, text_of
from anyformer.tokenizers.cuts import shorten

TOGETHER = 16  # short sounds that are written down at a time


class Chunk(NamedTuple):
    """The text between two times, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript(Answer):
    """`timed`: whether timestamps were requested, and are printed."""

    text: str
    chunks: tuple[Chunk, ...] = field(default=(), repr=False)
    timed: bool = field(default=False, repr=False)

    def __str__(self) -> str:
        if not self.timed:
            return self.text
        return "\n".join(f"{chunk.start:.2f} - {chunk.end:.2f}  {chunk.text.strip()}" for chunk in self.chunks)


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions(Options):
    language: str | None = None  # spoken in the rows, for a model that knows several
    seconds: float | None = None  # how much a fresh model hears at a time; None: as its recipe says
    lowercase: bool = True  # case does not count as a mistake
    augment: SpecAugmentSettings = SpecAugmentSettings(time_mask=0.05, mel_mask=0.2, shift=0.0, noise=0.1)


class Transcribe(DecodedTask[AudioInput, Transcript], WritingTask[AudioInput, Transcript]):
    name = "transcribe"
    fills = MappingProxyType({"labels": IGNORED})
    about = "transcribe speech"
    columns = (
        Column("audio", ("sound", "file", "path")),
        Column("text", ("sentence", "transcript", "transcription", "words", "target")),
    )
    format = "tsv"
    options_class = TranscribeOptions
    settings: TranscribeOptions
    batch = BatchConfig(rows=16)
    framed = "end"
    kind = "bpe"
    wanted = "a speech-to-text model, such as whisper-tiny"
    metric = "wer"
    larger_is_better = False
    usual_length = 448
    lengths = Task.lengths

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.extractor: AudioFeatureExtractor = find_extractor(self.model, None)
        self.model.origin.files.update(
            {} if AudioFeatureExtractor.read(self.model.origin.files) else self.extractor.write()
        )
        end = self.model.config.to_json()["end"]
        self.end: int | None = self.tokenizer.end_id if end is None else end

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        model, fresh = setup.model, not build.is_folder(source)
        if fresh and model is not None and options.seconds is not None and "source_length" in model.field_names():
            model = model.replace(source_length=round(options.seconds * 50))
        return super().begin(source, rows, valid, replace(setup, model=model, task=options))

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return "source_length" in config.field_names()

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: TranscribeOptions) -> Settings:
        return config.replace(head="language")

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        if not cls.fits(model.config) or "language" not in model.heads:
            raise FolderError(f"{path} holds a {model.family} model; {cls.name} needs {cls.wanted}.")

    @classmethod
    def find_files(cls, paths: Paths, column: str | None, **asked: Any) -> Rows:
        return read_audio(paths, audio=column, **asked)

    # Rows to loss.

    def example(self, row: Row) -> Example:
        return {"input_features": extract_features(self.extractor, row["audio"]).numpy(), "labels": self.target(row)}

    def target(self, row: Row) -> list[int]:
        """What follows the start token: the language and the task, where the model has tokens for them, the words, and
        the end."""
        text = text_of(row["text"], "text")
        words = self.tokenizer.encode(text, special=False)
        ends = [] if self.end is None else [self.end]
        return shorten([*self.opening, *words, *ends], self.max_length, text)

    @property
    def opening(self) -> list[int]:
        file = self.model.origin.generation
        said = []
        if file.get("lang_to_id"):
            said.append(language_id(self.settings.language or "en", file["lang_to_id"]))
            said += [file["task_to_id"]["transcribe"]] if file.get("task_to_id") else []
        none = file.get("no_timestamps_token_id")
        return [*said, *([none] if none is not None else [])]

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        features = torch.stack([torch.as_tensor(one["input_features"]) for one in examples])
        return {"input_features": features, "labels": pad_labels([one["labels"] for one in examples])}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        if generator is None:
            return batch
        x = spec_augment(batch["input_features"].transpose(1, 2), self.settings.augment, generator)
        return {**batch, "input_features": x.transpose(1, 2)}

    def loss(self, batch: Batch) -> Loss:
        return self._loss(batch, self.smoothing)

    def _loss(self, batch: Batch, smoothing: float) -> Loss:
        labels = batch["labels"]
        begun = self.model.shift_right(labels)
        logits = self.model(input_features=batch["input_features"], decoder_input_ids=begun).logits
        return Loss(*token_loss(logits, labels, smoothing))

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        total, numbers = Total(), []
        with answering(self.model):
            for some, batch in self.batches_of(self.prepared(rows)):
                total.add(self._loss(batch, 0.0))
                numbers += some.tolist()
        options = {"language": self.settings.language} if self.settings.language else {}
        heard = [rows[i] for i in sorted(numbers)]
        said = self.write([row["audio"] for row in heard], options, progress)
        wanted = [text_of(row["text"], "text") for row in heard]
        scores = cer_and_wer([str(one) for one in said], wanted, lowercase=self.settings.lowercase)
        return {**scores, "loss": total.mean, **self.skipped()}

    def answers(self, things: list[AudioInput], **options: Any) -> list[Transcript]:
        """Each a file, bytes, (rate, samples); `options` are those of `model.generate`, and `timestamps`."""
        chosen = {name: value for name, value in options.items() if name != "timestamps"}
        chosen |= {"return_timestamps": True} if options.get("timestamps") else {}
        return self.write([as_audio(one) for one in things], chosen)

    def write(
        self, sounds: Sequence[Audio], options: Mapping[str, Any], progress: Progress | None = None
    ) -> list[Transcript]:
        """Sounds that fit into one window together, longer ones by themselves."""
        chosen = {**self.writing, **options}
        if chosen.get("num_return_sequences", 1) != 1:
            raise InputError(
                "transcribe returns one transcript for each audio file; for several, use model.generate with"
                " num_return_sequences."
            )
        found: dict[int, Transcript] = {}
        waiting: list[tuple[int, Tensor]] = []
        for i, sound in enumerate(sounds):
            wave = sound.open(self.extractor.sampling_rate)
            window = self.extractor.n_frames * self.extractor.hop_length
            if len(wave) > window and self.tells_times:
                found[i] = self._write([self.extractor.extract_all(wave)], chosen)[0]
            elif len(wave) > window:
                found[i] = self._one_by_one(wave.split(window), chosen)
            else:
                waiting.append((i, self.extractor([wave])[0]))
            if len(waiting) == TOGETHER or (waiting and i + 1 == len(sounds)):
                made = self._write([features for _, features in waiting], chosen)
                found.update(zip([number for number, _ in waiting], made, strict=True))
                waiting = []
            if progress is not None:
                progress(i + 1, len(sounds))
        return [found[i] for i in range(len(sounds))]

    @property
    def decoding(self) -> dict[str, Any]:
        """What `model.generate` is told in every call that says nothing else."""
        return dict(self.writing)

    @property
    def tells_times(self) -> bool:
        """Whether the model says when it heard something, by which a longer sound is gone through."""
        return self.model.origin.generation.get("no_timestamps_token_id") is not None

    def _one_by_one(self, windows: Sequence[Tensor], options: Mapping[str, Any]) -> Transcript:
        """A sound cut where a window ends, and be it in a word: a model that tells no times can do no better."""
        said: list[Transcript] = []
        for start in range(0, len(windows), TOGETHER):
            some = windows[start : start + TOGETHER]
            said += self._write([self.extractor([wave])[0] for wave in some], options)
        return Transcript(" ".join(one.text for one in said if one.text), tuple(c for one in said for c in one.chunks))

    def _write(self, features: Sequence[Tensor], options: Mapping[str, Any]) -> list[Transcript]:
        batch = torch.stack(list(features)).to(self.model.device, self.model.dtype)
        with answering(self.model):
            out: Any = self.model.generate(batch, **options, return_segments=True)
        timed = bool(options.get("return_timestamps"))
        return [self._transcript(segments, timed) for segments in out.segments]

    def _transcript(self, segments: Sequence[Mapping[str, Any]], timed: bool) -> Transcript:
        none = self.model.origin.generation.get("no_timestamps_token_id")
        first = len(self.tokenizer) if none is None else none + 1
        chunks = []
        for segment in segments:
            words = [token for token in segment["tokens"] if token < first]
            chunks.append(Chunk(round(segment["start"], 2), round(segment["end"], 2), self.tokenizer.decode(words)))
        return Transcript("".join(chunk.text for chunk in chunks).strip(), tuple(chunks), timed)

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        epochs, lr = (40, 1e-3) if fresh else (5, 1e-5)
        return schedule_for(rows, epochs, size=16, lr=lr, warm=10, evals=10)
