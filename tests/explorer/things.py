"""Tiny models of everything that is not text, and the inputs that are made for them."""

from __future__ import annotations

import base64
import io
import zipfile
from pathlib import Path

import numpy as np

from anyformer.tasks.classify_set import FILE, TableReader
from tests.explorer.models import save

COLUMNS = ("age", "height", "job", "town")


def save_things(root: Path) -> None:
    """One of each kind that is read and no text."""
    for name, recipe in {
        "vit": "vit-tiny",
        "mae": "mae-tiny",
        "detr": "detr-tiny",
        "captioner": "vision-encoder-decoder-tiny",
        "git": "git-tiny",
        "docked": "metalm-tiny",
        "ast": "ast-tiny",
        "videomae": "videomae-tiny",
        "timesformer": "timesformer-tiny",
        "points": "set-transformer-tiny",
        "joints": "keypoint-detr-tiny",
        "vitpose": "vitpose-tiny",
        "segmenter": "segmenter-tiny",
    }.items():
        save(root / name, recipe)
    decoder = {"n_decoder_layers": 1, "d_decoder": 32, "n_decoder_heads": 4, "d_decoder_hidden": 64}
    save(root / "tubes", "videomae-tiny", head="pixels", **decoder)
    save(root / "pool", "vit-tiny", pooling="attention", class_token=False)
    small = {"n_latents": 6, "d_latents": 32, "n_layers": 2, "n_heads": 4, "d_model": 24, "n_labels": 4}
    save(root / "perceiver-picture", "perceiver-cifar", **{**small, "image_size": 8, "resolution": 8, "bands": 4})
    save(root / "perceiver-sound", "perceiver-sound", **small, n_mels=16, n_frames=32)
    save(root / "perceiver-points", "perceiver-set", **small, d_item=3)
    words = {"vocab_size": 64, "padding": 0, "end": 0, "decoder_start": 1}
    short = {"n_layers": 1, "n_decoder_layers": 1, "d_model": 24, "d_hidden": 32, "d_decoder_hidden": 32}
    save(root / "whisper", "whisper-tiny", **short, **words, source_length=100)
    save_table(root / "table")


def save_table(folder: Path) -> None:
    reader = TableReader(
        numbers=COLUMNS[:2],
        means=(40.0, 170.0),
        stds=(15.0, 10.0),
        categories=COLUMNS[2:],
        values={"job": ["cook", "nurse", "pilot"], "town": ["Basel", "Bern"]},
    )
    save(folder, "ft-transformer-tiny", n_numbers=2, categories=(3, 2))
    (folder / FILE).write_bytes(reader.write()[FILE])


def as_text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def npz(**arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def frames(n: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(n, 20, 24, 3), dtype=np.uint8)


def frames_zip() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for i, frame in enumerate(frames()):
            picture = io.BytesIO()
            Image.fromarray(frame).save(picture, format="PNG")
            archive.writestr(f"frame-{i}.png", picture.getvalue())
    return stream.getvalue()
