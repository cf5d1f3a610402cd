"""WAV files of every width, and what is said of damaged ones."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile

import anyformer as af
from anyformer.data.audio.audio_file import as_audio, audio_from_file
from anyformer.data.audio.wav import read_wav, write_wav
from tests.data.audio.waves import noise, tone


def scipy_wav(samples: np.ndarray, rate: int = 8000) -> bytes:
    stream = io.BytesIO()
    wavfile.write(stream, rate, samples)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("kind", "full"), [(np.int16, 2.0**15), (np.int32, 2.0**31), (np.float32, 1.0), (np.float64, 1.0)]
)
def test_widths(kind: type, full: float) -> None:
    """What scipy writes comes back, at two channels, between -1 and 1."""
    rng = np.random.default_rng(0)
    real = rng.uniform(-0.9, 0.9, (500, 2))
    samples = (real * full).astype(kind)
    rate, read = read_wav(scipy_wav(samples), "a.wav")
    assert rate == 8000 and read.shape == (2, 500)
    np.testing.assert_allclose(read.numpy().T, samples.astype(np.float64) / full, atol=1e-7)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_standard_library(width: int) -> None:
    """8 bits have no sign, 24 no type of their own: values by hand, frames by the standard library."""
    values = [0, 1, -1, 2 ** (8 * width - 1) - 1, -(2 ** (8 * width - 1))]
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(width)
        file.setframerate(44_100)
        shifted = [value + 128 for value in values] if width == 1 else values
        file.writeframes(b"".join(v.to_bytes(width, "little", signed=width > 1) for v in shifted))
    rate, read = read_wav(stream.getvalue(), "a.wav")
    assert rate == 44_100
    torch.testing.assert_close(read[0], torch.tensor([v / 2 ** (8 * width - 1) for v in values]))


def test_other_chunks_are_passed_over() -> None:
    data = write_wav(tone(0.01), 16_000)
    listed = data[:12] + struct.pack("<4sI", b"LIST", 3) + b"abc\0" + data[12:]
    assert torch.equal(read_wav(listed, "a.wav")[1], read_wav(data, "a.wav")[1])


def test_written_and_read() -> None:
    samples = torch.stack([noise(0.1), tone(0.1)])
    rate, read = read_wav(write_wav(samples, 22_050), "a.wav")
    assert rate == 22_050
    assert float((read - samples).abs().max()) <= 0.5 / 32768 + 1e-7


def test_cut_off(tmp_path: Path) -> None:
    data = write_wav(tone(1.0), 16_000)
    path = tmp_path / "half.wav"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(af.Error, match=r"half\.wav .*7,9\d\d .*16,000"):
        audio_from_file(path).read()
    for end, said in ((20, "samples|header"), (40, "samples"), (0, "RIFF")):
        path.write_bytes(data[:end])
        with pytest.raises(af.Error, match=said):
            audio_from_file(path).read()


def test_codings_that_are_not_read() -> None:
    data = bytearray(write_wav(tone(0.1), 16_000))
    struct.pack_into("<H", data, 20, 6)  # A-law
    with pytest.raises(af.Error, match=r"a\.wav .*format 6\b"):
        read_wav(bytes(data), "a.wav")


def test_empty_and_broken_samples() -> None:
    with pytest.raises(af.Error, match=r"bytes given .*0 samples"):
        as_audio(write_wav(torch.zeros(0), 8000)).read()
    with pytest.raises(af.Error, match=r"samples given .*NaN"):
        as_audio((8000, [0.0, float("nan")])).read()
    with pytest.raises(af.Error, match=r'Tensor.*"sampling_rate"'):
        as_audio(torch.zeros(100))
    with pytest.raises(af.Error, match=r"nothing\.wav"):
        as_audio("nothing.wav").read()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int32, np.float32, np.float64])
def test_samples_from_python(kind: type) -> None:
    """What scipy reads is heard as the file is: stereo, of every width, in every way of handing it in."""
    real = np.random.default_rng(0).uniform(-0.9, 0.9, (500, 2))
    full = {np.uint8: 2.0**7, np.int16: 2.0**15, np.int32: 2.0**31}.get(kind, 1.0)
    data = scipy_wav((real * full + (128 if kind is np.uint8 else 0)).astype(kind))
    rate, samples = wavfile.read(io.BytesIO(data))
    wanted = as_audio(data).read()[1]
    for thing in ((rate, samples), (np.int64(rate), samples.T), {"array": samples, "sampling_rate": float(rate)}):
        own, read = as_audio(thing).read()
        assert own == 8000 and type(own) is int
        torch.testing.assert_close(read, wanted, atol=1e-6, rtol=0)
    torch.testing.assert_close(as_audio((rate, torch.from_numpy(samples[:, 0].copy()))).read()[1], wanted[:1])


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ((np.zeros(100, np.int16), 8000), r"\(rate, samples\)"),
        ((8000.5, [0.0]), r"8000\.5"),
        ((8000, np.zeros((0, 2))), r"\[0, 2\]"),
        ((8000, np.zeros((2, 2, 2))), r"\[2, 2, 2\]"),
        ((8000, np.zeros(9, complex)), "complex128"),
        ((8000, np.zeros(9, bool)), "bool"),
        ((8000, ["a"]), "<U1"),
        ((8000, [[0.0, 1.0], [0.0]]), r"channels.*\[channels, n\]"),
        ((8000, [0, 12_000, -12_000]), "int64"),
    ],
)
def test_samples_that_are_none(thing: object, said: str) -> None:
    with pytest.raises(af.Error, match=said):
        as_audio(thing)


def test_rates_too_low() -> None:
    for thing, rate in ((write_wav(tone(0.1), 1), 1), ((1, tone(0.1)), 1), ((-8000, tone(0.1)), -8000)):
        with pytest.raises(af.Error, match=rf" {rate} Hz.* 100 "):
            as_audio(thing).open(16_000)


def test_flac(tmp_path: Path) -> None:
    """Through soundfile, stereo to one channel, to another rate."""
    soundfile = pytest.importorskip("soundfile")
    stereo = torch.stack([tone(0.5, 8000), 0.5 * tone(0.5, 8000)])
    soundfile.write(tmp_path / "a.flac", stereo.T.numpy(), 8000)
    rate, read = as_audio(tmp_path / "a.flac").read()
    assert rate == 8000
    torch.testing.assert_close(read, stereo, atol=1 / 32768, rtol=0)
    middle = as_audio(tmp_path / "a.flac").open(8000)
    torch.testing.assert_close(middle, stereo.mean(dim=0), atol=1 / 32768, rtol=0)
    assert len(as_audio(tmp_path / "a.flac").open(16_000)) == 8000
    (tmp_path / "b.flac").write_bytes((tmp_path / "a.flac").read_bytes()[:60])
    with pytest.raises(af.Error, match=r"b\.flac"):
        as_audio(tmp_path / "b.flac").read()


def test_flac_without_soundfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(af.Error, match="pip install 'anyformer\\[audio\\]'"):
        as_audio(b"fLaC....").read()
