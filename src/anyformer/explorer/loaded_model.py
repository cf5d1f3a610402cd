"""A loaded model with its tokenizer and processors. Inputs are preprocessed, and forward passes are cached for further
requests."""

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
from anyformer.explorer.request import DEFAULT_NEW_TOKENS, ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import Trace, trace, watched
from anyformer.generation.engine import optimize_for_decoding
from anyformer.generation.plan import first_window
from anyformer.generation.speech_prompt import decoder_prompts, read_speech_options
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

CPU = torch.device("cpu")
MAX_TOKENS = 2048
GENERATIVE_TASKS = frozenset("ask-image caption read summarize transcribe translate".split())
MAX_CACHED = 4  # cached forward passes
MAX_CACHED_BYTES = 2**30


@dataclass(frozen=True)
class TokenLabel:
    """A token: its id, its decoded and raw text, and the characters `start` to `end` of the source text."""

    id: int
    text: str
    raw: str
    start: int = 0
    end: int = 0
    source: str = ""


@dataclass(frozen=True)
class ModelInput:
    """The input of a model: the batch, and the tokens of each stage that reads text."""

    batch: dict[str, Any]
    words: dict[str, list[TokenLabel]] = field(default_factory=dict)
    answers: list[TokenLabel] = field(default_factory=list)  # tokens predicted by the decoder at each position
    image: Any = None  # PIL image: the processed image, or the spectrogram of audio
    shown: Shown = field(default_factory=dict)  # what the page draws for audio, a video, a set or a table row


class LoadedModel:
    """A model, its tokenizer, its task, and a cache of forward passes. `generator` is its copy on a GPU, which
    generates; what the views show of a forward pass is computed by the model, on the CPU."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None, task: Any = None, generator: Model | None = None
    ) -> None:
        self.model, self.tokenizer, self.task = model, tokenizer, task
        self.generator = model if generator is None else generator
        self.processor = _processor(model) if self.reads_images else None
        self.extractor = find_extractor(model, None) if self.reads_audio else None
        self.reader = find_reader(model)  # for video, sets or tables
        self.gallery: ImageFolder | None = None
        self.lock = Lock()  # one request at a time, because taps and hooks belong to the model
        self.cache: OrderedDict[tuple[object, ...], tuple[ModelInput, Trace]] = OrderedDict()

    @classmethod
    def load(cls, path: Path, device: torch.device = CPU) -> LoadedModel:
        """Load a model folder or .gguf file in float32."""
        model = load(path, device="cpu", dtype="float32")
        generator = model if device.type == "cpu" else load(path, device=device, dtype="float32")
        for one in (model, generator):
            one.requires_grad_(False)
            optimize_for_decoding(one)
        try:
            tokenizer = Tokenizer.load(path)
        except Error:  # for example an image model
            tokenizer = None
        return cls(model, tokenizer, generation_task(generator, path), generator)

    # Properties of the model.

    @property
    def reads_text(self) -> bool:
        return "input_ids" in self.model.names

    @property
    def reads_images(self) -> bool:
        video = any(isinstance(stage.inputs, VideoInput) for stage in self.stages)
        return "pixel_values" in self.model.names and not video

    @property
    def reads_audio(self) -> bool:
        return any(isinstance(stage.inputs, (SpectrogramInput, MelConvInput)) for stage in self.stages)

    @property
    def encoder_decoder(self) -> bool:
        """Whether the model is an encoder-decoder that generates text."""
        return self.model.decoder_start is not None and "decoder_input_ids" in self.model.names and bool(self.language)

    @property
    def decoder_only(self) -> bool:
        """Whether the model is a decoder-only language model."""
        return (
            self.reads_text
            and not self.encoder_decoder
            and any(one.has_cache for one in self.stages)
            and bool(self.language)
        )

    @property
    def reads_pairs(self) -> bool:
        """Whether the model is an encoder with token types for sentence pairs."""
        typed = self.tokenizer is not None and self.tokenizer.takes_type_ids and "token_type_ids" in self.model.names
        return typed and not self.decoder_only

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
        return next((head for head in self.model.heads.values() if type(head) is PixelHead), None)

    @property
    def patches(self) -> ImageInput | None:
        return next((stage.inputs for stage in self.stages if isinstance(stage.inputs, ImageInput)), None)

    # Inputs and forward passes.

    def trace(self, request: ViewRequest, deadline: Deadline) -> tuple[ModelInput, Trace]:
        """The input and the trace of a forward pass, from the cache if possible."""
        key = request.key()
        if key not in self.cache:
            model_input = self.model_input(request, deadline)
            self.store(key, model_input, trace(self.model, model_input.batch, request.ablate, deadline))
        self.cache.move_to_end(key)
        return self.cache[key]

    def store(self, key: tuple[object, ...], model_input: ModelInput, seen: Trace) -> None:
        """Cache a forward pass; the least recently used passes are evicted."""
        self.cache[key] = model_input, seen
        while len(self.cache) > 1 and self._too_much():
            self.cache.popitem(last=False)

    def _too_much(self) -> bool:
        return len(self.cache) > MAX_CACHED or sum(one.size() for _, one in self.cache.values()) > MAX_CACHED_BYTES

    def model_input(self, request: ViewRequest, deadline: Deadline) -> ModelInput:
        """Preprocess the input of a request."""
        if not (self.reads_text or self.reads_images or self.reads_audio or self.reader):
            raise InputError(f"{self.model.family} models need an input that the explorer does not support.")
        batch: dict[str, Any] = {}
        words: dict[str, list[TokenLabel]] = {}
        image = None
        shown: Shown = {}
        if self.reader is not None:
            batch, shown = read_input(self.reader, request)
            batch |= autoregressive_inputs(self, request, batch, deadline)
        if self.reads_images:
            batch, image = self._image_input(request)
            batch |= autoregressive_inputs(self, request, batch, deadline)
        if self.reads_audio:
            batch, image, shown = self._audio_input(request)
        if self.reads_text:
            given, found = self._text_input(request)
            batch |= given
            words = {stage.name: found for stage in self.stages if "input_ids" in stage.names}
        if self.language is not None and "logits_to_keep" in self.model.names:
            batch["logits_to_keep"] = 1  # other positions are scored on request
        if not self.encoder_decoder:
            return ModelInput(batch, words, image=image, shown=shown)
        generated, answers = self._decoder_input(request, batch, deadline)
        batch["decoder_input_ids"] = torch.tensor([[word.id for word in generated]], dtype=torch.long)
        decoder = next(stage.name for stage in self.stages if "decoder_input_ids" in stage.names)
        return ModelInput(batch, {**words, decoder: generated}, answers, image, shown)

    def _text_input(self, request: ViewRequest) -> tuple[dict[str, Any], list[TokenLabel]]:
        request = request if request.pair else request.replace(pair=None)
        if request.text and isinstance(self.task, Translate):
            request = request.replace(text=self.task.settings.prefix + request.text)
        words, types = self.tokenize(request.text, request.pair)
        if not words:
            raise InputError("text is empty; enter a text.")
        words = [*(TokenLabel(number, "▢", "▢") for number in image_placeholder_ids(self.model)), *words]
        if request.pair is not None and "token_type_ids" in self.model.names and len(types) != len(words):
            raise InputError(f"This {self.model.family} model does not accept a second text; leave pair empty.")
        limit = min(stage.limit or MAX_TOKENS for stage in self.stages if "input_ids" in stage.names)
        if len(words) > min(limit, MAX_TOKENS):
            raise InputError(f"The text has {len(words):,} tokens; the maximum is {min(limit, MAX_TOKENS):,}.")
        if request.padding:
            return self._padded(request, words, types)
        batch = {"input_ids": torch.tensor([[word.id for word in words]])}
        if request.pair is not None and "token_type_ids" in self.model.names:
            batch["token_type_ids"] = torch.tensor([types])
        return batch, words

    def _padded(
        self, request: ViewRequest, words: list[TokenLabel], types: list[int]
    ) -> tuple[dict[str, Any], list[TokenLabel]]:
        """The text with padding tokens, as in a batch with longer texts."""
        if "attention_mask" not in self.model.names:
            raise InputError(f"{self.model.family} models do not support padding.")
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
        """Tokens and their types. Without a tokenizer, the text contains ids: "12 7 7"."""
        if self.tokenizer is None:
            return _ids(text), []
        row = self.tokenizer.encodings(text, pair, special=special, fast=False)[0]
        spans = self.tokenizer.offsets(row, text, pair)
        sides = [("", text, pair or "")[0 if owner is None else owner + 1] for owner in row.sequence_ids]
        words = zip(self.words(row.ids), spans, sides, strict=True)
        found = [replace(word, start=a, end=b, source=side[a:b]) for word, (a, b), side in words]
        return found, list(row.type_ids)

    def words(self, ids: Sequence[int], target: bool = False) -> list[TokenLabel]:
        """The tokens of ids, with the target tokenizer if `target`."""
        if self.tokenizer is None:
            return [TokenLabel(number, str(number), str(number)) for number in ids]
        tokenizer = self.tokenizer.target if target else self.tokenizer
        raw = [tokenizer.engine.id_to_token(number) or "" for number in ids]
        return [TokenLabel(*one) for one in zip(ids, tokenizer.tokens(ids), raw, strict=True)]

    def _image_input(self, request: ViewRequest) -> tuple[dict[str, Any], Any]:
        from anyformer.data.images.image_file import pillow

        assert self.processor is not None
        opened = ImageFile.of(request.file("image")).open(self.processor.mode)
        if isinstance(self.task, PictureTextTask):
            opened = self.task.fit_picture(opened, "the image")
        pixels = resize_image(self, opened)
        stacked = self.processor.stack([pixels])
        shown = pixels.transpose(1, 2, 0)
        image = pillow().Image.fromarray(shown[..., 0] if shown.shape[-1] == 1 else shown)
        return self.processor.normalize(stacked["pixels"], stacked.get("sizes")), image

    def _audio_input(self, request: ViewRequest) -> tuple[dict[str, Any], Any, Shown]:
        """Audio features, their spectrogram as an image (low frequencies at the top), and the waveform."""
        from anyformer.data.images.image_file import pillow

        assert self.extractor is not None
        audio = as_audio(request.file("audio"))
        features = extract_features(self.extractor, audio)
        mels = features if self.extractor.kind == "whisper" else features.T
        low, high = mels.aminmax()
        shown = (
            (255 - (mels - low) / (high - low).clamp(min=1e-6) * 255).to(torch.uint8).numpy()
        )  # dark where it is loud
        waveform = audio.open(self.extractor.sampling_rate)
        drawn: Shown = {"kind": "audio", "waveform": waveform, "rate": self.extractor.sampling_rate}
        return {self.extractor.field: features[None]}, pillow().Image.fromarray(shown), drawn

    def _decoder_input(
        self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline
    ) -> tuple[list[TokenLabel], list[TokenLabel]]:
        """The input tokens of the decoder, and the target tokens (shifted by one)."""
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
            ids = [*self._decoder_prompt(request, batch, deadline), *cut, *([] if end is None else [end])]
        words = self.words(ids, target=True)
        return words[:-1], words[1:]

    @property
    def _is_speech_model(self) -> bool:
        """Whether the model is a speech model, whose generated ids contain neither the prompt nor the end token."""
        return self.reads_audio and first_window(self.model) is not None

    def _generated_ids(self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline) -> list[int]:
        """The ids that the model generates, from the start token to the end token (if it was generated)."""
        if isinstance(self.task, Translate):
            length = {} if request.new_tokens is None else {"max_new_tokens": request.new_tokens}
            prompt = self._decoder_prompt(request, batch, deadline)
            with watched(self.generator, None, [], deadline), ablate_heads(self.generator, request.ablate):
                whole = [*prompt, *self.task.answer_ids(request.text, **length)]
            decoder = next(stage for stage in self.stages if "decoder_input_ids" in stage.names)
            return whole[: min(decoder.limit or MAX_TOKENS, MAX_TOKENS) + 1]  # for several sentences
        ids = self.generate(request, batch, deadline)
        if not self._is_speech_model:
            return ids
        options = read_speech_options(self.model, self.end_options(), long=False)
        whole = [*self._decoder_prompt(request, batch, deadline), *ids]
        limit = (
            request.new_tokens
            if request.new_tokens is not None
            else self.decoding.get("max_new_tokens", options.max_prompt)
        )
        ended = len(ids) < limit and len(whole) < options.max_prompt
        return [*whole, options.end] if ended else whole

    @torch.inference_mode()
    def _decoder_prompt(self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline) -> list[int]:
        """The decoder prompt: the start token, and for speech models the language and the task."""
        start = self.model.decoder_start
        assert start is not None
        if not self._is_speech_model:
            return [start]
        options = read_speech_options(self.model, self.end_options(), long=False)
        with watched(self.model, None, [], deadline), ablate_heads(self.model, request.ablate):
            return cast("list[int]", decoder_prompts(self.model, batch["input_features"], options)[0].tolist())

    @property
    def end(self) -> int | None:
        value = self.model.origin.generation.get("eos_token_id", self.model.config.to_json().get("end"))
        found = value[0] if isinstance(value, list) else value
        return self.tokenizer.target.end_id if found is None and self.tokenizer is not None else found

    @property
    def decoding(self) -> dict[str, Any]:
        """The generation options of the task, as on the command line and in Python."""
        return {"max_new_tokens": DEFAULT_NEW_TOKENS} if self.task is None else dict(self.task.decoding)

    def generate(self, request: ViewRequest, batch: dict[str, Any], deadline: Deadline, **options: Any) -> list[int]:
        """Generate with the options of the task, those of the request, and `options`."""
        device = self.generator.device
        given: dict[str, Any] = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
            if name != "logits_to_keep"
        }
        length = {} if request.new_tokens is None else {"max_new_tokens": request.new_tokens}
        with watched(self.generator, None, [], deadline), ablate_heads(self.generator, request.ablate):
            generated = self.generator.generate(**given, **{**self.end_options(), **self.decoding, **length, **options})
        return cast("list[int]", generated[0].tolist())

    def end_options(self) -> dict[str, Any]:
        """The end token, if the generation settings of the folder do not define it."""
        if "eos_token_id" in self.model.origin.generation or self.end is None:
            return {}
        return {"eos_token_id": self.end}


def generation_task(model: Model, path: Path) -> Any:
    """The task of a model folder if it generates text from an input; else None."""
    name = model.origin.settings.get("task", {}).get("name")
    return find(name).around(model, path, {}) if name in GENERATIVE_TASKS else None


def _ids(text: str) -> list[TokenLabel]:
    try:
        return [TokenLabel(int(part), part, part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise InputError("This model has no tokenizer; enter token ids, such as 12 7 7.") from None


def _processor(model: Model) -> ImageProcessor:
    """The image processor of the folder; else one that matches the input of the model."""
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
