"""Attention along time and over space: against loops over cells and frames."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.core.attention import Attention, AttentionConfig
from anyformer.core.init import InitConfig, initialize
from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.layers.wrappers import AttentionOverSpace, AttentionOverTime, split_cells

B, CELLS, FRAMES, D = 2, 6, 3, 4


def clip() -> Tokens:
    return Tokens(torch.randn(B, 1 + CELLS * FRAMES, D), grid=(2, 3, FRAMES))


def made() -> Attention:
    torch.manual_seed(0)
    attention = Attention(AttentionConfig(d_query=D, n_heads=2))
    initialize(attention, InitConfig(std=1.0))
    return attention.eval()


def at(cell: int, frame: int) -> int:
    """The place of a cell's frame among the tokens."""
    return 1 + cell * FRAMES + frame


def test_cells_are_apart_from_what_comes_before_them() -> None:
    tokens = clip()
    first, cells = split_cells(tokens)
    assert first.shape == (B, 1, D) and cells.shape == (B, CELLS, FRAMES, D)
    assert torch.equal(first[:, 0], tokens.x[:, 0])
    for cell in range(CELLS):
        for frame in range(FRAMES):
            assert torch.equal(cells[:, cell, frame], tokens.x[:, at(cell, frame)])


@torch.no_grad()
def test_time() -> None:
    """Each cell's frames attend to one another alone; the class token gets nothing."""
    attention, project, tokens = made(), Linear(D, D), clip()
    initialize(project, InitConfig(std=1.0))
    found = AttentionOverTime(attention, project)(tokens)
    assert found.shape == tokens.x.shape and not bool(found[:, 0].any())
    for b in range(B):
        for cell in range(CELLS):
            here = slice(at(cell, 0), at(cell, FRAMES))
            torch.testing.assert_close(found[b, here], project(attention(Tokens(tokens.x[b : b + 1, here])))[0])


@torch.no_grad()
def test_space() -> None:
    """Each frame's cells attend to one another and to the class token, which keeps the mean of what it gets."""
    attention, tokens = made(), clip()
    found = AttentionOverSpace(attention)(tokens)
    assert found.shape == tokens.x.shape
    for b in range(B):
        firsts: list[Tensor] = []
        for frame in range(FRAMES):
            row = torch.cat([tokens.x[b, :1], tokens.x[b, 1 + frame :: FRAMES]])
            answer = attention(Tokens(row[None]))[0]
            firsts.append(answer[0])
            torch.testing.assert_close(found[b, 1 + frame :: FRAMES], answer[1:])
        torch.testing.assert_close(found[b, 0], torch.stack(firsts).mean(dim=0))


def test_a_group_sees_nothing_of_the_others() -> None:
    """Changing one frame changes that frame over space, and its cell along time, and no other."""
    tokens, project = clip(), Linear(D, D)
    initialize(project, InitConfig(std=1.0))
    changed = tokens.x.clone()
    changed[:, at(2, 1)] += 1.0
    other = tokens.replace(changed)
    for part, seen in (
        (AttentionOverTime(made(), project), {at(2, frame) for frame in range(FRAMES)}),
        (AttentionOverSpace(made()), {0, *(at(cell, 1) for cell in range(CELLS))}),
    ):
        moved = (part(tokens) != part(other)).any(dim=-1).any(dim=0).nonzero().flatten().tolist()
        assert set(moved) == seen
