"""Decoding as small verbs: begin (resolve the options, prefill), walk (advance, step), stop.

    ids = generate(model, input_ids=prompt, max_new_tokens=64, num_beams=4)
    for tokens in stream(model, input_ids=prompt): ...

The loop knows no search: a strategy says which tokens come next and which rows they continue (strategies.py), rules say
what may not be said (processors.py). The ids are those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.core.copies import check_copies
from anyformer.core.linear import pack_weights
from anyformer.errors import InputError
from anyformer.forward_context import Output
from anyformer.generation.graph import can_capture, capture_step
from anyformer.generation.nan_trace import NaNTrace
from anyformer.generation.observer import Observer, observing, pop_output_flags
from anyformer.generation.options import GenerationPlan, as_ids, make_plan, resolve, vocab_size
from anyformer.generation.prompt import (
    decoder_only_prompt,
    encoder_decoder_prompt,
    fit_to_context,
    is_speech_model,
    longest_prompt,
    pop_inputs,
    processor_history,
    repeat_rows,
)
from anyformer.generation.prompt import decoding_stage as decoding_stage
from anyformer.generation.speculative import CachedReader, Draft, ModelDraft, PromptLookupDraft, speculate
from anyformer.generation.strategies import (
    BeamSearch,
    Greedy,
    SingleSequence,
    Strategy,
    check_every,
    make_strategy,
    warn_stuck,
)

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model

PACKED_BYTES = 2**31  # models up to this size keep a second copy of their matrices, made for speed
PACKED_ROWS = 64  # a layout for so many rows loses little at one


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor | Output:
    """Continue `input_ids` (a decoder), or answer whatever the encoder reads: [batch, length] of ids.

    A decoder gives the prompt and its continuation, an encoder-decoder the start token and its answer, which may be
    made to begin with decoder_input_ids; rows that are finished early are filled with the padding id. With
    num_return_sequences there are so many rows for each prompt. `assistant_model`, a smaller model with the same
    vocabulary, guesses ahead and changes nothing but the time. `logprobs`, `alignment` and what else observe.py has
    come in an Output. A `streamer` is told each token, as transformers does it. A model that hears writes down sound
    of any length (speech.py), unless it is given what its encoder made of it.
    """
    if is_speech_model(model) and options.get("encoder_outputs") is None:
        from anyformer.generation.speech import generate as write_down

        return write_down(model, args, options)
    return run_generation(model, *args, **options)


def run_generation(model: Model, *args: Tensor, **options: Any) -> Tensor | Output:
    """The loop itself, once."""
    wishes, streamer = pop_output_flags(options), options.pop("streamer", None)
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise InputError(f"streamer is {streamer!r:.80}; it must have the methods put and end, as transformers' have.")
    with observing(model, wishes) as observer:
        start = start_decoding(model, args, options)
        if streamer is not None and start.plan.num_beams > 1:
            many = start.plan.num_beams
            raise InputError(f"num_beams is {many}, and beams know their words at the end only; leave out streamer.")
        strategy = make_strategy(start.plan, start.prompt)
        strategy.observed = observer is not None or streamer is not None
        strategy.every = 1 if strategy.observed else strategy.every  # no step is shown that the search does not need
        if observer is not None and start.plan.num_beam_groups > 1:
            raise InputError("Log-probabilities and alignments are not kept for groups of beams; leave out one.")
        if streamer is not None:
            streamer.put(start.prompt.cpu())
        for tokens in decode_loop(model, start, strategy, observer):
            if streamer is not None:
                streamer.put(tokens.cpu())
    if streamer is not None:
        streamer.end()
    return strategy.result() if observer is None else observer.build_output(strategy)


def stream(model: Model, *args: Tensor, **options: Any) -> Iterator[Tensor]:
    """As `generate`, giving the new token of each row [batch] as it comes; a finished row gives the padding id."""
    if pop_output_flags(options) is not None:
        raise InputError("A stream gives ids alone; use generate for scores and alignment.")
    with torch.inference_mode():
        start = start_decoding(model, args, options)
    if start.plan.num_beams > 1:
        many = start.plan.num_beams
        raise InputError(f"num_beams is {many}, and beams know their words at the end only; stream with 1.")
    if start.draft is not None:
        raise InputError("A stream takes no draft: its tokens would come in bursts; use generate for that.")
    strategy = make_strategy(start.plan, start.prompt)
    strategy.every, strategy.observed = 1, True  # whoever reads every token waits for it anyway
    return _flow(decode_loop(model, start, strategy))


def _flow(steps: Iterator[Tensor]) -> Iterator[Tensor]:
    """Each step in inference mode, which must not reach the caller's code between two of them."""
    while True:
        with torch.inference_mode():
            tokens = next(steps, None)
        if tokens is None:
            return
        yield tokens


@dataclass
class SearchStart:
    """Everything before the first new token."""

    plan: GenerationPlan
    prompt: Tensor
    state: Cache
    scores: Tensor  # [B, V], after the prompt
    nan_trace: NaNTrace
    draft: Draft | None = None


def start_decoding(model: Model, args: tuple[Tensor, ...], options: dict[str, Any]) -> SearchStart:
    """Resolve the options and read the prompt.

    `past_key_values` is the state of an earlier call that has read the first tokens of the prompt already.
    """
    decoder = decoding_stage(model)
    past, assistant = (options.pop(name, None) for name in ("past_key_values", "assistant_model"))
    batch = pop_inputs(model, args, options)
    given = resolve(model, options)
    batch = repeat_prompts(batch, given)
    pair, mask_name = decoder.attends is not None, decoder.names[1]
    prompt = encoder_decoder_prompt(model, batch, given) if pair else decoder_only_prompt(model, batch, given)
    if not pair and mask_name not in batch:
        batch.update(infer_mask(prompt, given))
    mask = batch.get(mask_name)
    length = longest_prompt(prompt, mask, decoder.limit)
    plan = make_plan(model, given, prompt.shape[1], prompt.shape[0])
    asked = any(options.get(name) is not None for name in ("max_length", "max_new_tokens"))
    plan = fit_to_context(plan, length, decoder.limit, asked).replace(
        history=processor_history(prompt, mask, vocab_size(model))
    )
    trail = NaNTrace(model, batch, prompt, tolerant=plan.remove_invalid_values)
    pack_weights_for_decoding(model)
    opening = prompt if pair else None
    draft = make_draft(model, assistant, batch, opening, plan)
    state, scores = prefill(model, batch if past is None else uncached_inputs(batch, past), opening, past)
    return SearchStart(plan, prompt, state, scores, trail, draft)


def pack_weights_for_decoding(model: Model) -> None:
    """On a CPU a step waits for the weights, which come twice as fast when laid out for it; once a model, if small."""
    check_copies(model)
    if model.device.type != "cpu":
        return
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if size <= PACKED_BYTES:
        pack_weights(model, PACKED_ROWS)


def uncached_inputs(batch: dict[str, Any], state: Cache) -> dict[str, Any]:
    """What of the prompt the state does not remember yet."""
    read, length = state.length, batch["input_ids"].shape[1]
    if read >= length:
        raise InputError(f"past_key_values has read {read} tokens and input_ids has {length}; give all, and one more.")
    return {name: value[:, read:] for name, value in batch.items()}


def repeat_prompts(batch: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Several draws of one prompt are several rows; several beams come from one search."""
    many = given.get("num_return_sequences") or 1
    if many == 1 or (given.get("num_beams") or 1) > 1 or not given.get("do_sample"):
        return batch
    return repeat_rows(batch, many)


def infer_mask(input_ids: Tensor, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Without a mask, padding ids in a prompt are padding, unless they are also how a text ends."""
    padding = set(as_ids(given.get("pad_token_id"))) - set(as_ids(given.get("eos_token_id")))
    return {"attention_mask": input_ids != padding.pop()} if padding else {}


def prefill(
    model: Model, batch: dict[str, Any], prompt: Tensor | None, past: Cache | None = None
) -> tuple[Cache, Tensor]:
    """Read everything that is given at once: the state after it, and the scores of the first new token [B, V].

    `prompt` is how the answer of an encoder-decoder begins; a decoder's own is in the batch.
    """
    name, mask_name = decoding_stage(model).names[:2]
    state, begin = Cache() if past is None else past, dict(batch)
    if prompt is not None:
        state = model.encode(**{key: value for key, value in batch.items() if key not in (name, mask_name)})
        begin = {name: prompt, **({mask_name: batch[mask_name]} if mask_name in batch else {})}
    state.checked = True  # by `pack_weights_for_decoding`
    mask = begin.get(mask_name)
    if mask is not None and not bool(mask[:, -1].all()):  # no gap between a prompt and what follows: padding goes left
        order = torch.argsort(mask.long(), dim=1, stable=True)
        begin = {key: x.gather(1, order) if _per_token(x, mask) else x for key, x in begin.items()}
    keep = {"logits_to_keep": 1} if "logits_to_keep" in model.names else {}
    return state, model(**begin, **keep, past_key_values=state).logits[:, -1]


def _per_token(x: Any, mask: Tensor) -> bool:
    return isinstance(x, Tensor) and x.shape == mask.shape


def decode_step(model: Model, state: Cache, ids: Tensor) -> Tensor:
    """The scores [B, V] of what comes after `ids` [B, n], which `state` remembers from now on."""
    return decode_tokens(model, state, ids)[:, -1]


def decode_tokens(model: Model, state: Cache, ids: Tensor) -> Tensor:
    """The scores [B, n, V] of what comes after each of `ids` [B, n], which `state` remembers from now on."""
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits
    return scores


def make_draft(
    model: Model, assistant: Model | None, batch: dict[str, Any], prompt: Tensor | None, plan: GenerationPlan
) -> Draft | None:
    """Who guesses ahead: a smaller model, which reads the prompt first, or the text so far."""
    if assistant is None and not plan.prompt_lookup_num_tokens:
        return None
    if plan.num_beams > 1 or (assistant is not None and plan.prompt_lookup_num_tokens):
        raise InputError("assistant_model, prompt_lookup_num_tokens and num_beams above 1 exclude one another.")
    if assistant is None:
        return PromptLookupDraft(plan.prompt_lookup_num_tokens, plan.max_matching_ngram_size)
    check_assistant(model, assistant)
    pack_weights_for_decoding(assistant)
    state, _ = prefill(assistant, batch, prompt)
    return ModelDraft(CachedReader(partial(decode_tokens, assistant), state), plan.num_assistant_tokens)


def check_assistant(model: Model, assistant: Model) -> None:
    if not isinstance(assistant, type(model)):
        raise InputError(f"assistant_model must be a model of anyformer's; it is a {type(assistant).__name__}.")
    if (decoding_stage(model).attends is None) != (decoding_stage(assistant).attends is None):
        raise InputError(
            f"assistant_model ({assistant.family}) and the model ({model.family}) must both have encoders, or neither."
        )
    sizes = [vocab_size(assistant), vocab_size(model)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"assistant_model has {sizes[0]} words and the model {sizes[1]}; they must share a vocabulary."
        )
    if assistant.device != model.device:
        raise InputError(f"assistant_model is on {assistant.device} and the model on {model.device}; move one of them.")


def decode_loop(
    model: Model, start: SearchStart, strategy: Strategy, observer: Observer | None = None
) -> Iterator[Tensor]:
    """Advance and step until the strategy is done, giving the new tokens of its rows each time (a draft or a recorded
    step that nobody listens to goes on to the end by itself).
    """
    state, scores, trail, plan = start.state, start.scores, start.nan_trace, start.plan
    stage, recording = decoding_stage(model), None
    if start.draft is not None and isinstance(strategy, SingleSequence):
        check_nan(scores, trail, last=True)
        note = observer.record if observer is not None else None
        strategy.speculation = speculate(
            CachedReader(partial(decode_tokens, model), state), scores, strategy, start.draft, note
        )
        warn_stuck(plan, strategy.stuck_rows())
        return
    while True:
        check_nan(scores, trail)
        tokens, rows = strategy.advance(scores)
        if observer is not None:
            observer.record(scores, strategy, tokens)
        yield tokens
        if strategy.done:
            check_nan(scores, trail, last=True)
            warn_stuck(plan, strategy.stuck_rows())
            return
        if rows is not None:
            state.reorder(rows, memory=not stage.shares)
        trail.add(tokens, rows)
        if recording is None and can_capture(model, state, plan.max_length - plan.prompt_length):
            recording = capture_step(model, stage.names[0], state, strategy)
            state = recording.state
            if isinstance(strategy, (Greedy, BeamSearch)) and strategy.plain:
                recording.run_to_end(model, stage.names[0], strategy, tokens)
                check_nan(recording.scores, trail, last=True)
                return
        scores = (
            recording.step(model, stage.names[0], tokens) if recording else decode_step(model, state, tokens[:, None])
        )


def check_nan(scores: Tensor, nan_trace: NaNTrace, last: bool = False) -> None:
    """NaN would come out as some token or other. On a GPU we look only now and then, and at the end."""
    if nan_trace.tolerant:
        return
    nan_trace.check(scores)
    if (last or len(nan_trace.steps) % check_every(scores.device) == 0) and bool(nan_trace.broken):
        raise nan_trace.error()
