"""Inputs and answers of each task as HTML."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anyformer.core.taps import look
from anyformer.tasks.base import answering
from anyformer.tokenizers.padding import pad

MAX_IMAGE_WIDTH = 1200  # pixels
AUDIO = {".wav": "audio/wav", ".flac": "audio/flac"}
MAX_CLASSES = 5
MAX_ALIGNMENT_TOKENS = 48  # longer alignments are not readable
PLOT_SCALE = 0.62  # smaller figures have relatively larger labels on the page


def input_html(inputs: Any) -> str:
    """The input of a model as HTML: an image, audio, or one or more texts."""
    if isinstance(inputs, Path) and inputs.suffix in AUDIO:
        return f"<audio controls src='{inline(inputs.read_bytes(), AUDIO[inputs.suffix])}'></audio>"
    if isinstance(inputs, Path):
        kind = "png" if inputs.suffix == ".png" else "jpeg"
        return f"<img alt='input image' src='{inline(inputs.read_bytes(), f'image/{kind}')}'>"
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def answer_html(task: str, inputs: Any, answer: Any) -> str:
    """The answer of a model as HTML."""
    view = VIEWS.get(task)
    return text(str(answer)) if view is None else view(inputs, answer)


def text(content: str) -> str:
    """A paragraph of text."""
    return f"<p class='text'>{html.escape(content)}</p>"


def plain(fragment: str) -> str:
    """HTML as one line of plain text, for a terminal."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", fragment)).split())


def bars(inputs: Any, answer: Any) -> str:
    """Classes and their probabilities as bars, in descending order."""
    scores: Mapping[str, float] = answer.scores
    rows = sorted(scores.items(), key=lambda item: -item[1])[:MAX_CLASSES]
    shown = "".join(
        f"<span>{html.escape(label)}</span><i style='width:{100 * score:.1f}%'></i><b>{score:.2f}</b>"
        for label, score in rows
    )
    return f"<div class='bars'>{shown}</div>"


def entities(inputs: Any, answer: Any) -> str:
    """A text with highlighted entities."""
    shown = [
        f"<mark>{html.escape(part)}<small>{html.escape(label)}</small></mark>" if label else html.escape(part)
        for part, label in answer.parts()
    ]
    return f"<p class='text'>{''.join(shown)}</p>"


def span(inputs: Any, answer: Any) -> str:
    """The extracted answer, and the text with the answer highlighted."""
    context = inputs[1]
    inside = html.escape(context[answer.start : answer.end])
    before, after = html.escape(context[: answer.start]), html.escape(context[answer.end :])
    return f"{text(str(answer))}<p>{before}<mark>{inside}</mark>{after}</p>"


def cosine_table(inputs: Any, answer: Any) -> str:
    """A table of the cosine similarity of all pairs of sentences."""
    vectors = torch.nn.functional.normalize(answer.float(), dim=1)
    grid = (vectors @ vectors.T).tolist()
    rows = "".join(
        f"<tr><td>{html.escape(sentence)}</td>{''.join(map(_cosine_cell, row))}</tr>"
        for sentence, row in zip(inputs, grid, strict=True)
    )
    return f"<p>Cosine similarity of the sentence embeddings:</p><table>{rows}</table>"


def _cosine_cell(value: float) -> str:
    share = max(0, min(100, round(45 * value)))
    return f"<td class='n' style='background:color-mix(in srgb,var(--blue) {share}%,transparent)'>{value:.2f}</td>"


def points(inputs: Any, answer: Any) -> str:
    """The number of keypoints."""
    persons = len(answer.persons)
    return text(f"{len(answer.names)} keypoints" + (f" for each of {persons} persons" if persons > 1 else ""))


def class_counts(inputs: Any, answer: Any) -> str:
    """The number of detections by class: 12 x RBC, 1 x WBC"""
    labels = [one.label for one in answer]
    kinds = sorted(set(labels), key=lambda label: -labels.count(label))
    return text(", ".join(f"{labels.count(kind)} × {kind}" for kind in kinds) or "no detections")


VIEWS: dict[str, Callable[[Any, Any], str]] = {
    "answer": span,
    "classify-audio": bars,
    "classify-image": bars,
    "classify-pair": bars,
    "classify-text": bars,
    "detect": class_counts,
    "embed": cosine_table,
    "pose": points,
    "tag": entities,
}

# Tasks whose output image includes the input image.
SHOWS_INPUT = frozenset("caption classify-image detect pose read reconstruct".split())
# Captions of the output images.
CAPTIONS = {
    "caption": "Cross-attention over the image for each generated word.",
    "classify-image": "The input image, and the attention of the classifier.",
    "detect": "Detected boxes with class and score.",
    "pose": "Predicted keypoints.",
    "read": "One row per generated character: cross-attention along the line (darker is higher).",
    "reconstruct": "Visible patches, reconstruction, and original image.",
    "translate": "Cross-attention of the last layer, mean of heads: rows are target tokens, columns are source tokens.",
}


def output_image(task: str, work: Any, inputs: Any, answer: Any) -> str:
    """The image of an answer as HTML; empty if the task has none."""
    if task == "translate":
        first = answer.sentences[0] if answer.sentences else answer
        return figure(alignment(work, first)) if 0 < len(first.ids) <= MAX_ALIGNMENT_TOKENS else ""
    draw = getattr(answer, "draw", None)
    return "" if draw is None else image(draw())


def image(drawn: Any, alt: str = "output image", max_width: int = MAX_IMAGE_WIDTH) -> str:
    drawn = drawn.convert("RGB")
    drawn.thumbnail((max_width, 4 * max_width))
    file = io.BytesIO()
    drawn.save(file, "JPEG", quality=88)
    return f"<img alt='{html.escape(alt)}' src='{inline(file.getvalue(), 'image/jpeg')}'>"


def alignment(work: Any, answer: Any) -> Any:
    """A plot of the cross-attention for a translation."""
    from anyformer.plot import alignment as plot

    ends = [] if work.end is None else [work.end]
    source = work.examples([{"source": answer.source}])[0]["input_ids"]
    target = torch.tensor([[*answer.ids, *ends][: work.max_target_length]])
    batch = pad([source], work.tokenizer.pad_id or 0)
    with answering(work.model), look(work.model, "decoder.blocks.*.cross.weights") as seen:
        work.model(**batch, decoder_input_ids=work.model.shift_right(target))
    weights = seen.log[-1][1][0]  # [heads, target, source]
    figure = plot(weights, pieces(work, source), pieces(work, target[0].tolist()), title="")
    figure.set_size_inches(*(PLOT_SCALE * figure.get_size_inches()))
    return figure


def pieces(work: Any, ids: Sequence[int]) -> list[str]:
    return [piece.strip() or "·" for piece in work.tokenizer.tokens(list(ids))]


def figure(drawn: Any) -> str:
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=110)
    return f"<img alt='attention' src='{inline(file.getvalue(), 'image/png')}'>"


def inline(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
