"""Rendered text lines with scanner and camera effects: an endless source of training data for OCR.

source = TextLineGenerator(["TOTAL 12.50", "THANK YOU"])      # texts whose words are recombined
image, text = source.line(seed=0, epoch=1, number=2)   # 8-bit [rows, columns]; a pure function of the three numbers
"""

from __future__ import annotations

import string
import subprocess
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.images.image_file import Array, pillow
from anyformer.errors import ConfigError

HEIGHT, WIDEST = 32, 640
SHARES = (
    0.45,
    0.75,
    0.9,
)  # cumulative probabilities: words of the texts; numbers, dates and prices; a whole text; else any characters
PROSE, LONGEST = (0.15, 0.35, 0.9), 8  # the same for running text, and its maximum number of words
SIGNS = string.ascii_letters + string.digits + string.punctuation
FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts")
# Fonts of symbols.
SYMBOLS = tuple("emoji symbol math cmsy cmex cmmi dingbat braille stixsiz stixnonuni display".split())


@cache
def fonts() -> tuple[str, ...]:
    """Font files that have all ASCII characters: those of fontconfig, of the usual folders, and of matplotlib."""
    found = {path for path in (*_known(), *_lying(), *_matplotlib()) if _spells(path)}
    if not found:
        raise ConfigError("No font was found; install one, such as fonts-dejavu-core on Debian.")
    return tuple(sorted(found, key=lambda path: (Path(path).name, path)))


def _known() -> list[str]:
    try:
        listed = subprocess.run(
            ["fc-list", ":lang=en", "file"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip().rstrip(":") for line in listed.stdout.splitlines()]


def _lying() -> list[str]:
    folders = [Path(folder).expanduser() for folder in FOLDERS]
    return [str(path) for folder in folders if folder.is_dir() for path in folder.rglob("*.[to]tf")]


def _matplotlib() -> list[str]:
    try:
        import matplotlib
    except ImportError:
        return []
    return [str(path) for path in (Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf")]


def _spells(path: str) -> bool:
    name = Path(path).name.lower()
    if not name.endswith((".ttf", ".otf")) or any(word in name for word in SYMBOLS):
        return False
    try:
        face = font(path, 20)
        return len({bytes(face.getmask(letter)) for letter in "aA1g@"}) == 5
    except OSError:
        return False


@lru_cache(maxsize=512)
def font(path: str, size: int) -> Any:
    pillow()
    from PIL import ImageFont

    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


class TextLineGenerator:
    """`texts` give words and layout; without them numbers and random characters are rendered. `prose`: the texts are
    running text whose case matters; stretches of them and all ASCII characters are rendered. `faces` are font files
    (default: all that are installed).
    """

    def __init__(
        self,
        texts: Sequence[str] = (),
        height: int = HEIGHT,
        widest: int = WIDEST,
        prose: bool = False,
        faces: Sequence[str] | None = None,
    ) -> None:
        self.texts, self.prose = [text for text in texts if text.strip()], prose
        self.words = [word for text in self.texts for word in text.split()]
        letters = sorted({letter for text in self.texts for letter in text if not letter.isspace()})
        # If transcripts are upper case whatever was printed, lower-case lines must be included.
        self.capitals = bool(self.texts) and all(text == text.upper() for text in self.texts) and not prose
        self.letters = letters if letters and not prose else list(SIGNS)
        self.height, self.widest, self.faces = height, widest, faces

    def line(self, seed: int, epoch: int, number: int) -> tuple[Array, str]:
        """An image [rows, columns] and its text."""
        rng = np.random.default_rng((seed, epoch, number))
        while True:
            text = self.compose(rng)
            if self.prose:  # the case is part of the target
                text = random_case(text, rng.random())
            kind = rng.random() if self.capitals else 1.0
            drawn = self.draw(text.lower() if kind < 0.06 else text.title() if kind < 0.14 else text, rng)
            if drawn is not None:
                return drawn, text

    def compose(self, rng: np.random.Generator) -> str:
        kind, shares = rng.random(), PROSE if self.prose else SHARES
        if self.words and kind < shares[0]:
            return " ".join(self.words[i] for i in rng.integers(len(self.words), size=rng.integers(1, 7)))
        if kind < shares[1]:
            return self._figures(rng)
        if self.texts and kind < shares[2]:
            text = self.texts[rng.integers(len(self.texts))]
            return _stretch(text.split(), rng) if self.prose else text
        size = int(rng.integers(1, 16))
        return "".join(self.letters[i] for i in rng.integers(len(self.letters), size=size))

    def _figures(self, rng: np.random.Generator) -> str:
        """A price, a date, a time, or a number with letters before it; sometimes with a word."""
        n = [int(x) for x in rng.integers(0, 10_000, size=6)]
        kinds = (
            f"{n[0] % 500}.{n[1] % 100:02d}",
            f"{n[0] % 31 + 1:02d}/{n[1] % 12 + 1:02d}/{2000 + n[2] % 30}",
            f"{n[0] % 24:02d}:{n[1] % 60:02d}:{n[2] % 60:02d}",
            f"{n[0]:04d}{n[1]:04d}{n[2] % 1000}",
            f"{n[0] % 10}-{n[1] % 100:02d}-{n[2]:04d}",
            f"{n[0] % 100}%",
            f"({n[0]:04d}{n[1] % 100}-{'ABCDEHKMPTX'[n[2] % 11]})",
        )
        text = kinds[n[5] % len(kinds)]
        if self.words and n[4] % 2:
            word = self.words[n[3] % len(self.words)]
            return f"{word} {text}" if n[4] % 4 == 1 else f"{text} {word}"
        return text

    def draw(self, text: str, rng: np.random.Generator) -> Array | None:
        """None if the text is wider than the maximum width."""
        PIL = pillow()  # noqa: N806
        from PIL import ImageDraw

        faces = fonts() if self.faces is None else self.faces
        face = font(faces[int(rng.integers(len(faces)))], int(rng.integers(self.height // 2, self.height - 3)))
        left, top, right, bottom = face.getbbox(text)
        size = max(right - left, 1), max(bottom - top, 1)
        x, y = int(rng.integers(0, 10)), int(rng.integers(0, 7))
        width, height = size[0] + x + int(rng.integers(0, 10)), size[1] + y + int(rng.integers(0, 7))
        if width * self.height / height > self.widest:
            return None
        ink, paper = int(rng.integers(0, 110)), int(rng.integers(150, 256))
        image = PIL.Image.new("L", (width, height), paper)
        ImageDraw.Draw(image).text((x - left, y - top), text, fill=ink, font=face)
        return degrade(image, rng, self.height, paper)


def random_case(text: str, kind: float) -> str:
    """Upper, lower or title case with some probability, else unchanged."""
    return text.upper() if kind < 0.15 else text.lower() if kind < 0.2 else text.title() if kind < 0.25 else text


def _stretch(words: list[str], rng: np.random.Generator) -> str:
    """Some consecutive words."""
    size = int(rng.integers(1, LONGEST + 1))
    start = int(rng.integers(max(len(words) - size, 0) + 1))
    return " ".join(words[start : start + size])


def degrade(image: Any, rng: np.random.Generator, height: int, paper: int) -> Array:
    """Random slant, low resolution, blur, shadow, noise and JPEG artifacts; resized to `height` rows."""
    PIL = pillow()  # noqa: N806
    draws = rng.random(12)
    if draws[0] < 0.5:
        lean = (draws[1] - 0.5) * 0.5
        turn = (draws[2] - 0.5) * 4 / max(image.width, 40)
        matrix = (1, lean, -lean * image.height / 2, turn, 1, -turn * image.width / 2)
        image = image.transform(image.size, PIL.Image.Transform.AFFINE, matrix, 2, fillcolor=paper)
    if draws[3] < 0.3:
        low = max(int(image.height * (0.35 + 0.5 * draws[4])), 9)
        image = image.resize((max(image.width * low // image.height, 1), low), 2)
    width = max(round(image.width * height / image.height), 1)
    image = image.resize((width, height), 3 if draws[5] < 0.5 else 2)
    pixels = np.asarray(image, dtype=np.float32)
    if draws[6] < 0.4:
        pixels = _blur(pixels, int(1 + 2 * draws[7]))
    if draws[8] < 0.3:
        pixels = pixels * np.linspace(1 - 0.5 * draws[9], 1, width, dtype=np.float32)[:: 1 if draws[10] < 0.5 else -1]
    if draws[11] < 0.6:
        strength = 4 + 20 * draws[9]
        pixels = pixels + strength * rng.standard_normal(pixels.shape, dtype=np.float32)
    return pixels.clip(0, 255).astype(np.uint8)


def _blur(pixels: Any, times: int) -> Any:
    """Repeated mean filter over the four neighbors."""
    for _ in range(times):
        padded = np.pad(pixels, 1, mode="edge")
        pixels = (
            2 * padded[1:-1, 1:-1] + padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        ) / 6
    return pixels
