"""Images: against the tasks' own functions, PyTorch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="images take Pillow")

import anyformer as af
from anyformer.data.images.attention_maps import class_attention
from anyformer.errors import Error
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from tests.explorer.models import image_file, unpack, view

Models = dict[str, LoadedModel]


def batch_of(opened: LoadedModel) -> dict[str, Any]:
    return opened.model_input(ViewRequest(image=image_file()), Deadline(60)).batch


def test_the_class_token_over_the_image(opened: Models) -> None:
    one = opened["vit"]
    batch = batch_of(one)
    with torch.no_grad():
        found = class_attention(one.model, batch, batch["pixel_values"].shape[2:])  # type: ignore[arg-type]
    assert found is not None
    last, rolled = (each[0].double() for each in found)
    layer = len(one.stages[0].stack.blocks) - 1  # type: ignore[union-attr]
    got = view(one, "attention_map", image=image_file(), stage="encoder", layer=layer, position=0)
    torch.testing.assert_close(unpack(got["mean"]), last, atol=2e-5, rtol=0)
    torch.testing.assert_close(unpack(got["maps"]).mean(0), last, atol=2e-5, rtol=0)
    assert got["query"] == "class"
    torch.testing.assert_close(
        unpack(view(one, "input_rollout", image=image_file(), position=0)["map"]), rolled, atol=2e-5, rtol=0
    )


def test_the_image_and_its_answer(opened: Models) -> None:
    one = opened["vit"]
    got = view(one, "input", image=image_file())
    with torch.no_grad():
        chances = one.model(**batch_of(one)).logits[0].softmax(-1)
    assert got["predictions"][0]["probability"] == pytest.approx(chances.max().item(), abs=1e-5)
    assert (got["rows"], got["columns"], got["before"]) == (4, 4, 1)


def test_filters_are_principal_components(opened: Models) -> None:
    one = opened["vit"]
    weight = one.stages[0].inputs.patches.weight.detach().double().numpy()  # type: ignore[union-attr]
    _, strengths, components = np.linalg.svd(weight - weight.mean(axis=0), full_matrices=False)
    got = view(one, "filters", image=image_file())
    assert got["share"] == pytest.approx((strengths**2 / (strengths**2).sum())[: len(got["share"])], rel=1e-3)
    first = unpack(got["filters"])[0].permute(2, 0, 1).flatten().numpy()
    assert abs(np.corrcoef(first, components[0])[0, 1]) == pytest.approx(1.0, abs=1e-4)


def test_positions_are_compared_by_cosine(opened: Models) -> None:
    one = opened["vit"]
    table = one.stages[0].inputs.positions.weight[1:].detach()  # type: ignore[union-attr, index]
    wanted = torch.nn.functional.cosine_similarity(table, table[6:7]).view(4, 4)
    got = unpack(view(one, "patch_positions", image=image_file(), position=6)["map"])
    torch.testing.assert_close(got, wanted.double(), atol=3e-5, rtol=0)


@pytest.mark.parametrize("share", [0.25, 0.75])
def test_a_masked_autoencoder_hides_as_much_as_it_is_told(opened: Models, share: float) -> None:
    one = opened["mae"]
    got = view(one, "reconstruction", image=image_file(), share=share, seed=3)
    assert got["masked"] == round(share * got["patches"])
    if share == 0.75:  # the model's own
        noise = torch.rand(1, got["patches"], generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            out = one.model(**{**batch_of(one), "noise": noise})
        assert got["loss"] == pytest.approx(out.loss.item(), rel=1e-5)
    assert one.patches is not None and one.patches.config.mask_ratio == 0.75  # as before


def test_boxes_and_where_their_queries_look(opened: Models) -> None:
    one = opened["detr"]
    batch = batch_of(one)
    found = one.model.detect(**batch, threshold=0.0)[0]
    got = view(one, "boxes", image=image_file(), threshold=0.0)
    assert [thing["query"] for thing in got["detections"]] == found.queries.tolist()
    assert got["detections"][0]["box"] == pytest.approx(
        found.boxes[0].clamp(0, 1).tolist(), abs=1e-5
    )  # cut to the image
    with torch.no_grad(), af.look(one.model, "decoder.blocks.1.cross.weights") as seen:
        one.model(**batch)
    slot = got["detections"][0]["query"]
    looks = unpack(
        view(one, "attention_map", image=image_file(), stage="decoder", part="cross", layer=1, position=slot)["mean"]
    )
    wanted = seen["decoder.blocks.1.cross.weights"][0, :, slot].mean(0).double()
    torch.testing.assert_close(looks.flatten(), wanted, atol=2e-5, rtol=0)


def test_words_over_the_image(opened: Models) -> None:
    one = opened["captioner"]
    got = view(one, "word_attention", image=image_file(), new_tokens=5)
    out = one.model.generate(**batch_of_pixels(one), max_new_tokens=5, alignment=0, **one.end_options())
    patches = unpack(got["maps"]).flatten(1)
    wanted = out.alignment[0, : len(patches), -patches.shape[1] :].double()
    torch.testing.assert_close(patches, wanted, atol=1e-4, rtol=0)


def batch_of_pixels(opened: LoadedModel) -> dict[str, Any]:
    return {name: value for name, value in batch_of(opened).items() if name == "pixel_values"}


def test_views_that_do_not_fit_say_so(opened: Models) -> None:
    with pytest.raises(Error, match="needs an image"):
        view(opened["vit"], "input")
    with pytest.raises(Error, match="base64"):
        view(opened["vit"], "input", image="%%%")
    with pytest.raises(Error, match="do not detect"):
        view(opened["vit"], "boxes", image=image_file())
    with pytest.raises(Error, match="image"):
        view(opened["vit"], "input", image="aGVsbG8=")
