"""Image classification.

classify = af.task("classify-image", "folder")
print(classify("cat.jpg"))              # cat (0.93)
classify("cat.jpg").draw()              # the image, with what the class token looked at
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example
from anyformer.data.images import draw
from anyformer.data.images.attention_maps import class_attention
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.processor import ResizeTransform
from anyformer.data.rows import Rows
from anyformer.data.settings import class_name
from anyformer.data.tables.formats import Row
from anyformer.errors import DataError
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.classification import accuracy, f1
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import ImageLabel
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Column, Loss, Metrics, Progress, Source, TaskSetup, answering
from anyformer.tasks.distill import DistillOptions, Teacher
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture import PictureTask, head_for, takes_images
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import softmax_scores

HEADS = ("distill", "classify", "classify-image")


@dataclass(frozen=True, kw_only=True)
class ClassifyImageOptions(DistillOptions):
    # Half as strong as DeiT's: small models in some hundred rounds learn less from more (docs/LOG.md).
    augment: Augmentation = Augmentation(
        pad=0.125, flip=0.5, randaugment_ops=2, magnitude=0.5, mixup=0.8, cutmix=1.0, mix_prob=0.5
    )


class ClassifyImage(PictureTask[ImageInput, ImageLabel]):
    name = "classify-image"
    about = "classify images"
    columns = (Column("image"), Column("label", ("labels", "class", "category", "target", "y")))
    options_class = ClassifyImageOptions
    settings: ClassifyImageOptions
    metric = "accuracy"
    steady = True
    wanted = "an image encoder that supports a classification head"

    @classmethod
    def find_labels(cls, rows: Rows, options: ClassifyImageOptions, setup: TaskSetup) -> tuple[str, ...]:
        labels = super().find_labels(rows, options, setup)
        if len(labels) < 2:
            raise DataError(f"{rows.path} has one label only, {labels[0]!r}; give rows of two classes or more.")
        return labels

    @classmethod
    def row_classes(cls, rows: Rows, options: ClassifyImageOptions) -> list[str] | None:
        return [class_name(row["label"]) for row in rows]

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return takes_images(config) and head_for(config, *HEADS) is not None

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: ClassifyImageOptions) -> Settings:
        return config.replace(head=head_for(config, *HEADS), n_labels=len(labels), problem=None)

    @classmethod
    def check(cls, model: Model, path: Source) -> None:
        super().check(model, path)
        build.want_head(model, path, HEADS, gives="classes", task=cls.name)

    teacher: Teacher | None = None

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        task = super().begin(source, rows, valid, setup)
        if task.settings.teacher:
            task.teacher = Teacher(task.settings, task.processor, task.labels)
        return task

    # Rows to loss.

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        """While the model learns, with what the teacher says of the images as they are by then."""
        made = super().ready(batch, generator)
        if self.teacher is None or generator is None:
            return made
        return {**made, "teacher": self.teacher.scores(made["pixel_values"])}

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        return {"labels": self.number_of(row["label"])} if "label" in row else {}

    def collate_targets(self, examples: Sequence[Example]) -> Batch:
        return {"labels": torch.tensor([one["labels"] for one in examples])} if "labels" in examples[0] else {}

    def loss(self, batch: Batch) -> Loss:
        """Where two images were mixed, each of their labels counts by its share."""
        out = self.model(pixel_values=batch["pixel_values"])
        logits = out.logits if self.teacher is None or "cls_logits" not in out else out.cls_logits
        total, count = token_loss(logits, batch["labels"], self.smoothing)
        if "share" in batch:
            total = mixed_loss(logits, batch["labels"], batch["share"], self.smoothing)
            total = total + mixed_loss(logits, batch["other_labels"], 1 - batch["share"], self.smoothing)
        if self.teacher is None:
            return Loss(total, count)
        taught = out.logits if "distillation_logits" not in out else out.distillation_logits
        said = self.teacher.loss(taught, batch["teacher"])
        parts = {"labels": total.detach(), "teacher": said.detach()}
        return Loss((1 - self.teacher.weight) * total + self.teacher.weight * said, count, parts)

    def scores(self, batch: Batch) -> Tensor:
        logits: Tensor = self.model(pixel_values=batch["pixel_values"]).logits
        return logits

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        said, right, total = [], [], 0.0
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                logits = self.scores(batch).float()
                total += float(token_loss(logits, batch["labels"])[0])
                said.append(logits.topk(min(5, logits.shape[1])).indices.cpu())
                right.append(batch["labels"].cpu())
        best, wanted = torch.cat(said), torch.cat(right)
        figures: Metrics = {
            "accuracy": accuracy(best[:, 0].tolist(), wanted.tolist()),
            "f1": f1(best[:, 0].tolist(), wanted.tolist(), positive=None),
            "loss": total / len(wanted),
        }
        if len(self.labels) > 10:
            figures["top5"] = float((best == wanted.unsqueeze(1)).any(dim=1).cpu().double().mean())
        return {**figures, **self.skipped()}

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[ImageLabel]:
        with answering(self.model):
            scores = softmax_scores(self.scores(self.look_at(pictures)[0])).cpu()
        return [self._label(*pair) for pair in zip(pictures, scores, strict=True)]

    def _label(self, picture: ImageFile, scores: Tensor) -> ImageLabel:
        best = int(scores.argmax())
        every = dict(zip(self.labels, scores.tolist(), strict=True))
        return ImageLabel(self.labels[best], float(scores[best]), every, draw=lambda: self.draw(picture))

    def draw(self, picture: ImageFile) -> Any:
        """The image, and beside it what the class token attends to: in the last layer, and through all of them."""
        image = draw.shrink(picture.open())
        with answering(self.model):
            batch, _ = self.look_at([picture])
            shape = (batch["pixel_values"].shape[-2], batch["pixel_values"].shape[-1])
            found = class_attention(self.model, batch, shape)
            best = self._label(picture, softmax_scores(self.scores(batch))[0].cpu())
        if found is None:
            return draw.side_by_side([image], [str(best)])
        maps = [draw.heatmap(image, one[0].cpu().numpy()) for one in found]
        return draw.side_by_side([image, *maps], [str(best), "last layer", "all layers (rollout)"])

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        """As ViT-Lite (Hassani et al. 2021): 200 epochs from nothing, ten where something was learned before. Small
        models are short of steps before they are short of images, so that few images come in small batches."""
        size = 256 if rows > 20_000 else 128 if rows > 2000 else 32
        epochs, lr = (200, 1e-3 if size == 256 else 5e-4) if fresh else (10, 5e-5)
        advice = schedule_for(
            rows, epochs, size=size, lr=lr, evals=40, saves=10, weight_decay=0.05, label_smoothing=0.1
        )
        return {**advice, "ema_decay": 0.999 if advice["steps"] > 5000 else 0.0}


def mixed_loss(logits: Tensor, labels: Tensor, share: Tensor, smoothing: float) -> Tensor:
    each = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)
    return (each * share).sum()
