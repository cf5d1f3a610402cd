"""The lectures' comparison: how many layers or steps lie between two words that are far apart."""

from __future__ import annotations

import pytest
import torch

import anyformer as af
from anyformer.explorer.path_length import path_length
from tests.batches import build
from tests.tiny import tiny_recipes

DISTANCES = (1, 2, 3, 4, 7, 8, 12)


@pytest.mark.parametrize("distance", DISTANCES)
def test_recurrent_paths_are_as_long_as_the_distance(distance: int) -> None:
    model = build("sutskever-tiny", reverse=False)
    assert path_length(model, 0, distance) == distance
    assert path_length(model, distance, 0) is None  # it reads forwards only
    assert path_length(build("bahdanau-tiny"), distance, 0) == distance


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kernel", [3, 5])
def test_convolutional_paths_are_linear(distance: int, kernel: int) -> None:
    """A layer of width k reaches (k - 1) / 2 further on either side, in the causal decoder k - 1."""
    model = build("convs2s-tiny", n_layers=14, kernel=kernel, d_model=8)
    assert path_length(model, 0, distance) == path_length(model, distance, 0) == -(-distance // (kernel // 2))


@pytest.mark.parametrize("distance", DISTANCES)
def test_dilated_paths_are_logarithmic(distance: int) -> None:
    """Reaching 1, 2, 4, … tokens further: after n layers 2ⁿ - 1."""
    model = build("bytenet-tiny", n_sets=1, n_blocks=5, d_model=16)
    expected = next(n for n in range(6) if 2**n - 1 >= distance)
    assert path_length(model, 0, distance) == path_length(model, distance, 0) == expected


@pytest.mark.parametrize("distance", DISTANCES)
def test_attention_and_full_connections_take_one_layer(distance: int) -> None:
    assert path_length(build("transformer-tiny"), 0, distance) == 1
    assert path_length(build("transformer-tiny"), distance, 0) == 1
    assert path_length(build("mlp-mixer-tiny"), 0, distance, "decoder") == 1
    assert path_length(build("mlp-mixer-tiny"), distance, 0, "decoder") is None  # causal
    assert path_length(build("gpt2-tiny"), 0, distance, "decoder") == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["transformer-tiny", "bert-tiny", "roberta-tiny", "bart-tiny", "mpnet-tiny"])
def test_norms_after_the_sublayers_hide_nothing(name: str, dtype: torch.dtype) -> None:
    """As built, before training: the sum of what such a norm gives is the same whatever goes in."""
    torch.manual_seed(0)
    model = af.build(name).eval().to(dtype)
    assert [path_length(model, *ends) for ends in ((0, 1), (0, 12), (12, 0), (5, 4))] == [1, 1, 1, 1]
    assert path_length(model, 3, 3) == 0


def test_a_token_is_no_step_from_itself() -> None:
    assert path_length(build("convs2s-tiny"), 4, 4) == 0


def test_out_of_reach_is_none() -> None:
    assert path_length(build("convs2s-tiny", n_layers=2), 0, 3) is None


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(af.InputError, match="no stage"):
        path_length(build("gpt2-tiny"), 0, 1, "encoder")


@pytest.mark.parametrize("name", tiny_recipes())
def test_every_stage_has_a_length_or_an_error(name: str) -> None:
    """A stage that reads images, sounds or another stage has no words to begin with."""
    model = af.build(name).eval()
    for stage in model.stages:
        try:
            found = path_length(model, 0, 1, stage)
        except af.InputError:
            continue
        assert found in (1, None)


@pytest.mark.parametrize("ends", [(-1, 2), (0, 10**6), (0, 1.5)], ids=str)
def test_ends_outside_the_text_are_named(ends: tuple[int, int]) -> None:
    with pytest.raises(af.InputError, match=r"start|end"):
        path_length(build("gpt2-tiny"), *ends, "decoder")
