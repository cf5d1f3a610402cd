"""Attention along time and over space: against loops over cells and frames."""

from __future__ import annotations

import torch

from anyformer.core.tokens import Tokens
from anyformer.layers.wrappers import merge_axis, split_axis

B, CELLS, FRAMES, D = 2, 6, 3, 4


def clip() -> Tokens:
    return Tokens(torch.randn(B, 1 + CELLS * FRAMES, D), grid=(2, 3), frames=FRAMES)


def test_time() -> None:
    tokens = clip()
    grouped = split_axis(tokens, "time").x
    assert grouped.shape == (B * CELLS, FRAMES, D)
    for b in range(B):
        for cell in range(CELLS):
            start = 1 + cell * FRAMES
            assert torch.equal(grouped[b * CELLS + cell], tokens.x[b, start : start + FRAMES])
    back = merge_axis(grouped, tokens, "time")
    assert torch.equal(back[:, 1:], tokens.x[:, 1:]) and not bool(back[:, 0].any())


def test_space() -> None:
    tokens = clip()
    grouped = split_axis(tokens, "space").x
    assert grouped.shape == (B * FRAMES, 1 + CELLS, D)
    for b in range(B):
        for frame in range(FRAMES):
            row = grouped[b * FRAMES + frame]
            assert torch.equal(row[0], tokens.x[b, 0]) and torch.equal(row[1:], tokens.x[b, 1 + frame :: FRAMES])
    torch.testing.assert_close(merge_axis(grouped, tokens, "space"), tokens.x)
    assert split_axis(tokens, "all") is tokens and merge_axis(grouped, tokens, "all") is grouped
