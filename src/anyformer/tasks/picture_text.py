"""The common part of tasks on images and text: a processor and a tokenizer, a random caption of several in training,
generation from images, and attention maps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.core.taps import look
from anyformer.data.examples import Example
from anyformer.data.images import draw
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.processor import FILE, ImageProcessor, ResizeTransform
from anyformer.data.rows import Rows
from anyformer.data.settings import DataSettings, TokenizerSettings
from anyformer.data.tables.formats import Row
from anyformer.errors import InputError
from anyformer.heads.caption import CaptionHead
from anyformer.heads.cross_entropy import token_loss
from anyformer.model import Model
from anyformer.tasks import build
from anyformer.tasks.answers import Answer, Drawing
from anyformer.tasks.base import DEFAULT_SETUP, Batch, Input, Loss, Options, Reply, Source, TaskSetup, answering
from anyformer.tasks.generated import Generated, generated
from anyformer.tasks.picture import ImageOptions, PictureTask
from anyformer.tasks.schedule_presets import schedule_for
from anyformer.tasks.text import pad_labels, tokenizer_files
from anyformer.tokenizers.cuts import shorten
from anyformer.tokenizers.padding import pad
from anyformer.tokenizers.tokenizer import Tokenizer

AT_ONCE = 64  # images that are written about together
ACROSS = 5  # words in a row of a drawing


@dataclass(frozen=True)
class ImageText(Answer):
    """The text generated for an image. `draw()` returns the attention map of each token.

    With `logprobs=True`, `logprobs` has one number for each id; with `alignment=True`, `alignment` is the
    cross-attention [ids, cells of the image] of the step that generated each id."""

    text: str
    ids: tuple[int, ...] = field(repr=False)
    draw: Drawing = field(repr=False, compare=False)
    logprobs: tuple[float, ...] | None = field(default=None, repr=False)
    alignment: Tensor | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class ImageTextOptions(ImageOptions):
    num_beams: int = 3
    length_penalty: float = 1.0
    max_target_length: int = 48  # tokens of what is written

    def check(self) -> None:
        self.require(self.num_beams > 0, f"num_beams is {self.num_beams}; it must be 1 or more.")
        self.require(
            self.max_target_length > 1, f"max_target_length is {self.max_target_length}; it must be 2 or more."
        )


class PictureTextTask(PictureTask[Input, Reply]):
    """`column` holds the text of an image, or several."""

    column: ClassVar[str] = "captions"
    settings: ImageTextOptions
    kind: ClassVar[str] = "bpe"  # of a tokenizer that is trained here
    writes = True

    def __init__(
        self,
        model: Model,
        processor: ImageProcessor,
        options: Options | None = None,
        *,
        tokenizer: Tokenizer,
        labels: Sequence[str] = (),
    ) -> None:
        super().__init__(model, processor, options, labels=labels)
        self.tokenizer = tokenizer
        ends = (tokenizer.end_id, tokenizer.separator_id)
        self.end = next((token for token in ends if token is not None), None)

    @property
    def longest(self) -> int | None:
        return int(self.settings.max_target_length)

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Self:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        if build.is_folder(source):
            model, tokenizer = build.load_for(source, cls.fits, cls.wanted, setup.model, setup.tokenizer.path)
        else:
            config = build.recipe_settings(str(source), setup.model, cls.fits, cls.wanted)
            chosen = setup.tokenizer
            tokenizer = Tokenizer.load(chosen.path) if chosen.path else cls.learn_tokenizer(rows, chosen, options)
            model = build.build(str(source), cls.fill(config, tokenizer))
        processor = cls.find_processor(model, rows, setup.data)
        model.origin.files.setdefault(FILE, processor.write())
        model.origin.files.update(tokenizer_files(tokenizer))
        task = cls(model, processor, options, tokenizer=tokenizer)
        task.lenient = True
        task.study(rows)
        return task

    @classmethod
    def fill(cls, config: Settings, tokenizer: Tokenizer) -> Settings:
        """The settings for a tokenizer's words; a text without an encoder begins with the padding."""
        config = build.with_vocabulary(config, tokenizer)
        return config.replace(begin=tokenizer.pad_id) if "begin" in config.field_names() else config

    @classmethod
    def make_processor(cls, model: Model, rows: Rows | None, data: DataSettings) -> ImageProcessor:
        """Images of the size and the channels of the side that sees them."""
        sees = image_encoder_config(model)
        size: Any = data.image_size if data.image_size is not None else sees.get("image_size", 224)
        size = (size, size) if isinstance(size, int) else tuple(size)
        channels = int(sees.get("n_channels", 3))
        return ImageProcessor(size=size, channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)

    def study(self, rows: Rows) -> None:
        """What else is learned of the rows before training."""

    @classmethod
    def learn_tokenizer(cls, rows: Rows, chosen: TokenizerSettings, options: Any) -> Tokenizer:
        kind: Any = chosen.kind or cls.kind
        return Tokenizer.train(
            cls.texts(rows, options), kind=kind, vocab_size=chosen.vocab_size, end=True, progress=False
        )

    @classmethod
    def texts(cls, rows: Rows, options: Any) -> Iterator[str]:
        for row in rows:
            for text in texts_of(row, cls.column):
                yield cls.spell(text, options)

    @classmethod
    def spell(cls, text: str, options: Any) -> str:
        """A text as the model learns it."""
        return text

    @classmethod
    def around(cls, model: Model, path: Source, options: Mapping[str, Any]) -> Self:
        cls.check(model, path)
        tokenizer = Tokenizer.load(path)
        build.check_words(tokenizer, model.config)
        said, chosen = cls.chosen(model, options)
        task = cls(model, cls.find_processor(model, None, DataSettings()), chosen, tokenizer=tokenizer)
        task.recall(said)
        return task

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        epochs, least, lr = (60, 100, 1e-3) if fresh else (10, 50, 5e-5)
        return schedule_for(
            rows, epochs, size=64, least=least, lr=lr, evals=4, saves=4, weight_decay=0.05, label_smoothing=0.1
        )

    # Rows to loss.

    def encode(self, text: str) -> list[int]:
        """Ids with their end, unless they are cut: a text that goes on must not teach the model to stop."""
        ids = self.tokenizer.encode(self.spell(text, self.settings), special=False)
        return shorten([*ids, *([] if self.end is None else [self.end])], self.settings.max_target_length, text)

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        return {"texts": [self.encode(text) for text in texts_of(row, self.column)]} if self.column in row else {}

    def collate(self, examples: Sequence[Example], generator: Generator) -> Batch:
        batch = super().collate(examples, generator)
        return batch if "texts" not in examples[0] else {**batch, **self.written(draw_texts(examples, generator))}

    def written(self, rows: list[list[int]]) -> Batch:
        """Texts as a writer is trained on them; after the model's own beginning if image and text are one sequence."""
        if self.pair:
            return {"labels": pad_labels(rows), "decoder_attention_mask": pad(rows, 0)["attention_mask"]}
        first = int(self.model.config.to_json()["begin"])
        whole = [[first, *row] for row in rows]
        return {**pad(whole, self.tokenizer.pad_id or 0), "labels": pad_labels(whole)}

    def seen(self, batch: Batch) -> Batch:
        """What of a batch the model's images are."""
        return {
            name: batch[name] for name in ("pixel_values", "pixel_mask") if name in self.model.names and name in batch
        }

    def loss(self, batch: Batch) -> Loss:
        return self.word_loss(batch, self.smoothing)

    def word_loss(self, batch: Batch, smoothing: float) -> Loss:
        """Cross entropy of the words and, where the model asks for more (where to look), that too."""
        if not self.pair:
            return self._sequence_loss(batch, smoothing)
        labels, given = batch["labels"], {"decoder_attention_mask": batch["decoder_attention_mask"]}
        given["decoder_input_ids"] = self.model.shift_right(labels)
        more = [name for name, head in self.model.heads.items() if name != "language" or isinstance(head, CaptionHead)]
        out = self.model(**self.seen(batch), **given, **({"labels": labels} if more else {}))
        total, count = token_loss(out.logits, labels, smoothing)
        extra = {name: out[name] * count for name in ("attention_loss", "ctc_loss") if name in out}
        return Loss(total + sum(extra.values()), count, {"words": total.detach(), **extra} if extra else {})

    def _sequence_loss(self, batch: Batch, smoothing: float) -> Loss:
        """Cross entropy of the words of a model whose image and text are one sequence (GIT)."""
        labels = batch["labels"]
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = self.model(**self.seen(batch), **given).logits[:, -labels.shape[1] : -1]
        return Loss(*token_loss(logits, labels[:, 1:], smoothing))

    # Answers.

    @property
    def pair(self) -> bool:
        """Whether one stage reads the image and another writes; else both stand in one sequence."""
        return self.model.decoder_start is not None

    def inferred(self) -> dict[str, str]:
        cut = f"texts are cut at {self.longest or self.settings.max_target_length:,} tokens"
        return {**super().inferred(), "tokenizer": f"{len(self.tokenizer):,} tokens", "length": cut}

    def describe(self) -> dict[str, Any]:
        return {}

    def answer(self, pictures: Sequence[ImageFile], **options: Any) -> list[Any]:
        found: list[ImageText | list[ImageText]] = []
        for start in range(0, len(pictures), AT_ONCE):
            some = pictures[start : start + AT_ONCE]
            with answering(self.model):
                written = self.write(self.look_at(some)[0], options)
            found += [self._said(*pair) for pair in zip(some, written, strict=True)]
        return found

    def _said(self, picture: ImageFile, written: Sequence[Generated]) -> ImageText | list[ImageText]:
        """The answer to an image, or the list of them that `num_return_sequences` asked for."""
        found = []
        for one in written:
            ids = list(one.ids)
            draw = partial(self.draw, picture, ids)
            found.append(ImageText(self.tokenizer.decode(ids).strip(), one.ids, draw, one.logprobs, one.alignment))
        return found if len(found) > 1 else found[0]

    def texts_written(self, batch: Batch) -> list[str]:
        """The best text for each image of a batch."""
        return [self.tokenizer.decode(list(best.ids)).strip() for best, *_ in self.write(batch, {})]

    def write(self, batch: Batch, options: Mapping[str, Any]) -> list[list[Generated]]:
        """What is written about each image of a batch."""
        return generated(self.model, self.seen(batch), {**self.decoding, **options}, self.ends)

    @property
    def decoding(self) -> dict[str, Any]:
        """What `model.generate` is told in every call that says nothing else."""
        unknown = self.tokenizer.unknown_id
        return {
            **({"eos_token_id": self.end} if self.model.config.to_json().get("end") is None else {}),
            "num_beams": self.settings.num_beams,
            "length_penalty": self.settings.length_penalty,
            "max_new_tokens": self.settings.max_target_length,
            **({} if unknown is None else {"suppress_tokens": [unknown]}),
        }

    def fit_picture(self, image: Any, name: str) -> Any:
        """An image before the processor sees it."""
        return image

    @property
    def ends(self) -> set[int | None]:
        """The tokens before which a text ends."""
        return {self.end, self.tokenizer.pad_id}

    # Where the writer looked.

    def regions(self, batch: Batch, ids: list[int]) -> Tensor | None:
        """For each token the weights of the image's cells [tokens, rows, columns], mean over the heads of the last
        layer that looks; None where none does."""
        glob = "decoder.blocks.*.cross.weights" if self.pair else "decoder.blocks.*.self.weights"
        if not ids or not any(
            point.startswith("decoder") and point.endswith(glob[-13:]) for point in self.model.points
        ):
            return None
        said = torch.tensor([ids], device=self.model.device)
        name = "decoder_input_ids" if self.pair else "input_ids"
        first: Any = self.model.decoder_start if self.pair else self.model.config.to_json()["begin"]
        start = torch.full_like(said[:, :1], int(first))
        with answering(self.model), look(self.model, glob) as seen:
            self.model(**self.seen(batch), **{name: torch.cat([start, said[:, :-1]], dim=1)})
        weights = seen.log[-1][1][0].float().mean(dim=0)[-len(ids) :]
        shape = (batch["pixel_values"].shape[-2], batch["pixel_values"].shape[-1])
        return as_grid(weights if self.pair else weights[:, : -len(ids)], shape)

    def looks(self, picture: ImageFile, ids: list[int]) -> list[tuple[str, Any]]:
        """Each token, with the image bright where the model looked before it wrote that; empty where none looks."""
        found = self.regions(self.look_at([picture])[0], ids)
        if found is None:
            return []
        image = draw.shrink(picture.open())
        words = [self.tokenizer.decode([token]).strip() or "␣" for token in ids]
        return [(word, draw.heatmap(image, one.cpu().numpy())) for word, one in zip(words, found, strict=True)]

    def draw(self, picture: ImageFile, ids: list[int]) -> Any:
        """The image with its text, and then once for each token, bright where the model looked."""
        shown, _ = draw.enlarge(draw.shrink(picture.open()))
        text = self.tokenizer.decode(ids).strip()
        looks = [titled(image, word) for word, image in self.looks(picture, ids)]
        if not looks:
            return draw.side_by_side([titled(shown, text)])
        cells = [titled(shown, text[:60]), *looks]
        return draw.grid([cells[i : i + ACROSS] for i in range(0, len(cells), ACROSS)])


def image_encoder_config(model: Model) -> dict[str, Any]:
    """The settings of what reads the images: the model's own, or those of the side that does."""
    whole = model.config.to_json()
    projectors = [one["encoder"] for one in whole.get("encoders", {}).values()]
    sides = [value for value in (*projectors, *whole.values()) if isinstance(value, dict) and "image_size" in value]
    return sides[0] if sides else whole


def titled(image: Any, text: str) -> Any:
    """An image with a word on it."""
    image = image.copy()
    pencil, font, _ = draw.pen(image)
    draw.label(pencil, font, text, 2, 0, (255, 255, 255))
    return image


def as_grid(weights: Tensor, shape: tuple[int, int]) -> Tensor | None:
    """[n, cells] as [n, rows, columns] of an image of that shape, tokens in front of the cells left out; of a line
    that is read column by column, one row."""
    cells = weights.shape[-1]
    for extra in range(3):  # none, a class token, and perhaps one of distillation
        for rows in range(1, cells - extra + 1):
            columns, left = divmod(cells - extra, rows)
            if not left and abs(rows * shape[1] / shape[0] - columns) < 0.51:
                return weights[:, extra:].reshape(len(weights), rows, columns)
    stride = max(round(shape[1] / cells), 1)
    return weights.unsqueeze(1) if shape[1] > shape[0] and -(-shape[1] // stride) == cells else None


def texts_of(row: Row, column: str) -> list[str]:
    """The text, or the texts, of a row."""
    value = row[column]
    texts = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise InputError(f"the column {column} has {value!r}; it must be a non-empty text or a list of them.")
    return texts


def draw_texts(examples: Sequence[Example], generator: Generator) -> list[list[int]]:
    """One of the texts of each example."""
    picks = torch.rand(len(examples), generator=generator).tolist()
    return [one["texts"][int(share * len(one["texts"]))] for one, share in zip(examples, picks, strict=True)]
