"""The views of the explorer: functions from a model and a request to the JSON that the page draws."""

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
    "pooling": input_attention.pooling_view,
    "beams": tokens.beam_tree,
    "boxes": images.detections,
    "word_attention": word_attention,
    "embeddings": embeddings.embeddings,
    "filters": images.filters,
    "flow": flow.flow,
    "generation": tokens.generation,
    "head": heads.head,
    "heads": heads.heads,
    "reconstruction": reconstruction.reconstruction,
    "logit_lens": tokens.logit_lens,
    "mask": masks.mask,
    "next": tokens.next_words,
    "attention_map": input_attention.query_attention,
    "input": input_attention.input_view,
    "patch_positions": images.patch_positions,
    "pose": keypoints.pose,
    "queries": input_attention.queries,
    "input_rollout": input_attention.rollout_view,
    "rollout": flow.rollout,
    "row": heads.row,
    "find_heads": heads.find_heads,
    "segments": keypoints.segments,
    "sites": tokens.sites,
    "stats": model_stats.stats,
    "query_boxes": query_boxes.query_boxes,
    "steps": steps,
    "tokens": tokens.tokens,
    "ablation": ablation,
}
