"""Names of tokens: text, cells of an image or video, table columns, keypoints, classes, or indices."""

from __future__ import annotations

from collections.abc import Sequence

from anyformer.data.images.skeleton import Skeleton
from anyformer.explorer.loaded_model import LoadedModel, ModelInput
from anyformer.explorer.modalities import head_of
from anyformer.explorer.token_layout import TokenLayout, attention_axis, layout
from anyformer.explorer.trace import AttentionSite, Trace
from anyformer.heads.keypoints import PoseHead
from anyformer.heads.segment import MaskSegmentationHead
from anyformer.tasks.text import labels_of


def token_names(loaded: LoadedModel, model_input: ModelInput, trace: Trace, stage: str) -> list[str]:
    """The names of the tokens of a stage, in order."""
    length = trace.tokens(stage).x.shape[1]
    words = [word.text for word in model_input.words.get(stage, [])]
    if len(words) == length:
        return words
    where = layout(trace, stage)
    if where is None:
        joints = skeleton(loaded).names if head_of(loaded.model, PoseHead) is not None else ()
        return list(joints) if len(joints) == length else _numbers(length)
    after = words if len(words) == where.after else _classes(loaded, where.after)
    each = TokenLayout(where.shape[1:], where.before) if where.apart else where
    found = [""] * each.positions
    for position, name in enumerate([*_first(each.before), *cell_names(model_input, each), *after]):
        found[each.token(position)] = name
    return found


def group_names(trace: Trace, site: AttentionSite) -> list[str]:
    """Token names for attention along one axis of a video, for the first cell or the first frame."""
    where = layout(trace, site.stage)
    assert where is not None
    if attention_axis(trace, site) == "time":
        return [f"frame {i}" for i in range(where.shape[0])]
    rows, columns = where.shape[1:]
    return [*_first(where.before), *(f"{row},{column}" for row in range(rows) for column in range(columns))]


def cell_names(model_input: ModelInput, where: TokenLayout) -> list[str]:
    if len(where.shape) == 1:
        words = next((words for words in model_input.words.values() if len(words) == where.cells), [])
        return model_input.shown.get("columns") or [word.text for word in words] or _numbers(where.cells)
    rows, columns = where.shape[-2:]
    cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    cells = _numbers(columns) if rows == 1 else cells
    return cells if len(where.shape) == 2 else [f"{t}:{cell}" for t in range(where.shape[0]) for cell in cells]


def _first(n: int) -> list[str]:
    return ["class", "distill"][:n] if n <= 2 else _numbers(n)


def _classes(loaded: LoadedModel, n: int) -> Sequence[str]:
    labels = labels_of(loaded.model) if head_of(loaded.model, MaskSegmentationHead) is not None else []
    return labels if len(labels) == n else _numbers(n)


def _numbers(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def skeleton(loaded: LoadedModel) -> Skeleton:
    """The keypoints of a pose model, and its bones if the training data defined them."""
    settings = loaded.model.origin.settings.get("task", {})
    labels = settings.get("labels") or labels_of(loaded.model)
    if labels and str(labels[0]).startswith("LABEL_"):
        return Skeleton.of({}, len(labels))
    return Skeleton.of({"joints": labels, "bones": settings.get("bones", ())}, len(labels))
