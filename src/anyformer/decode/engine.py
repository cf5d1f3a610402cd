"""Decoding as small verbs: read the options, prefill, choose, step, stop.

    ids = generate(model, input_ids=prompt, max_new_tokens=64)

Greedy for now: the likeliest token each time. The ids are those of transformers' `generate` under the same options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.core.state import State
from anyformer.errors import InputError, nearest

if TYPE_CHECKING:  # the model imports this module, when it is asked to generate
    from anyformer.model import Model

NEW_TOKENS = 20  # where nobody says how long
CHECK_EVERY = 8  # steps between two looks at whether all rows are finished, on a GPU

# Options this version has, and where the model's own settings say the same.
SETTINGS = {"eos_token_id": "end", "pad_token_id": "padding", "decoder_start_token_id": "decoder_start"}
OPTIONS = (
    *SETTINGS,
    *("max_new_tokens", "max_length", "min_new_tokens", "min_length"),
    *("forced_eos_token_id", "bad_words_ids", "suppress_tokens"),
)

# Options of other strategies, each with the values that mean greedy decoding.
GREEDY: dict[str, tuple[Any, ...]] = {
    "num_beams": (1, None),
    "do_sample": (False, None),
    "temperature": (1.0, None),
    "top_k": (0, 50, None),
    "top_p": (1.0, None),
    "length_penalty": (1.0, None),
    "early_stopping": (False, None),
    "repetition_penalty": (1.0, None),
    "no_repeat_ngram_size": (0, None),
    "num_return_sequences": (1, None),
    "use_cache": (True, None),
}
# Said in a file, these mean nothing to a greedy search, so they need not be neutral there.
MOOT = ("temperature", "top_k", "top_p", "length_penalty", "early_stopping", "use_cache", "bos_token_id", "max_time")
MOOT_PREFIXES = ("_", "output_", "return_", "assistant_", "num_assistant_", "transformers_version")


@dataclass(frozen=True)
class Plan:
    """The options, resolved: lengths count everything that is returned."""

    max_length: int
    min_length: int
    end: tuple[int, ...]
    padding: int
    forced_end: int | None
    banned: tuple[int, ...]


def generate(model: Model, *args: Tensor, **options: Any) -> Tensor:
    """Continue `input_ids` (a decoder) or answer them (an encoder-decoder): [batch, length] of ids.

    A decoder gives the prompt and its continuation, an encoder-decoder the start token and its answer; rows that are
    finished early are filled with the padding id.
    """
    decoder = decoding_stage(model)
    options = {**({"input_ids": args[0]} if args else {}), **options}
    batch = {name: options.pop(name) for name in ("input_ids", "attention_mask") if options.get(name) is not None}
    if "input_ids" not in batch or batch["input_ids"].dim() != 2:
        raise InputError("generate needs input_ids of shape [batch, tokens].")
    given = resolve(model, options)
    prompt = batch["input_ids"] if decoder.attends is None else start(model, batch["input_ids"], given)
    plan = make_plan(model, given, prompt.shape[1])
    if "attention_mask" not in batch and decoder.attends is None:
        batch.update(infer_mask(batch["input_ids"], plan))
    state, scores = prefill(model, batch, None if decoder.attends is None else prompt)
    return decode(model, state, scores, prompt, plan)


def decoding_stage(model: Model) -> Any:
    stages = [stage for stage in model.stages.values() if stage.remembers]
    if not stages or "language" not in model.heads:
        raise InputError(f"This {model.family} model does not write step by step, so it has nothing to generate.")
    return stages[-1]


def resolve(model: Model, options: Mapping[str, Any]) -> dict[str, Any]:
    """Explicit options win over the folder's generation config, which wins over the model's own settings."""
    known = (*OPTIONS, *GREEDY, "input_ids", "attention_mask")
    for name, value in options.items():
        if name not in known:
            raise InputError(f'generate takes no "{name}".{nearest(name, known)} It takes: {", ".join(known)}.')
        if name in GREEDY and value not in GREEDY[name]:
            raise InputError(f"generate with {name}={value!r} is not in this version, which decodes greedily.")
    settings = model.config.to_json()
    own = {name: settings[ours] for name, ours in SETTINGS.items() if ours in settings}
    theirs = model.origin.hf_config
    own.update({name: theirs[name] for name in SETTINGS if theirs.get(name) is not None})
    # Old folders have no generation config and say such things in config.json.
    file = model.origin.generation or {name: theirs[name] for name in (*OPTIONS, *GREEDY) if name in theirs}
    check_file({name: value for name, value in file.items() if name not in options})
    return {**own, **{name: value for name, value in file.items() if value is not None}, **options}


def check_file(file: Mapping[str, Any]) -> None:
    for name, value in file.items():
        if name in OPTIONS or name in MOOT or name.startswith(MOOT_PREFIXES):
            continue
        if value not in GREEDY.get(name, (None, False)):
            way = f"; pass {name}={GREEDY[name][0]} to decode without it" if name in GREEDY else ""
            raise InputError(f"The generation config asks for {name}={value!r}, which is not in this version{way}.")


def make_plan(model: Model, given: Mapping[str, Any], prompt: int) -> Plan:
    max_length = given.get("max_length")
    if given.get("max_new_tokens") is not None:
        max_length = prompt + given["max_new_tokens"]
    elif max_length is None:
        table = model.config.to_json().get("max_length")  # of positions
        max_length = prompt + NEW_TOKENS if table is None else min(prompt + NEW_TOKENS, table)
    if max_length <= prompt:
        raise InputError(f"The prompt has {prompt} tokens and max_length is {max_length}; nothing is left to generate.")
    min_new = given.get("min_new_tokens")
    end = _several(given.get("eos_token_id"))
    padding = given.get("pad_token_id")
    forced = _several(given.get("forced_eos_token_id"))
    return Plan(
        max_length=max_length,
        min_length=prompt + min_new if min_new is not None else given.get("min_length") or 0,
        end=end,
        padding=padding if padding is not None else end[0] if end else 0,
        forced_end=forced[0] if forced else None,
        banned=(*_several(given.get("suppress_tokens")), *_single_words(given.get("bad_words_ids") or [])),
    )


def _several(value: Any) -> tuple[int, ...]:
    """An id, a list of ids or nothing, as ids."""
    return () if value is None else tuple(value) if isinstance(value, (list, tuple)) else (int(value),)


def _single_words(words: list[list[int]]) -> tuple[int, ...]:
    if any(len(word) != 1 for word in words):
        raise InputError("bad_words_ids with words of several tokens are not in this version; give words of one token.")
    return tuple(word[0] for word in words)


def start(model: Model, input_ids: Tensor, given: Mapping[str, Any]) -> Tensor:
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
    name = decoding_stage(model).names[0]
    scores: Tensor = model(**{name: ids}, past_key_values=state).logits[:, -1]
    return scores


def choose(scores: Tensor, length: int, plan: Plan) -> Tensor:
    """The next token of each row [B], where `length` tokens stand before it."""
    if plan.forced_end is not None and length == plan.max_length - 1:
        return scores.new_full((scores.shape[0],), plan.forced_end, dtype=torch.long)
    banned = (*plan.banned, *(plan.end if length < plan.min_length else ()))
    if banned:
        scores = scores.index_fill(1, torch.tensor(banned, device=scores.device), float("-inf"))
    return scores.argmax(dim=-1)


def check_every(device: torch.device) -> int:
    """Looking whether all rows are finished is free on the CPU, and stops the queue of a GPU."""
    return 1 if device.type == "cpu" else CHECK_EVERY


def decode(model: Model, state: State, scores: Tensor, prompt: Tensor, plan: Plan) -> Tensor:
    """Choose and step until every row has ended or is full."""
    end = torch.tensor(plan.end, dtype=torch.long, device=prompt.device)
    finished = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
    columns, lengths = [prompt], torch.full_like(finished, prompt.shape[1], dtype=torch.long)
    every = check_every(prompt.device)
    for length in range(prompt.shape[1], plan.max_length):
        token = choose(scores, length, plan).masked_fill(finished, plan.padding)
        columns.append(token[:, None])
        lengths += ~finished
        finished = finished | torch.isin(token, end)
        full = length + 1 == plan.max_length
        if full or (len(columns) % every == 0 and bool(finished.all())):
            break
        scores = step(model, state, token[:, None])
    return torch.cat(columns, dim=1)[:, : int(lengths.max())]
