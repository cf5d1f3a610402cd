"""What tasks answer: dataclasses with a readable `str()` and `to_dict()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from anyformer.errors import ConfigError
from anyformer.tasks.base import Options

if TYPE_CHECKING:
    from PIL.Image import Image

Drawing = Callable[[], "Image"]


class Answer:
    """Base of answers, which are frozen dataclasses."""

    def to_dict(self) -> dict[str, object]:
        """The fields as JSON has them: tensors and arrays as lists, drawings left out."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]
        return {name: plain(value) for name, value in values.items() if not callable(value)}


def plain(value: Any) -> Any:
    """A field of an answer as JSON has it."""
    if isinstance(value, Answer):
        return value.to_dict()
    if isinstance(value, (Tensor, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class Label(Answer):
    """A class and its probability; `scores` holds the probability of every class. `unsure`: the probability is below
    the model's task.unsure_below."""

    label: str
    score: float
    scores: Mapping[str, float] = field(repr=False)
    unsure: bool = False

    def __str__(self) -> str:
        return f"{self.label} ({self.score:.2f}{', unsure' if self.unsure else ''})"


@dataclass(frozen=True)
class ImageLabel(Label):
    """A class of an image. `draw()` returns the image with its attention map."""

    draw: Drawing | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class CalibratedOptions(Options):
    """Options of tasks whose answers have probabilities. Neither changes which answer is the best one."""

    # The logits of answers are divided by it, so that probabilities are right as often as they say.
    temperature: float = 1.0
    unsure_below: float = 0.0  # an answer whose probability is below is marked as unsure; 0: none is

    def check(self) -> None:
        super().check()
        if not self.temperature > 0:
            raise ConfigError(f"task.temperature is {self.temperature}; it must be above 0.")
        if not 0 <= self.unsure_below <= 1:
            raise ConfigError(f"task.unsure_below is {self.unsure_below}; it must be from 0 to 1.")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities over the last dimension, by the temperature."""
        return F.log_softmax(logits.float() / self.temperature, dim=-1).exp()

    def unsure(self, score: float) -> bool:
        """Whether an answer of this probability is unsure."""
        return score < self.unsure_below


def best_label(labels: Sequence[str], scores: Tensor, options: CalibratedOptions) -> Label:
    """The class of the highest of its probabilities [classes]."""
    best = int(scores.argmax())
    score = float(scores[best])
    return Label(labels[best], score, dict(zip(labels, scores.tolist(), strict=True)), options.unsure(score))
