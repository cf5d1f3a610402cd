"""Tokens, next-token probabilities, the logit lens, step-by-step generation, and beam search."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.core.norms import apply_norm
from anyformer.errors import InputError
from anyformer.explorer import downsample
from anyformer.explorer.head_ablation import ablate_heads
from anyformer.explorer.loaded_model import LoadedModel, TokenLabel
from anyformer.explorer.request import ViewRequest
from anyformer.explorer.timeouts import Deadline
from anyformer.explorer.trace import watched
from anyformer.explorer.views.heads import place
from anyformer.forward_context import Output
from anyformer.generation.engine import decode_loop, decode_step, prefill, start_decoding
from anyformer.generation.logits_processors import keep_top_k, keep_top_p
from anyformer.generation.observer import OutputFlags
from anyformer.generation.requests import decoding_stage
from anyformer.generation.strategies import BeamSearch, make_strategy
from anyformer.heads.language import LanguageHead

SHOWN = 20  # tokens of a distribution
BEST = 5  # tokens at each step or layer


def tokens(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """All tokens with id, text, characters and bytes; and the attention sites."""
    model_input, _ = loaded.trace(request, deadline)
    shown = {name: [_word(word) for word in words] for name, words in model_input.words.items()}
    return {
        "words": shown,
        "answers": [_word(word) for word in model_input.answers],
        **sites(loaded, request, deadline),
    }


def sites(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The attention sites: stages and sublayers with their layers and heads."""
    _, trace = loaded.trace(request, deadline)
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for site in trace.sites():
        one = kinds.setdefault(
            (site.stage, site.part),
            {"stage": site.stage, "part": site.part, "layers": [], "blocks": [], "plain": site.plain},
        )
        one["layers"].append(site.layer)
        one["blocks"].append(trace.calls[site.stage][site.layer].index)  # fewer than layers if layers are shared
        one["heads"] = max(one.get("heads", 0), site.heads)
        one["keys"] = trace.memory_stage(site.stage) if trace.sublayer(site).crosses else site.stage
    return {"sites": list(kinds.values()), "seconds": trace.seconds}


def _word(word: TokenLabel) -> dict[str, Any]:
    return {
        "id": word.id,
        "text": word.text,
        "raw": word.raw,
        "start": word.start,
        "end": word.end,
        "bytes": (word.source or word.text).encode("utf-8", "replace")[:64].hex(" "),
    }


def head_of(loaded: LoadedModel) -> LanguageHead:
    """The language head of the model."""
    head = loaded.language
    if head is None:
        raise InputError(f"This {loaded.model.family} model has no language head.")
    return head


@torch.inference_mode()
def next_words(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The most probable next tokens at a position, before and after temperature, top-k and top-p."""
    _, trace = loaded.trace(request, deadline)
    head = head_of(loaded)
    x = trace.run.tokens[head.stage].pad().x
    at = place(request.position, x.shape[1])
    scores = head.score(x[:, at]).float()
    plain = scores.log_softmax(-1).exp()
    kept = scores / request.temperature
    kept = keep_top_k(kept, request.top_k) if request.top_k else kept
    kept = keep_top_p(kept, request.top_p) if request.top_p < 1 else kept
    probabilities = kept.log_softmax(-1).exp()
    ids = scores[0].topk(min(SHOWN, scores.shape[-1])).indices
    rows = [
        {
            "id": word.id,
            "text": word.text,
            "model": float(plain[0, word.id]),
            "probability": float(probabilities[0, word.id]),
        }
        for word in loaded.words(ids.tolist(), target=loaded.encoder_decoder)
    ]
    left = int((probabilities[0] > 0).sum())
    return {"words": rows, "position": at, "left": left, "vocabulary": scores.shape[-1], "entropy": _bits(plain[0])}


def _bits(probs: Tensor) -> float:
    return float(-torch.special.xlogy(probs, probs).sum() / torch.log(torch.tensor(2.0)))


@torch.inference_mode()
def logit_lens(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The logit lens: the output head applied to the residual stream after every layer. The most probable tokens of
    each layer, and the probability of the prediction of the last layer."""
    _, trace = loaded.trace(request, deadline)
    head = head_of(loaded)
    stage = loaded.model.stages[head.stage]
    layers = trace.run.layers[head.stage]
    final = trace.run.tokens[head.stage].pad().x
    at = place(request.position, final.shape[1])
    answer = int(head.score(final[:, at]).argmax())
    norm = stage.stack.final_norm if stage.stack is not None else None
    rows = []
    for n, layer in enumerate(layers):
        deadline.check()
        x = layer.pad().x[:, at]
        if x.shape[-1] != final.shape[-1]:  # recurrent layers with another width
            continue
        x = apply_norm(norm, x) if norm is not None else x
        x = final[:, at] if n == len(layers) - 1 else x
        probabilities = head.score(x).float().log_softmax(-1).exp()[0]
        best = probabilities.topk(min(BEST, len(probabilities)))
        words = loaded.words(best.indices.tolist(), target=loaded.encoder_decoder)
        rows.append(
            {
                "layer": n,
                "words": [word.text for word in words],
                "probabilities": downsample.numbers(best.values),
                "answer": float(probabilities[answer]),
                "rank": int((probabilities > probabilities[answer]).sum()),
                "bits": _bits(probabilities),
            }
        )
    return {"rows": rows, "answer": loaded.words([answer], target=loaded.encoder_decoder)[0].text, "position": at}


@torch.inference_mode()
def generation(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Generate token by token: the candidates, the chosen token and the size of the cache at each step."""
    model, batch = loaded.model, _prompt(loaded, request, deadline)
    generator = torch.Generator().manual_seed(request.seed)
    ending = {loaded.end} if loaded.end is not None else set()
    prompt = batch.pop("decoder_input_ids", None)
    rows: list[dict[str, Any]] = []
    with watched(model, None, [], deadline), ablate_heads(model, request.ablate):
        cache, scores = prefill(model, batch, prompt)
        for _ in range(request.steps):
            probabilities, chosen = _choose(scores, request, generator)
            rows.append({**_step(loaded, scores, probabilities, chosen), "cache": cache_of(cache)})
            if chosen in ending or _full(model, cache):
                break
            scores = decode_step(model, cache, torch.tensor([[chosen]]))
    read = batch["input_ids"][0].tolist() if "input_ids" in batch else []
    return {"read": [word.text for word in loaded.words(read)], "steps": rows}


def _prompt(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    if not (loaded.decoder_only or loaded.encoder_decoder):
        raise InputError(f"{loaded.model.family} models do not generate text; use a decoder or an encoder-decoder.")
    model_input = loaded.model_input(request.replace(target="") if loaded.encoder_decoder else request, deadline)
    batch = {name: value for name, value in model_input.batch.items() if name != "logits_to_keep"}
    if loaded.encoder_decoder:
        batch["decoder_input_ids"] = torch.tensor([[loaded.model.decoder_start]])
    return batch


def _choose(scores: Tensor, request: ViewRequest, generators: torch.Generator) -> tuple[Tensor, int]:
    kept = scores.float() / request.temperature
    kept = keep_top_k(kept, request.top_k) if request.top_k else kept
    kept = keep_top_p(kept, request.top_p) if request.top_p < 1 else kept
    probabilities = kept.log_softmax(-1).exp()
    chosen = torch.multinomial(probabilities, 1, generator=generators) if request.sample else probabilities.argmax(-1)
    return probabilities[0], int(chosen)


def _step(loaded: LoadedModel, scores: Tensor, probs: Tensor, chosen: int) -> dict[str, Any]:
    plain = scores.float().log_softmax(-1).exp()[0]
    best = probs.topk(min(BEST, len(probs)))
    words = loaded.words([chosen, *best.indices.tolist()], target=loaded.encoder_decoder)
    others = [
        {"text": word.text, "probability": probability}
        for word, probability in zip(words[1:], downsample.numbers(best.values), strict=True)
    ]
    return {
        "id": chosen,
        "text": words[0].text,
        "probability": float(probs[chosen]),
        "model": float(plain[chosen]),
        "best": others,
    }


def cache_of(cache: Cache) -> dict[str, int]:
    """The size of a cache: tokens, and bytes of the filled part of all tensors."""
    size = 0
    for entry in cache.layers.values():
        for tensor in (getattr(entry, "key", None), getattr(entry, "value", None)):
            if tensor is not None:
                filled = getattr(entry, "num_held", tensor.shape[2])
                size += tensor[:, :, :filled].numel() * tensor.element_size()
        if isinstance(entry, dict):
            size += sum(tensor.numel() * tensor.element_size() for tensor in entry.values())
    return {"tokens": cache.length, "bytes": size}


def _full(model: Any, cache: Cache) -> bool:
    limit = decoding_stage(model).limit
    return limit is not None and cache.length + 1 >= limit


class _Tree:
    """Records every step of a beam search: each candidate, its beam, and whether it is kept."""

    def __init__(self) -> None:
        self.levels: list[list[dict[str, Any]]] = []
        self.scores, self.flags = torch.zeros(1), OutputFlags()

    def collect(self, out: Output) -> None:
        """Do nothing: the search alone is shown."""

    def record(self, scores: Tensor, strategy: BeamSearch, tokens: Tensor) -> None:
        source, token, order = (one[0].tolist() for one in strategy.considered)
        logs, full = strategy.processed, strategy.length >= strategy.plan.max_length
        level = []
        for i, (beam, word) in enumerate(zip(source, token, strict=True)):
            score = float(logs[beam, word]) + (float(self.scores[beam]) if self.levels else 0.0)
            ended = full or word in strategy.plan.eos_ids
            on = order.index(i) if i in order and not ended else None
            level.append({"id": word, "from": beam, "score": score, "beam": on, "ended": ended and i < strategy.beams})
        self.levels.append(level)
        self.scores = strategy.scores[0].clone()


@torch.inference_mode()
def beam_tree(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Beam search as a tree: the candidates of each step with their scores (summed log-probabilities), and whether they
    are kept."""
    if request.beams < 2:
        raise InputError("beams must be 2 or more.")
    model, batch = loaded.model, _prompt(loaded, request, deadline)
    options = {"num_beams": request.beams, "max_new_tokens": request.steps, "do_sample": False, **loaded.end_options()}
    tree = _Tree()
    with watched(model, None, [], deadline), ablate_heads(model, request.ablate):
        start = start_decoding(model, {**batch, **options})
        strategy = make_strategy(start.request.plan, start.request.prompt)
        assert isinstance(strategy, BeamSearch)
        strategy.observed = True
        for _ in decode_loop(model, start, strategy, cast("Any", tree)):
            deadline.check()
    result = strategy.result()[0, strategy.plan.prompt_length :].tolist()
    best = float(strategy.end_scores.gather(1, strategy.returned()).flatten()[0])
    for level in tree.levels:
        for one, word in zip(
            level, loaded.words([one["id"] for one in level], target=loaded.encoder_decoder), strict=True
        ):
            one["text"] = word.text
    generated = [word.text for word in loaded.words(result, target=loaded.encoder_decoder)]
    return {"levels": tree.levels, "result": generated, "ids": result, "score": best, "beams": request.beams}
