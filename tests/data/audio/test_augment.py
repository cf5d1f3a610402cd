"""Changes at random do what they say, and the same again from the same seed."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from anyformer.data.audio.augment import add_noise, mask_frequency, mask_time, shift


def dice(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def test_masks() -> None:
    """One run a row, no longer than asked, everything else as it was."""
    x = torch.randn(200, 30, 20) + 5
    seen = set()
    for made, axis in ((mask_time(x, 7, dice()), 1), (mask_frequency(x, 7, dice()), 2)):
        blotted = (made == 0).all(dim=3 - axis)
        assert torch.equal(torch.where(blotted.unsqueeze(3 - axis), torch.zeros(()), x), made)
        for row in blotted:
            places = row.nonzero().flatten()
            assert len(places) <= 7 and (len(places) == 0 or int(places[-1] - places[0]) + 1 == len(places))
            seen.add(len(places))
    assert seen == set(range(8))
    assert torch.equal(mask_time(x, 7, dice(3)), mask_time(x, 7, dice(3)))


def test_shift() -> None:
    x = torch.arange(10.0).repeat(300, 1).unsqueeze(2)
    made = shift(x, 3, dice())[:, :, 0]
    steps = {int(row[0]) for row in made}
    assert steps == {7, 8, 9, 0, 1, 2, 3}
    rolled: list[Tensor] = [x[0, :, 0].roll(-int(row[0])) for row in made]
    assert torch.equal(torch.stack(rolled), made)


def test_noise() -> None:
    made = add_noise(torch.zeros(400, 10, 10), 0.5, dice())
    loudest = made.amax(dim=(1, 2))
    assert float(made.min()) >= 0 and 0.45 < float(loudest.max()) <= 0.5 and float(loudest.min()) < 0.05
