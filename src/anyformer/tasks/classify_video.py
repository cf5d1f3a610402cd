"""Video classification: actions, directions of motion.

classify = af.task("classify-video", "folder")
print(classify("jump.mp4"))             # jumping (0.88)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.files import Paths
from anyformer.data.images.processor import FILE, IMAGENET, ImageProcessor
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings
from anyformer.data.tables.formats import Row
from anyformer.data.video.clips import Clip, read_clips
from anyformer.model import Model
from anyformer.tasks.base import Batch, Column, Options
from anyformer.tasks.inputs import VideoInput
from anyformer.tasks.labeled import LabeledTask
from anyformer.tasks.schedule_presets import schedule_for


@dataclass(frozen=True, kw_only=True)
class ClipAugmentation(Settings):
    """Random changes of a clip during training, the same for all of its frames."""

    flip: float = 0.0  # probability of a horizontal flip, which turns "left" into "right": off by default
    shift: float = 0.1  # largest translation, as a fraction of the frame

    def check(self) -> None:
        for name in self.field_names():
            value = getattr(self, name)
            self.require(0 <= value <= 1, f"{name} is {value}; it must be from 0 to 1.")


@dataclass(frozen=True, kw_only=True)
class ClassifyVideoOptions(Options):
    augment: ClipAugmentation = ClipAugmentation()


@dataclass(frozen=True)
class ClipReader:
    """A number of frames of a clip, each preprocessed as an image."""

    processor: ImageProcessor
    n_frames: int

    field = "pixel_values"

    def frames(self, clip: Clip) -> Tensor:
        """[frames, channels, rows, columns] of 8 bits."""
        placed = [self.processor.resize(frame)[0] for frame in clip.take(self.n_frames)]
        return torch.stack([torch.as_tensor(one) for one in placed])

    def normalize(self, frames: Tensor) -> Tensor:
        """[B, frames, …] of 8 bits -> as the model takes them."""
        flat = self.processor.normalize(frames.flatten(0, 1), None)["pixel_values"]
        return flat.unflatten(0, frames.shape[:2])

    def write(self) -> dict[str, bytes]:
        return {FILE: self.processor.write()}


class ClassifyVideo(LabeledTask[VideoInput]):
    name = "classify-video"
    about = "classify videos"
    columns = (
        Column("clip", ("video", "file", "path", "frames", "folder")),
        Column("label", ("labels", "class", "category", "action", "target")),
    )
    options_class = ClassifyVideoOptions
    settings: ClassifyVideoOptions
    column = "clip"
    steady = True
    wanted = "a video encoder that supports a classification head, such as timesformer-base"

    @classmethod
    def thing(cls, value: Any) -> Any:
        return Clip.of(value)

    @classmethod
    def reads_such(cls, config: Settings) -> bool:
        clips = {"n_frames", "image_size"} <= set(config.field_names()) and "n_mels" not in config.field_names()
        return clips and getattr(config, "attention_type", None) != "space"  # which answers frame by frame

    @classmethod
    def find_files(cls, paths: Paths, column: str | None, **asked: Any) -> Rows:
        return read_clips(paths, clip=column, **asked)

    @classmethod
    def find_reader(cls, model: Model, rows: Rows | None, data: DataSettings) -> ClipReader:
        settings = model.config.to_json()
        if FILE in model.origin.files:
            return ClipReader(ImageProcessor.read(model.origin.files[FILE], FILE), settings["n_frames"])
        size = tuple(settings["image_size"])
        channels = settings["n_channels"]
        mean, std = (IMAGENET["mean"], IMAGENET["std"]) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
        processor = ImageProcessor(size=size, channels=channels, mean=mean, std=std)
        return ClipReader(processor, settings["n_frames"])

    def features(self, row: Row) -> dict[str, Any]:
        return {"clips": self.reader.frames(row["clip"]).numpy()}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        clips = batch["clips"]
        if generator is not None:
            clips = augment_clips(clips, self.settings.augment, generator)
        left = {name: value for name, value in batch.items() if name != "clips"}
        return {"pixel_values": self.reader.normalize(clips), **left}

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        lr = 5e-4 if fresh else 5e-5
        return schedule_for(rows, 40 if fresh else 10, size=16, lr=lr, warm=10, evals=10, weight_decay=0.05)


def augment_clips(clips: Tensor, how: ClipAugmentation, generator: Generator) -> Tensor:
    """Each clip mirrored or not, and all of its frames moved alike; what leaves at one side comes back at the other."""
    rows, columns = clips.shape[-2:]
    chance = torch.rand(3, len(clips), generator=generator, device=generator.device).to(clips.device)
    down, along = (((2 * chance[i] - 1) * how.shift * size).round().long() for i, size in ((1, rows), (2, columns)))
    across = torch.arange(columns, device=clips.device).expand(len(clips), -1)
    across = torch.where((chance[0] < how.flip)[:, None], columns - 1 - across, across)
    across = (across - along[:, None]) % columns
    below = (torch.arange(rows, device=clips.device) - down[:, None]) % rows
    moved = clips.gather(3, below.view(len(clips), 1, 1, rows, 1).expand_as(clips))
    return moved.gather(4, across.view(len(clips), 1, 1, 1, columns).expand_as(clips))
