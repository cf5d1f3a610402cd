"""Captioning, reading and listening: for every word that is written, what it looks at in the image or the sound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.loaded_model import LoadedModel, ModelInput
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.token_layout import key_stage, layout
from anyformer.explorer.trace import AttentionSite, Trace, trace
from anyformer.explorer.views.heads import pick
from anyformer.explorer.views.images import as_png
from anyformer.inputs.multimodal import MultimodalInput
from anyformer.inputs.prefix import PrefixedTextInput
from anyformer.tasks.ask_image import AskImage


def word_attention(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    subject, seen = _written(loaded, request, deadline)
    found = _speaking(subject, seen)
    if not found or subject.image is None:
        raise InputError(f"A {loaded.model.family} model does not put images into words.")
    site = next((one for one in found if one.layer == request.layer), None)
    if site is None:
        raise InputError(f"Words look at the input in layers {', '.join(str(one.layer) for one in found)}.")
    where = layout(seen, key_stage(seen, site))
    assert where is not None
    weights = pick(seen.weights(site), request.head)
    return {
        "image": as_png(subject.image),
        "size": [subject.image.size[1], subject.image.size[0]],
        "words": [word.text for word in subject.answers],
        "maps": downsample.pack(where.over(weights[-len(subject.answers) :])),
        "kind": subject.shown.get("kind", "picture"),
        "site": {"stage": site.stage, "part": site.part, "heads": site.heads, "plain": site.plain},
        "layers": [one.layer for one in found],
        "blocks": [seen.calls[one.stage][one.layer].index for one in found],
    }


def _speaking(model_input: ModelInput, seen: Trace) -> list[AttentionSite]:
    """Where words look at the input: across, or at what stands before them in their own stage."""
    found = [site for site in seen.sites() if site.stage in model_input.words and model_input.answers]
    seeing = [site for site in found if layout(seen, key_stage(seen, site)) is not None]
    crossing = [site for site in seeing if seen.sublayer(site).crosses]
    chosen = crossing or seeing
    return [site for site in chosen if (site.stage, site.part) == (chosen[0].stage, chosen[0].part)]


def _written(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> tuple[ModelInput, Trace]:
    """A pass over what is written. Where image and text stand in one sequence, that goes on from the text (a language
    model with an image docked to it), or from a word that begins, whatever text is given besides (GIT)."""
    stage = next((one for one in loaded.stages if isinstance(one.inputs, (PrefixedTextInput, MultimodalInput))), None)
    if stage is None:
        return loaded.trace(request, deadline)
    key = (*request.key(), "written")
    if key not in loaded.passes:
        subject, given = _prompt(loaded, request, deadline)
        prompt = given["input_ids"][0].tolist()
        if request.target is None:
            ids = loaded.generate(request, given, deadline)
        else:
            ids = prompt + [word.id for word in loaded.tokenize(request.target, special=False)[0]]
        words = loaded.words(ids)
        batch = {**given, "input_ids": torch.tensor([ids[:-1]])}
        if "both_ways" in given:  # the answer is read from left to right
            batch["both_ways"] = F.pad(given["both_ways"], (0, len(ids) - 1 - len(prompt)))
        made = replace(subject, batch=batch, words={stage.name: words[:-1]}, answers=words[len(prompt) :])
        loaded.keep(key, made, trace(loaded.model, batch, request.silence, deadline))
    return loaded.passes[key]


def _prompt(opened: LoadedModel, ask: ViewRequest, patience: Deadline) -> tuple[ModelInput, dict[str, Any]]:
    """The input, and the batch that the answer goes on from. A model for questions about images is asked as its task
    asks it, its usual question if there is no text."""
    text = ask.text.strip()
    if isinstance(opened.task, AskImage):
        subject = opened.subject(ask if text else replace(ask, text=opened.task.settings.question), patience)
        ids = torch.tensor([opened.task.asked(text or None)])
        return subject, {**subject.batch, "input_ids": ids, "both_ways": torch.ones_like(ids)}
    begin = opened.model.config.to_json().get("begin")
    subject = opened.subject(ask if text or begin is None else replace(ask, text=str(begin)), patience)
    return subject, dict(subject.batch) if begin is None else {**subject.batch, "input_ids": torch.tensor([[begin]])}
