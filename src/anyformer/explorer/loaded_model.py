"""A model with what it came with, ready to be asked: text becomes ids, an image becomes pixels, and a pass is kept for
the questions that follow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

import torch

from anyformer.checkpoints.folder import load
from anyformer.data.audio.audio_file import as_audio
from anyformer.data.images.image_file import ImageFile
from anyformer.data.images.processor import ImageProcessor
from anyformer.data.settings import DataSettings
from anyformer.errors import Error, InputError
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.image_folder import ImageFolder
from anyformer.explorer.modalities import (
    Shown,
    autoregressive_inputs,
    find_reader,
    image_placeholder_ids,
    read_input,
    resize_image,
)
from anyformer.explorer.request import NEW, ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import Trace, trace, watched
from anyformer.generation.engine import optimize_for_decoding
from anyformer.generation.speech_prompt import decoder_prompts, read_speech_options, window_frames
from anyformer.heads.boxes import BoxHead
from anyformer.heads.language import LanguageHead
from anyformer.heads.pixels import PixelHead
from anyformer.inputs.audio import MelConvInput, SpectrogramInput
from anyformer.inputs.image import ImageInput
from anyformer.inputs.video import VideoInput
from anyformer.model import Model, Stage
from anyformer.tasks import find
from anyformer.tasks.classify_audio import extract_features, find_extractor
from anyformer.tasks.picture_text import PictureTextTask
from anyformer.tasks.translate import Translate
from anyformer.tokenizers.tokenizer import Tokenizer

MOST_TOKENS = 2048
WRITERS = frozenset("ask-image caption read summarize transcribe translate".split())
KEPT = 4  # passes, and
KEPT_BYTES = 2**30  # so much of them


@dataclass(frozen=True)
class TokenLabel:
    """A token as the tokenizer cut it: the characters `start` to `end` of the text, and what they are."""

    id: int
    text: str
    raw: str
    start: int = 0
    end: int = 0
    source: str = ""


@dataclass(frozen=True)
class ModelInput:
    """A model's input: the batch, and the words of each stage that reads some."""

    batch: dict[str, Any]
    words: dict[str, list[TokenLabel]] = field(default_factory=dict)
    answers: list[TokenLabel] = field(default_factory=list)  # what the decoder of a pair says at each of its places
    image: Any = None  # the image as the model sees it, or the sound as its spectrogram: a PIL image
    shown: Shown = field(default_factory=dict)  # what is drawn of a sound, a clip, a set or a row


class LoadedModel:
    def __init__(self, model: Model, tokenizer: Tokenizer | None, task: Any = None) -> None:
        self.model, self.tokenizer, self.task = model, tokenizer, task
        self.processor = _processor(model) if self.reads_images else None
        self.extractor = find_extractor(model, None) if self.reads_audio else None
        self.reader = find_reader(model)  # of clips, sets or tables
        self.gallery: ImageFolder | None = None
        self.lock = Lock()  # taps and hooks are the model's own: one question at a time
        self.passes: OrderedDict[tuple[object, ...], tuple[ModelInput, Trace]] = OrderedDict()

    @classmethod
    def load(cls, path: Path) -> LoadedModel:
        model = load(path, dtype="float32").eval()
        model.requires_grad_(False)
        optimize_for_decoding(model)
        try:
            tokenizer = Tokenizer.load(path)
        except Error:  # a model of images has none
            tokenizer = None
        return cls(model, tokenizer, writing_task(model, path))

    # What kind of model it is.

    @property
    def reads_text(self) -> bool:
        return "input_ids" in self.model.names

    @property
    def reads_images(self) -> bool:
        films = any(isinstance(stage.inputs, VideoInput) for stage in self.stages)
        return "pixel_values" in self.model.names and not films

    @property
    def reads_audio(self) -> bool:
        return any(isinstance(stage.inputs, (SpectrogramInput, MelConvInput)) for stage in self.stages)

    @property
    def writes(self) -> bool:
        """An encoder-decoder that writes words."""
        return self.model.decoder_start is not None and "decoder_input_ids" in self.model.names and bool(self.language)

    @property
    def continues(self) -> bool:
        """A decoder that goes on with its text."""
        return self.reads_text and not self.writes and any(one.has_cache for one in self.stages) and bool(self.language)

    @property
    def reads_pairs(self) -> bool:
        """An encoder that tells the second of two texts from the first."""
        typed = self.tokenizer is not None and self.tokenizer.takes_type_ids and "token_type_ids" in self.model.names
        return typed and not self.continues

    @property
    def stages(self) -> list[Stage]:
        return cast("list[Stage]", list(self.model.stages.values()))

    @property
    def language(self) -> LanguageHead | None:
        return next((head for head in self.model.heads.values() if isinstance(head, LanguageHead)), None)

    @property
    def boxes(self) -> BoxHead | None:
        return next((head for head in self.model.heads.values() if isinstance(head, BoxHead)), None)

    @property
    def pixels(self) -> PixelHead | None:
        return next((head for head in self.model.heads.values() if isinstance(head, PixelHead)), None)

    @property
    def patches(self) -> ImageInput | None:
        return next((stage.inputs for stage in self.stages if isinstance(stage.inputs, ImageInput)), None)

    # A pass.

    def trace(self, request: ViewRequest, deadline: Deadline) -> tuple[ModelInput, Trace]:
        """The input and the pass through the model; the same question finds the pass of the last time."""
        key = request.key()
        if key not in self.passes:
            subject = self.subject(request, deadline)
            self.keep(key, subject, trace(self.model, subject.batch, request.silence, deadline))
        self.passes.move_to_end(key)
        return self.passes[key]

    def keep(self, key: tuple[object, ...], model_input: ModelInput, seen: Trace) -> None:
        """Remember a pass; those that were not asked about for longest make room."""
        self.passes[key] = model_input, seen
        while len(self.passes) > 1 and self._too_much():
            self.passes.popitem(last=False)

    def _too_much(self) -> bool:
        return len(self.passes) > KEPT or sum(one.size() for _, one in self.passes.values()) > KEPT_BYTES

    def subject(self, request: ViewRequest, deadline: Deadline) -> ModelInput:
        if not (self.reads_text or self.reads_images or self.reads_audio or self.reader):
            raise InputError(f"A {self.model.family} model reads nothing that can be given here.")
        batch: dict[str, Any] = {}
        words: dict[str, list[TokenLabel]] = {}
        image = None
        shown: Shown = {}
        if self.reader is not None:
            batch, shown = read_input(self.reader, request)
            batch |= autoregressive_inputs(self, request, batch, deadline)
        if self.reads_images:
            batch, image = self._picture(request)
            batch |= autoregressive_inputs(self, request, batch, deadline)
        if self.reads_audio:
            batch, image, shown = self._sound(request)
        if self.reads_text:
            given, found = self._text(request)
            batch |= given
            words = {stage.name: found for stage in self.stages if "input_ids" in stage.names}
        if self.language is not None and "logits_to_keep" in self.model.names:
            batch["logits_to_keep"] = 1  # other places are scored when they are asked for
        if not self.writes:
            return ModelInput(batch, words, image=image, shown=shown)
        said, answers = self._answer(request, batch, deadline)
        batch["decoder_input_ids"] = torch.tensor([[word.id for word in said]], dtype=torch.long)
        decoder = next(stage.name for stage in self.stages if "decoder_input_ids" in stage.names)
        return ModelInput(batch, {**words, decoder: said}, answers, image, shown)

    def _text(self, request: ViewRequest) -> tuple[dict[str, Any], list[TokenLabel]]:
        request = request if request.pair else request.replace(pair=None)
        if request.text and isinstance(self.task, Translate):
            request = request.replace(text=self.task.settings.prefix + request.text)
        words, types = self.tokenize(request.text, request.pair)
        if not words:
            raise InputError("There is no text to read; write some.")
        words = [*(TokenLabel(number, "▢", "▢") for number in image_placeholder_ids(self.model)), *words]
        if request.pair is not None and "token_type_ids" in self.model.names and len(types) != len(words):
            raise InputError(f"This {self.model.family} model reads no second text; leave the pair out.")
        limit = min(stage.limit or MOST_TOKENS for stage in self.stages if "input_ids" in stage.names)
        if len(words) > min(limit, MOST_TOKENS):
            raise InputError(f"The text has {len(words):,} tokens; the most is {min(limit, MOST_TOKENS):,}.")
        if request.padding:
            return self._padded(request, words, types)
        batch = {"input_ids": torch.tensor([[word.id for word in words]])}
        if request.pair is not None and "token_type_ids" in self.model.names:
            batch["token_type_ids"] = torch.tensor([types])
        return batch, words

    def _padded(
        self, request: ViewRequest, words: list[TokenLabel], types: list[int]
    ) -> tuple[dict[str, Any], list[TokenLabel]]:
        """The text beside tokens that mean nothing, as in a batch with longer ones."""
        if "attention_mask" not in self.model.names:
            raise InputError(f"A {self.model.family} model takes no padding.")
        known = self.tokenizer.pad_id if self.tokenizer is not None else None
        padding = [TokenLabel(known or 0, "[pad]", "")] * request.padding
        spread = (padding, words) if request.padding_left else (words, padding)
        real = [int(one is words) for one in spread for _ in one]
        found = [*spread[0], *spread[1]]
        batch = {"input_ids": torch.tensor([[word.id for word in found]]), "attention_mask": torch.tensor([real])}
        if request.pair is not None and "token_type_ids" in self.model.names:
            blank = [0] * request.padding
            batch["token_type_ids"] = torch.tensor([[*blank, *types] if request.padding_left else [*types, *blank]])
        return batch, found

    def tokenize(self, text: str, pair: str | None = None, special: bool = True) -> tuple[list[TokenLabel], list[int]]:
        """Tokens and their types. Without a tokenizer the text is ids: "12 7 7"."""
        if self.tokenizer is None:
            return _ids(text), []
        row = self.tokenizer.encodings(text, pair, special=special, fast=False)[0]
        spans = self.tokenizer.offsets(row, text, pair)
        sides = [("", text, pair or "")[0 if owner is None else owner + 1] for owner in row.sequence_ids]
        words = zip(self.words(row.ids), spans, sides, strict=True)
        found = [replace(word, start=a, end=b, source=side[a:b]) for word, (a, b), side in words]
        return found, list(row.type_ids)

    def words(self, ids: Sequence[int], target: bool = False) -> list[TokenLabel]:
        """Tokens by their ids; `target`: of what the model writes."""
        if self.tokenizer is None:
            return [TokenLabel(number, str(number), str(number)) for number in ids]
        tokenizer = self.tokenizer.target if target else self.tokenizer
        raw = [tokenizer.engine.id_to_token(number) or "" for number in ids]
        return [TokenLabel(*one) for one in zip(ids, tokenizer.tokens(ids), raw, strict=True)]

    def _picture(self, request: ViewRequest) -> tuple[dict[str, Any], Any]:
        from anyformer.data.images.image_file import pillow

        assert self.processor is not None
        opened = ImageFile.of(request.file("picture")).open(self.processor.mode)
        if isinstance(self.task, PictureTextTask):
            opened = self.task.fit_picture(opened, "the image")
        pixels = resize_image(self, opened)
        stacked = self.processor.stack([pixels])
        shown = pixels.transpose(1, 2, 0)
        image = pillow().Image.fromarray(shown[..., 0] if shown.shape[-1] == 1 else shown)
        return self.processor.normalize(stacked["pixels"], stacked.get("sizes")), image

    def _sound(self, request: ViewRequest) -> tuple[dict[str, Any], Any, Shown]:
        """Features, their image (mels from top to bottom, low tones first, and time along), and the wave."""
        from anyformer.data.images.image_file import pillow

        assert self.extractor is not None
        sound = as_audio(request.file("sound"))
        features = extract_features(self.extractor, sound)
        mels = features if self.extractor.kind == "whisper" else features.T
        low, high = mels.aminmax()
        shown = (
            (255 - (mels - low) / (high - low).clamp(min=1e-6) * 255).to(torch.uint8).numpy()
        )  # ink where it is loud
        wave = sound.open(self.extractor.sampling_rate)
        drawn: Shown = {"kind": "sound", "wave": wave, "rate": self.extractor.sampling_rate}
        return {self.extractor.field: features[None]}, pillow().Image.fromarray(shown), drawn

    def _answer(
        self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline
    ) -> tuple[list[TokenLabel], list[TokenLabel]]:
        """What the decoder reads, and what it says at each place: one word later."""
        if request.target is None:
            ids = self._generated_ids(request, batch, deadline)
        else:
            target = self.tokenizer.target if self.tokenizer is not None else None
            cut = (
                [word.id for word in _ids(request.target)]
                if target is None
                else target.encode(request.target, special=False)
            )
            end = self.end
            ids = [*self._opening(request, batch, deadline), *cut, *([] if end is None else [end])]
        words = self.words(ids, target=True)
        return words[:-1], words[1:]

    @property
    def _hears(self) -> bool:
        """A model of speech, which generates new tokens alone: neither what they follow nor the end."""
        return self.reads_audio and window_frames(self.model) is not None

    def _generated_ids(self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline) -> list[int]:
        """What the model writes by itself, from the start token to the end where it came to one."""
        if isinstance(self.task, Translate):
            asked = {} if request.new_tokens is None else {"max_new_tokens": request.new_tokens}
            with watched(self.model, None, [], deadline), ablate_heads(self.model, request.silence):
                whole = [*self._opening(request, batch, deadline), *self.task.answer_ids(request.text, **asked)]
            decoder = next(stage for stage in self.stages if "decoder_input_ids" in stage.names)
            return whole[: min(decoder.limit or MOST_TOKENS, MOST_TOKENS) + 1]  # of several sentences
        ids = self.generate(request, batch, deadline)
        if not self._hears:
            return ids
        wish = read_speech_options(self.model, self.ending(), long=False)
        whole = [*self._opening(request, batch, deadline), *ids]
        most = (
            request.new_tokens
            if request.new_tokens is not None
            else self.decoding.get("max_new_tokens", wish.max_prompt)
        )
        ended = len(ids) < most and len(whole) < wish.max_prompt
        return [*whole, wish.end] if ended else whole

    @torch.inference_mode()
    def _opening(self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline) -> list[int]:
        """What every answer begins with: the start token, and for models of speech the language and the task."""
        start = self.model.decoder_start
        assert start is not None
        if not self._hears:
            return [start]
        wish = read_speech_options(self.model, self.ending(), long=False)
        with watched(self.model, None, [], deadline), ablate_heads(self.model, request.silence):
            return cast("list[int]", decoder_prompts(self.model, batch["input_features"], wish)[0].tolist())

    @property
    def end(self) -> int | None:
        said = self.model.origin.generation.get("eos_token_id", self.model.config.to_json().get("end"))
        found = said[0] if isinstance(said, list) else said
        return self.tokenizer.target.end_id if found is None and self.tokenizer is not None else found

    @property
    def decoding(self) -> dict[str, Any]:
        """How the model writes: as its task does, on the command line and in Python."""
        return {"max_new_tokens": NEW} if self.task is None else dict(self.task.decoding)

    def generate(self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline, **options: Any) -> list[int]:
        given = {name: value for name, value in batch.items() if name != "logits_to_keep"}
        asked = {} if request.new_tokens is None else {"max_new_tokens": request.new_tokens}
        with watched(self.model, None, [], deadline), ablate_heads(self.model, request.silence):
            made = self.model.generate(**given, **{**self.ending(), **self.decoding, **asked, **options})
        return cast("list[int]", made[0].tolist())

    def ending(self) -> dict[str, Any]:
        """How answers end, where the folder itself does not say."""
        if "eos_token_id" in self.model.origin.generation or self.end is None:
            return {}
        return {"eos_token_id": self.end}


def writing_task(model: Model, path: Path) -> Any:
    """The task around a folder's model, if it is one that writes about what it reads; else None."""
    name = model.origin.settings.get("task", {}).get("name")
    return find(name).around(model, path, {}) if name in WRITERS else None


def _ids(text: str) -> list[TokenLabel]:
    try:
        return [TokenLabel(int(part), part, part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError("This model came without a tokenizer; give it ids, such as: 12 7 7.") from None


def _processor(model: Model) -> ImageProcessor:
    """The folder's own; else one that suits the model's input."""
    from anyformer.data.images.processor import FILE
    from anyformer.tasks.detect import Detect
    from anyformer.tasks.picture import PictureTask

    inputs = next((stage.inputs for stage in model.stages.values() if isinstance(stage.inputs, ImageInput)), None)
    if FILE not in model.origin.files and inputs is not None:
        channels = inputs.config.n_channels
        half = (0.5,) * channels
        return ImageProcessor(size=inputs.config.image_size, channels=channels, mean=half, std=half)
    kind = Detect if Detect.fits(model.config) else PictureTask
    return kind.find_processor(model, None, DataSettings())
