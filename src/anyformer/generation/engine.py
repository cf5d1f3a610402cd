"""The decoding loop of `generate` and `stream`: resolve the options, prefill, then step until the strategy is done.

    ids = generate(model, {"input_ids": prompt, "max_new_tokens": 64, "num_beams": 4})
    for tokens in stream(model, input_ids=prompt): ...

A strategy chooses the next tokens and the rows that they continue (strategies.py); logits processors forbid tokens
(logits_processors.py). The ids equal those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from anyformer.generation.observer import OUTPUT_FLAGS, Observer, observing, pop_output_flags
from anyformer.generation.options import config_values
from anyformer.generation.plan import first_window, resolve, vocab_size
from anyformer.generation.requests import Request, decoding_stage, input_names, make_request, pop_inputs
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


def generate(model: Model, options: dict[str, Any]) -> Tensor | Output:
    """Generate ids [batch, length] after `input_ids` (a decoder) or from the encoder's inputs.

    A decoder returns the prompt and its continuation, an encoder-decoder the start token (or decoder_input_ids) and its
    answer; rows that finish early are filled with pad_token_id. num_return_sequences gives several rows per prompt.
    `assistant_model`, a smaller model with the same vocabulary, changes the speed but not the ids. `logprobs`,
    `alignment` and the other flags of observer.py return an Output. `streamer` receives each token, as in transformers.
    A speech model transcribes audio of any length (speech.py), unless `encoder_outputs` is given.
    """
    config = config_values(options.get("generation_config"))
    options = {**{name: config[name] for name in OUTPUT_FLAGS if name in config}, **options}
    if first_window(model) is not None and options.get("encoder_outputs") is None:
        from anyformer.generation.speech import generate as write_down

        return write_down(model, options)
    return run_generation(model, **options)


def run_generation(model: Model, **options: Any) -> Tensor | Output:
    """Run the decoding loop once, for one batch."""
    flags, streamer = pop_output_flags(options), options.pop("streamer", None)
    if streamer is not None and not all(callable(getattr(streamer, name, None)) for name in ("put", "end")):
        raise InputError(f"streamer is {streamer!r:.80}; it must have the methods put and end, as in transformers.")
    with observing(model, flags) as observer:
        start = start_decoding(model, options, observer)
        plan, prompt = start.request.plan, start.request.prompt
        if streamer is not None and plan.num_beams > 1:
            raise InputError(f"num_beams is {plan.num_beams}, but a streamer needs num_beams=1; leave one of them out.")
        strategy = make_strategy(plan, prompt)
        strategy.observed = observer is not None or streamer is not None
        strategy.every = 1 if strategy.observed else strategy.every  # show only the steps that the search needs
        if observer is not None and plan.num_beam_groups > 1:
            raise InputError("num_beam_groups above 1 cannot return scores, logprobs or alignment; leave one out.")
        if flags is not None and flags.scores and plan.criteria and start.draft is None:
            strategy.shown = []
        if streamer is not None:
            streamer.put(prompt.cpu())
        for tokens in decode_loop(model, start, strategy, observer):
            if streamer is not None:
                streamer.put(tokens.cpu())
    if streamer is not None:
        streamer.end()
    return strategy.result() if observer is None else observer.build_output(strategy)


def stream(model: Model, inputs: Tensor | None = None, **options: Any) -> Iterator[Tensor]:
    """Yield the new token of each row [batch] at each step, as in `generate`; finished rows give pad_token_id."""
    if pop_output_flags(options) is not None:
        raise InputError("stream returns ids only; use generate for scores, logprobs and alignment.")
    with torch.inference_mode():
        start = start_decoding(model, {"inputs": inputs, **options})
    if start.request.plan.num_beams > 1:
        many = start.request.plan.num_beams
        raise InputError(f"num_beams is {many}, but stream needs num_beams=1; use generate for beams.")
    if start.draft is not None:
        raise InputError("stream does not support assistant_model or prompt_lookup_num_tokens; use generate.")
    strategy = make_strategy(start.request.plan, start.request.prompt)
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

    request: Request
    state: Cache
    scores: Tensor  # [B, V], after the prompt
    nan_trace: NaNTrace
    draft: Draft | None = None


def start_decoding(model: Model, options: dict[str, Any], observer: Observer | None = None) -> SearchStart:
    """Resolve the options and prefill the prompt.

    `past_key_values` is the cache of an earlier call that has read the first tokens of the prompt.
    """
    past, assistant = (options.pop(name, None) for name in ("past_key_values", "assistant_model"))
    batch = pop_inputs(model, options)
    given = resolve(model, options, input_names(model))
    asked = any(options.get(name) is not None for name in ("max_length", "max_new_tokens"))
    request = make_request(model, batch, given, asked)
    optimize_for_decoding(model)
    if request.plan.guidance_scale != 1:
        from anyformer.generation.guidance import make_guidance

        request.plan = request.plan.replace(guidance=make_guidance(model, request, given))
    elif given.get("negative_prompt_ids") is not None:
        raise InputError("negative_prompt_ids is used only with a guidance_scale other than 1; pass it, too.")
    nan_trace = NaNTrace(model, request.inputs, request.prompt, tolerant=request.plan.remove_invalid_values)
    draft = make_draft(model, assistant, request)
    if draft is not None and observer is not None and observer.flags.layers:
        raise InputError("output_attentions and output_hidden_states cannot be used with a draft; leave one out.")
    state, scores = prefill(model, request.inputs, request.prompt if request.has_source else None, past, observer)
    return SearchStart(request, state, scores, nan_trace, draft)


def optimize_for_decoding(model: Model) -> None:
    """Swap linear layers for faster ones, once per model: a decode step on a CPU is then about twice as fast."""
    rewrites.apply("check", model)
    if model.auto_optimize:
        rewrites.apply("optimize_decoding", model)


def uncached_inputs(batch: dict[str, Any], state: Cache) -> dict[str, Any]:
    """Return the inputs without the tokens that the cache already holds."""
    name = "inputs_embeds" if "inputs_embeds" in batch else "input_ids"
    read, length = state.length, batch[name].shape[1]
    if read >= length:
        raise InputError(
            f"past_key_values has read {read} tokens and {name} has only {length}; give all of them and at least"
            " one new token."
        )
    return {name: value[:, read:] for name, value in batch.items()}


def prefill(
    model: Model,
    batch: dict[str, Any],
    prompt: Tensor | None,
    past: Cache | None = None,
    observer: Observer | None = None,
) -> tuple[Cache, Tensor]:
    """Read the whole prompt at once; return the cache and the scores of the first new token [B, V].

    `prompt` holds the first decoder ids of an encoder-decoder; a decoder's prompt is in the batch. With `past`, the
    batch is read from where that cache ends.
    """
    name, mask_name = decoding_stage(model).names[:2]
    state = Cache() if past is None else past
    begin = dict(batch) if past is None else uncached_inputs(batch, past)
    layers = observer.flags.layers if observer is not None else {}
    if prompt is not None:
        answer = {name: prompt, **({mask_name: batch[mask_name]} if mask_name in batch else {})}
        source = {key: value for key, value in batch.items() if key not in answer}
        state = state if layers else model.encode(**source)  # in one pass, if values of the encoder's layers are asked
        begin = {**source, **answer} if layers else answer
    state.checked = True  # by `optimize_for_decoding`
    mask = begin.get(mask_name)
    if mask is not None and not bool(mask[:, -1].all()):  # left padding: no gap between prompt and new tokens
        order = torch.argsort(mask.long(), dim=1, stable=True)
        own = begin if prompt is None else answer
        begin = {key: _take(x, order) if key in own and _per_token(key, x, mask) else x for key, x in begin.items()}
    keep = {"logits_to_keep": 1} if "logits_to_keep" in model.names else {}
    out = model(**begin, **keep, **layers, past_key_values=state)
    if observer is not None:
        observer.collect(out)
    return state, out.logits[:, -1]


def _per_token(name: str, x: Any, mask: Tensor) -> bool:
    return isinstance(x, Tensor) and (x.shape == mask.shape or name == "inputs_embeds")


def _take(x: Tensor, order: Tensor) -> Tensor:
    """Take tokens of x [B, T, …] in the order [B, T]."""
    return x.take_along_dim(order.view(*order.shape, *[1] * (x.dim() - 2)), dim=1)


def decode_step(
    model: Model, state: Cache, ids: Tensor, request: Request | None = None, observer: Observer | None = None
) -> Tensor:
    """Return the scores [B, V] after `ids` [B, n] and append them to the cache."""
    return decode_tokens(model, state, ids, request, observer)[:, -1]


def decode_tokens(
    model: Model, state: Cache, ids: Tensor, request: Request | None = None, observer: Observer | None = None
) -> Tensor:
    """Return the scores [B, n, V] after each of `ids` [B, n] and append them to the cache."""
    name = decoding_stage(model).names[0]
    more = request.asides(state.length, *ids.shape) if request is not None and request.following else {}
    out = model(**{name: ids}, **more, **(observer.flags.layers if observer is not None else {}), past_key_values=state)
    if observer is not None:
        observer.collect(out)
    scores: Tensor = out.logits
    return scores


def make_draft(model: Model, assistant: Model | None, request: Request) -> Draft | None:
    """Return the draft for speculative decoding: the assistant model, or prompt lookup."""
    plan = request.plan
    if assistant is None and not plan.prompt_lookup_num_tokens:
        return None
    if plan.num_beams > 1 or (assistant is not None and plan.prompt_lookup_num_tokens):
        raise InputError(
            "assistant_model, prompt_lookup_num_tokens and num_beams above 1 exclude one another; give one."
        )
    for name, given in (("inputs_embeds", "inputs_embeds" in request.inputs), ("guidance_scale", plan.guidance)):
        if given:
            raise InputError(f"{name} cannot be used with assistant_model or prompt_lookup_num_tokens; leave one out.")
    if assistant is None:
        return PromptLookupDraft(plan.prompt_lookup_num_tokens, plan.max_matching_ngram_size)
    check_assistant(model, assistant)
    optimize_for_decoding(assistant)
    state, _ = prefill(assistant, request.inputs, request.prompt if request.has_source else None)
    read = partial(decode_tokens, assistant, request=request)
    return ModelDraft(CachedReader(read, state), plan.num_assistant_tokens)


def check_assistant(model: Model, assistant: Model) -> None:
    if not hasattr(assistant, "generate_many"):
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
    state, scores, nan_trace, request = start.state, start.scores, start.nan_trace, start.request
    stage, graph, plan = decoding_stage(model), None, start.request.plan
    if start.draft is not None and isinstance(strategy, SingleSequence):
        check_nan(scores, nan_trace, last=True)
        note = observer.record if observer is not None else None
        strategy.speculation = speculate(
            CachedReader(partial(decode_tokens, model, request=request), state), scores, strategy, start.draft, note
        )
        warn_stuck(plan, strategy.stuck_rows())
        return
    is_plain = not request.following and (observer is None or not observer.flags.layers)
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
        if graph is None and is_plain and can_capture(model, state, plan.max_length - plan.prompt_length):
            graph = rewrites.apply("decode_graph").capture_step(model, stage.names[0], state, strategy)
            state = graph.state
            if isinstance(strategy, (Greedy, BeamSearch)) and strategy.plain:
                graph.run_to_end(model, stage.names[0], strategy, tokens)
                check_nan(graph.scores, nan_trace, last=True)
                return
        if graph is not None:
            scores = graph.step(model, stage.names[0], tokens)
        else:
            scores = decode_step(model, state, tokens[:, None], request, observer)


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
