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
from anyformer.decode.options import INPUTS, Plan, make_plan, resolve
from anyformer.decode.speculate import Draft, LookupDraft, ModelDraft, Reader, speculate
from anyformer.decode.strategies import Beam, Greedy, Line, make_strategy
from anyformer.errors import InputError

PACKED_BYTES = 2**31  # models up to this size keep a second copy of their matrices, made for speed
PACKED_ROWS = 64  # a layout for so many rows loses little at one

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor:
    """Continue `input_ids` (a decoder) or answer them (an encoder-decoder): [batch, length] of ids.

    A decoder gives the prompt and its continuation, an encoder-decoder the start token and its answer; rows that are
    finished early are filled with the padding id. With num_return_sequences there are so many rows for each prompt.
    `assistant_model`, a smaller model with the same vocabulary, guesses ahead and changes nothing but the time.
    """
    decoder = decoding_stage(model)
    options = {**({"input_ids": args[0]} if args else {}), **options}
    batch = {name: options.pop(name) for name in INPUTS if options.get(name) is not None}
    if "input_ids" not in batch or batch["input_ids"].dim() != 2:
        raise InputError("generate needs input_ids of shape [batch, tokens].")
    if batch["input_ids"].shape[1] == 0:
        raise InputError("The prompt is empty; give at least one token, the one that a text begins with.")
    assistant = options.pop("assistant_model", None)
    given = resolve(model, options)
    batch = repeat_prompts(batch, given)
    prompt = batch["input_ids"] if decoder.attends is None else start(batch["input_ids"], given)
    plan = make_plan(model, given, prompt.shape[1], prompt.shape[0])
    if "attention_mask" not in batch and decoder.attends is None:
        batch.update(infer_mask(batch["input_ids"], plan))
    pack_for_steps(model)
    begin = None if decoder.attends is None else prompt
    draft = make_draft(model, assistant, batch, begin, plan)
    state, scores = prefill(model, batch, begin)
    return decode(model, state, scores, prompt, plan, draft)


def pack_for_steps(model: Model) -> None:
    """On a CPU a step waits for the weights, which come twice as fast when laid out for it; once a model, if small."""
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size <= PACKED_BYTES:
        pack_weights(model, PACKED_ROWS)


def repeat_prompts(batch: dict[str, Tensor], given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Several draws of one prompt are several rows; several beams come from one search."""
    many = given.get("num_return_sequences") or 1
    if many == 1 or (given.get("num_beams") or 1) > 1 or not given.get("do_sample"):
        return batch
    return {name: value.repeat_interleave(many, dim=0) for name, value in batch.items()}


def decoding_stage(model: Model) -> Any:
    stages = [stage for stage in model.stages.values() if stage.remembers]
    if not stages or "language" not in model.heads:
        raise InputError(f"This {model.family} model does not write step by step, so it has nothing to generate.")
    return stages[-1]


def start(input_ids: Tensor, given: Mapping[str, Any]) -> Tensor:
    """The column that a decoder begins with."""
    first = given.get("decoder_start_token_id")
    if first is None:
        raise InputError("The model does not say how its decoder starts; give decoder_start_token_id.")
    return input_ids.new_full((input_ids.shape[0], 1), first)


def infer_mask(input_ids: Tensor, plan: Plan) -> dict[str, Tensor]:
    """Without a mask, padding ids in a prompt are padding, unless they are also how a text ends."""
    return {} if plan.padding in plan.end else {"attention_mask": input_ids != plan.padding}


def prefill(model: Model, batch: dict[str, Tensor], prompt: Tensor | None) -> tuple[State, Tensor]:
    """Read everything that is given at once: the state after it, and the scores of the first new token [B, V]."""
    if prompt is not None:
        state = model.encode(**batch)
        return state, step(model, state, prompt)
    state = State()
    mask = batch.get("attention_mask")
    if mask is None or bool(mask[:, -1].all()):
        return state, model(**batch, past_key_values=state, logits_to_keep=1).logits[:, -1]
    last = (mask.long() * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=1)  # padded on the right
    return state, model(**batch, past_key_values=state).logits[torch.arange(len(last), device=mask.device), last]


def step(model: Model, state: State, ids: Tensor) -> Tensor:
    """The scores [B, V] of what comes after `ids` [B, n], which `state` remembers from now on."""
    return read(model, state, ids)[:, -1]


def read(model: Model, state: State, ids: Tensor) -> Tensor:
    """The scores [B, n, V] of what comes after each of `ids` [B, n], which `state` remembers from now on."""
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits
    check_scores(scores[:, -1], state)
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


def vocabulary(model: Model) -> int:
    return int(model.heads["language"].get_parameter("words.weight").shape[0])


def decode(
    model: Model, state: State, scores: Tensor, prompt: Tensor, plan: Plan, draft: Draft | None = None
) -> Tensor:
    """Advance and step until the strategy is done."""
    strategy = make_strategy(plan, prompt)
    own_memory = not decoding_stage(model).shares
    name, recording = decoding_stage(model).names[0], None
    if draft is not None and isinstance(strategy, Line):
        check_scores(scores, state)
        strategy.speculation = speculate(Reader(partial(read, model), state), scores, strategy, draft)
        return strategy.result()
    check_scores(scores, state)
    while True:
        tokens, rows = strategy.advance(scores)
        if strategy.done:
            return strategy.result()
        if rows is not None:
            state.select(rows, memory=own_memory)
        if recording is None and can_record(model, state, plan.max_length - plan.prompt):
            recording = record(model, name, state, strategy)
            state = recording.state
            if isinstance(strategy, (Greedy, Beam)) and strategy.plain:
                return recording.follow(model, name, strategy, tokens)
        scores = recording.step(model, name, tokens) if recording else step(model, state, tokens[:, None])


def check_scores(scores: Tensor, state: State) -> None:
    """NaN would come out as some token or other. On a GPU looking would stop the queue at every token."""
    if scores.is_cuda or not bool(scores.sum().isnan()):  # a sum is read many times faster than every number asked
        return
    if bool(scores.isnan().any()):  # and not infinities of both signs
        row = int(scores.isnan().any(dim=1).nonzero()[0])
        raise InputError(f"The scores after position {state.length - 1} of row {row} are not numbers (NaN).")
