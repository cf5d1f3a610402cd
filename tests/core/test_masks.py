"""The algebra of masks against the same rules written as nested loops."""

from __future__ import annotations

import copy
import inspect
import pickle
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.core import masks
from anyformer.core.masks import NO_MASK, AllOf, AnyOf, Causal, Mask, Padding, Window
from anyformer.layers import raster
from tests.core.mask_cases import BATCH, LENGTH, MASKS, PACKED, REAL, Case, PackedCase

SHAPES = [(12, 12, 0), (5, 12, 7), (1, 12, 11), (12, 5, 0), (4, 9, 0), (3, 5, 6)]  # queries, keys, offset


def _names(cases: list[Case] | list[PackedCase]) -> list[str]:
    return [case.name for case in cases]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", MASKS, ids=_names(MASKS))
def test_dense_follows_the_rule(case: Case, shape: tuple[int, int, int]) -> None:
    """Each cell of the dense tensor is what the mask's sentence says, whatever the offset and the lengths."""
    n_query, n_key, offset = shape
    dense = case.mask.dense(n_query, n_key, offset)
    assert dense.dtype == torch.bool
    assert dense.shape in ((1, 1, n_query, n_key), (BATCH, 1, n_query, n_key))
    assert torch.equal(dense[:, 0].expand(BATCH, -1, -1), case.table(n_query, n_key, offset))


@pytest.mark.parametrize("case", MASKS, ids=_names(MASKS))
def test_allowed_answers_for_any_indices(case: Case) -> None:
    """A kernel may ask about a block of keys, or about scattered ones, and gets the cells of the whole."""
    whole = case.table(LENGTH, LENGTH)
    q, k = torch.tensor([2, 3, 9]), torch.tensor([1, 4, 5, 11])
    allowed = case.mask.allowed(q[:, None], k[None, :]).expand(BATCH, 1, len(q), len(k))
    assert torch.equal(allowed[:, 0], whole[:, q][:, :, k])


@pytest.mark.parametrize("case", MASKS, ids=_names(MASKS))
def test_reach_excludes_no_allowed_key(case: Case) -> None:
    """Keys outside the reach of a run of queries are all forbidden, for every run and number of keys."""
    for n_keys in range(1, LENGTH + 1):
        table = case.table(LENGTH, n_keys).any(dim=0)  # [queries, keys]
        for first in range(LENGTH):
            for last in range(first + 1, LENGTH + 1):
                low, high = case.mask.key_range(first, last, n_keys)
                assert 0 <= low <= high <= n_keys
                seen = table[first:last].any(dim=0)
                assert not seen[:low].any(), f"queries {first} to {last - 1} see keys before {low}"
                assert not seen[high:].any(), f"queries {first} to {last - 1} see keys from {high} on"


@pytest.mark.parametrize("case", PACKED, ids=_names(PACKED))
def test_packed_rows_stay_apart(case: PackedCase) -> None:
    """Packed queries see only their own row, and the other parts count within it, for uneven packings too."""
    table = case.table()
    dense = case.mask.dense(*table.shape)
    assert torch.equal(dense, table[None, None])
    flipped = (case.packed & case.rest).dense(*table.shape)
    assert torch.equal(flipped, table[None, None])
    for first in range(table.shape[0]):
        low, high = case.mask.key_range(first, first + 1, table.shape[1])
        assert not table[first, :low].any()
        assert not table[first, high:].any()


def test_bounded_masks_have_a_short_reach() -> None:
    """A window tells the kernel which keys to leave alone; without that the blocked kernel would read all of them."""
    assert Window(2, 1).key_range(100, 110, 1000) == (98, 111)
    assert (Causal() & Window(2, 5)).key_range(100, 110, 1000) == (98, 110)
    assert (Window(2) | Window(0, 4)).key_range(100, 110, 1000) == (98, 114)


def test_every_mask_of_the_library_has_a_case() -> None:
    """A new mask without a rule in mask_cases.py fails here, so that none goes untested."""
    known = {kind for case in MASKS for kind in case.kinds} | {masks.PackedMask, AllOf, AnyOf, Mask}
    there = {
        kind
        for place in (masks, raster)
        for _, kind in inspect.getmembers(place, inspect.isclass)
        if issubclass(kind, Mask)
    }
    assert there == known


def test_everything_disappears_in_a_conjunction() -> None:
    """`EVERYTHING & m` is m itself, so that a kernel that knows m by its class still knows it."""
    causal, padding = Causal(), Padding(REAL)
    assert NO_MASK & causal is causal
    assert causal & NO_MASK is causal
    assert NO_MASK & NO_MASK is NO_MASK
    assert (causal & NO_MASK & padding).parts == (causal, padding)


def test_copies_keep_everything_what_it_is() -> None:
    """A copy of a model, or a pickled one, still hands no mask at all to the kernel, where its family has none."""
    for again in (copy.copy, copy.deepcopy, lambda mask: pickle.loads(pickle.dumps(mask))):
        assert again(NO_MASK) is NO_MASK
        assert again({"mask": NO_MASK})["mask"] is NO_MASK
    model = af.build("vit-tiny").eval()
    for again in (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))):
        assert _sdpa_masks(again(model)) == _sdpa_masks(model) == [None, None]


def _sdpa_masks(model: af.Model) -> list[torch.Tensor | None]:
    """The mask that PyTorch's kernel is given in each layer."""
    kernel, found = F.scaled_dot_product_attention, []

    def noted(*args: torch.Tensor, **options: object) -> torch.Tensor:
        found.append(options["attn_mask"])
        return kernel(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", noted)
        model(torch.randn(2, 3, 32, 32))
    return found


def test_relative_masks_do_not_change_when_both_sides_move() -> None:
    """What calls itself relative depends on distance alone: that is why packing may keep it."""
    for case in MASKS:
        table = case.table(LENGTH, LENGTH)
        moves = all(torch.equal(table[:, i, :-1], table[:, j, 1:]) for i, j in pairwise(range(LENGTH)))
        assert case.mask.relative <= moves, case.name
    assert Causal().relative
    assert (Causal() & Window(3)).relative
    assert not (Causal() & Padding(REAL)).relative
