"""Visual question answering with a language model and a multimodal projector (MetaLM).

ask = af.task("ask-image", "folder")
print(ask("beach.jpg", question="what is the dog doing?"))
anyformer run ask-image --model folder "beach.jpg|what is the dog doing?"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.core.taps import look
from anyformer.data.examples import Example
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.processor import ResizeTransform
from anyformer.data.rows import Rows
from anyformer.data.settings import TokenizerSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import InputError
from anyformer.forward_context import IGNORED
from anyformer.heads.cross_entropy import token_loss
from anyformer.metrics.captions import caption_scores
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Column, Loss, Metrics, Options, Progress, Total, answering
from anyformer.tasks.generated import Generated, generated
from anyformer.tasks.grouped import group_by_image
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture_text import ImageText, ImageTextOptions, PictureTextTask, as_grid, draw_texts, texts_of
from anyformer.tasks.text import pad_labels, text_of
from anyformer.tokenizers.padding import pad
from anyformer.tokenizers.tokenizer import Tokenizer

PLACE = "<picture>"  # the token that keeps a place for one vector of an image


@dataclass(frozen=True, kw_only=True)
class AskOptions(ImageTextOptions):
    question: str = "what is in the image?"  # where the data or the caller has none
    # No flip: a text may say left and right.
    augment: Augmentation = Augmentation(crop=(0.6, 1.0), color_jitter=0.3)


class AskImage(PictureTextTask[ImageInput | tuple[ImageInput, str], ImageText]):
    name = "ask-image"
    fills = MappingProxyType({"input_ids": 0, "attention_mask": 0, "labels": IGNORED, "both_ways": 0})
    about = "answer a question about an image"
    columns = (
        Column("image"),
        Column("question", ("prompt", "query"), optional=True),
        Column("answers", ("answer", "captions", "caption", "text", "response")),
    )
    asks = 2
    options_class: ClassVar[type[Options]] = AskOptions
    beside = "question"
    settings: AskOptions
    column = "answers"
    kind = "bpe"
    metric = "loss"
    larger_is_better = False
    wanted = "a language model with an image encoder, such as metalm-small"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.dock = image_encoder_of(self.model.config)
        self.place = int(self.dock["token"])

    @property
    def longest(self) -> int | None:
        return None  # images stand among the words

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return bool(image_encoder_of(config))

    @classmethod
    def read(cls, paths: Any, data: Any = DEFAULT_SETUP.data) -> Rows:
        """Without questions, an image named on several lines has several answers to the usual one."""
        rows = super().read(paths, data)
        return rows if "question" in rows.columns else group_by_image(rows, "answers")

    @classmethod
    def texts(cls, rows: Rows, options: AskOptions) -> Iterator[str]:
        yield options.question
        for row in rows:
            yield from texts_of(row, "answers")
            if row.get("question"):
                yield str(row["question"])

    @classmethod
    def learn_tokenizer(cls, rows: Rows, chosen: TokenizerSettings, options: AskOptions) -> Tokenizer:
        kind: Any = chosen.kind or cls.kind
        size = min(chosen.vocab_size, max(300, len(rows)))
        texts = cls.texts(rows, options)
        return Tokenizer.train(texts, kind=kind, vocab_size=size, special=[PLACE], end=True, progress=False)

    @classmethod
    def fill(cls, config: Settings, tokenizer: Tokenizer) -> Settings:
        filled: Any = super().fill(config, tokenizer)
        token = tokenizer.engine.token_to_id(PLACE)
        if token is None:
            raise InputError(f"The tokenizer has no {PLACE}, the placeholder of images.")
        return filled.replace(encoders={name: {**one, "token": token} for name, one in filled.encoders.items()})

    # Rows to loss: places, question, answer.

    @property
    def width(self) -> int:
        """Places that one image takes."""
        sizes = (self.dock["encoder"][name] for name in ("image_size", "patch_size"))
        rows, columns = (side // patch for side, patch in zip(*sizes, strict=True))
        return int(rows * columns) + 1

    def asked(self, question: str | None) -> list[int]:
        ids = self.tokenizer.encode(question or self.settings.question, special=False)
        return [*[self.place] * self.width, *ids]

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        if "answers" not in row:
            return {}
        return {**super().targets(row, placement), "question": self.asked(row.get("question"))}

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = super(PictureTextTask, self).collate(examples, generator)
        if "texts" not in examples[0]:
            return batch
        answers, asked = draw_texts(examples, generator), [one["question"] for one in examples]
        rows = [[*a, *b] for a, b in zip(asked, answers, strict=True)]
        labels = pad_labels([[*[IGNORED] * len(a), *b] for a, b in zip(asked, answers, strict=True)])
        whole = pad(rows, self.tokenizer.pad_id or 0)
        return {**batch, **whole, "labels": labels, **self._prefix(asked, labels.shape[1])}

    @staticmethod
    def _prefix(asked: Sequence[Sequence[int]], length: int) -> Batch:
        sizes = torch.tensor([len(ids) for ids in asked])
        return {"both_ways": (torch.arange(length) < sizes[:, None]).long()}

    def word_loss(self, batch: Batch, smoothing: float) -> Loss:
        given = {name: batch[name] for name in ("pixel_values", "input_ids", "attention_mask", "both_ways")}
        logits: Tensor = self.model(**given).logits
        return Loss(*token_loss(logits[:, :-1], batch["labels"][:, 1:], smoothing))

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """The loss, with the right images and with each other's; and how good answers are beside the references."""
        total, other, said, wanted = Total(), Total(), [], []
        with answering(self.model):
            for numbers, batch in self.batches_of(self.prepared(rows), progress=progress):
                total.add(self.word_loss(batch, 0.0))
                other.add(self.word_loss({**batch, "pixel_values": batch["pixel_values"].roll(1, dims=0)}, 0.0))
                some = [rows[int(i)] for i in numbers]
                written = self._write(batch["pixel_values"], [row.get("question") for row in some], {})
                said += [self.tokenizer.decode(list(best.ids)).strip() for best, *_ in written]
                wanted += [texts_of(row, "answers") for row in some]
        scores = caption_scores(said, wanted)
        exact = sum(text in texts for text, texts in zip(said, wanted, strict=True)) / max(len(said), 1)
        figures: Metrics = {"loss": total.mean, "loss_shuffled": other.mean, "exact": 100 * exact}
        return {**figures, **scores, **self.skipped()}

    def answers(self, things: list[Any], **options: Any) -> list[Any]:
        """Each an image, a pair of it and a question, or "FILE|question"; `question` is that of all others."""
        question = options.pop("question", None)
        question = None if question is None else text_of(question, "question")
        pairs = [split(one, question) for one in things]
        return [self._answer(picture, asked, options) for picture, asked in pairs]

    def _answer(
        self, picture: ImageFile, question: str | None, options: Mapping[str, Any]
    ) -> ImageText | list[ImageText]:
        batch, _ = self.look_at([picture])
        with answering(self.model):
            return self._said(picture, self._write(batch["pixel_values"], [question], options)[0])

    def _write(
        self, pixels: Tensor, questions: Sequence[str | None], options: Mapping[str, Any]
    ) -> list[list[Generated]]:
        asked = [self.asked(question) for question in questions]
        batch = pad(asked, self.tokenizer.pad_id or 0, "left")
        given = {**batch, "both_ways": batch["attention_mask"]}
        here = {name: value.to(pixels.device) for name, value in given.items() if name in self.model.names}
        chosen = {**self.decoding, **options}
        given = {"pixel_values": pixels, **here}
        return generated(self.model, given, chosen, self.ends, start=here["input_ids"].shape[1])

    @property
    def decoding(self) -> dict[str, Any]:
        usual = super().decoding
        names = ("num_beams", "length_penalty", "max_new_tokens")
        return {**{name: usual[name] for name in names}, "suppress_tokens": [self.place]}

    def regions(self, batch: Batch, ids: list[int]) -> Tensor | None:
        """The answer's tokens look back at the places of the image."""
        if not ids:
            return None
        asked = self.asked(None)
        whole = torch.tensor([[*asked, *ids]], device=self.model.device)
        prefix = self._prefix([asked], whole.shape[1])["both_ways"].to(whole.device)
        with answering(self.model), look(self.model, "decoder.blocks.*.self.weights") as seen:
            self.model(pixel_values=batch["pixel_values"], input_ids=whole, both_ways=prefix)
        weights = seen.log[-1][1][0].float().mean(dim=0)[len(asked) - 1 : -1, : self.width]
        return as_grid(weights, (batch["pixel_values"].shape[-2], batch["pixel_values"].shape[-1]))


def image_encoder_of(config: Settings) -> dict[str, Any]:
    """What is docked to a language model and reads images; empty where nothing does."""
    projectors: Mapping[str, Any] = getattr(config, "encoders", {})
    return next((one for one in projectors.values() if "image_size" in one["encoder"]), {})


def split(inputs: Any, question: str | None) -> tuple[ImageFile, str | None]:
    """ "beach.jpg|who is there?" -> the image and the question"""
    if isinstance(inputs, Mapping) and "image" in inputs:
        return ImageFile.of(inputs["image"]), inputs.get("question", question)
    if isinstance(inputs, tuple) and len(inputs) == 2:
        return ImageFile.of(inputs[0]), text_of(inputs[1], "question")
    if isinstance(inputs, str) and "|" in inputs:
        name, _, asked = inputs.partition("|")
        return ImageFile.of(name), asked.strip() or question
    return ImageFile.of(inputs), question
