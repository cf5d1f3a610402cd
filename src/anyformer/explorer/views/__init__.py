"""Every view of the explorer: a function of a model and a question, to numbers that a page can draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anyformer.explorer.loaded_model import LoadedModel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.views import (
    embeddings,
    flow,
    heads,
    images,
    input_attention,
    keypoints,
    masks,
    model_stats,
    query_boxes,
    reconstruction,
    tokens,
)
from anyformer.explorer.views.ablation import ablation
from anyformer.explorer.views.attention_steps import steps
from anyformer.explorer.views.word_attention import word_attention

View = Callable[[LoadedModel, ViewRequest, Deadline], dict[str, Any]]

VIEWS: dict[str, View] = {
    "answered": input_attention.pooling_view,
    "beams": tokens.beam_tree,
    "boxes": images.detections,
    "caption": word_attention,
    "embeddings": embeddings.embeddings,
    "filters": images.filters,
    "flow": flow.flow,
    "generation": tokens.generation,
    "head": heads.head,
    "heads": heads.heads,
    "hidden": reconstruction.reconstruction,
    "lens": tokens.logit_lens,
    "mask": masks.mask,
    "next": tokens.next_words,
    "over": input_attention.query_attention,
    "picture": input_attention.input_view,
    "places": images.places,
    "pose": keypoints.pose,
    "queries": input_attention.queries,
    "rolled": input_attention.rollout_view,
    "rollout": flow.rollout,
    "row": heads.row,
    "seek": heads.seek,
    "segments": keypoints.segments,
    "sites": tokens.sites,
    "sizes": model_stats.sizes,
    "slots": query_boxes.slots,
    "steps": steps,
    "tokens": tokens.tokens,
    "without": ablation,
}
