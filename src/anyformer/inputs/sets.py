"""Inputs without order: sets and table rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyformer.config import Settings
from anyformer.core.linear import Linear
from anyformer.core.tokens import Tokens
from anyformer.errors import InputError
from anyformer.forward_context import ForwardContext, check_shape, to_bool_mask
from anyformer.inputs.base import Input
from anyformer.inputs.image import LearnedTokens
from anyformer.inputs.text import Embedding


class SetInput(Input):
    """`items` [B, n, d_item], one token each; attention_mask marks real ones. There are no positions."""

    names = ("items", "attention_mask")
    mask_name = "attention_mask"

    def __init__(self, d_item: int, d_model: int) -> None:
        super().__init__()
        self.d_item = d_item
        self.project = Linear(d_item, d_model)

    def forward(self, run: ForwardContext) -> Tokens:
        _, items = run.require_one("items")
        check_shape(items, "items", "batch", "items", self.d_item)
        if not items.shape[1]:
            raise InputError("items holds empty sets; give at least one item.")
        mask = to_bool_mask(run.tensor("attention_mask"), (items.shape[0], items.shape[1]), "attention_mask")
        return Tokens(self.project(items.to(self.project.weight.dtype)), mask)


class ColumnEmbeddings(LearnedTokens):
    """A vector for each column [columns, width], initialized uniformly like a linear layer."""

    def reset(self, std: float) -> None:
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)


@dataclass(frozen=True, kw_only=True)
class TableInputConfig(Settings):
    n_numbers: int
    categories: tuple[int, ...] = ()  # number of values of each categorical column
    d_model: int

    def check(self) -> None:
        self.require(self.n_numbers + len(self.categories) > 0, "set n_numbers or categories: a table needs a column.")
        self.require(all(n > 0 for n in self.categories), f"categories is {self.categories}; each must be above 0.")


class TableInput(Input):
    """A class token, then one token per column (Gorishniy et al. 2021, §3.3): `numbers` [B, n] and `categories` [B, m],
    with ids from 0 in each column. Missing values (NaN, or an id below 0) are masked.
    """

    def __init__(self, config: TableInputConfig) -> None:
        super().__init__()
        self.config = config
        self.class_token = LearnedTokens(1, config.d_model)
        self.scales = ColumnEmbeddings(config.n_numbers, config.d_model) if config.n_numbers else None
        self.values = Embedding(sum(config.categories), config.d_model) if config.categories else None
        self.starts = ColumnEmbeddings(config.n_numbers + len(config.categories), config.d_model)
        self.names = (*(("numbers",) if config.n_numbers else ()), *(("categories",) if config.categories else ()))

    def forward(self, run: ForwardContext) -> Tokens:
        pieces = [piece for piece in (self._numbers(run), self._categories(run)) if piece is not None]
        x = torch.cat([x for x, _ in pieces], dim=1) + self.starts()
        real = torch.cat([real for _, real in pieces], dim=1)
        first = self.class_token(len(x))
        mask = torch.cat([torch.ones_like(real[:, :1]), real], dim=1)
        return Tokens(torch.cat([first, x], dim=1), None if bool(mask.all()) else mask)

    def _numbers(self, run: ForwardContext) -> tuple[Tensor, Tensor] | None:
        """Return each number's token, and whether it is present."""
        if self.scales is None:
            return None
        _, numbers = run.require_one("numbers")
        check_shape(numbers, "numbers", "batch", self.config.n_numbers)
        numbers = numbers.to(self.scales.weight.dtype)
        real = ~numbers.isnan()
        return numbers.nan_to_num().unsqueeze(-1) * self.scales(), real

    def _categories(self, run: ForwardContext) -> tuple[Tensor, Tensor] | None:
        sizes = self.config.categories
        if self.values is None:
            return None
        _, ids = run.require_one("categories")
        check_shape(ids, "categories", "batch", len(sizes))
        most = torch.tensor(sizes, device=ids.device)
        if bool((ids >= most).any()):
            raise InputError(
                f"categories holds an id above its column's range; columns have {', '.join(map(str, sizes))} values."
            )
        real = ids >= 0
        return self.values(ids.clamp(min=0) + (most.cumsum(0) - most)), real
