"""Text recognition (OCR) of line images.

read = af.task("read", "folder")
print(read("line.png"))                 # TOTAL 12.50
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Generator

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig, Index
from anyformer.data.examples import Example, Examples, Progress
from anyformer.data.images import draw
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import Array, ImageFile, pillow
from anyformer.data.images.loading import DecodedImages
from anyformer.data.images.processor import ImageProcessor, ResizeTransform
from anyformer.data.images.render_pool import RenderPool
from anyformer.data.images.synthetic_text import SIGNS, TextLineGenerator
from anyformer.data.rows import Rows, read
from anyformer.data.settings import DataSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError, InputError
from anyformer.metrics.error_rates import cer_and_wer
from anyformer.model import Model
from anyformer.tasks.base import Batch, Column, Metrics, Options, Total, answering
from anyformer.tasks.caption import is_captioner
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture_text import ImageText, ImageTextOptions, PictureTextTask, image_encoder_config, texts_of
from anyformer.tasks.schedule_presets import schedule_for

SORTED = 1024  # lines that are sorted by width at once
ENOUGH = 50_000  # lines of prose
LONGER = 4  # lines at least so many times wider than high are kept in shape; squarer models squeeze them


def prose(paths: str) -> list[str]:
    """The lines of some files of text, those that ASCII can spell: enough to draw from."""
    if not paths:
        return []
    lines = (row["text"] for row in islice(read(paths, format="text"), ENOUGH))
    found = [part for line in lines for part in line.split("\t") if part.strip() and part.isascii()]
    if not found:
        raise DataError(f"task.texts: {paths} has no line of ASCII text.")
    return found


@dataclass(frozen=True, kw_only=True)
class OcrOptions(ImageTextOptions):
    num_beams: int = 1
    max_target_length: int = 96
    synthetic: float = 0.0  # lines drawn by fonts for each line of the data, while the model learns
    # Files of text that those lines spell, with large and small letters as they stand there; empty: the data's own.
    texts: str = ""
    lowercase: bool = False  # whether errors of case count
    overflow: Literal["squeeze", "cut", "refuse"] = "squeeze"  # what happens to a line wider than the model's limit
    augment: Augmentation = Augmentation(pad=0.03, color_jitter=0.4, randaugment_ops=1, magnitude=0.4)


class Read(PictureTextTask[ImageInput, ImageText]):
    name = "read"
    about = "recognize text in an image of one line (OCR)"
    columns = (Column("image"), Column("text", ("transcript", "label", "words", "transcription", "caption")))
    options_class: ClassVar[type[Options]] = OcrOptions
    settings: OcrOptions
    batch = BatchConfig(rows=64)
    column = "text"
    kind = "char"
    metric = "cer"
    larger_is_better = False
    wanted = "an image-to-text model, such as line-reader-small or trocr-small-lines"
    press: RenderPool | None = None  # draws lines while the model learns

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return is_captioner(config)

    @classmethod
    def make_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> ImageProcessor:
        """Models for long lines get them in their shape: as high as the model is, no wider than it goes, padded."""
        sees = image_encoder_config(model)
        size = tuple(sees.get("image_size", (224, 224)))
        if data.image_size is not None or size[1] < LONGER * size[0]:
            return super().make_processor(model, rows, data)
        channels = int(sees.get("n_channels", 3))
        free = "pixel_mask" in model.names  # of any width
        usual = (0.5,) * channels
        pad_size = None if free else size
        return ImageProcessor(max_size=size, pad=True, pad_size=pad_size, channels=channels, mean=usual, std=usual)

    def study(self, rows: Rows) -> None:
        if self.settings.synthetic:
            height, widest = self.processor.max_size or (32, 640)
            said = prose(self.settings.texts)
            texts = said or [text for row in rows for text in texts_of(row, "text")]
            self.press = RenderPool(TextLineGenerator(texts, height, widest, prose=bool(said)))

    @classmethod
    def texts(cls, rows: Rows, options: OcrOptions) -> Iterator[str]:
        """Where lines are drawn of prose, any sign may come."""
        return chain(super().texts(rows, options), [" ".join(SIGNS)] if options.texts else [])

    # Rows to batches.

    def lengths(self, examples: Examples) -> Any:
        """Lines of about as many letters stand together, which are about as wide."""
        if not isinstance(examples, DecodedImages) or "text" not in examples.source.columns:
            return super().lengths(examples)
        return np.array([len(texts_of(row, "text")[0]) for row in examples.source])

    def example(self, row: Row) -> Example:
        image = self.fit_picture(row["image"].open(self.processor.mode), row["image"].name)
        pixels, placement = self.processor.resize(image)
        return {"image": pixels, **self.targets(row, placement)}

    def fit_picture(self, image: Any, name: str) -> Any:
        """A line that is wider than the model's limit is squeezed, cut or refused, and that is said."""
        if self.processor.max_size is None:
            return image
        rows, columns = self.processor.max_size
        image.info.pop("original_size", None)  # of a huge one that was opened smaller: its shape is what counts
        most = max(image.height * columns // rows, 1)
        if image.width <= most:
            return image
        wide = f"{name} is {image.width} x {image.height} pixels; at {rows} rows the model reads {columns} columns"
        if self.settings.overflow == "refuse":
            raise InputError(f"{wide}. Crop it to a line, or set task.overflow to squeeze or cut.")
        how = "squeezed" if self.settings.overflow == "squeeze" else "cut off on the right"
        warnings.warn(f"{wide}, so it was {how}.", stacklevel=2)
        # Squeezed in its width alone: shrunk both ways, a line would have fewer rows than the model reads.
        squeezes = self.settings.overflow == "squeeze"
        return image.resize((most, image.height)) if squeezes else image.crop((0, 0, most, image.height))

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[Any]:
        """Lines of like width are read together, whatever order they come in: their texts are of like length too."""
        found: list[Any] = []
        for start in range(0, len(pictures), SORTED):
            some = pictures[start : start + SORTED]
            shapes = [one.open(self.processor.mode).size for one in some]
            order = sorted(range(len(some)), key=lambda i: shapes[i][0] / max(shapes[i][1], 1))
            said = super().answer([some[i] for i in order], **options)
            back = dict(zip(order, said, strict=True))
            found += [back[i] for i in range(len(some))]
        return found

    def draw(self, picture: ImageFile, ids: list[int]) -> Any:
        """The line, and below it a strip for each letter that was written, dark where along the line the model looked;
        where nobody looks, the line below its text."""
        with answering(self.model):
            batch, _ = self.look_at([picture])
            found = self.regions(batch, ids)
        if found is None:
            return draw.side_by_side([draw.shrink(picture.open())], [self.tokenizer.decode(ids).strip()])
        mask = batch.get("pixel_mask")
        inside = 1.0 if mask is None else float(mask[0, 0].float().mean())  # the rest of the columns is padding
        weights = found.float().sum(dim=1)[:, : max(round(inside * found.shape[2]), 1)]
        letters = [self.tokenizer.decode([token]).strip() or "_" for token in ids]
        return draw.strips(picture.open(), weights.cpu().numpy(), letters)

    def look_at(self, pictures: Sequence[ImageFile]) -> tuple[Batch, list[ResizeTransform]]:
        placed = [self.processor.resize(self.fit_picture(one.open(self.processor.mode), one.name)) for one in pictures]
        stacked = self.processor.stack([pixels for pixels, _ in placed])
        batch = {name: value.to(self.model.device) for name, value in stacked.items()}
        return self.ready(batch, None), [placement for _, placement in placed]

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        """Some of the lines are drawn instead, where the task says so: which, and how, comes from the generator."""
        if self.press is None:
            return super().collate(examples, generator)
        share = self.settings.synthetic / (1 + self.settings.synthetic)
        chosen = torch.rand(len(examples), generator=generator) < share
        seeds = torch.randint(2**31, (len(examples),), generator=generator)
        drawn = iter(self.press.draw([int(seed) for seed, new in zip(seeds, chosen, strict=True) if new]))
        mixed = [self._drawn(*next(drawn)) if new else one for one, new in zip(examples, chosen, strict=True)]
        return super().collate(mixed, generator)

    def batches_of(
        self, examples: Examples, settings: BatchConfig | None = None, progress: Progress | None = None
    ) -> Iterator[tuple[Index, Batch]]:
        """To be evaluated on: nothing but the lines of the data."""
        plain = copy.copy(self)
        plain.press = None
        return super(Read, plain).batches_of(examples, settings, progress)

    def _drawn(self, pixels: Array, text: str) -> Example:
        """A rendered line as an example; a processor with a fixed image size resizes it like the lines of the data."""
        if self.processor.max_size is None:
            pixels = self.processor.resize(pillow().Image.fromarray(pixels))[0][0]
        whole = np.repeat(pixels[None], self.processor.channels, axis=0)
        return {"image": whole, "texts": [self.encode(text)]}

    # Figures.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        total, said, wanted = Total(), [], []
        with answering(self.model):
            for numbers, batch in self.batches_of(self.prepared(rows), progress=progress):
                total.add(self.word_loss(batch, 0.0))
                said += self.texts_written(batch)
                wanted += [texts_of(rows[int(i)], "text")[0] for i in numbers]
        return {**cer_and_wer(said, wanted, lowercase=self.settings.lowercase), "loss": total.mean, **self.skipped()}

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        size, lr = 128 if rows > 1000 else 32, 1e-3 if fresh else 5e-5
        epochs = 10 if not fresh else 100 if rows > 5000 else 200
        return schedule_for(rows, epochs, size=size, lr=lr, evals=8, saves=4, weight_decay=0.01, label_smoothing=0.1)
