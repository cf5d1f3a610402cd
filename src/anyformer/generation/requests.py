"""A request: the inputs of `generate`, the first ids of the answer, and the plan by which they are continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.options import as_ids
from anyformer.generation.plan import GenerationPlan, fit_to_context, make_plan, vocab_size, with_lengths

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model, Stage

TEXT_INPUTS = ("inputs_embeds", "token_type_ids", "position_ids")  # that a decoder may be given with its prompt


@dataclass(eq=False)
class Request:
    """Rows to be continued. `inputs` are the model's, `prompt` [R, P] the ids before the first new token: those of a
    decoder's prompt, or the first of an encoder-decoder's answer.
    """

    inputs: dict[str, Any]
    prompt: Tensor
    plan: GenerationPlan
    has_source: bool  # whether `prompt` begins the answer of an encoder-decoder
    following: dict[str, Tensor] = field(default_factory=dict)  # see the function of this name

    def asides(self, length: int, rows: int, n: int) -> dict[str, Tensor]:
        """Return the inputs [rows, n] besides the ids of the tokens from `length` on: the token type of the prompt's
        last token, and the positions that follow the caller's.
        """
        count = torch.arange(length, length + n, device=self.prompt.device)
        values = {name: x.repeat_interleave(rows // len(x), dim=0) for name, x in self.following.items()}
        return {name: x + count if name == "position_ids" else x.expand(rows, n) for name, x in values.items()}


def make_request(
    model: Model,
    inputs: dict[str, Any],
    given: Mapping[str, Any],
    asked: bool,
    plan: GenerationPlan | None = None,
) -> Request:
    """Return a request from the model's inputs and options of `resolve`. `asked`: whether the caller gave a length;
    `plan`: what `make_plan` returned, if the options are those of other requests too.
    """
    decoder = decoding_stage(model)
    plan = make_plan(model, given) if plan is None else plan
    if plan.do_sample and plan.num_beams == 1 and plan.num_return_sequences > 1:  # beams need one row per prompt
        inputs = repeat_rows(inputs, plan.num_return_sequences)
    pair, mask_name = decoder.attends is not None, decoder.names[1]
    prompt = encoder_decoder_prompt(model, inputs, given) if pair else decoder_only_prompt(model, inputs, given)
    embeds = None if pair else inputs.get("inputs_embeds")
    if not pair and embeds is None and mask_name not in inputs:
        inputs.update(infer_mask(prompt, given))
    mask = inputs.get(mask_name)
    length = longest_prompt(prompt if embeds is None else embeds, mask, decoder.limit)
    embedded = 0 if embeds is None else embeds.shape[1]
    plan = with_lengths(plan, model, given, prompt.shape[1], prompt.shape[0], embedded)
    plan = fit_to_context(plan, length, decoder.limit, asked)
    history = None if embeds is not None else processor_history(prompt, mask, vocab_size(model))
    plan = plan.replace(history=history, source=source_ids(model, inputs, plan))
    return Request(inputs, prompt, plan, pair, {} if pair else following(inputs, mask))


def decoding_stage(model: Model) -> Stage:
    """Return the stage that generates tokens."""
    stages: list[Any] = [stage for stage in model.stages.values() if stage.has_cache]
    if not stages or "language" not in model.heads:
        raise InputError(f"This {model.family} model does not generate tokens; use a decoder or an encoder-decoder.")
    last: Stage = stages[-1]
    return last


def input_names(model: Model) -> tuple[str, ...]:
    """Return the keywords of `generate` that are model inputs, not options: those of all stages and the decoder ids."""
    decoder = decoding_stage(model)
    begin = decoder.names[:2]  # ids and their mask
    stages: list[Any] = list(model.stages.values())
    others = tuple(name for stage in stages if not stage.has_cache for name in stage.names)
    if decoder.attends is None:  # other stages read what is inserted between the text tokens
        more = (name for name in decoder.names if name in TEXT_INPUTS)
        return (*dict.fromkeys((begin[0], *others, *decoder.inputs.asides, *more, *begin)),)
    return (*others, "encoder_outputs", *begin)


def pop_inputs(model: Model, options: dict[str, Any]) -> dict[str, Any]:
    """Pop the model's inputs from `options`. The first input may also be named `inputs`."""
    names = input_names(model)
    main, begin = names[0], decoding_stage(model).names[0]
    first = options.pop("inputs", None)
    if first is not None and options.get(main) is not None:
        raise InputError(f"Give {main} once; pass all other inputs by name.")
    options.update({} if first is None else {main: first})
    if "input_ids" not in names and options.get("input_ids") is not None:
        options[begin] = options.pop("input_ids")  # a model that reads images: ids can only begin the answer
    found = {name: options.pop(name, None) for name in dict.fromkeys(names)}
    batch = {name: value for name, value in found.items() if value is not None}
    if isinstance(batch.get("encoder_outputs"), Sequence | Mapping):
        batch["encoder_outputs"] = batch["encoder_outputs"][0]
    text = decoding_stage(model).attends is None and main == "input_ids"  # bos_token_id can begin the text
    if not text and not any(
        isinstance(value, Tensor) for name, value in batch.items() if name not in names[-2:] or name == main
    ):
        shape = " of shape [batch, tokens]" if main == "input_ids" else ""
        raise InputError(f"generate needs {main}{shape}.")
    _check_prompt(batch, begin)
    return batch


def _check_prompt(batch: dict[str, Any], begin: str) -> None:
    """Raise an error for ids, vectors and masks that do not fit each other."""
    embeds, mask_name = batch.get("inputs_embeds"), begin.replace("input_ids", "attention_mask")
    if embeds is not None and batch.get("input_ids") is not None:
        raise InputError("inputs_embeds and input_ids are two forms of one prompt; give one of them.")
    if embeds is not None and (not isinstance(embeds, Tensor) or embeds.dim() != 3 or 0 in embeds.shape):
        shape = list(embeds.shape) if isinstance(embeds, Tensor) else type(embeds).__name__
        raise InputError(f"inputs_embeds is {shape}; it must be a tensor of shape [batch, tokens, width].")
    for name in dict.fromkeys(("input_ids", begin)):
        ids = batch.get(name)
        if ids is not None and (not isinstance(ids, Tensor) or ids.dim() != 2):
            raise InputError(f"{name} must be a tensor of shape [batch, tokens].")
        if ids is not None and 0 in ids.shape:
            raise InputError("The prompt is empty; give at least one token, such as bos_token_id.")
    text = embeds if embeds is not None and begin == "input_ids" else batch.get(begin)
    if text is None:
        return
    for name in (mask_name, *(name for name in ("token_type_ids", "position_ids") if begin == "input_ids")):
        value, shape = batch.get(name), list(text.shape[:2])
        if value is None:
            continue
        if name == "position_ids" and isinstance(value, Tensor) and list(value.shape) in (shape[1:], [1, shape[1]]):
            value = batch[name] = value.expand(shape)
        if not isinstance(value, Tensor) or list(value.shape) != shape:
            given = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{name} has shape {given}; it must be {shape} (batch, tokens).")
    mask = batch.get(mask_name)
    empty = [] if mask is None else (mask.sum(dim=1) == 0).nonzero().flatten().tolist()
    if empty:
        raise InputError(f"Row {empty[0]} of the prompt is empty: its attention_mask leaves no token.")


def repeat_rows(batch: dict[str, Any], many: int) -> dict[str, Any]:
    """Repeat every row `many` times, one after the other."""
    return {
        name: value.repeat_interleave(many, dim=0) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }


def infer_mask(input_ids: Tensor, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Mask pad_token_id in a prompt without attention_mask, unless it is also eos_token_id."""
    padding = set(as_ids(given.get("pad_token_id"))) - set(as_ids(given.get("eos_token_id")))
    return {"attention_mask": input_ids != padding.pop()} if padding else {}


def decoder_only_prompt(model: Model, batch: dict[str, Any], given: Mapping[str, Any]) -> Tensor:
    """Return the prompt of a decoder: input_ids, none for inputs_embeds, or else bos_token_id."""
    if "inputs_embeds" in batch:
        return torch.empty(len(batch["inputs_embeds"]), 0, dtype=torch.long, device=batch["inputs_embeds"].device)
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


def source_ids(model: Model, inputs: Mapping[str, Any], plan: GenerationPlan) -> Tensor | None:
    """Return the ids for the options of the source: the encoder's, or a decoder's prompt. Padding is as above."""
    asked = [name for name in ("encoder_repetition_penalty", "encoder_no_repeat_ngram_size") if plan.uses(name)]
    if not asked:
        return None
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None:
        raise InputError(f"{asked[0]} counts the ids of the source, but there are none; pass input_ids.")
    padded = processor_history(ids, mask, vocab_size(model))
    return ids if padded is None else padded


def following(inputs: Mapping[str, Any], mask: Tensor | None) -> dict[str, Tensor]:
    """Return each row's last token type [R, 1], and what its position adds to the number of tokens read."""
    found = {}
    for name in ("token_type_ids", "position_ids"):
        value = inputs.get(name)
        if value is not None:
            width = value.shape[1]
            last = torch.full_like(value[:, :1], width - 1) if mask is None else _last_real(mask)
            last_value = value.gather(1, last)
            found[name] = last_value if name == "token_type_ids" else last_value + 1 - width
    return found


def _last_real(mask: Tensor) -> Tensor:
    return (mask.bool() * torch.arange(mask.shape[1], device=mask.device)).amax(dim=1, keepdim=True)


def longest_prompt(prompt: Tensor, mask: Tensor | None, limit: int | None) -> int:
    """Return the number of real tokens of the longest row; raise an error above the model's limit."""
    length = prompt.shape[1] if mask is None else int(mask.sum(dim=1).max())
    if limit is not None and length > limit:
        raise InputError(f"The prompt has {length} tokens, but the model has only {limit} positions; shorten it.")
    return length
