"""The rest of a picture of which the upper part is given, written pixel by pixel.

complete = af.task("complete-image", "folder")
answer = complete("cat.png", samples=4, temperature=0.9)
answer.pictures                         # 8-bit arrays [rows, columns, channels]
answer.draw().save("completions.png")   # what was given, the completions, the picture itself

It learns from pictures without labels. The figure is in bits: of a value of one channel where the model writes the
intensities themselves (bits per dimension, as papers have it), else of the code of a pixel, whose colour was rounded to
a palette's; the two cannot be compared. Nor can pictures that went through JPEG with those that did not: they hold
fewer bits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.read import Rows
from anyformer.data.settings import DataSettings
from anyformer.errors import ConfigError, FolderError
from anyformer.model import Model
from anyformer.pictures import draw
from anyformer.pictures.augment import Augmentation, augment
from anyformer.pictures.codes import Codes, Intensities, Palette
from anyformer.pictures.open import Picture, PictureError, pillow
from anyformer.pictures.processor import FILE, Processor
from anyformer.recipes.image_transformer import ImageTransformer
from anyformer.recipes.imagegpt import ImageGPT
from anyformer.tasks.base import Batch, Column, Figures, Loss, Progress, Source, Total, answering
from anyformer.tasks.picture import PictureOptions, PictureTask
from anyformer.tasks.text import token_loss

SEEN = 2000  # pictures whose colours a palette is made of
PIXELS = 200_000  # and how many pixels of them
GREY = 128  # what is not given, in the drawing

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Completion:
    """`pictures` are the completions, 8-bit arrays [rows, columns, channels]; `bits` what the rest as it really was
    takes the model on average; `rows` how many rows were given, of how many."""

    name: str
    pictures: tuple[Pixels, ...] = field(repr=False)
    given: Pixels = field(repr=False)
    original: Pixels = field(repr=False)
    rows: tuple[int, int]
    bits: float
    figure: str

    def __str__(self) -> str:
        many = "1 completion" if len(self.pictures) == 1 else f"{len(self.pictures)} completions"
        of = f"{self.rows[0]} of {self.rows[1]} rows given"
        return f"{self.name}: {many}, {of}; the rest as it was takes {self.bits:.2f} {self.figure.replace('_', ' ')}"

    def draw(self) -> Any:
        """Side by side: what was given, the completions, the original."""
        titles = ["given", *(f"{i + 1}" for i in range(len(self.pictures))), "original"]
        return draw.beside([_image(one) for one in (self.given, *self.pictures, self.original)], titles)


@dataclass(frozen=True, kw_only=True)
class CompleteImageOptions(PictureOptions):
    augment: Augmentation = Augmentation(flip=0.5)
    given: float = 0.5  # the share of a picture's rows that is given
    samples: int = 4  # completions of each picture
    temperature: float = 1.0
    top_k: int = 0  # 0: among all
    top_p: float = 1.0
    seed: int = 0

    def check(self) -> None:
        self.require(0 <= self.given < 1, f"given is {self.given}; it must be from 0 to below 1.")
        self.require(self.samples > 0, f"samples is {self.samples}; it must be 1 or more.")


class CompleteImage(PictureTask):
    name = "complete-image"
    about = "the rest of a picture, pixel by pixel"
    columns = (Column("image"),)
    options_class = CompleteImageOptions
    larger_is_better = False
    wanted = "a decoder of pixels"

    def __init__(self, model: Model, processor: Processor, options: Any = None, **more: Any) -> None:
        super().__init__(model, processor, options, **more)
        self.codes = codes_of(model)
        if isinstance(self.codes, Palette) and {*(processor.mean or ()), *(processor.std or ())} != {0.5}:
            raise ConfigError(f"{FILE}: colours are compared from -1 to 1; image_mean and image_std must be 0.5.")
        self.metric = self.codes.figure

    # The model.

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return isinstance(config, (ImageTransformer, ImageGPT))

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: Any) -> Settings:
        return config.replace(head="language") if isinstance(config, ImageGPT) else config

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        super().check(model, path)
        if "language" not in model.heads:
            raise FolderError(
                f"{path} holds a {model.family} model that gives classes; {cls.name} wants one that writes."
            )

    @classmethod
    def make_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> Processor:
        """Pictures of the model's own size; without a palette of its own, a model of colours gets one of the data's."""
        size = size_of(model.config)
        if data.image_size is not None and (data.image_size, data.image_size) != size:
            raise ConfigError(
                f"The model writes pictures of {size[0]} x {size[1]}; data.image_size cannot change that."
            )
        channels = model.config.n_channels if isinstance(model.config, ImageTransformer) else 3
        processor = Processor(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
        if isinstance(model.config, ImageGPT):
            if rows is None:
                raise ConfigError(f"The folder has no {FILE}, which says what colours the model's words stand for.")
            palette = Palette.fit(_some_pixels(rows, processor), model.config.vocab_size - 1, size)
            model.origin.files[FILE] = palette.write(processor.write())
        return processor

    # Rows to loss.

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        if generator is not None:
            batch = augment(batch, self.augmentation, generator)
        return self.sequences(self.codes.encode(batch["pixels"]))

    def sequences(self, tokens: Tensor) -> Batch:
        """What the model reads, and what it should say: each token stands before the one it leads to."""
        start = tokens.new_full((len(tokens), 1), self.codes.start)
        return {"input_ids": torch.cat([start, tokens[:, :-1]], dim=1), "labels": tokens}

    def loss(self, batch: Batch) -> Loss:
        return Loss(*token_loss(self.model(input_ids=batch["input_ids"]).logits, batch["labels"]))

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Figures:
        total = Total()
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                total.add(self.loss(batch))
        return {self.metric: total.mean / math.log(2), "loss": total.mean, **self.skipped()}

    # Answers.

    def answer(self, pictures: Sequence[Picture], **options: Any) -> list[Completion]:
        chosen: CompleteImageOptions = self.settings.replace(**options)
        placed = [self.processor.place(picture.open(self.processor.mode))[0] for picture in pictures]
        tokens = self.codes.encode(self.processor.stack(placed)["pixels"].to(self.model.device))
        n = self.codes.given(chosen.given)
        with answering(self.model):
            bits = self._bits(tokens, n)
        written = self._write(tokens, n, chosen)
        return [
            self._completion(picture.name, one, made, n, rest)
            for picture, one, made, rest in zip(pictures, tokens, written, bits, strict=True)
        ]

    def _bits(self, tokens: Tensor, n: int) -> list[float]:
        """Of each token after the first `n`, on average, for each picture."""
        batch = self.sequences(tokens)
        logits = self.model(input_ids=batch["input_ids"]).logits[:, n:]
        said = torch.log_softmax(logits.float(), dim=-1).gather(2, tokens[:, n:, None])
        return [float(one) for one in -said.mean(dim=(1, 2)) / math.log(2)]

    def _write(self, tokens: Tensor, n: int, chosen: CompleteImageOptions) -> Tensor:
        """[pictures, samples, length]. Each row draws from dice of its own, so that neighbours do not change it."""
        many = chosen.samples
        prompt = self.sequences(tokens)["input_ids"][:, : n + 1].repeat_interleave(many, dim=0)
        made = self.model.generate(
            input_ids=prompt,
            max_new_tokens=self.codes.length - n,
            do_sample=True,
            temperature=chosen.temperature,
            top_k=chosen.top_k,
            top_p=chosen.top_p,
            eos_token_id=None,
            seed=[chosen.seed + i for _ in tokens for i in range(many)],
        )
        return made[:, 1:].unflatten(0, (len(tokens), many))

    def _completion(self, name: str, tokens: Tensor, made: Tensor, n: int, bits: float) -> Completion:
        shown = _arrays(self.codes.decode(torch.cat([tokens[None], made])))
        rows = n * self.codes.size[0] // self.codes.length
        given = shown[0].copy()
        given[rows:] = GREY
        return Completion(name, tuple(shown[1:]), given, shown[0], (rows, self.codes.size[0]), bits, self.codes.figure)

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        # Thousands of tokens a picture: few pictures make a step, and few rounds take long.
        size = 16 if rows >= 1000 else 8
        steps = max(min(4000, 40 * rows // size), 50)
        return {
            "batch_size": size,
            "steps": steps,
            "lr": 1e-3 if fresh else 1e-4,
            "min_lr": 1e-5,
            "warmup": min(200, steps // 10),
            "weight_decay": 0.01,
            "betas": (0.9, 0.95),
            "eval_every": max(steps // 2, 1),
            "save_every": max(steps // 4, 1),
            "compile": torch.cuda.is_available(),
        }


def size_of(config: Settings) -> tuple[int, int]:
    """Rows and columns of the pictures that a model writes; a model that knows only how many pixels: a square."""
    if isinstance(config, ImageTransformer):
        return config.image_size[0], config.image_size[1]
    assert isinstance(config, ImageGPT)
    side = math.isqrt(config.max_length)
    if side * side != config.max_length:
        raise ConfigError(f"max_length is {config.max_length}, which are not the pixels of a square.")
    return side, side


def codes_of(model: Model) -> Codes:
    config = model.config
    if isinstance(config, ImageTransformer):
        return Intensities(size_of(config), config.raster, config.n_values)
    assert isinstance(config, ImageGPT)
    try:
        return Palette.read(json.loads(model.origin.files.get(FILE, b"{}")), size_of(config), config.vocab_size - 1)
    except ConfigError as error:
        raise ConfigError(f"{FILE}: {error}") from None


def _some_pixels(rows: Rows, processor: Processor) -> Tensor:
    """Pixels [n, 3] of some of the pictures, evenly."""
    every = max(len(rows) // SEEN, 1)
    placed = []
    for i in range(0, len(rows), every):
        with suppress(PictureError):  # training skips it and says so
            placed.append(processor.place(rows[i]["image"].open(processor.mode))[0])
    if not placed:
        raise PictureError(f"None of the pictures of {rows.path} that were tried can be opened.")
    pixels = torch.from_numpy(np.stack(placed)).permute(0, 2, 3, 1).reshape(-1, 3)
    return pixels[:: max(len(pixels) // PIXELS, 1)]


def _arrays(pixels: Tensor) -> list[Pixels]:
    """[n, C, H, W] -> n arrays [H, W, C]"""
    return list(pixels.permute(0, 2, 3, 1).cpu().numpy())


def _image(pixels: Pixels) -> Any:
    flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    return pillow().Image.fromarray(np.ascontiguousarray(flat))
