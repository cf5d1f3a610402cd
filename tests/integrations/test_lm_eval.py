"""lm-evaluation-harness gives the same numbers and texts with its own "hf" model and with ours, from one folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval", reason="needs lm-eval (the extra interop)")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import anyformer as af
from anyformer.integrations.lm_eval import HarnessLM
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = [
    "the cat sat on the mat",
    "a dog ran to the river and back",
    "where did the cat go? to the river.",
    "\n\n: one two",
]
LENGTH = 24  # positions, fewer than some texts have tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("gpt2"))
    words = Tokenizer(models.BPE())
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    )
    names = dict.fromkeys(("eos_token", "bos_token", "pad_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(path)
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=4, n_positions=LENGTH, vocab_size=300, eos_token_id=0, bos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # weights of the usual size say one word over and over
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def both(folder: str) -> tuple[HFLM, HarnessLM]:
    theirs = HFLM(folder, batch_size=4, device="cpu", logits_cache=False)  # which mixes up prompts that share a text
    return theirs, HarnessLM(folder, batch_size=4, device="cpu")


def asked(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


def test_continuations(both: tuple[HFLM, HarnessLM]) -> None:
    """Empty contexts, contexts longer than the model, and what greedy search says, which is marked."""
    pairs = [(text[:n], text[n:]) for text in TEXT for n in (0, 4, 7)] + [(" ".join(TEXT), " back again")]
    expected, found = (lm.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True) for lm in both)
    ids = [both[0].tok_encode(text) for text in TEXT]
    model = both[0].model
    said = [
        model.generate(torch.tensor([row]), max_new_tokens=4, eos_token_id=None)[0, len(row) :].tolist() for row in ids
    ]
    more = [(None, row, some[:n]) for row, some in zip(ids, said, strict=True) for n in (1, 4)]
    for lm, scores in zip(both, (expected, found), strict=True):
        scores += lm._loglikelihood_tokens(more, disable_tqdm=True)
    for (score, greedy), (other, marked) in zip(found, expected, strict=True):
        assert score == pytest.approx(other, rel=1e-4) and greedy == marked
    assert [greedy for _, greedy in found] == [False] * len(pairs) + [True] * len(more)


def test_whole_texts(both: tuple[HFLM, HarnessLM]) -> None:
    """One of them in several windows."""
    texts = [(TEXT[0],), (" ".join(TEXT),)]
    expected, found = (
        lm.loglikelihood_rolling(asked("loglikelihood_rolling", *texts), disable_tqdm=True) for lm in both
    )
    assert found == pytest.approx(expected, rel=1e-4)


def test_texts_until_a_stop(both: tuple[HFLM, HarnessLM]) -> None:
    prompts = ["the cat", "a dog ran to", "where did", " ".join(TEXT)]
    plain = both[0].generate_until(asked("generate_until", *((one, {"max_gen_toks": 12}) for one in prompts)))
    stops = [text[4:6] for text in plain if len(text) > 6][:2]
    assert stops
    options = [{"max_gen_toks": 12}, {"until": stops, "max_gen_toks": 9}, {"until": stops[0], "do_sample": False}]
    options[2] |= {"max_gen_toks": 5, "temperature": 0.0}
    requests = [(prompt, dict(some)) for some in options for prompt in prompts]
    expected, found = (lm.generate_until(asked("generate_until", *requests), disable_tqdm=True) for lm in both)
    assert found == expected and len(set(found)) > 4


def test_a_task(folder: str, tmp_path: Path) -> None:
    """As the harness's documentation has it: a task of a file, by the model's registered name."""
    rows = [
        {"question": text[:8], "choices": [text[8:], " nothing", " two"], "gold": i % 3} for i, text in enumerate(TEXT)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tiny.yaml").write_text(
        f"""
task: tiny
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path}/rows.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
    )
    found = {}
    for model in ("hf", "anyformer"):
        out: Any = lm_eval.simple_evaluate(
            model,
            model_args=f"pretrained={folder}",
            tasks=["tiny"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            batch_size=2,
            device="cpu",
            bootstrap_iters=0,
        )
        samples = [[score for score, _ in one["filtered_resps"]] for one in out["samples"]["tiny"]]
        found[model] = out["results"]["tiny"]["acc,none"], out["results"]["tiny"]["acc_norm,none"], samples
    assert found["anyformer"][:2] == found["hf"][:2]
    torch.testing.assert_close(torch.tensor(found["anyformer"][2]), torch.tensor(found["hf"][2]), rtol=1e-4, atol=1e-4)


def test_bad_input(folder: str) -> None:
    with pytest.raises(af.InputError, match="tokenizer"):
        HarnessLM(af.load(folder))
