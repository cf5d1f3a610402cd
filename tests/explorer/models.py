"""Tiny models in folders, with weights large enough that heads differ."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anyformer as af
from anyformer.data.audio.wav import write_wav
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import VIEWS

TEXT = "the animal was too tired"
TEXTS = [TEXT, "the animal did not cross the street because it was too wide", "a man rides a bicycle"]


def tokenizer(kind: Any = "bpe", **options: Any) -> af.Tokenizer:
    return af.Tokenizer.train(iter(TEXTS * 3), kind=kind, vocab_size=300, progress=False, **options)


def save(folder: Path, recipe: str, words: af.Tokenizer | None = None, seed: int = 0, **changes: Any) -> Path:
    torch.manual_seed(seed)
    if words is not None:
        changes["vocab_size"] = len(words)
    model = af.build(recipe, **changes).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.requires_grad:
            parameter.data *= 4
    model.save(folder)
    if words is not None:
        words.save(folder)
    return folder


def save_all(root: Path) -> None:
    """One of each kind that the explorer knows."""
    save(root / "decoder", "gpt2-tiny", tokenizer())
    save(root / "encoder", "bert-tiny", tokenizer("wordpiece", bert=True))
    save(root / "pair", "transformer-tiny", tokenizer(end=True))
    save(root / "recurrent", "bahdanau-tiny", tokenizer(end=True))
    save(root / "relative", "t5-tiny", tokenizer(end=True))
    save(root / "vit", "vit-tiny")
    save(root / "mae", "mae-tiny")
    save(root / "detr", "detr-tiny")
    save(root / "captioner", "vision-encoder-decoder-tiny")
    save(root / "spectrogram", "ast-tiny")
    small = {"n_layers": 1, "n_decoder_layers": 1, "d_model": 24, "d_hidden": 32, "d_decoder_hidden": 32}
    words = {"vocab_size": 64, "padding": 0, "end": 0, "decoder_start": 1}
    save(root / "whisper", "whisper-tiny", **small, **words, source_length=100)


def image_file(seed: int = 0) -> str:
    """A file, as base64."""
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, size=(48, 64, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return base64.b64encode(stream.getvalue()).decode()


def audio_file() -> str:
    """A rising tone of a second, as base64 of a WAV file."""
    time = torch.arange(16_000) / 16_000
    return base64.b64encode(write_wav(0.3 * torch.sin(2000 * time * (1 + time))[None], 16_000)).decode()


def view(opened: LoadedModel, name: str, **asked: Any) -> dict[str, Any]:
    """A view as the server gives it."""
    return VIEWS[name](opened, ViewRequest.from_json(asked), Deadline(60))


def unpack(packed: dict[str, Any]) -> torch.Tensor:
    """The numbers back out of their 16 bits."""
    levels = np.frombuffer(base64.b64decode(packed["u16"]), dtype="<u2").astype(np.float64)
    values = packed["low"] + levels / 65535 * (packed["high"] - packed["low"])
    return torch.from_numpy(values.reshape(packed["shape"]))
