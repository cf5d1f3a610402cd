"""Captioning, text recognition and speech recognition: the attention of every generated token over the image or
audio."""

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
    """Attention maps of all generated tokens."""
    model_input, seen = _generated(loaded, request, deadline)
    found = _input_sites(model_input, seen)
    if not found or model_input.image is None:
        raise InputError(
            f"{loaded.model.family} models do not generate text from images or audio; use a captioning, OCR"
            " or speech model."
        )
    site = next((one for one in found if one.layer == request.layer), None)
    if site is None:
        raise InputError(f"layer is {request.layer}; expected one of {', '.join(str(one.layer) for one in found)}.")
    where = layout(seen, key_stage(seen, site))
    assert where is not None
    weights = pick(seen.weights(site), request.head)
    return {
        "image": as_png(model_input.image),
        "size": [model_input.image.size[1], model_input.image.size[0]],
        "words": [word.text for word in model_input.answers],
        "maps": downsample.pack(where.over(weights[-len(model_input.answers) :])),
        "kind": model_input.shown.get("kind", "image"),
        "site": {"stage": site.stage, "part": site.part, "heads": site.heads, "plain": site.plain},
        "layers": [one.layer for one in found],
        "blocks": [seen.calls[one.stage][one.layer].index for one in found],
    }


def _input_sites(model_input: ModelInput, seen: Trace) -> list[AttentionSite]:
    """The attention from generated tokens to the input: cross-attention, or self-attention to an image prefix."""
    found = [site for site in seen.sites() if site.stage in model_input.words and model_input.answers]
    candidates = [site for site in found if layout(seen, key_stage(seen, site)) is not None]
    cross = [site for site in candidates if seen.sublayer(site).crosses]
    chosen = cross or candidates
    return [site for site in chosen if (site.stage, site.part) == (chosen[0].stage, chosen[0].part)]


def _generated(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> tuple[ModelInput, Trace]:
    """A forward pass over the generated text. If image and text form one sequence, generation continues the text
    (language model with a multimodal projector) or starts with a start token (GIT)."""
    stage = next((one for one in loaded.stages if isinstance(one.inputs, (PrefixedTextInput, MultimodalInput))), None)
    if stage is None:
        return loaded.trace(request, deadline)
    key = (*request.key(), "written")
    if key not in loaded.cache:
        model_input, given = _prompt(loaded, request, deadline)
        prompt = given["input_ids"][0].tolist()
        if request.target is None:
            ids = loaded.generate(request, given, deadline)
        else:
            ids = prompt + [word.id for word in loaded.tokenize(request.target, special=False)[0]]
        words = loaded.words(ids)
        batch = {**given, "input_ids": torch.tensor([ids[:-1]])}
        if "both_ways" in given:  # attention within the answer is causal
            batch["both_ways"] = F.pad(given["both_ways"], (0, len(ids) - 1 - len(prompt)))
        made = replace(model_input, batch=batch, words={stage.name: words[:-1]}, answers=words[len(prompt) :])
        loaded.store(key, made, trace(loaded.model, batch, request.ablate, deadline))
    return loaded.cache[key]


def _prompt(opened: LoadedModel, request: ViewRequest, deadline: Deadline) -> tuple[ModelInput, dict[str, Any]]:
    """The input, and the batch to generate from. A visual question answering model gets the prompt of its task, with
    the default question if the text is empty."""
    text = request.text.strip()
    if isinstance(opened.task, AskImage):
        model_input = opened.model_input(
            request if text else replace(request, text=opened.task.settings.question), deadline
        )
        ids = torch.tensor([opened.task.asked(text or None)])
        return model_input, {**model_input.batch, "input_ids": ids, "both_ways": torch.ones_like(ids)}
    begin = opened.model.config.to_json().get("begin")
    model_input = opened.model_input(request if text or begin is None else replace(request, text=str(begin)), deadline)
    return model_input, dict(model_input.batch) if begin is None else {
        **model_input.batch,
        "input_ids": torch.tensor([[begin]]),
    }
