"""Our answer to what a test asks one of transformers' models: the same weights, the same keywords."""

from __future__ import annotations

import copy
import inspect
import json
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import departures
import pytest
import torch
from comparing import STATE, Comparison, DifferentError
from torch import Tensor, nn

import anyformer as af
from anyformer.core.cache import Cache
from anyformer.errors import Error

_loaded: weakref.WeakKeyDictionary[nn.Module, tuple[Any, af.Model]] = weakref.WeakKeyDictionary()


def version(model: Any) -> Any:
    """Changes with every change of the weights or the settings."""
    tensors = [*model.parameters(), *model.buffers()]
    config = model.config.to_dict()
    generation = getattr(model, "generation_config", None)
    said = json.dumps([config, generation.to_dict() if generation is not None else None], default=str)
    # Writes through `.data` are counted nowhere, so the numbers themselves are looked at.
    numbers = [float(x.detach().double().sum()) for x in tensors]
    return numbers, [(x.data_ptr(), x._version, x.dtype, tuple(x.shape)) for x in tensors], said


def our_model(theirs: Any) -> af.Model:
    """What `af.load` makes of the folder that transformers writes, in the same mode."""
    now = version(theirs)
    held = _loaded.get(theirs)
    if held is None or held[0] != now:
        with tempfile.TemporaryDirectory() as folder, without_negative_ids(theirs):
            theirs.save_pretrained(folder)
            held = _loaded[theirs] = now, af.load(folder, dtype=theirs.dtype, ignore=foreign(theirs.config))
    return held[1].train(theirs.training)


@contextmanager
def without_negative_ids(theirs: Any) -> Iterator[None]:
    """Ids of -1, by which tests say that there is none, are not saved."""
    config = getattr(theirs, "generation_config", None)
    names = [name for name in ("eos_token_id", "pad_token_id") if getattr(config, name, None) == -1]
    for name in names:
        setattr(config, name, None)
    try:
        yield
    finally:
        for name in names:
            setattr(config, name, -1)


def foreign(config: Any) -> list[str]:
    """Fields that a test wrote into a config that does not have them."""
    own = type(config)().to_dict()
    known = departures.KNOWN.get(config.model_type, ())
    return [name for name in departures.IGNORED if hasattr(config, name) and name not in {*own, *known}]


def asked(method: Any, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Everything by its name, without what says nothing."""
    bound = inspect.signature(method).bind(*args, **options).arguments
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind == inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
    return {name: value for name, value in bound.items() if value is not None}


def plainly(kind: str, theirs: Any, given: dict[str, Any]) -> dict[str, Any]:
    """A question that means the same to both. transformers reads padding on the right of a prompt as words (decision
    10), so nothing is padding in such a prompt; it counts T5's distances over holes in a mask, which we do not
    (decision 2), so there the real tokens stand in front.
    """
    given = {name: value for name, value in given.items() if name not in departures.WITHOUT[kind]}
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = given.get(name)
        if mask is None or mask.dim() != 2:
            continue
        pair = theirs.config.is_encoder_decoder
        if kind == "generate" and pair == name.startswith("decoder") and not bool(mask[:, -1].all()):
            given = {**given, name: torch.ones_like(mask)}
        elif pair:
            given = {**given, name: closed(mask, "labels" in given)}
    return given


def closed(mask: Tensor, labeled: bool = False) -> Tensor:
    """Rows with holes have as many real tokens in front of all padding, and empty ones have one. Each row for itself: a
    test may ask about it alone, too. `labeled`: so have rows that are padded in front, since the loss also asks about
    padding, and there it has nothing to look at.
    """
    real = mask.clone()
    real[:, 0] = torch.where(mask.any(dim=1), mask[:, 0], 1)
    holes = (real[:, 1:] != real[:, :-1]).sum(dim=1, keepdim=True) > 1
    return torch.where(holes | labeled, real.sort(dim=1, descending=True).values, real)


def check_options(kind: str, given: dict[str, Any]) -> None:
    for name, reason in departures.OPTIONS[kind].items():
        if name in given:
            pytest.skip(f"departure: {reason} ({name})")


def our_state(cache: Any) -> Cache | None:
    """What stands for a cache of transformers': nothing for one that is empty."""
    if getattr(cache, STATE, None) is not None:
        state: Cache = getattr(cache, STATE)
        if state.length != cache.get_seq_length():
            pytest.skip("departure: step 11b: a cache that is cut or written to from outside")
        return state
    if cache.get_seq_length() == 0:
        return None
    pytest.skip("departure: step 11b: a cache that transformers' own code has filled")


def counted_by_slots(model: af.Model, given: dict[str, Any]) -> dict[str, Any]:
    """transformers numbers slots where the caller does not, padding included; we number real tokens (decision 2)."""
    mask = given.get("attention_mask")
    ids = given.get("input_ids", given.get("inputs_embeds"))
    if mask is None or ids is None or "position_ids" in given or "position_ids" not in model.names:
        return given
    if mask.shape[:-1] != ids.shape[: mask.dim() - 1] or bool((mask[..., 1:] <= mask[..., :-1]).all()):
        return given
    n = ids.shape[mask.dim() - 1]
    slots = torch.arange(mask.shape[-1] - n, mask.shape[-1], device=ids.device)
    return {**given, "position_ids": slots.expand(*mask.shape[:-1], n)}


def answer_call(theirs: Any, given: dict[str, Any], answer: Any) -> tuple[Any, Comparison]:
    """Ours for `model(...)`."""
    check_options("call", given)
    model = our_model(theirs)
    batch = {**given, "pair": theirs.config.is_encoder_decoder, "dtype": theirs.dtype}
    given = counted_by_slots(model, given)
    given.pop("use_cache", None)
    if "past_key_values" in model.names:
        filled = _has_cache(answer)
        state = our_state(given.pop("past_key_values")) if "past_key_values" in given else None
        given |= {"use_cache": filled} | ({"past_key_values": state} if state is not None else {})
    ours = differentiable(theirs, model, given) if torch.is_grad_enabled() else model(**given)
    comparison = Comparison("call", batch, not (theirs.training and _drops(theirs)))
    if isinstance(answer, tuple) and "past_key_values" not in given:  # whose masks go by the fields' names
        comparison.names = tuple(model(**{**given, "return_dict": True}))
    return comparison.hand_over(ours, answer), comparison


def _has_cache(answer: Any) -> bool:
    from transformers import Cache

    values = answer.values() if hasattr(answer, "values") else answer
    return any(isinstance(value, Cache) for value in values)


def _drops(model: nn.Module) -> bool:
    return any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.modules()) or any(
        getattr(part, name, 0)
        for part in model.modules()
        for name in ("attention_dropout", "dropout_prob", "dropout")
        if isinstance(getattr(part, name, 0), float)
    )


def answer_generate(theirs: Any, given: dict[str, Any], answer: Any) -> tuple[Any, Comparison]:
    """Ours for `model.generate(...)`."""
    check_options("generate", given)
    if "inputs_embeds" in given and ("inputs" in given or "input_ids" in given):
        pytest.skip(f"departure: {departures.BOTH}")
    model = our_model(theirs)
    batch = {"dtype": theirs.dtype, "pair": theirs.config.is_encoder_decoder}
    batch |= {name: given[name] for name in ("attention_mask",) if name in given}
    args = (given.pop("inputs"),) if "inputs" in given else ()
    for name in ("eos_token_id", "pad_token_id"):
        if given.get(name) == -1:  # here an id that no word has is an error, and None says it (decision 10)
            given[name] = None
    if "assistant_model" in given:
        given["assistant_model"] = our_model(given["assistant_model"])
    drafts = "assistant_model" in given or given.get("prompt_lookup_num_tokens")
    if drafts or given.get("use_cache") is False:  # what layers make is then of passes that we do not run
        given = {name: value for name, value in given.items() if name not in departures.LAYERS}
    ours = model.generate(*args, **given)
    draws = given.get("do_sample", theirs.generation_config.do_sample)
    comparison = Comparison("generate", batch, not draws)
    comparison.layers = bool(given.get("output_hidden_states") or given.get("output_attentions"))
    return comparison.hand_over(ours, answer), comparison


class Weights(torch.autograd.Function):
    """Our parameters as a function of theirs, so that gradients of our answer arrive where the test looks."""

    @staticmethod
    def forward(ctx: Any, model: af.Model, roads: list[tuple[Any, int]], *theirs: Tensor) -> tuple[Tensor, ...]:
        ctx.model, ctx.roads, ctx.count = model, roads, len(theirs)
        return tuple(parameter.detach().clone() for parameter in model.parameters())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        from anyformer.checkpoints.key_table import named_tensors

        values = [parameter.data for parameter in ctx.model.parameters()]
        for parameter, grad in zip(ctx.model.parameters(), grads, strict=True):
            parameter.data = grad
        places = named_tensors(ctx.model)
        found: list[Tensor | None] = [None] * ctx.count
        for key, index in ctx.roads:
            found[index] = key.write(places[key.ours].detach()).clone()
        for parameter, value in zip(ctx.model.parameters(), values, strict=True):
            parameter.data = value
        return None, None, *found


def roads(theirs: Any, model: af.Model) -> list[tuple[Any, int]]:
    """Each of our keys with the number of their parameter: in a copy of theirs, saved, each holds its number."""
    from safetensors.torch import load_file

    from anyformer.checkpoints.hf import table_for

    numbered = copy.deepcopy(theirs)
    for number, parameter in enumerate(numbered.parameters()):
        parameter.data = torch.full_like(parameter.data, number, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        numbered.save_pretrained(folder)
        stored = load_file(f"{folder}/model.safetensors")
    table, _ = table_for(model)
    numbers = {table.canonical(model.config, name): int(x.flatten()[0]) for name, x in stored.items() if x.numel()}
    return [(key, numbers[key.theirs]) for key in table.keys(model.config) if key.theirs in numbers]


_roads: weakref.WeakKeyDictionary[nn.Module, list[tuple[Any, int]]] = weakref.WeakKeyDictionary()


def differentiable(theirs: Any, model: af.Model, given: dict[str, Any]) -> Any:
    if theirs not in _roads or len(_roads[theirs]) == 0:
        _roads[theirs] = roads(theirs, model)
    names = [name for name, _ in model.named_parameters()]
    tensors = Weights.apply(model, _roads[theirs], *theirs.parameters())
    return torch.func.functional_call(model, dict(zip(names, tensors, strict=True)), (), given)


def answer(kind: str, theirs: Any, given: dict[str, Any], their_answer: Any) -> tuple[Any, Comparison]:
    """Ours; an error of ours is one of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return (answer_generate if kind == "generate" else answer_call)(theirs, given, their_answer)
        except Error as error:
            raise DifferentError(f"{kind} of {type(theirs).__name__} is refused: {error}") from error
