"""Decoding as small verbs: resolve the options, prefill, advance, step, stop.

    ids = generate(model, input_ids=prompt, max_new_tokens=64, num_beams=4)

The loop knows no search: a strategy says which tokens come next and which rows they continue (strategies.py), rules say
what may not be said (processors.py). The ids are those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.state import State
from anyformer.decode.options import Plan, make_plan, resolve, several, vocabulary
from anyformer.decode.prompt import begin_answer, fit, longest, put_back, repeat, spoken, take_inputs
from anyformer.decode.prompt import decoding_stage as decoding_stage
from anyformer.decode.strategies import check_every, make_strategy
from anyformer.decode.trail import Trail

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor:
    """Continue `input_ids` (a decoder), or answer whatever the encoder reads: [batch, length] of ids.

    A decoder gives the prompt and its continuation, an encoder-decoder the start token and its answer, which may be
    made to begin with decoder_input_ids; rows that are finished early are filled with the padding id. With
    num_return_sequences there are so many rows for each prompt.
    """
    decoder = decoding_stage(model)
    batch = take_inputs(model, args, options)
    given = resolve(model, options)
    batch = repeat_prompts(batch, given)
    pair, mask_name = decoder.attends is not None, decoder.names[1]
    prompt = begin_answer(model, batch, given) if pair else batch["input_ids"]
    if not pair and mask_name not in batch:
        batch.update(infer_mask(prompt, given))
    length = longest(prompt, batch.get(mask_name), decoder.limit)
    plan = make_plan(model, given, prompt.shape[1], prompt.shape[0])
    asked = any(options.get(name) is not None for name in ("max_length", "max_new_tokens"))
    plan = fit(plan, length, decoder.limit, asked)
    trail = Trail(model, batch, prompt)
    state, scores = prefill(model, batch, prompt if pair else None)
    words = spoken(prompt, batch.get(mask_name), vocabulary(model))
    return put_back(decode(model, state, scores, words, plan, trail), prompt)


def repeat_prompts(batch: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Several draws of one prompt are several rows; several beams come from one search."""
    many = given.get("num_return_sequences") or 1
    if many == 1 or (given.get("num_beams") or 1) > 1 or not given.get("do_sample"):
        return batch
    return repeat(batch, many)


def infer_mask(input_ids: Tensor, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Without a mask, padding ids in a prompt are padding, unless they are also how a text ends."""
    padding = set(several(given.get("pad_token_id"))) - set(several(given.get("eos_token_id")))
    return {"attention_mask": input_ids != padding.pop()} if padding else {}


def prefill(model: Model, batch: dict[str, Any], prompt: Tensor | None) -> tuple[State, Tensor]:
    """Read everything that is given at once: the state after it, and the scores of the first new token [B, V].

    `prompt` is how the answer of an encoder-decoder begins; a decoder's own is in the batch.
    """
    name, mask_name = decoding_stage(model).names[:2]
    begin = {key: batch[key] for key in (name, mask_name) if key in batch}
    state = State()
    if prompt is not None:
        state = model.encode(**{key: value for key, value in batch.items() if key not in begin})
        begin[name] = prompt
    mask = begin.get(mask_name)
    if mask is not None and not bool(mask[:, -1].all()):  # no gap between a prompt and what follows: padding goes left
        order = torch.argsort(mask.long(), dim=1, stable=True)
        begin = {key: value.gather(1, order) for key, value in begin.items()}
    keep = {"logits_to_keep": 1} if "logits_to_keep" in model.names else {}
    return state, model(**begin, **keep, past_key_values=state).logits[:, -1]


def step(model: Model, state: State, ids: Tensor) -> Tensor:
    """The scores [B, V] of what comes after `ids` [B, n], which `state` remembers from now on."""
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits[:, -1]
    return scores


def decode(
    model: Model, state: State, scores: Tensor, prompt: Tensor, plan: Plan, trail: Trail | None = None
) -> Tensor:
    """Advance and step until the strategy is done."""
    strategy = make_strategy(plan, prompt)
    trail = trail if trail is not None else Trail(model, {}, prompt)
    while True:
        check_scores(scores, trail)
        tokens, rows = strategy.advance(scores)
        if strategy.done:
            check_scores(scores, trail, last=True)
            return strategy.result()
        if rows is not None:
            state.select(rows)
        trail.add(tokens, rows)
        scores = step(model, state, tokens[:, None])


def check_scores(scores: Tensor, trail: Trail, last: bool = False) -> None:
    """NaN would come out as some token or other. On a GPU we look only now and then, and at the end."""
    trail.note(scores)
    if (last or len(trail.steps) % check_every(scores.device) == 0) and bool(trail.broken):
        raise trail.complain()
