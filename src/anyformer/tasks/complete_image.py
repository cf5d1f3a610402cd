"""Image completion: the lower part of an image, generated pixel by pixel.

complete = af.task("complete-image", "folder")
answer = complete("cat.png", num_samples=4, temperature=0.9)
answer.images                         # 8-bit arrays [rows, columns, channels]
answer.draw().save("completions.png")   # the given part, the completions, the image itself
complete("a frog")                      # if the model is conditioned on text: images of it
complete(("a frog", "frog.png"))        # and completions for text and image

Training needs images without labels, or with texts if the model is conditioned on text. The metric is in bits: per
channel value if the model generates intensities (bits per dimension, as in papers), or per pixel if colors are
quantized to a palette. The two cannot be compared. JPEG compression lowers the number of bits, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.data.examples import Example, Examples
from anyformer.data.images import draw
from anyformer.data.images.augment import augment
from anyformer.data.images.image_file import ImageError, ImageFile, is_image, pillow
from anyformer.data.images.image_tokens import ColorPalette, ImageTokenizer, PixelIntensities
from anyformer.data.images.processor import FILE, ImageProcessor, ResizeTransform
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, FolderError
from anyformer.heads.cross_entropy import token_loss
from anyformer.jsonfile import parse_object
from anyformer.model import Model
from anyformer.recipes.dalle import BYTES, DalleConfig
from anyformer.recipes.image_transformer import ImageTransformerConfig
from anyformer.recipes.imagegpt import ImageGPTConfig
from anyformer.tasks.answers import Answer
from anyformer.tasks.base import Batch, Column, Loss, Metrics, Progress, Source, Total, answering
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture import ImageOptions, PictureTask

SEEN = 2000  # images whose colors a palette is made of
PIXELS = 200_000  # and how many pixels of them
GRAY = 128  # what is not given, in the drawing
AT_ONCE = 2**16  # tokens that are evaluated at once

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Completion(Answer):
    """`images` are the completions, 8-bit arrays [rows, columns, channels]; `bits` is the mean cost of the true
    remainder; `rows` are the given and all rows."""

    name: str
    images: tuple[Pixels, ...] = field(repr=False)
    given: Pixels = field(repr=False)
    original: Pixels = field(repr=False)
    rows: tuple[int, int]
    bits: float | None  # None: there was no image, only a text
    metric_name: str

    def __str__(self) -> str:
        n = len(self.images)
        if self.bits is None:
            return f"{self.name}: {n} image{'s' * (n > 1)}"
        said = f"{n} completion{'s' * (n > 1)}, {self.rows[0]} of {self.rows[1]} rows given"
        return f"{self.name}: {said}; the rest as it was takes {self.bits:.2f} {self.metric_name.replace('_', ' ')}"

    def draw(self) -> Any:
        """Side by side: what was given, the completions, the original."""
        shown = {str(i + 1): picture for i, picture in enumerate(self.images)}
        if self.bits is not None:
            shown = {"given": self.given, **shown, "original": self.original}
        return draw.side_by_side([_image(one) for one in shown.values()], list(shown))


@dataclass(frozen=True, kw_only=True)
class CompleteImageOptions(ImageOptions):
    prompt_fraction: float = 0.5  # the share of an image's rows that is given
    num_samples: int = 4  # completions of each image
    temperature: float = 1.0
    top_k: int = 0  # 0: among all
    top_p: float = 1.0
    seed: int = 0

    def check(self) -> None:
        self.require(
            0 <= self.prompt_fraction < 1, f"prompt_fraction is {self.prompt_fraction}; it must be from 0 to below 1."
        )
        self.require(self.num_samples > 0, f"num_samples is {self.num_samples}; it must be 1 or more.")


class CompleteImage(PictureTask[ImageInput | tuple[str, ImageInput], Completion]):
    name = "complete-image"
    about = "complete an image, pixel by pixel"
    columns = (Column("image"), Column("text", ("caption", "captions", "sentence", "label", "class"), optional=True))
    label_column = ""  # a text is read, not told
    options_class = CompleteImageOptions
    settings: CompleteImageOptions
    writes = True
    larger_is_better = False
    steady = True
    wanted = "a decoder of pixels"

    def __init__(self, model: Model, processor: ImageProcessor, options: Any = None, **more: Any) -> None:
        super().__init__(model, processor, options, **more)
        self.codes = codes_of(model)
        if isinstance(self.codes, ColorPalette) and {*(processor.mean or ()), *(processor.std or ())} != {0.5}:
            raise ConfigError(f"{FILE}: image_mean and image_std must be 0.5, since colors are in -1 to 1.")
        self.metric = self.codes.metric_name
        config = model.config
        self.words, self.text_length = (
            (config.n_words, config.text_length) if isinstance(config, DalleConfig) else (0, 0)
        )

    # The model.

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return isinstance(config, (ImageTransformerConfig, ImageGPTConfig)) or (
            isinstance(config, DalleConfig) and config.n_words == BYTES
        )

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: CompleteImageOptions) -> Settings:
        return config.replace(head="language") if isinstance(config, ImageGPTConfig) else config

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        super().check(model, path)
        if "language" not in model.heads:
            raise FolderError(
                f"{path} holds a {model.family} model with a classification head; {cls.name} needs a decoder of pixels."
            )

    @classmethod
    def make_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> ImageProcessor:
        """Images of the model's own size; without a palette of its own, a model of colors gets one of the data's."""
        size = size_of(model.config)
        if data.image_size is not None and (data.image_size, data.image_size) != size:
            raise ConfigError(
                f"data.image_size cannot be changed: the model generates images of {size[0]} x {size[1]}."
            )
        channels = model.config.n_channels if isinstance(model.config, ImageTransformerConfig) else 3
        processor = ImageProcessor(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
        if not isinstance(model.config, ImageTransformerConfig):
            if rows is None:
                raise ConfigError(f"The folder has no {FILE}, which holds the colors of its tokens.")
            palette = ColorPalette.fit(_some_pixels(rows, processor), n_colors(model.config), size)
            model.origin.files[FILE] = palette.write(processor.write())
        return processor

    # Rows to loss.

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        if not self.text_length:
            return {}
        text = row.get("text")
        return {"text": self.spell(text[0] if isinstance(text, (list, tuple)) else text)}

    def spell(self, text: str | None) -> Any:
        """The bytes of a text, from 1 on, filled up with 0 to the length that the model reads."""
        said = np.frombuffer((text or "").encode()[: self.text_length], dtype=np.uint8).astype(np.int64) + 1
        return np.pad(said, (0, self.text_length - len(said)))

    def collate_targets(self, examples: Sequence[Example]) -> Batch:
        return {"text": torch.from_numpy(np.stack([one["text"] for one in examples]))} if self.text_length else {}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        if generator is not None:
            batch = augment(batch, self.augmentation, generator)
        return self.sequences(self.codes.encode(batch["pixels"]), batch.get("text"))

    def sequences(self, tokens: Tensor, text: Tensor | None = None) -> Batch:
        """What the model reads, and what it should say: each token stands before the one it leads to. Before the first
        stands the start, or the text."""
        before = tokens.new_full((len(tokens), 1), self.codes.start) if text is None else text
        return {"ids": torch.cat([before, tokens[:, :-1] + self.words], dim=1), "labels": tokens}

    def scores(self, batch: Batch) -> Tensor:
        """Of every token of the images; words are not among what can be said there."""
        logits: Tensor = self.model(input_ids=batch["ids"]).logits
        return logits[:, -self.codes.length :, self.words :]

    def loss(self, batch: Batch) -> Loss:
        return Loss(*token_loss(self.scores(batch), batch["labels"]))

    def batches_of(
        self, examples: Examples, settings: BatchConfig | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Index, Batch]]:
        """As many images as their tokens allow: a small one is thousands."""
        few = BatchConfig(rows=max(AT_ONCE // self.codes.length, 1))
        return super().batches_of(examples, settings or few, progress)

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        total = Total()
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                total.add(self.loss(batch))
        return {self.metric: total.mean / math.log(2), "loss": total.mean, **self.skipped()}

    # Answers.

    def answers(self, things: list[Any], **options: Any) -> list[Completion]:
        """Each an image; or, where the model reads a text first, a text, or a text and an image."""
        if not self.text_length:
            return super().answers(things, **options)
        return [self._said(*_text_and_picture(one), options) for one in things]

    def _said(self, text: str, picture: ImageFile | None, options: dict[str, Any]) -> Completion:
        if picture is not None:
            return self.answer([picture], texts=[text], **options)[0]
        blank = ImageFile.of(np.zeros((*self.codes.size, 3), dtype=np.uint8), text)
        return replace(self.answer([blank], texts=[text], **{**options, "prompt_fraction": 0.0})[0], bits=None)

    def answer(self, pictures: Sequence[ImageFile], texts: Sequence[str] = (), **options: Any) -> list[Completion]:
        chosen: CompleteImageOptions = self.settings.replace(**options)
        placed = [self.processor.resize(picture.open(self.processor.mode))[0] for picture in pictures]
        tokens = self.codes.encode(self.processor.stack(placed)["pixels"].to(self.model.device))
        text = torch.from_numpy(np.stack([self.spell(one) for one in texts])).to(tokens) if self.text_length else None
        batch, n = self.sequences(tokens, text), self.codes.prefix_length(chosen.prompt_fraction)
        with answering(self.model):
            bits = self._bits(batch, n)
        written = self._write(batch, n, chosen)
        return [
            self._completion(picture.name, one, made, n, rest)
            for picture, one, made, rest in zip(pictures, tokens, written, bits, strict=True)
        ]

    def _bits(self, batch: Batch, n: int) -> list[float]:
        """Of each token after the first `n`, on average, for each image."""
        logs = torch.log_softmax(self.scores(batch)[:, n:].float(), dim=-1)
        said = logs.gather(2, batch["labels"][:, n:, None])
        return [float(one) for one in -said.mean(dim=(1, 2)) / math.log(2)]

    def _write(self, batch: Batch, n: int, chosen: CompleteImageOptions) -> Tensor:
        """[images, samples, length]. Each row draws from dice of its own, so that neighbors do not change it."""
        many, before = chosen.num_samples, self.text_length or 1
        made: Any = self.model.generate(
            input_ids=batch["ids"][:, : before + n].repeat_interleave(many, dim=0),
            max_new_tokens=self.codes.length - n,
            do_sample=True,
            temperature=chosen.temperature,
            top_k=chosen.top_k,
            top_p=chosen.top_p,
            eos_token_id=None,
            suppress_tokens=list(range(self.words)) or None,
            seed=[chosen.seed + i for _ in batch["labels"] for i in range(many)],
        )
        return (made[:, before:] - self.words).unflatten(0, (-1, many))

    def _completion(self, name: str, tokens: Tensor, made: Tensor, n: int, bits: float) -> Completion:
        shown = _arrays(self.codes.decode(torch.cat([tokens[None], made])))
        rows = n * self.codes.size[0] // self.codes.length
        given = shown[0].copy()
        given[rows:] = GRAY
        return Completion(
            name, tuple(shown[1:]), given, shown[0], (rows, self.codes.size[0]), bits, self.codes.metric_name
        )

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        # Thousands of tokens an image: few images make a step, and few rounds take long.
        size = 16 if rows >= 1000 else 8
        steps = max(min(4000, 40 * rows // size), 50)
        return {
            "batch_size": size,
            "steps": steps,
            "lr": 1e-3 if fresh else 1e-4,
            "min_lr": 1e-5,
            "warmup_steps": min(200, steps // 10),
            "weight_decay": 0.01,
            "betas": (0.9, 0.95),
            "eval_every": max(steps // 2, 1),
            "save_every": max(steps // 4, 1),
            "compile": torch.cuda.is_available(),
        }


def size_of(config: Settings) -> tuple[int, int]:
    """Rows and columns of the images that a model writes; a model that knows only how many pixels: a square."""
    if isinstance(config, (ImageTransformerConfig, DalleConfig)):
        return config.image_size[0], config.image_size[1]
    assert isinstance(config, ImageGPTConfig)
    side = math.isqrt(config.max_length)
    if side * side != config.max_length:
        raise ConfigError(f"max_length is {config.max_length}, which is not the number of pixels of a square.")
    return side, side


def n_colors(config: Settings) -> int:
    """How many colors a model's words stand for."""
    if isinstance(config, DalleConfig):
        return config.n_codes
    assert isinstance(config, ImageGPTConfig)
    return config.vocab_size - 1


def _text_and_picture(inputs: Any) -> tuple[str, ImageFile | None]:
    """What is handed in: a text, the name of an image's file, or both."""
    if isinstance(inputs, tuple) and len(inputs) == 2:
        return str(inputs[0]), ImageFile.of(inputs[1])
    if isinstance(inputs, str) and not (is_image(inputs) or Path(inputs).is_file()):
        return inputs, None
    return "", ImageFile.of(inputs)


def codes_of(model: Model) -> ImageTokenizer:
    config = model.config
    if isinstance(config, ImageTransformerConfig):
        return PixelIntensities(size_of(config), config.raster, config.n_values)
    try:
        return ColorPalette.read(
            parse_object(model.origin.files.get(FILE, b"{}"), FILE), size_of(config), n_colors(config)
        )
    except ConfigError as error:
        raise ConfigError(f"{FILE}: {error}") from None


def _some_pixels(rows: Rows, processor: ImageProcessor) -> Tensor:
    """Pixels [n, 3] of some of the images, evenly."""
    every = max(len(rows) // SEEN, 1)
    placed = []
    for i in range(0, len(rows), every):
        with suppress(ImageError):  # training skips it and says so
            placed.append(processor.resize(rows[i]["image"].open(processor.mode))[0])
    if not placed:
        raise ImageError(f"None of the images of {rows.path} can be opened.")
    pixels = torch.from_numpy(np.stack(placed)).permute(0, 2, 3, 1).reshape(-1, 3)
    return pixels[:: max(len(pixels) // PIXELS, 1)]


def _arrays(pixels: Tensor) -> list[Pixels]:
    """[n, C, H, W] -> n arrays [H, W, C]"""
    return list(pixels.permute(0, 2, 3, 1).cpu().numpy())


def _image(pixels: Pixels) -> Any:
    flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return pillow().Image.fromarray(np.ascontiguousarray(flat))
