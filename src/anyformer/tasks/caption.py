"""Image captioning.

caption = af.task("caption", "folder")
print(caption("beach.jpg"))             # two dogs run on the beach
caption("beach.jpg").draw()             # for each word the region that was looked at
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from anyformer import registry
from anyformer.config import Settings
from anyformer.data.images.augment import Augmentation
from anyformer.data.rows import Rows
from anyformer.data.settings import TokenizerSettings
from anyformer.forward_context import IGNORED
from anyformer.metrics.captions import caption_scores, normalize_words
from anyformer.tasks.base import DEFAULT_SETUP, Column, Metrics, Options, Progress, Total, answering
from anyformer.tasks.grouped import group_by_image
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture_text import ImageText, ImageTextOptions, PictureTextTask, texts_of
from anyformer.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class CaptionOptions(ImageTextOptions):
    normalize_text: bool = True  # small letters without punctuation, as captions are compared
    # No flip: a text may say left and right.
    augment: Augmentation = Augmentation(crop=(0.6, 1.0), color_jitter=0.3)


class Caption(PictureTextTask[ImageInput, ImageText]):
    name = "caption"
    fills = MappingProxyType({"labels": IGNORED, "decoder_attention_mask": 0})
    about = "describe an image in a sentence"
    columns = (Column("image"), Column("captions", ("caption", "text", "sentence", "sentences", "description")))
    options_class: ClassVar[type[Options]] = CaptionOptions
    settings: CaptionOptions
    kind = "word"
    metric = "cider"
    wanted = "a model that reads images and writes, such as show-attend-tell-small or vit-transformer-small"

    commonest: str = ""  # the caption that most training images have: what a model must beat

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return is_captioner(config)

    @classmethod
    def read(cls, paths: Any, data: Any = DEFAULT_SETUP.data) -> Rows:
        """An image named on several lines has several captions."""
        return group_by_image(super().read(paths, data), "captions")

    @classmethod
    def spell(cls, text: str, options: CaptionOptions) -> str:
        return " ".join(normalize_words(text)) if options.normalize_text else text.strip()

    @classmethod
    def learn_tokenizer(cls, rows: Rows, chosen: TokenizerSettings, options: CaptionOptions) -> Tokenizer:
        """Words that are seen a few times; a model learns nothing of the others."""
        kind = chosen.kind or cls.kind
        if kind != "word":
            return super().learn_tokenizer(rows, chosen, options)
        seen = Counter(word for text in cls.texts(rows, options) for word in text.split())
        often = sum(n >= 3 for n in seen.values()) + 3
        size = min(chosen.vocab_size, max(often, 50))
        return super().learn_tokenizer(rows, TokenizerSettings(kind=kind, vocab_size=size), options)

    def study(self, rows: Rows) -> None:
        seen = Counter(
            text for row in rows for text in {self.spell(one, self.settings) for one in texts_of(row, "captions")}
        )
        self.commonest = min(seen, key=lambda text: (-seen[text], text))

    def describe(self) -> dict[str, Any]:
        return {"commonest": self.commonest}

    def recall(self, said: Mapping[str, Any]) -> None:
        self.commonest = str(said.get("commonest", ""))

    # Figures.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        """The field's figures; those of the same captions each beside another image's references; and those of the
        commonest training caption for all."""
        total, said, wanted = Total(), [], []
        with answering(self.model):
            for numbers, batch in self.batches_of(self.prepared(rows), progress=progress):
                total.add(self.word_loss(batch, 0.0))
                said += self.texts_written(batch)
                wanted += [texts_of(rows[int(i)], "captions") for i in numbers]
        figures: Metrics = {**caption_scores(said, wanted), "loss": total.mean}
        if len(said) > 1:
            figures["cider_shuffled"] = caption_scores([*said[1:], said[0]], wanted)["cider"]
        if self.commonest:
            figures["cider_commonest"] = caption_scores([self.commonest] * len(said), wanted)["cider"]
        return {**figures, **self.skipped()}


def is_captioner(config: Settings) -> bool:
    """Families that read an image and write: the captioners, GIT, and an encoder-decoder whose encoder sees."""
    encoder = getattr(config, "encoder", None)
    if isinstance(encoder, Mapping):
        return "image_size" in registry.family(encoder["family"]).config.field_names()
    speaks = "decoder_start" in config.field_names() or "begin" in config.field_names()
    return speaks and "vocab_size" in config.field_names() and hasattr(config, "image_size")
