"""Every small recipe in every view: it is drawn, or one sentence says why not."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("PIL", reason="images take Pillow")

import anyformer as af
from anyformer.core.attention import Attention
from anyformer.errors import Error
from anyformer.explorer.app import describe
from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.views import VIEWS
from tests.explorer.models import audio_file, image_file, view

SMALL = 2_000_000  # parameters
RECIPES = [name for name in af.recipes() if name.endswith("-tiny")]
PARTS = {"steps", "heads", "head", "attention_map", "queries"}  # asked about every kind of attention


@pytest.mark.parametrize("name", RECIPES)
def test_every_view_answers_or_explains(name: str) -> None:
    torch.manual_seed(0)
    model = af.build(name).eval()
    if sum(one.numel() for one in model.parameters()) > SMALL:
        pytest.skip("as large as the published one")
    one = LoadedModel(model, None)
    about = describe(one)
    asked = {"text": "3 4 5 6 7"} if about["text"] else {}
    asked |= {"image": image_file()} if about["images"] else {}
    asked |= {"audio": audio_file()} if about["audio"] else {}
    drawn, refused = set(), []
    for chosen in VIEWS:
        for part in ("self", "cross", "time", "space") if chosen in PARTS else ("self",):
            try:
                json.dumps(view(one, chosen, **asked, part=part, new_tokens=3), allow_nan=False)
                drawn.add(chosen)
            except Error as error:
                refused.append(str(error))
    assert all(sentence.endswith((".", "?")) for sentence in refused), refused
    things = any(about[kind] for kind in ("images", "audio", "clips", "sets", "tables"))
    assert about["text"] or things
    assert {"tokens", "stats", "embeddings"} <= drawn
    if any(isinstance(part, Attention) for part in model.modules()):
        assert {"heads", "head", "steps"} <= drawn
    if things:
        askers = view(one, "input", **asked)["attentions"]
        assert askers or about["reconstruction"] or not about["attention"]
        for asker in (asker for asker in askers if asker["layers"]):
            where = {"stage": asker["stage"], "part": asker["part"], "layer": asker["layers"][-1]}
            assert view(one, "attention_map", **asked, **where, position=asker["queries"] - 1)["maps"]
    special = ("pose" in drawn, "segments" in drawn, "query_boxes" in drawn)
    assert special == (about["keypoints"], about["segmentation"], about["boxes"])
