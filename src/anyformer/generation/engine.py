"""The decoding loop of `generate` and `stream`: resolve the options, prefill, then step until the strategy is done.

    ids = generate(model, input_ids=prompt, max_new_tokens=64, num_beams=4)
    for tokens in stream(model, input_ids=prompt): ...

A strategy chooses the next tokens and the rows that they continue (strategies.py); logits processors forbid tokens
(logits_processors.py). The ids equal those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core import rewrites
from anyformer.core.cache import Cache
from anyformer.errors import InputError
from anyformer.forward_context import Output
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

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

LEAST = 8  # with fewer new tokens, capturing a decode step does not pay off


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor | Output:
    """Generate ids [batch, length] after `input_ids` (a decoder) or from the encoder's inputs.

    A decoder returns the prompt and its continuation, an encoder-decoder the start token (or decoder_input_ids) and its
    answer; rows that finish early are filled with pad_token_id. num_return_sequences gives several rows per prompt.
    `assistant_model`, a smaller model with the same vocabulary, changes the speed but not the ids. `logprobs`,
    `alignment` and the other flags of observer.py return an Output. `streamer` receives each token, as in transformers.
    A speech model transcribes audio of any length (speech.py), unless `encoder_outputs` is given.
    """
    if is_speech_model(model) and options.get("encoder_outputs") is None:
        from anyformer.generation.speech import generate as write_down

        return write_down(model, args, options)
    return run_generation(model, *args, **options)


def run_generation(model: Model, *args: Tensor, **options: Any) -> Tensor | Output:
    """Run the decoding loop once, for one batch."""
    flags, streamer = pop_output_flags(options), options.pop("streamer", None)
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise InputError(f"streamer is {streamer!r:.80}; it must have the methods put and end, as in transformers.")
    with observing(model, flags) as observer:
        start = start_decoding(model, args, options)
        if streamer is not None and start.plan.num_beams > 1:
            many = start.plan.num_beams
            raise InputError(f"num_beams is {many}, but a streamer needs num_beams=1; leave one of them out.")
        strategy = make_strategy(start.plan, start.prompt)
        strategy.observed = observer is not None or streamer is not None
        strategy.every = 1 if strategy.observed else strategy.every  # show only the steps that the search needs
        if observer is not None and start.plan.num_beam_groups > 1:
            raise InputError("num_beam_groups above 1 cannot return scores, logprobs or alignment; leave one out.")
        if streamer is not None:
            streamer.put(start.prompt.cpu())
        for tokens in decode_loop(model, start, strategy, observer):
            if streamer is not None:
                streamer.put(tokens.cpu())
    if streamer is not None:
        streamer.end()
    return strategy.result() if observer is None else observer.build_output(strategy)


def stream(model: Model, *args: Tensor, **options: Any) -> Iterator[Tensor]:
    """Yield the new token of each row [batch] at each step, as in `generate`; finished rows give pad_token_id."""
    if pop_output_flags(options) is not None:
        raise InputError("stream returns ids only; use generate for scores, logprobs and alignment.")
    with torch.inference_mode():
        start = start_decoding(model, args, options)
    if start.plan.num_beams > 1:
        many = start.plan.num_beams
        raise InputError(f"num_beams is {many}, but stream needs num_beams=1; use generate for beams.")
    if start.draft is not None:
        raise InputError("stream does not support assistant_model or prompt_lookup_num_tokens; use generate.")
    strategy = make_strategy(start.plan, start.prompt)
    strategy.every, strategy.observed = 1, True  # a caller that reads every token synchronizes anyway
    return _flow(decode_loop(model, start, strategy))


def _flow(steps: Iterator[Tensor]) -> Iterator[Tensor]:
    """Run each step in inference mode, and the caller's code between steps outside of it."""
    while True:
        with torch.inference_mode():
            tokens = next(steps, None)
        if tokens is None:
            return
        yield tokens


@dataclass
class SearchStart:
    """The state of decoding before the first new token."""

    plan: GenerationPlan
    prompt: Tensor
    state: Cache
    scores: Tensor  # [B, V], after the prompt
    nan_trace: NaNTrace
    draft: Draft | None = None


def start_decoding(model: Model, args: tuple[Tensor, ...], options: dict[str, Any]) -> SearchStart:
    """Resolve the options and prefill the prompt.

    `past_key_values` is the cache of an earlier call that has read the first tokens of the prompt.
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
    nan_trace = NaNTrace(model, batch, prompt, tolerant=plan.remove_invalid_values)
    optimize_for_decoding(model)
    decoder_prompt = prompt if pair else None
    draft = make_draft(model, assistant, batch, decoder_prompt, plan)
    state, scores = prefill(model, batch if past is None else uncached_inputs(batch, past), decoder_prompt, past)
    return SearchStart(plan, prompt, state, scores, nan_trace, draft)


def optimize_for_decoding(model: Model) -> None:
    """Swap linear layers for faster ones, once per model: a decode step on a CPU is then about twice as fast."""
    rewrites.apply("check", model)
    if model.auto_optimize:
        rewrites.apply("optimize_decoding", model)


def uncached_inputs(batch: dict[str, Any], state: Cache) -> dict[str, Any]:
    """Return the inputs without the tokens that the cache already holds."""
    read, length = state.length, batch["input_ids"].shape[1]
    if read >= length:
        raise InputError(
            f"past_key_values has read {read} tokens and input_ids has only {length}; give all of them and at least"
            " one new token."
        )
    return {name: value[:, read:] for name, value in batch.items()}


def repeat_prompts(batch: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Repeat each prompt `num_return_sequences` times for sampling; beam search needs one row per prompt."""
    many = given.get("num_return_sequences") or 1
    if many == 1 or (given.get("num_beams") or 1) > 1 or not given.get("do_sample"):
        return batch
    return repeat_rows(batch, many)


def infer_mask(input_ids: Tensor, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Mask pad_token_id in a prompt without attention_mask, unless it is also eos_token_id."""
    padding = set(as_ids(given.get("pad_token_id"))) - set(as_ids(given.get("eos_token_id")))
    return {"attention_mask": input_ids != padding.pop()} if padding else {}


def prefill(
    model: Model, batch: dict[str, Any], prompt: Tensor | None, past: Cache | None = None
) -> tuple[Cache, Tensor]:
    """Read the whole prompt at once; return the cache and the scores of the first new token [B, V].

    `prompt` holds the first decoder ids of an encoder-decoder; a decoder's prompt is in the batch.
    """
    name, mask_name = decoding_stage(model).names[:2]
    state, begin = Cache() if past is None else past, dict(batch)
    if prompt is not None:
        state = model.encode(**{key: value for key, value in batch.items() if key not in (name, mask_name)})
        begin = {name: prompt, **({mask_name: batch[mask_name]} if mask_name in batch else {})}
    state.checked = True  # by `optimize_for_decoding`
    mask = begin.get(mask_name)
    if mask is not None and not bool(mask[:, -1].all()):  # left padding: no gap between prompt and new tokens
        order = torch.argsort(mask.long(), dim=1, stable=True)
        begin = {key: x.gather(1, order) if _per_token(x, mask) else x for key, x in begin.items()}
    keep = {"logits_to_keep": 1} if "logits_to_keep" in model.names else {}
    return state, model(**begin, **keep, past_key_values=state).logits[:, -1]


def _per_token(x: Any, mask: Tensor) -> bool:
    return isinstance(x, Tensor) and x.shape == mask.shape


def decode_step(model: Model, state: Cache, ids: Tensor) -> Tensor:
    """Return the scores [B, V] after `ids` [B, n] and append them to the cache."""
    return decode_tokens(model, state, ids)[:, -1]


def decode_tokens(model: Model, state: Cache, ids: Tensor) -> Tensor:
    """Return the scores [B, n, V] after each of `ids` [B, n] and append them to the cache."""
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits
    return scores


def make_draft(
    model: Model, assistant: Model | None, batch: dict[str, Any], prompt: Tensor | None, plan: GenerationPlan
) -> Draft | None:
    """Return the draft for speculative decoding: the assistant model, or prompt lookup."""
    if assistant is None and not plan.prompt_lookup_num_tokens:
        return None
    if plan.num_beams > 1 or (assistant is not None and plan.prompt_lookup_num_tokens):
        raise InputError(
            "assistant_model, prompt_lookup_num_tokens and num_beams above 1 exclude one another; give one."
        )
    if assistant is None:
        return PromptLookupDraft(plan.prompt_lookup_num_tokens, plan.max_matching_ngram_size)
    check_assistant(model, assistant)
    optimize_for_decoding(assistant)
    state, _ = prefill(assistant, batch, prompt)
    return ModelDraft(CachedReader(partial(decode_tokens, assistant), state), plan.num_assistant_tokens)


def check_assistant(model: Model, assistant: Model) -> None:
    if not isinstance(assistant, type(model)):
        raise InputError(f"assistant_model is a {type(assistant).__name__}; it must be an anyformer model.")
    if (decoding_stage(model).attends is None) != (decoding_stage(assistant).attends is None):
        raise InputError(
            f"assistant_model ({assistant.family}) and model ({model.family}): both or neither must have an encoder."
        )
    sizes = [vocab_size(assistant), vocab_size(model)]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"assistant_model has {sizes[0]} tokens and the model {sizes[1]}; they must share a vocabulary."
        )
    if assistant.device != model.device:
        raise InputError(f"assistant_model is on {assistant.device} and the model on {model.device}; move one of them.")


def decode_loop(
    model: Model, start: SearchStart, strategy: Strategy, observer: Observer | None = None
) -> Iterator[Tensor]:
    """Advance and step until the strategy is done; yield the new tokens of the running rows at each step. A draft, or a
    CUDA graph without an observer, runs to the end without yielding.
    """
    state, scores, nan_trace, plan = start.state, start.scores, start.nan_trace, start.plan
    stage, graph = decoding_stage(model), None
    if start.draft is not None and isinstance(strategy, SingleSequence):
        check_nan(scores, nan_trace, last=True)
        note = observer.record if observer is not None else None
        strategy.speculation = speculate(
            CachedReader(partial(decode_tokens, model), state), scores, strategy, start.draft, note
        )
        warn_stuck(plan, strategy.stuck_rows())
        return
    while True:
        check_nan(scores, nan_trace)
        tokens, rows = strategy.advance(scores)
        if observer is not None:
            observer.record(scores, strategy, tokens)
        yield tokens
        if strategy.done:
            check_nan(scores, nan_trace, last=True)
            warn_stuck(plan, strategy.stuck_rows())
            return
        if rows is not None:
            state.reorder(rows, memory=not stage.shares)
        nan_trace.add(tokens, rows)
        if graph is None and can_capture(model, state, plan.max_length - plan.prompt_length):
            graph = rewrites.apply("decode_graph").capture_step(model, stage.names[0], state, strategy)
            state = graph.state
            if isinstance(strategy, (Greedy, BeamSearch)) and strategy.plain:
                graph.run_to_end(model, stage.names[0], strategy, tokens)
                check_nan(graph.scores, nan_trace, last=True)
                return
        scores = graph.step(model, stage.names[0], tokens) if graph else decode_step(model, state, tokens[:, None])


def can_capture(model: Model, state: Cache, new_tokens: int) -> bool:
    """Whether the decode step can be captured as a CUDA graph."""
    graphs = rewrites.apply("decode_graph") if model.device.type == "cuda" else None
    return graphs is not None and graphs.can_capture(model, state, new_tokens)


def check_nan(scores: Tensor, nan_trace: NaNTrace, last: bool = False) -> None:
    """Raise an error if scores have been NaN. On CUDA this is checked every few steps and at the end."""
    if nan_trace.tolerant:
        return
    nan_trace.check(scores)
    if (last or len(nan_trace.steps) % check_every(scores.device) == 0) and bool(nan_trace.broken):
        raise nan_trace.error()
