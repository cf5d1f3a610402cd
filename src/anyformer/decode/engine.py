"""Decoding as small verbs: resolve the options, prefill, advance, step, stop.

    ids = generate(model, input_ids=prompt, max_new_tokens=64, num_beams=4)

The loop knows no search: a strategy says which tokens come next and which rows they continue (strategies.py), rules say
what may not be said (processors.py). The ids are those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.linear import pack_weights
from anyformer.core.state import State
from anyformer.decode.graph import can_record, record
from anyformer.decode.options import Plan, make_plan, resolve, several
from anyformer.decode.options import vocabulary as vocabulary
from anyformer.decode.prompt import begin_answer, fit, longest, repeat, spoken, take_inputs, take_row
from anyformer.decode.prompt import decoding_stage as decoding_stage
from anyformer.decode.prompt import start as start
from anyformer.decode.speculate import Draft, LookupDraft, ModelDraft, Reader, speculate
from anyformer.decode.strategies import Beam, Greedy, Line, make_strategy
from anyformer.decode.trail import NotNumbersError, complaint
from anyformer.errors import InputError

PACKED_BYTES = 2**31  # models up to this size keep a second copy of their matrices, made for speed
PACKED_ROWS = 64  # a layout for so many rows loses little at one

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor:
    """Continue `input_ids` (a decoder), or answer whatever the encoder reads: [batch, length] of ids.

    A decoder gives the prompt and its continuation, an encoder-decoder the start token and its answer, which may be
    made to begin with decoder_input_ids; rows that are finished early are filled with the padding id. With
    num_return_sequences there are so many rows for each prompt. `assistant_model`, a smaller model with the same
    vocabulary, guesses ahead and changes nothing but the time.
    """
    batch = take_inputs(model, args, options)
    assistant = options.pop("assistant_model", None)
    given = resolve(model, options)
    batch = repeat_prompts(batch, given)
    prompt, plan = begin(model, batch, given, options)
    pack_for_steps(model)
    answer = None if decoding_stage(model).attends is None else prompt
    try:
        draft = make_draft(model, assistant, batch, answer, plan)
        state, scores = prefill(model, batch, answer)
        return decode(model, state, scores, prompt, plan, draft)
    except NotNumbersError as found:
        raise trace(model, batch, prompt, plan, found) from None


def begin(
    model: Model, batch: dict[str, Any], given: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Tensor, Plan]:
    """What every row begins with, and the plan, held against the places that the model has."""
    decoder = decoding_stage(model)
    mask_name = decoder.names[1]
    prompt = batch["input_ids"] if decoder.attends is None else begin_answer(model, batch, given)
    if decoder.attends is None and mask_name not in batch:
        batch.update(infer_mask(prompt, given))
    length = longest(prompt, batch.get(mask_name), decoder.limit)
    plan = make_plan(model, given, prompt.shape[1], prompt.shape[0])
    asked = any(options.get(name) is not None for name in ("max_length", "max_new_tokens"))
    plan = fit(plan, length, decoder.limit, asked)
    return prompt, plan.replace(spoken=spoken(prompt, batch.get(mask_name), vocabulary(model)))


def pack_for_steps(model: Model) -> None:
    """On a CPU a step waits for the weights, which come twice as fast when laid out for it; once a model, if small."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size <= PACKED_BYTES:
        pack_weights(model, PACKED_ROWS)


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
    state, given = State(), dict(batch)
    if prompt is not None:
        state = model.encode(**{key: value for key, value in batch.items() if key != mask_name})
        given = {name: prompt, **({mask_name: batch[mask_name]} if mask_name in batch else {})}
    mask = given.get(mask_name)
    if mask is not None and not bool(mask[:, -1].all()):  # no gap between a prompt and what follows: padding goes left
        order = torch.argsort(mask.long(), dim=1, stable=True)
        given = {key: x.gather(1, order) if x.shape == mask.shape else x for key, x in given.items()}
    keep = {"logits_to_keep": 1} if "logits_to_keep" in model.names else {}
    return state, model(**given, **keep, past_key_values=state).logits[:, -1]


def step(model: Model, state: State, ids: Tensor) -> Tensor:
    """The scores [B, V] of what comes after `ids` [B, n], which `state` remembers from now on."""
    return read(model, state, ids)[:, -1]


def read(model: Model, state: State, ids: Tensor) -> Tensor:
    """The scores [B, n, V] of what comes after each of `ids` [B, n], which `state` remembers from now on."""
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits
    check_scores(scores[:, -1])
    return scores


def make_draft(
    model: Model, assistant: Model | None, batch: dict[str, Tensor], prompt: Tensor | None, plan: Plan
) -> Draft | None:
    """Who guesses ahead: a smaller model, which reads the prompt first, or the text so far."""
    if assistant is None and not plan.prompt_lookup_num_tokens:
        return None
    if plan.num_beams > 1 or (assistant is not None and plan.prompt_lookup_num_tokens):
        raise InputError("assistant_model, prompt_lookup_num_tokens and num_beams above 1 exclude one another.")
    if assistant is None:
        return LookupDraft(plan.prompt_lookup_num_tokens, plan.max_matching_ngram_size)
    check_assistant(model, assistant)
    state, _ = prefill(assistant, batch, prompt)
    return ModelDraft(Reader(partial(read, assistant), state), plan.num_assistant_tokens)


def check_assistant(model: Model, assistant: Model) -> None:
    if not isinstance(assistant, type(model)):
        raise InputError(f"assistant_model must be a model of anyformer's; it is a {type(assistant).__name__}.")
    if (decoding_stage(model).attends is None) != (decoding_stage(assistant).attends is None):
        raise InputError(
            f"assistant_model ({assistant.family}) and the model ({model.family}) must both have encoders, or neither."
        )
    sizes = [vocabulary(assistant), vocabulary(model)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"assistant_model has {sizes[0]} words and the model {sizes[1]}; they must share a vocabulary."
        )
    if assistant.device != model.device:
        raise InputError(f"assistant_model is on {assistant.device} and the model on {model.device}; move one of them.")


def decode(
    model: Model, state: State, scores: Tensor, prompt: Tensor, plan: Plan, draft: Draft | None = None
) -> Tensor:
    """Advance and step until the strategy is done."""
    strategy = make_strategy(plan, prompt)
    own_memory = not decoding_stage(model).shares
    name, recording = decoding_stage(model).names[0], None
    if draft is not None and isinstance(strategy, Line):
        check_scores(scores)
        strategy.speculation = speculate(Reader(partial(read, model), state), scores, strategy, draft)
        return strategy.result()
    check_scores(scores)
    while True:
        tokens, rows = strategy.advance(scores)
        if strategy.done:
            check_scores(scores, last=True)
            return strategy.result()
        if rows is not None:
            state.select(rows, memory=own_memory)
        if recording is None and can_record(model, state, plan.max_length - plan.prompt):
            recording = record(model, name, state, strategy)
            state = recording.state
            if isinstance(strategy, (Greedy, Beam)) and strategy.plain:
                found = recording.follow(model, name, strategy, tokens)
                check_scores(recording.scores, last=True)
                return found
        scores = recording.step(model, name, tokens) if recording else step(model, state, tokens[:, None])


def check_scores(scores: Tensor, last: bool = False) -> None:
    """NaN would come out as some token or other. On a GPU looking would stop the queue: there we look at the end, when
    all that follows a NaN is NaN too.
    """
    if (scores.is_cuda and not last) or not bool(scores.sum().isnan()):  # a sum is read far faster than each number
        return
    if bool(scores.isnan().any()):  # and not infinities of both signs
        raise NotNumbersError(scores)


def trace(model: Model, batch: dict[str, Any], prompt: Tensor, plan: Plan, found: NotNumbersError) -> InputError:
    """Say the broken row again, by itself and step by step, and look for the part where it breaks."""
    row = found.row * len(prompt) // found.rows
    batch, prompt = take_row(batch, row), prompt[row : row + 1]
    alone = {"spoken": None if plan.spoken is None else plan.spoken[row : row + 1]}
    plan = plan.replace(**alone, seeds=None if plan.seeds is None else (plan.seeds[row],))
    state, scores = prefill(model, batch, None if decoding_stage(model).attends is None else prompt)
    strategy, ids = make_strategy(plan, prompt), prompt
    while not bool(scores.isnan().any()):
        tokens, rows = strategy.advance(scores)
        if strategy.done:
            return found
        if rows is not None:
            state.select(rows)
            ids = ids[rows]
        ids = torch.cat([ids, tokens[:, None]], dim=1)
        scores = model(**{decoding_stage(model).names[0]: tokens[:, None]}, past_key_values=state).logits[:, -1]
    broken = int(scores.isnan().any(dim=-1).nonzero()[0])
    return complaint(model, batch, ids[broken : broken + 1], row) or found
