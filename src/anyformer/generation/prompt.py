"""Inputs of `generate`: the model's inputs and the first ids of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.generation.options import GenerationPlan
    from anyformer.model import Model, Stage


def decoding_stage(model: Model) -> Stage:
    """Return the stage that generates tokens."""
    stages: list[Any] = [stage for stage in model.stages.values() if stage.has_cache]
    if not stages or "language" not in model.heads:
        raise InputError(f"This {model.family} model does not generate tokens; use a decoder or an encoder-decoder.")
    last: Stage = stages[-1]
    return last


def is_speech_model(model: Model) -> bool:
    """Whether the model transcribes audio, window by window."""
    stages: list[Any] = list(model.stages.values())
    return stages[0].inputs.window is not None and "language" in model.heads


def input_names(model: Model) -> tuple[str, ...]:
    """Return the keywords of `generate` that are model inputs, not options: those of all stages and the decoder ids."""
    decoder = decoding_stage(model)
    begin = decoder.names[:2]  # ids and their mask
    stages: list[Any] = list(model.stages.values())
    others = tuple(name for stage in stages if not stage.has_cache for name in stage.names)
    if decoder.attends is None:  # other stages read what is inserted between the text tokens
        return (*dict.fromkeys((begin[0], *others, *decoder.inputs.asides, *begin)),)
    return (*others, "encoder_outputs", *begin)


def pop_inputs(model: Model, args: tuple[Tensor, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Pop the model's inputs from `options`. The first input may be positional, or named `inputs`."""
    names = input_names(model)
    main, begin = names[0], decoding_stage(model).names[0]
    given = [*args, *([options.pop("inputs")] if options.get("inputs") is not None else [])]
    if len(given) + (options.get(main) is not None) > 1:
        raise InputError(f"Give {main} once; pass all other inputs by name.")
    options.update({main: given[0]} if given else {})
    if "input_ids" not in names and options.get("input_ids") is not None:
        options[begin] = options.pop("input_ids")  # a model that reads images: ids can only begin the answer
    batch = {name: options.pop(name) for name in dict.fromkeys(names) if options.get(name) is not None}
    if isinstance(batch.get("encoder_outputs"), Sequence | Mapping):
        batch["encoder_outputs"] = batch["encoder_outputs"][0]
    text = decoding_stage(model).attends is None and main == "input_ids"  # bos_token_id can begin the text
    if not text and not any(
        isinstance(value, Tensor) for name, value in batch.items() if name not in names[-2:] or name == main
    ):
        shape = " of shape [batch, tokens]" if main == "input_ids" else ""
        raise InputError(f"generate needs {main}{shape}.")
    _check_ids(batch, begin)
    return batch


def _check_ids(batch: dict[str, Any], begin: str) -> None:
    for name in dict.fromkeys(("input_ids", begin)):
        ids = batch.get(name)
        if ids is None:
            continue
        if not isinstance(ids, Tensor) or ids.dim() != 2:
            raise InputError(f"{name} must be a tensor of shape [batch, tokens].")
        if ids.shape[1] == 0 or ids.shape[0] == 0:
            raise InputError("The prompt is empty; give at least one token, such as bos_token_id.")
    mask = batch.get(begin.replace("input_ids", "attention_mask"))
    if mask is not None and begin in batch and mask.shape == batch[begin].shape:
        empty = (mask.sum(dim=1) == 0).nonzero().flatten().tolist()
        if empty:
            raise InputError(f"Row {empty[0]} of the prompt is empty: its attention_mask leaves no token.")


def repeat_rows(batch: dict[str, Any], many: int) -> dict[str, Any]:
    """Repeat every row `many` times, one after the other."""
    return {
        name: value.repeat_interleave(many, dim=0) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def decoder_only_prompt(model: Model, batch: dict[str, Any], given: Mapping[str, Any]) -> Tensor:
    """Return the prompt of a decoder; without input_ids it is bos_token_id."""
    if "input_ids" not in batch:
        first = given.get("bos_token_id")
        if first is None:
            raise InputError("The model's config has no bos_token_id; generate needs input_ids or bos_token_id.")
        rows = next((len(x) for x in batch.values() if isinstance(x, Tensor)), 1)
        device = model.device
        batch["input_ids"] = torch.as_tensor(first, device=device).flatten()[:1].expand(rows)[:, None].clone()
    prompt: Tensor = batch["input_ids"]
    return prompt


def encoder_decoder_prompt(model: Model, batch: dict[str, Any], given: Mapping[str, Any]) -> Tensor:
    """Return the first decoder ids of an encoder-decoder: its start token and the caller's decoder_input_ids."""
    name, mask_name = decoding_stage(model).names[:2]
    rows, device = next((len(x), x.device) for x in batch.values() if isinstance(x, Tensor))
    first = given.get("decoder_start_token_id")
    first = given.get("bos_token_id") if first is None else first
    forced: Tensor | None = batch.pop(name, None)
    if first is None:
        if forced is None:
            raise InputError("The model's config has no decoder_start_token_id; pass it.")
        return forced
    column = torch.as_tensor(first, device=device).flatten()
    if len(column) not in (1, rows):
        raise InputError(f"decoder_start_token_id holds {len(column)} ids for {rows} rows; give one, or one per row.")
    column = column.expand(rows)[:, None]
    if forced is None:
        return column.clone()
    if len(forced) != rows:
        raise InputError(f"{name} has {len(forced)} rows for {rows} inputs; give one per row.")
    if bool((forced[:, 0] == column[:, 0]).any()):
        return forced
    if mask_name in batch:
        mask = batch[mask_name]
        batch[mask_name] = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)
    return torch.cat([column, forced], dim=1)


def processor_history(prompt: Tensor, mask: Tensor | None, pad: int) -> Tensor | None:
    """Return the prompt for logits processors: padding moved to the left and replaced by an id outside the vocabulary.

    None if the prompt has no padding.
    """
    if mask is None or bool(mask.all()):
        return None
    order = torch.argsort(mask.long(), dim=1, stable=True)
    return prompt.gather(1, order).masked_fill(mask.gather(1, order) == 0, pad)


def longest_prompt(prompt: Tensor, mask: Tensor | None, limit: int | None) -> int:
    """Return the number of real tokens of the longest row; raise an error above the model's limit."""
    length = prompt.shape[1] if mask is None else int(mask.sum(dim=1).max())
    if limit is not None and length > limit:
        raise InputError(f"The prompt has {length} tokens, but the model has only {limit} positions; shorten it.")
    return length


def fit_to_context(plan: GenerationPlan, length: int, limit: int | None, asked: bool) -> GenerationPlan:
    """Fit the plan to the model's number of positions. The last token is not read again and needs no position.

    A length that the caller gave (`asked`) and that does not fit is an error; a default length is reduced.
    """
    if limit is None:
        return plan
    new, room = plan.max_length - plan.prompt_length, limit + 1 - length
    if new <= room:
        return plan
    if asked:
        raise InputError(
            f"The prompt has {length} tokens plus up to {new} new ones, but the model has only {limit} positions;"
            f" pass max_new_tokens={room} or less."
        )
    return plan.replace(max_length=plan.prompt_length + room)
