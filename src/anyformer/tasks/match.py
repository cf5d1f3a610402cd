"""Image-text matching and zero-shot classification (CLIP).

match = af.task("match", "folder")
match("beach.jpg", texts=["a dog on a beach", "a red car"])   # which text fits, with probabilities
match("beach.jpg", texts=["dog", "car"], template="a photo of a {}.")
match.vectors(pictures=["beach.jpg"]), match.vectors(texts=["a dog"])   # in the shared space
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.batch_sampler import BatchConfig
from anyformer.data.examples import Example
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.data.rows import Rows
from anyformer.errors import InputError
from anyformer.heads.contrastive import contrastive_loss
from anyformer.metrics.retrieval import ranks, warn_of_nan
from anyformer.model import Model
from anyformer.tasks.answers import Answer
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Column, Loss, Metrics, Options, Progress, Total, answering
from anyformer.tasks.grouped import group_by_image
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.negatives import everyone, is_shared
from anyformer.tasks.picture import ImageOptions
from anyformer.tasks.picture_text import AT_ONCE, PictureTextTask, draw_texts, texts_of
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import TEXT_PAD_VALUES, softmax_scores, text_of
from anyformer.tokenizers.cuts import shorten
from anyformer.tokenizers.padding import pad

TEXTS_AT_ONCE = 256
RANKS = (1, 5, 10)


@dataclass(frozen=True)
class TextMatch(Answer):
    """The text that fits an image best, and its probability among the given ones; `scores` are those of all."""

    label: str
    score: float
    scores: dict[str, float] = field(repr=False)

    def __str__(self) -> str:
        return f"{self.label} ({self.score:.2f})"


@dataclass(frozen=True, kw_only=True)
class MatchOptions(ImageOptions):
    # No flip: a text may say left and right.
    augment: Augmentation = Augmentation(crop=(0.5, 1.0), color_jitter=0.4)
    max_target_length: int = 64  # tokens of a text
    texts: tuple[str, ...] = ()  # what an image is compared with, where the caller does not say
    template: str = "{}"  # how each of them is written: "a photo of a {}."


class Match(PictureTextTask[ImageInput, TextMatch]):
    name = "match"
    fills = TEXT_PAD_VALUES
    about = "match images and texts (contrastive learning)"
    columns = (Column("image"), Column("captions", ("caption", "text", "sentence", "sentences", "description")))
    options_class: ClassVar[type[Options]] = MatchOptions
    settings: MatchOptions  # type: ignore[assignment]  # it writes nothing, so it has no beams
    takes = ("texts", "template")
    beside = "texts"
    writes = False
    draws = False
    batch = BatchConfig(rows=128)
    kind = "bpe"
    metric = "recall10"
    contrastive = True
    wanted = "an image encoder with a text encoder, such as clip-small"

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return "log_scale" in config.field_names()

    @classmethod
    def read(cls, paths: Any, data: Any = DEFAULT_SETUP.data) -> Rows:
        return group_by_image(super().read(paths, data), "captions")

    @property
    def longest(self) -> int:
        return min(int(self.settings.max_target_length), text_room(self.model))

    def encode(self, text: str) -> list[int]:
        """A text is cut before its end, and has it all the same."""
        ids = self.tokenizer.encode(text, special=False)
        start = [] if self.tokenizer.start_id is None else [self.tokenizer.start_id]
        room = self.longest - 1 - len(start)
        return [*start, *shorten(ids, room, text), *([] if self.end is None else [self.end])]

    # Rows to loss.

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = super(PictureTextTask, self).collate(examples, generator)
        return batch if "texts" not in examples[0] else {**batch, **self._padded(draw_texts(examples, generator))}

    def _padded(self, rows: list[list[int]]) -> Batch:
        return pad(rows, self.tokenizer.pad_id or 0)

    def loss(self, batch: Batch) -> Loss:
        texts = {name: batch[name] for name in ("input_ids", "attention_mask")}
        found = self.model(**self.seen(batch), **texts)
        count = torch.full((), float(len(found.text_embeds)), device=found.text_embeds.device)
        if not is_shared(self.model.training):
            return Loss(contrastive_loss(found.logits_per_text) * count, count)
        texts_find = self._finds(found.text_embeds, found.image_embeds, batch)
        return Loss((texts_find + self._finds(found.image_embeds, found.text_embeds, batch)) / 2, count)

    def _finds(self, own: Tensor, other: Tensor, batch: Batch) -> Tensor:
        """How badly each of this process's rows tells its partner among those of all processes, summed."""
        every = everyone(other, batch, self.model.training)
        logits = own @ every.rows.T * self.model.heads["match"].get_parameter("scale").exp()
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(logits, every.own(len(own)), reduction="sum")

    # Figures and answers.

    def vectors(self, *, pictures: Sequence[Any] | None = None, texts: Sequence[str] | None = None) -> Tensor:
        """[n, d], each of length 1: of images, or of texts."""
        if (pictures is None) == (texts is None):
            raise InputError("Give either pictures or texts.")
        rows = list(self._pictures(pictures) if pictures is not None else self._texts(texts or ()))
        if not rows:
            raise InputError("The list of images or texts is empty.")
        return torch.cat(rows)

    def _pictures(self, pictures: Sequence[Any]) -> Iterator[Tensor]:
        for start in range(0, len(pictures), AT_ONCE):
            batch, _ = self.look_at([ImageFile.of(one) for one in pictures[start : start + AT_ONCE]])
            yield self._image_side(batch)

    def _image_side(self, batch: Batch) -> Tensor:
        blank = self._padded([self.encode("")])  # the other tower wants something too
        with answering(self.model):
            found: Tensor = self.model(**self.seen(batch), **self._here(blank)).image_embeds
        return found.float().cpu()

    def _texts(self, texts: Sequence[str]) -> Iterator[Tensor]:
        size = self.processor.fixed or (32, 32)
        dtype, device = self.model.dtype, self.model.device
        blank = torch.zeros(1, self.processor.channels, *size, dtype=dtype, device=device)
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            batch = self._here(self._padded([self.encode(text) for text in texts[start : start + TEXTS_AT_ONCE]]))
            with answering(self.model):
                yield self.model(**batch, pixel_values=blank).text_embeds.float().cpu()

    def _here(self, batch: Batch) -> Batch:
        return {name: value.to(self.model.device) for name, value in batch.items()}

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """Of how many texts the image is among the best 1, 5, 10; and of how many images one of its texts."""
        total, seen, numbers = Total(), [], []
        with answering(self.model):
            for places, batch in self.batches_of(self.prepared(rows), progress=progress):
                total.add(self.loss(batch))
                seen.append(self._image_side(batch))
                numbers += places.tolist()
        texts = [(owner, text) for owner, i in enumerate(numbers) for text in texts_of(rows[i], "captions")]
        owners = torch.tensor([owner for owner, _ in texts])
        written = torch.cat(list(self._texts([text for _, text in texts])))
        return {**recalls(torch.cat(seen), written, owners), "loss": total.mean, **self.skipped()}

    def one_input(self, things: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The texts may follow the image one by one."""
        return super().one_input((things[0], things[1:]) if len(things) > 2 else things, options)

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[Any]:
        texts = options.pop("texts", self.settings.texts)
        texts = [text_of(text, "text") for text in ([texts] if isinstance(texts, str) else texts)]
        template = options.pop("template", self.settings.template)
        if options:
            raise InputError(f'match takes no "{next(iter(options))}". It takes: texts, template.')
        if not texts:
            raise InputError("Give the texts to choose from: anyformer run match IMAGE TEXT TEXT …, or texts=[…].")
        if "{}" not in template:
            raise InputError(f'template is "{template}"; it must contain {{}}, the place of the text.')
        scale = self.model.heads["match"].get_parameter("scale").detach().exp().item()
        logits = scale * self.vectors(pictures=pictures) @ self.vectors(texts=[template.format(x) for x in texts]).T
        found = []
        for row in softmax_scores(logits):
            best = int(row.argmax())
            found.append(TextMatch(texts[best], float(row[best]), dict(zip(texts, row.tolist(), strict=True))))
        return found

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        size, lr = min(256, max(rows // 4, 8)), 1e-3 if fresh else 1e-5
        return schedule_for(rows, 150 if fresh else 10, size=size, lr=lr, warm=10, evals=4, saves=4, weight_decay=0.1)


def text_room(model: Model) -> int:
    config: Any = model.config
    return int(config.text.max_length)


def recalls(images: Tensor, texts: Tensor, owners: Tensor) -> Metrics:
    """`owners` [texts] is the image of each text. In percent, both ways, and their mean at 10 as `recall10`."""
    likeness = texts @ images.T
    own = owners[:, None] == torch.arange(len(images))
    by_text = ranks(likeness, likeness.gather(1, owners[:, None])[:, 0], ~own)
    best = likeness.masked_fill(~own, float("-inf")).amax(dim=0)
    by_picture = ranks(likeness.T, best, ~own.T)
    warn_of_nan(images, texts)
    figures: Metrics = {}
    for n in RANKS:
        figures[f"image_recall{n}"] = 100 * float((by_text <= n).cpu().double().mean())  # an image found by a text
        figures[f"text_recall{n}"] = 100 * float((by_picture <= n).cpu().double().mean())
    mean = (float(figures["image_recall10"]) + float(figures["text_recall10"])) / 2
    return {"recall10": mean, **figures, "chance10": 100 * min(10 / len(images), 1.0)}
