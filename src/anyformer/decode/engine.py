"""Decoding as small verbs: resolve the options, prefill, advance, step, stop.

    ids = generate(model, input_ids=prompt, max_new_tokens=64, num_beams=4)
    for tokens in stream(model, input_ids=prompt): ...

The loop knows no search: a strategy says which tokens come next and which rows they continue (strategies.py), rules say
what may not be said (processors.py). The ids are those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.state import State
from anyformer.decode.observe import Observer, observing, take_wishes
from anyformer.decode.options import INPUTS, Plan, make_plan, resolve
from anyformer.decode.strategies import Strategy, make_strategy
from anyformer.errors import InputError
from anyformer.run import Output

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor | Output:
    """Continue `input_ids` (a decoder) or answer them (an encoder-decoder): [batch, length] of ids.

    A decoder gives the prompt and its continuation, an encoder-decoder the start token and its answer; rows that are
    finished early are filled with the padding id. With num_return_sequences there are so many rows for each prompt.
    `logprobs`, `alignment` and what else observe.py has come in an Output. A `streamer` is told each token, as
    transformers does it.
    """
    wishes, streamer = take_wishes(options), options.pop("streamer", None)
    with observing(model, wishes) as observer:
        state, scores, prompt, plan = begin(model, args, options)
        strategy = make_strategy(plan, prompt)
        if streamer is not None:
            streamer.put(prompt.cpu())
        for tokens in walk(model, state, scores, strategy, observer):
            if streamer is not None:
                streamer.put(tokens.cpu())
    if streamer is not None:
        streamer.end()
    return strategy.result() if observer is None else observer.report(strategy)


def stream(model: Model, *args: Tensor, **options: Any) -> Iterator[Tensor]:
    """As `generate`, giving the new token of each row [batch] as it comes; a finished row gives the padding id."""
    if take_wishes(options) is not None:
        raise InputError("A stream gives ids alone; use generate for scores and alignment.")
    with torch.inference_mode():
        state, scores, prompt, plan = begin(model, args, options)
    if plan.num_beams > 1:
        raise InputError(f"num_beams is {plan.num_beams}, and beams know their words at the end only; stream with 1.")
    strategy = make_strategy(plan, prompt)
    strategy.every = 1  # whoever reads every token waits for it anyway
    return _flow(walk(model, state, scores, strategy))


def _flow(steps: Iterator[Tensor]) -> Iterator[Tensor]:
    """Each step in inference mode, which must not reach the caller's code between two of them."""
    while True:
        with torch.inference_mode():
            tokens = next(steps, None)
        if tokens is None:
            return
        yield tokens


def begin(model: Model, args: tuple[Tensor, ...], options: dict[str, Any]) -> tuple[State, Tensor, Tensor, Plan]:
    """Everything before the first new token: the state and the scores after the prompt, the prompt, and the plan.

    `past_key_values` is the state of an earlier call that has read the first tokens of the prompt already.
    """
    decoder = decoding_stage(model)
    options = {**({"input_ids": args[0]} if args else {}), **options}
    past = options.pop("past_key_values", None)
    batch = {name: options.pop(name) for name in INPUTS if options.get(name) is not None}
    if "input_ids" not in batch or batch["input_ids"].dim() != 2:
        raise InputError("generate needs input_ids of shape [batch, tokens].")
    if batch["input_ids"].shape[1] == 0:
        raise InputError("The prompt is empty; give at least one token, the one that a text begins with.")
    given = resolve(model, options)
    batch = repeat_prompts(batch, given)
    prompt = batch["input_ids"] if decoder.attends is None else start(batch["input_ids"], given)
    plan = make_plan(model, given, prompt.shape[1], prompt.shape[0])
    if "attention_mask" not in batch and decoder.attends is None:
        batch.update(infer_mask(batch["input_ids"], plan))
    if past is not None:
        batch = unread(batch, past)
    state, scores = prefill(model, batch, None if decoder.attends is None else prompt, past)
    return state, scores, prompt, plan


def unread(batch: dict[str, Tensor], state: State) -> dict[str, Tensor]:
    """What of the prompt the state does not remember yet."""
    read, length = state.length, batch["input_ids"].shape[1]
    if read >= length:
        raise InputError(f"past_key_values has read {read} tokens and input_ids has {length}; give all, and one more.")
    return {name: value[:, read:] for name, value in batch.items()}


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


def prefill(
    model: Model, batch: dict[str, Tensor], prompt: Tensor | None, past: State | None = None
) -> tuple[State, Tensor]:
    """Read everything that is given at once: the state after it, and the scores of the first new token [B, V]."""
    if prompt is not None:
        state = model.encode(**batch)
        return state, step(model, state, prompt)
    state = State() if past is None else past
    mask = batch.get("attention_mask")
    if mask is None or bool(mask[:, -1].all()):
        return state, model(**batch, past_key_values=state, logits_to_keep=1).logits[:, -1]
    last = (mask.long() * torch.arange(mask.shape[1], device=mask.device)).argmax(dim=1)  # padded on the right
    return state, model(**batch, past_key_values=state).logits[torch.arange(len(last), device=mask.device), last]


def step(model: Model, state: State, ids: Tensor) -> Tensor:
    """The scores [B, V] of what comes after `ids` [B, n], which `state` remembers from now on."""
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits[:, -1]
    return scores


def walk(
    model: Model, state: State, scores: Tensor, strategy: Strategy, observer: Observer | None = None
) -> Iterator[Tensor]:
    """Advance and step until the strategy is done, giving the new tokens of its rows each time."""
    while True:
        check_scores(scores, state)
        tokens, rows = strategy.advance(scores)
        if observer is not None:
            observer.note(scores, strategy, tokens)
        yield tokens
        if strategy.done:
            return
        if rows is not None:
            state.select(rows)
        scores = step(model, state, tokens[:, None])


def check_scores(scores: Tensor, state: State) -> None:
    """NaN would come out as some token or other. On a GPU looking would stop the queue at every token."""
    if not scores.is_cuda and bool(scores.isnan().any()):
        row = int(scores.isnan().any(dim=1).nonzero()[0])
        raise InputError(f"The scores after position {state.length - 1} of row {row} are not numbers (NaN).")
