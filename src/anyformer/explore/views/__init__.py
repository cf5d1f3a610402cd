"""Every view of the explorer: a function of a model and a question, to numbers that a page can draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.explore.ask import Ask
from anyformer.explore.opened import Opened
from anyformer.explore.patience import Patience
from anyformer.explore.views import flow, heads, masks, pictures, places, sizes, words
from anyformer.explore.views.steps import steps
from anyformer.explore.views.without import without

View = Callable[[Opened, Ask, Patience], dict[str, Any]]

VIEWS: dict[str, View] = {
    "beams": words.beam_tree,
    "boxes": pictures.detections,
    "caption": pictures.words_over,
    "embeddings": places.embeddings,
    "filters": pictures.filters,
    "flow": flow.flow,
    "generation": words.generation,
    "head": heads.head,
    "heads": heads.heads,
    "hidden": pictures.hidden,
    "lens": words.lens,
    "mask": masks.mask,
    "next": words.next_words,
    "over": pictures.over,
    "picture": pictures.picture,
    "places": pictures.places,
    "rolled": pictures.rolled,
    "rollout": flow.rollout,
    "row": heads.row,
    "sites": words.sites,
    "sizes": sizes.sizes,
    "steps": steps,
    "tokens": words.tokens,
    "without": without,
}
