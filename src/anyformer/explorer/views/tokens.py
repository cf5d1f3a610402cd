"""Words in and words out: how text is cut, what comes next, the same read off every layer, and writing step by step."""

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
from anyformer.generation.engine import decode_loop, decode_step, decoding_stage, prefill, start_decoding
from anyformer.generation.logits_processors import keep_top_k, keep_top_p
from anyformer.generation.strategies import BeamSearch, make_strategy
from anyformer.heads.language import LanguageHead

SHOWN = 20  # words of a distribution
BEST = 5  # and of one at each step or layer


def tokens(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Every token: id, text, the characters and bytes it stands for; and the sites."""
    subject, _ = loaded.trace(request, deadline)
    shown = {name: [_word(word) for word in words] for name, words in subject.words.items()}
    return {"words": shown, "answers": [_word(word) for word in subject.answers], **sites(loaded, request, deadline)}


def sites(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Where attention can be looked at: stages and parts, with their layers and heads."""
    _, trace = loaded.trace(request, deadline)
    kinds: dict[tuple[str, str], dict[str, Any]] = {}
    for site in trace.sites():
        one = kinds.setdefault(
            (site.stage, site.part),
            {"stage": site.stage, "part": site.part, "layers": [], "blocks": [], "plain": site.plain},
        )
        one["layers"].append(site.layer)
        one["blocks"].append(trace.calls[site.stage][site.layer].index)  # fewer, where layers are gone through again
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
    head = loaded.language
    if head is None:
        raise InputError(f"This {loaded.model.family} model has no output that says words.")
    return head


@torch.inference_mode()
def next_words(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The most probable words at a place, as the model says and after temperature, top-k and top-p."""
    _, trace = loaded.trace(request, deadline)
    head = head_of(loaded)
    x = trace.run.tokens[head.stage].pad().x
    at = place(request.position, x.shape[1])
    scores = head.score(x[:, at]).float()
    plain = scores.log_softmax(-1).exp()
    kept = scores / request.temperature
    kept = keep_top_k(kept, request.top_k) if request.top_k else kept
    kept = keep_top_p(kept, request.top_p) if request.top_p < 1 else kept
    chances = kept.log_softmax(-1).exp()
    ids = scores[0].topk(min(SHOWN, scores.shape[-1])).indices
    rows = [
        {"id": word.id, "text": word.text, "model": float(plain[0, word.id]), "chance": float(chances[0, word.id])}
        for word in loaded.words(ids.tolist(), target=loaded.writes)
    ]
    left = int((chances[0] > 0).sum())
    return {"words": rows, "position": at, "left": left, "vocabulary": scores.shape[-1], "entropy": _bits(plain[0])}


def _bits(probs: Tensor) -> float:
    return float(-torch.special.xlogy(probs, probs).sum() / torch.log(torch.tensor(2.0)))


@torch.inference_mode()
def logit_lens(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """The residual stream read through the output head after every layer (the logit lens): the best words there, and
    how likely each layer finds what the last one says."""
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
        if x.shape[-1] != final.shape[-1]:  # recurrent layers of another width
            continue
        x = apply_norm(norm, x) if norm is not None else x
        x = final[:, at] if n == len(layers) - 1 else x
        chances = head.score(x).float().log_softmax(-1).exp()[0]
        best = chances.topk(min(BEST, len(chances)))
        words = loaded.words(best.indices.tolist(), target=loaded.writes)
        rows.append(
            {
                "layer": n,
                "words": [word.text for word in words],
                "chances": downsample.numbers(best.values),
                "answer": float(chances[answer]),
                "rank": int((chances > chances[answer]).sum()),
                "bits": _bits(chances),
            }
        )
    return {"rows": rows, "answer": loaded.words([answer], target=loaded.writes)[0].text, "position": at}


@torch.inference_mode()
def generation(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Writing one token after another: what was likely, what was taken, and how the cache grows."""
    model, batch = loaded.model, _prompt(loaded, request, deadline)
    dice = torch.Generator().manual_seed(request.seed)
    ending = {loaded.end} if loaded.end is not None else set()
    opening = batch.pop("decoder_input_ids", None)
    rows: list[dict[str, Any]] = []
    with watched(model, None, [], deadline), ablate_heads(model, request.silence):
        state, scores = prefill(model, batch, opening)
        for _ in range(request.steps):
            chances, chosen = _choose(scores, request, dice)
            rows.append({**_step(loaded, scores, chances, chosen), "cache": cache_of(state)})
            if chosen in ending or _full(model, state):
                break
            scores = decode_step(model, state, torch.tensor([[chosen]]))
    read = batch["input_ids"][0].tolist() if "input_ids" in batch else []
    return {"read": [word.text for word in loaded.words(read)], "steps": rows}


def _prompt(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    if not (loaded.continues or loaded.writes):
        raise InputError(f"A {loaded.model.family} model does not write; a decoder or an encoder-decoder does.")
    subject = loaded.subject(request.replace(target="") if loaded.writes else request, deadline)
    batch = {name: value for name, value in subject.batch.items() if name != "logits_to_keep"}
    if loaded.writes:
        batch["decoder_input_ids"] = torch.tensor([[loaded.model.decoder_start]])
    return batch


def _choose(scores: Tensor, request: ViewRequest, generators: torch.Generator) -> tuple[Tensor, int]:
    kept = scores.float() / request.temperature
    kept = keep_top_k(kept, request.top_k) if request.top_k else kept
    kept = keep_top_p(kept, request.top_p) if request.top_p < 1 else kept
    chances = kept.log_softmax(-1).exp()
    chosen = torch.multinomial(chances, 1, generator=generators) if request.sample else chances.argmax(-1)
    return chances[0], int(chosen)


def _step(loaded: LoadedModel, scores: Tensor, probs: Tensor, chosen: int) -> dict[str, Any]:
    plain = scores.float().log_softmax(-1).exp()[0]
    best = probs.topk(min(BEST, len(probs)))
    words = loaded.words([chosen, *best.indices.tolist()], target=loaded.writes)
    others = [
        {"text": word.text, "chance": chance}
        for word, chance in zip(words[1:], downsample.numbers(best.values), strict=True)
    ]
    return {
        "id": chosen,
        "text": words[0].text,
        "chance": float(probs[chosen]),
        "model": float(plain[chosen]),
        "best": others,
    }


def cache_of(state: Cache) -> dict[str, int]:
    """What is remembered: tokens of the text, and bytes of all tensors as far as they are filled."""
    size = 0
    for memory in state.layers.values():
        for tensor in (getattr(memory, "key", None), getattr(memory, "value", None)):
            if tensor is not None:
                held = getattr(memory, "num_held", tensor.shape[2])
                size += tensor[:, :, :held].numel() * tensor.element_size()
        if isinstance(memory, dict):
            size += sum(tensor.numel() * tensor.element_size() for tensor in memory.values())
    return {"tokens": state.length, "bytes": size}


def _full(model: Any, state: Cache) -> bool:
    limit = decoding_stage(model).limit
    return limit is not None and state.length + 1 >= limit


class _Tree:
    """Notes every step of a beam search: each candidate, the beam it came from, and whether it goes on."""

    def __init__(self) -> None:
        self.levels: list[list[dict[str, Any]]] = []
        self.scores = torch.zeros(1)

    def record(self, scores: Tensor, strategy: BeamSearch, tokens: Tensor) -> None:
        source, token, order = (one[0].tolist() for one in strategy.considered)
        logs, full = strategy.processed, strategy.length >= strategy.plan.max_length
        level = []
        for i, (beam, word) in enumerate(zip(source, token, strict=True)):
            said = float(logs[beam, word]) + (float(self.scores[beam]) if self.levels else 0.0)
            ended = full or word in strategy.plan.eos_ids
            on = order.index(i) if i in order and not ended else None
            level.append({"id": word, "from": beam, "score": said, "beam": on, "ended": ended and i < strategy.beams})
        self.levels.append(level)
        self.scores = strategy.scores[0].clone()


@torch.inference_mode()
def beam_tree(loaded: LoadedModel, request: ViewRequest, deadline: Deadline) -> dict[str, Any]:
    """Beam search as a tree: at each step the candidates with their scores (summed log-probabilities), and which of
    them go on."""
    if request.beams < 2:
        raise InputError("A tree has two beams or more.")
    model, batch = loaded.model, _prompt(loaded, request, deadline)
    options = {"num_beams": request.beams, "max_new_tokens": request.steps, "do_sample": False, **loaded.ending()}
    tree = _Tree()
    with watched(model, None, [], deadline), ablate_heads(model, request.silence):
        start = start_decoding(model, (), {**batch, **options})
        strategy = make_strategy(start.plan, start.prompt)
        assert isinstance(strategy, BeamSearch)
        strategy.observed = True
        for _ in decode_loop(model, start, strategy, cast("Any", tree)):
            deadline.check()
    result = strategy.result()[0, start.plan.prompt_length :].tolist()
    best = float(strategy.end_scores.gather(1, strategy.returned()).flatten()[0])
    for level in tree.levels:
        for one, word in zip(level, loaded.words([one["id"] for one in level], target=loaded.writes), strict=True):
            one["text"] = word.text
    said = [word.text for word in loaded.words(result, target=loaded.writes)]
    return {"levels": tree.levels, "result": said, "ids": result, "score": best, "beams": request.beams}
