"""Every view of the explorer: a function of a model and a question, to numbers that a page can draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.explore.ask import Ask
from anyformer.explore.opened import Opened
from anyformer.explore.patience import Patience
from anyformer.explore.views import flow, heads, hidden, masks, pictures, places, poses, sizes, slot_map, things, words
from anyformer.explore.views.spoken import words_over
from anyformer.explore.views.steps import steps
from anyformer.explore.views.without import without

View = Callable[[Opened, Ask, Patience], dict[str, Any]]

VIEWS: dict[str, View] = {
    "answered": things.answered,
    "beams": words.beam_tree,
    "boxes": pictures.detections,
    "caption": words_over,
    "embeddings": places.embeddings,
    "filters": pictures.filters,
    "flow": flow.flow,
    "generation": words.generation,
    "head": heads.head,
    "heads": heads.heads,
    "hidden": hidden.hidden,
    "lens": words.lens,
    "mask": masks.mask,
    "next": words.next_words,
    "over": things.over,
    "picture": things.thing,
    "places": pictures.places,
    "pose": poses.pose,
    "queries": things.queries,
    "rolled": things.rolled,
    "rollout": flow.rollout,
    "row": heads.row,
    "seek": heads.seek,
    "segments": poses.segments,
    "sites": words.sites,
    "sizes": sizes.sizes,
    "slots": slot_map.slots,
    "steps": steps,
    "tokens": words.tokens,
    "without": without,
}
