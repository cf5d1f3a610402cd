"""Files of sounds for tests, made by formula: low and high tones."""

from __future__ import annotations

import io
import math
import zipfile

import torch

from anyformer.data.audio.wav import write_wav

RATE = 8000


def tone(pitch: float, seconds: float = 0.3) -> bytes:
    return write_wav(0.5 * torch.sin(2 * math.pi * pitch * torch.arange(int(seconds * RATE)) / RATE), RATE)


def spoken(n: int = 16) -> dict[str, bytes]:
    """A zip of tones, and a table that says of each whether it is low or high, and in words."""
    packed, lines = io.BytesIO(), ["file\tlabel\ttext"]
    with zipfile.ZipFile(packed, "w") as archive:
        for i in range(n):
            kind = ("low", "high")[i % 2]
            archive.writestr(f"{i}.wav", tone((250 if kind == "low" else 1500) + 10 * i))
            lines.append(f"{i}.wav\t{kind}\tthe {kind} one")
    return {"x.zip": packed.getvalue(), "x.tsv": ("\n".join(lines) + "\n").encode()}
