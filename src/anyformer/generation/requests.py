"""Queue of prompts for continuous batching, each with its own length, limits and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.generation.engine import infer_mask
from anyformer.generation.limits import check_values
from anyformer.generation.logits_processors import Processor, make_processors
from anyformer.generation.options import GenerationPlan, as_python, check_seed, make_plan, resolve_lengths
from anyformer.generation.prompt import (
    decoding_stage,
    encoder_decoder_prompt,
    fit_to_context,
    longest_prompt,
    processor_history,
)

if TYPE_CHECKING:  # model.py imports this package
    from anyformer.model import Model

Prompt = Tensor | Sequence[int] | Mapping[str, Any]
OWN = ("max_new_tokens", "min_new_tokens", "seed")  # options that a prompt may set for itself


@dataclass(eq=False)
class Request:
    """A prompt in progress: the model's inputs, and the ids so far, including the prompt or start token."""

    index: int
    ids: Tensor  # [P]
    mask: Tensor | None  # [P]
    generated_ids: list[int]
    plan: GenerationPlan
    processors: list[Processor]
    generator: torch.Generator | None  # if it samples

    def history_ids(self, pad: int) -> list[int]:
        """Return the ids for logits processors; padding of the prompt becomes `pad`, an id outside the vocabulary."""
        history = processor_history(self.ids[None], None if self.mask is None else self.mask[None], pad)
        return self.generated_ids if history is None else [*history[0].tolist(), *self.generated_ids[len(self.ids) :]]

    @property
    def remaining_tokens(self) -> int:
        return self.plan.max_length - len(self.generated_ids)


class RequestQueue:
    """The queue. It reads up to `ahead` prompts in advance, so that those of similar length are prefilled together."""

    def __init__(self, model: Model, prompts: Iterable[Prompt], ahead: int, given: dict[str, Any]) -> None:
        self.model, self.given, self.ahead = model, given, ahead
        self.reads_source = decoding_stage(model).attends is not None
        self.limit = decoding_stage(model).limit
        self.queue = enumerate(prompts)
        self.waiting: list[Request] = []
        self.plan: GenerationPlan | None = None  # of the first prompt; the others differ only in lengths
        self.rules = lru_cache(maxsize=256)(make_processors)  # requests of equal lengths share their processors

    def prefetch(self) -> None:
        while len(self.waiting) < self.ahead and (numbered := next(self.queue, None)) is not None:
            try:
                self.waiting.append(self._request(*numbered))
            except InputError as error:
                raise InputError(f"Prompt {numbered[0]}: {error}") from None

    def next_requests(self, n: int) -> list[Request]:
        """Return up to n requests: the oldest one and those closest to it in length."""
        if n < len(self.waiting):
            length = len(self.waiting[0].ids)
            order = sorted(self.waiting, key=lambda request: abs(len(request.ids) - length))
            taken = [self.waiting[0], *[request for request in order if request is not self.waiting[0]]][:n]
        else:
            taken = self.waiting
        self.waiting = [request for request in self.waiting if request not in taken]
        return taken

    def _request(self, index: int, prompt: Prompt) -> Request:
        own: dict[str, Any] = dict(prompt) if isinstance(prompt, Mapping) else {"input_ids": prompt}
        ids, mask = (_row(name, own.pop(name, None), self.model.device) for name in ("input_ids", "attention_mask"))
        for name in own:
            if name not in OWN:
                fields = ("input_ids", "attention_mask", *OWN)
                raise InputError(f'a prompt has no field "{name}".{nearest(name, OWN)} Fields: {", ".join(fields)}.')
        if ids is None or len(ids) == 0:
            raise InputError("input_ids is empty; give at least one token, such as bos_token_id.")
        if mask is not None and len(mask) != len(ids):
            raise InputError(f"attention_mask has {len(mask)} entries for {len(ids)} tokens.")
        own = {name: as_python(value) for name, value in own.items()}
        check_values(own)
        seed = own.pop("seed", _seed(self.given.get("seed"), index))
        seed = None if seed is None else check_seed(seed)
        given = {**self.given, **own, "seed": None if seed is None else [seed]}
        begin = encoder_decoder_prompt(self.model, {"input_ids": ids[None]}, given) if self.reads_source else ids[None]
        start_ids = begin[0].tolist()
        if mask is None and not self.reads_source:
            mask = infer_mask(ids, given).get("attention_mask")
        real = None if mask is None or self.reads_source else mask[None]
        length = longest_prompt(begin, real, self.limit)
        plan = fit_to_context(
            self._plan(given, len(start_ids)), length, self.limit, asked=given.get("max_new_tokens") is not None
        )
        return Request(index, ids, mask, start_ids, plan, self.rules(plan), _generator(seed, self.model.device, plan))

    def _plan(self, given: Mapping[str, Any], prompt: int) -> GenerationPlan:
        if self.plan is None:
            self.plan = make_plan(self.model, given, prompt, rows=1)
        if given["seed"] is not None and not self.plan.do_sample:
            raise InputError("seed is used only in sampling; pass do_sample=True too, or leave it out.")
        return self.plan.replace(**resolve_lengths(self.model, given, prompt))


def _row(name: str, value: Any, device: torch.device) -> Tensor | None:
    """Return ids or a mask, given as a list, [P] or [1, P], as a tensor [P]."""
    if value is None:
        return None
    try:
        row = torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is {value!r:.80}; it must be a list or tensor of ids.") from None
    if name == "input_ids" and row.is_floating_point() and row.numel():
        raise InputError(f"{name} holds {row.flatten()[0].item()}; ids must be integers.")
    row = row[0] if row.dim() == 2 and row.shape[0] == 1 else row
    if row.dim() != 1:
        raise InputError(f"{name} has shape {list(row.shape)}; each prompt must have shape [tokens].")
    return row


def _seed(seed: Any, index: int) -> int | None:
    """Return the seed of a prompt; a single seed is counted up, as in `generate`."""
    if not isinstance(seed, (list, tuple)):
        return None if seed is None else check_seed(check_seed(seed) + index)
    if index >= len(seed):
        raise InputError(f"seed has {len(seed)} entries, fewer than prompts; give one per prompt, or a single number.")
    return check_seed(seed[index])


def _generator(seed: int | None, device: torch.device, plan: GenerationPlan) -> torch.Generator | None:
    if not plan.do_sample:
        return None
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)


def collate(requests: Sequence[Request], side: str) -> dict[str, Tensor]:
    """Return a batch of the prompts [n, longest], padded on one side, with a mask if there is padding."""
    longest = max(len(request.ids) for request in requests)
    ids = requests[0].ids.new_zeros(len(requests), longest)
    mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    for row, request in enumerate(requests):
        n = len(request.ids)
        where = slice(longest - n, longest) if side == "left" else slice(0, n)
        ids[row, where] = request.ids
        mask[row, where] = True if request.mask is None else request.mask.bool()
    plain = all(request.mask is None and len(request.ids) == longest for request in requests)
    return {"input_ids": ids} if plain else {"input_ids": ids, "attention_mask": mask}
