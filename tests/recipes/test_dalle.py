"""A text, then the codes of an image: places of their own, and an image that depends on the text."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.core.tokens import Tokens


def test_places_of_text_and_codes() -> None:
    """The text's places have a table; after it stand rows and columns, whose vectors add up."""
    model = af.build("dalle-tiny").eval().double()
    cells = model.stages["decoder"].inputs.positions
    made = cells(Tokens(torch.zeros(1, 8 + 64, 64, dtype=torch.double)))
    assert made.shape == (1, 72, 64)
    assert torch.equal(made[0, :8], cells.text)
    for row in range(8):
        for column in range(8):
            assert torch.equal(made[0, 8 + 8 * row + column], cells.row[row] + cells.column[column])


def test_draws_what_the_text_says() -> None:
    """Two texts, two images: learned by heart, and written again from the text alone, without a word among codes."""
    torch.manual_seed(0)
    model = af.build("dalle-tiny", dropout=0.0, embedding_dropout=0.0, attention_dropout=0.0).eval()
    texts = torch.tensor([[5, 6, 7, 0, 0, 0, 0, 0], [5, 9, 0, 0, 0, 0, 0, 0]])
    pictures = torch.stack([257 + torch.arange(64) % 7, 271 - torch.arange(64) % 5])
    ids = torch.cat([texts, pictures], dim=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    drawn = model.generate(input_ids=texts, max_new_tokens=64, suppress_tokens=list(range(257)))
    assert torch.equal(drawn[:, 8:], pictures)
    with pytest.raises(af.InputError, match="72"):
        model(input_ids=torch.zeros(1, 73, dtype=torch.long))


def test_words_and_codes_add_up() -> None:
    with pytest.raises(af.ConfigError, match="vocab_size"):
        af.build("dalle-tiny", n_codes=100)
    with pytest.raises(af.ConfigError, match="max_length"):
        af.build("dalle-tiny", text_length=9)
