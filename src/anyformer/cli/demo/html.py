"""Inputs and answers as HTML, each kind in its own way."""

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

WIDEST = 1200  # pixels of an image on the page
SOUNDS = {".wav": "audio/wav", ".flac": "audio/flac"}
MOST = 5  # classes that are shown
READABLE = 48  # tokens of a translation whose alignment can still be read


def input_html(inputs: Any) -> str:
    """What a model was given: an image, a sound, a text, or several."""
    if isinstance(inputs, Path) and inputs.suffix in SOUNDS:
        return f"<audio controls src='{inline(inputs.read_bytes(), SOUNDS[inputs.suffix])}'></audio>"
    if isinstance(inputs, Path):
        kind = "png" if inputs.suffix == ".png" else "jpeg"
        return f"<img alt='the input' src='{inline(inputs.read_bytes(), f'image/{kind}')}'>"
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    return "".join(f"<p>{html.escape(text)}</p>" for text in texts)


def answer_html(task: str, inputs: Any, answer: Any) -> str:
    """What it answered."""
    view = VIEWS.get(task)
    return text(str(answer)) if view is None else view(inputs, answer)


def text(words: str) -> str:
    return f"<p class='text'>{html.escape(words)}</p>"


def plain(fragment: str) -> str:
    """HTML as words on one line, for a terminal."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", fragment)).split())


def bars(inputs: Any, answer: Any) -> str:
    """Classes by their probabilities, the most probable first."""
    scores: Mapping[str, float] = answer.scores
    rows = sorted(scores.items(), key=lambda item: -item[1])[:MOST]
    shown = "".join(
        f"<span>{html.escape(label)}</span><i style='width:{100 * score:.1f}%'></i><b>{score:.2f}</b>"
        for label, score in rows
    )
    return f"<div class='bars'>{shown}</div>"


def entities(inputs: Any, answer: Any) -> str:
    shown = [
        f"<mark>{html.escape(part)}<small>{html.escape(label)}</small></mark>" if label else html.escape(part)
        for part, label in answer.parts()
    ]
    return f"<p class='text'>{''.join(shown)}</p>"


def span(inputs: Any, answer: Any) -> str:
    """The answer, and where in the text it stands."""
    context = inputs[1]
    inside = html.escape(context[answer.start : answer.end])
    before, after = html.escape(context[: answer.start]), html.escape(context[answer.end :])
    return f"{text(str(answer) or 'no answer')}<p>{before}<mark>{inside}</mark>{after}</p>"


def cosine_table(inputs: Any, answer: Any) -> str:
    """Every sentence beside every other: how near their vectors are, as the cosine."""
    vectors = torch.nn.functional.normalize(answer.float(), dim=1)
    grid = (vectors @ vectors.T).tolist()
    rows = "".join(
        f"<tr><td>{html.escape(sentence)}</td>{''.join(map(_near, row))}</tr>"
        for sentence, row in zip(inputs, grid, strict=True)
    )
    return f"<p>How near each sentence is to each, 1 = the same:</p><table>{rows}</table>"


def _near(value: float) -> str:
    share = max(0, min(100, round(45 * value)))
    return f"<td class='n' style='background:color-mix(in srgb,var(--blue) {share}%,transparent)'>{value:.2f}</td>"


def points(inputs: Any, answer: Any) -> str:
    people = len(answer.persons)
    return text(f"{len(answer.names)} points" + (f" of {people} people" if people > 1 else ""))


def counted(inputs: Any, answer: Any) -> str:
    """12 x RBC, 1 x WBC"""
    labels = [one.label for one in answer]
    kinds = sorted(set(labels), key=lambda label: -labels.count(label))
    return text(", ".join(f"{labels.count(kind)} × {kind}" for kind in kinds) or "nothing found")


VIEWS: dict[str, Callable[[Any, Any], str]] = {
    "answer": span,
    "classify-audio": bars,
    "classify-image": bars,
    "classify-pair": bars,
    "classify-text": bars,
    "detect": counted,
    "embed": cosine_table,
    "pose": points,
    "tag": entities,
}

# Tasks whose drawing shows the image that was given.
SHOWS = frozenset("caption classify-image detect pose read reconstruct".split())
# What the drawing of an answer shows.
CAPTIONS = {
    "caption": "Where the model looked before it wrote each word.",
    "classify-image": "The image as it was given, and what the answer attended to.",
    "detect": "The boxes, each with its class and how sure the model is.",
    "pose": "The points that were found.",
    "read": "A strip for each letter that was written, dark where along the line the model looked for it.",
    "reconstruct": "What it saw, what it made of that, and the image.",
    "translate": "Which source word each target word looks at (cross-attention of the last layer, mean of its heads).",
}


def picture(task: str, work: Any, inputs: Any, answer: Any) -> str:
    """The drawing of an answer, where there is one."""
    if task == "translate":
        first = answer.sentences[0] if answer.sentences else answer
        return figure(alignment(work, first)) if 0 < len(first.ids) <= READABLE else ""
    draw = getattr(answer, "draw", None)
    return "" if draw is None else image(draw())


def image(drawn: Any, alt: str = "the answer, drawn", widest: int = WIDEST) -> str:
    drawn = drawn.convert("RGB")
    drawn.thumbnail((widest, 4 * widest))
    file = io.BytesIO()
    drawn.save(file, "JPEG", quality=88)
    return f"<img alt='{html.escape(alt)}' src='{inline(file.getvalue(), 'image/jpeg')}'>"


def alignment(work: Any, answer: Any) -> Any:
    """A figure of a translator's cross-attention while it writes what it wrote."""
    from anyformer.plot import alignment as plot

    ends = [] if work.end is None else [work.end]
    source = work.examples([{"source": answer.source}])[0]["input_ids"]
    target = torch.tensor([[*answer.ids, *ends][: work.max_target_length]])
    batch = pad([source], work.tokenizer.pad_id or 0)
    with answering(work.model), look(work.model, "decoder.blocks.*.cross.weights") as seen:
        work.model(**batch, decoder_input_ids=work.model.shift_right(target))
    weights = seen.log[-1][1][0]  # [heads, target, source]
    return plot(weights, pieces(work, source), pieces(work, target[0].tolist()), title="")


def pieces(work: Any, ids: Sequence[int]) -> list[str]:
    return [piece.strip() or "·" for piece in work.tokenizer.tokens(list(ids))]


def figure(drawn: Any) -> str:
    file = io.BytesIO()
    drawn.savefig(file, format="png", dpi=110)
    return f"<img alt='attention' src='{inline(file.getvalue(), 'image/png')}'>"


def inline(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
