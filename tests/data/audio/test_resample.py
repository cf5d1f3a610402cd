"""Other rates: against the formula in float64, and against scipy where both are good."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.signal import resample_poly

import anyformer as af
from anyformer.data.audio import resample as resampling
from anyformer.data.audio.resample import resample
from tests.data.audio.waves import noise, tone

RATES = [(8000, 16_000), (44_100, 16_000), (48_000, 16_000), (16_000, 8000), (22_050, 16_000), (11_025, 44_100)]


def by_formula(wave: np.ndarray, old: int, new: int) -> np.ndarray:
    """y(t) = Σ x(n) h(t - n / old), h a sinc under Hann's window of 6 zeros, cut at 0.99 of the lower half rate."""
    common = math.gcd(old, new)
    base = min(old, new) // common * 0.99 * common
    times = np.arange(math.ceil(len(wave) * new / old)) / new
    at = (times[:, None] - np.arange(len(wave))[None] / old) * base
    inside = np.abs(at) < 6
    return (np.where(inside, np.sinc(at) * np.cos(at * np.pi / 12) ** 2, 0) * base / old) @ wave


@pytest.mark.parametrize(("old", "new"), RATES)
def test_formula(old: int, new: int) -> None:
    wave = noise(0.02, old).double()
    made = resample(wave, old, new)
    expected = by_formula(wave.numpy(), old, new)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("old", "new"), RATES)
def test_scipy(old: int, new: int) -> None:
    """A tone far below half of either rate, away from the ends."""
    common = math.gcd(old, new)
    wave = tone(0.5, old, pitch=500.0)
    theirs = resample_poly(wave.numpy().astype(np.float64), new // common, old // common)
    ours = resample(wave, old, new).numpy()
    assert len(ours) == len(theirs)
    middle = slice(len(ours) // 10, -len(ours) // 10)
    assert np.abs(ours[middle] - theirs[middle]).max() < 5e-3
    assert np.abs(ours[middle] - tone(0.6, new, pitch=500.0).numpy()[: len(ours)][middle]).max() < 5e-3


def test_what_a_lower_rate_cannot_hold_is_gone() -> None:
    made = resample(tone(0.5, 16_000, pitch=6000.0), 16_000, 8000)
    assert float(made[200:-200].abs().max()) < 5e-3


def test_several_rows_and_the_same_rate() -> None:
    waves = torch.stack([noise(0.1, seed=i) for i in range(6)]).view(2, 3, -1)
    made = resample(waves, 16_000, 12_000)
    assert made.shape == (2, 3, 1200)
    torch.testing.assert_close(made[1, 2], resample(waves[1, 2], 16_000, 12_000))
    assert resample(waves, 16_000, 16_000) is waves
    with pytest.raises(af.Error, match="above 0"):
        resample(waves, 0, 16_000)


@pytest.mark.parametrize(("old", "new"), [(7, 5), (5, 7), (3, 1), (1, 3), (441, 160), (160, 441)])
def test_sample_by_sample_is_run_by_run(old: int, new: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = torch.randn(2, 1000, dtype=torch.float64)
    expected = resample(wave, old, new)
    monkeypatch.setattr(resampling, "LARGE", 0)
    monkeypatch.setattr(resampling, "BLOCK", 300)
    torch.testing.assert_close(resample(wave, old, new), expected, rtol=1e-12, atol=1e-12)


def test_rates_without_a_common_divisor() -> None:
    """Their filters would take gigabytes: 44,101 by 16,000 numbers."""
    at = torch.arange(44_101) / 44_101
    made = resample(torch.sin(2 * math.pi * 440 * at), 44_101, 16_000)
    expected = torch.sin(2 * math.pi * 440 * torch.arange(16_000) / 16_000)
    assert len(made) == 16_000
    torch.testing.assert_close(made[200:-200], expected[200:-200], rtol=0, atol=2e-3)
