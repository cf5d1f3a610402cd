"""Knowledge distillation from a teacher: hard, its best class as a second label, or soft, all of its probabilities
(Hinton et al. 2015; for images Touvron et al. 2021, section 3).

A student with a distillation token (DeiT) predicts the teacher with that token and the labels with the class token;
other students predict both with one head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anyformer.checkpoints.folder import load
from anyformer.data.images.processor import FILE, ImageProcessor
from anyformer.errors import ConfigError
from anyformer.model import Model
from anyformer.tasks.base import Source
from anyformer.tasks.picture import ImageOptions
from anyformer.tasks.text import labels_of

WEIGHTS = {"hard": 0.5, "soft": 0.1}  # the teacher's part of the loss, as DeiT has it


@dataclass(frozen=True, kw_only=True)
class DistillOptions(ImageOptions):
    teacher: str = ""  # the folder of a trained classifier to learn from; none: labels alone
    distill: Literal["hard", "soft"] = "hard"  # its best class, or all of its probabilities
    distill_weight: float | None = None  # the teacher's part of the loss; None: 0.5 for hard, 0.1 for soft
    temperature: float = 3.0  # of soft: how much the probabilities are evened out

    def check(self) -> None:
        share = self.distill_weight
        self.require(share is None or 0 <= share <= 1, f"teacher_weight is {share}; it must be from 0 to 1.")
        self.require(self.temperature > 0, f"temperature is {self.temperature}; it must be above 0.")


class Teacher:
    """A frozen classifier. It sees the student's pixels, resized and normalized as it expects."""

    def __init__(self, options: DistillOptions, processor: ImageProcessor, labels: Sequence[str]) -> None:
        self.options = options
        self.weight = options.distill_weight if options.distill_weight is not None else WEIGHTS[options.distill]
        self.model = load(options.teacher, device="cpu").requires_grad_(False)
        self.order = torch.tensor(known_order(self.model, labels, options.teacher))
        content = self.model.origin.files.get(FILE)
        own = processor if content is None else ImageProcessor.read(content, f"{options.teacher}/{FILE}")
        self.size, self.student = own.fixed, processor
        self.processor = own

    @torch.no_grad()
    def scores(self, pixels: Tensor) -> Tensor:
        """[B, labels], of the student's pixel_values, in the order of the student's labels."""
        half = pixels.is_cuda and torch.cuda.is_bf16_supported()
        with torch.autocast(pixels.device.type, torch.bfloat16, enabled=half):
            return self._scores(pixels)

    def _scores(self, pixels: Tensor) -> Tensor:
        if self.model.device != pixels.device:
            self.model.to(pixels.device)
            self.order = self.order.to(pixels.device)
        if (self.processor.mean, self.processor.std) != (self.student.mean, self.student.std):
            mean, std = (_channels(self.student, name, pixels) for name in ("mean", "std"))
            own_mean, own_std = (_channels(self.processor, name, pixels) for name in ("mean", "std"))
            pixels = (pixels * std + mean - own_mean) / own_std
        if self.size is not None and tuple(pixels.shape[2:]) != self.size:
            pixels = F.interpolate(pixels, size=self.size, mode="bilinear", antialias=True)
        logits: Tensor = self.model(pixel_values=pixels).logits
        return logits.float().index_select(1, self.order)

    def loss(self, student: Tensor, wanted: Tensor) -> Tensor:
        """The sum over the rows of how far the student's scores are from the teacher's."""
        if self.options.distill == "hard":
            return F.cross_entropy(student.float(), wanted.argmax(dim=1), reduction="sum")
        heat = self.options.temperature
        own, other = (F.log_softmax(scores.float() / heat, dim=1) for scores in (student, wanted))
        return heat**2 * F.kl_div(own, other, reduction="sum", log_target=True)


def _channels(processor: ImageProcessor, name: str, like: Tensor) -> Tensor:
    values = getattr(processor, name)
    if values is None:
        values = ({"mean": 0.0, "std": 1.0}[name],) * processor.channels
    return torch.tensor(values, device=like.device, dtype=like.dtype).view(-1, 1, 1)


def known_order(teacher: Model, labels: Sequence[str], path: Source) -> list[int]:
    """Where the teacher has each of the student's labels."""
    known = list(teacher.origin.settings.get("task", {}).get("labels") or labels_of(teacher))
    missing = [label for label in labels if label not in known]
    if missing:
        raise ConfigError(f"The teacher in {path} has no label {missing[0]!r}. Its labels are: {known[:20]}.")
    return [known.index(label) for label in labels]
