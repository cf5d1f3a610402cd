"""Chat templates: the same text as transformers gives, and no way out of the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.tokenizers import chat_template

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": 'Say <hi> & "bye" – 日本'},
    {"role": "assistant", "content": "hi", "tool_calls": [{"name": "f", "arguments": {"x": [1, 2.5, None]}}]},
]
CHATML = (
    "{% for message in messages %}\n"
    "    {% if message.role == 'system' %}{% continue %}{% endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim }}\n"
    "{% generation %}{{ message.tool_calls | tojson(indent=2) if message.tool_calls }}{% endgeneration %}<|im_end|>\n"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}{{ bos_token }}<|im_start|>assistant\n{% endif %}"
)


def make(template: str | None) -> af.Tokenizer:
    tok = af.Tokenizer.train(iter(["a b c"]), kind="byte")
    tok.chat_template = template
    return tok


@pytest.mark.parametrize("prompt", [True, False])
def test_the_text_is_that_of_transformers(prompt: bool) -> None:
    theirs = pytest.importorskip("transformers.utils.chat_template_utils")
    wanted, _ = theirs.render_jinja_template(
        [TALK], chat_template=CHATML, add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>"
    )
    assert make(CHATML).chat(TALK, add_generation_prompt=prompt, bos_token="<s>") == wanted[0]


def test_several_conversations_at_once() -> None:
    tok = make("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    assert tok.chat([TALK[:1], TALK[1:2]]) == ["Be brief.</s>", 'Say <hi> & "bye" – 日本</s>']
    assert tok.encode(tok.chat(TALK[:1]), special=False)[-1] == tok.end_id


def test_the_template_comes_from_the_folder_and_stays(tmp_path: Path) -> None:
    tok = make("{{ messages[0].content }}")
    tok.save(tmp_path)
    assert af.Tokenizer.load(tmp_path).chat(TALK) == "Be brief."
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].role }}")  # where newer folders have it
    assert af.Tokenizer.load(tmp_path).chat(TALK) == "system"


def test_a_template_may_refuse() -> None:
    with pytest.raises(af.Error, match="TemplateError: roles must alternate"):
        make("{{ raise_exception('roles must alternate') }}").chat(TALK)


BAD = {
    "an endless loop": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "seconds"),
    "a flood": ("{% for a in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "wrote more than"),
    "a big string": ("{% set a = 'x' * 10 ** 10 %}{{ a | length }}", "MB of memory"),
    "a doubling string": (
        "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "MB of memory",
    ),
    "a big number": ("{{ 9 ** (9 ** 9) }}", "seconds"),
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    "python's classes": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
    "a global's globals": ("{{ raise_exception.__globals__['sys'] }}", "SecurityError"),
    "an included file": ("{% include '/etc/passwd' %}", "no loader"),
    "changing the messages": ("{{ messages.append(1) }}", "SecurityError"),
    "a syntax error": ("{% for %}", "TemplateSyntaxError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_template_cannot_loop_or_reach_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    template, says = BAD[name]
    # One limit at a time: a slow machine must not meet the clock on the way to another one.
    monkeypatch.setattr(chat_template, "SECONDS", 1 if says == "seconds" else 60)
    monkeypatch.setattr(chat_template, "MEMORY", 1 << 28)
    with pytest.raises(af.FolderError, match=says) as caught:
        make(template).chat(TALK)
    message = str(caught.value)
    assert message.startswith("The chat template was stopped: ") and message.endswith(".") and "\n" not in message


@pytest.mark.parametrize("talk", ["hello", {"role": "user"}, [{"content": "no role"}], [["a"]], [], [1]])
def test_what_is_no_conversation_is_explained(talk: Any) -> None:
    with pytest.raises(af.InputError, match="conversation"):
        make("x").chat(talk)


def test_a_tokenizer_without_a_template_says_so() -> None:
    with pytest.raises(af.FolderError, match="chat_template"):
        make(None).chat(TALK)
    with pytest.raises(af.InputError, match="messages"):
        make("x").chat([{"role": "user", "content": object()}])


@pytest.mark.parametrize(
    "template",
    [
        "{% if tools is none and documents is none %}none{% else %}some{% endif %}",
        "{{ tools }} {{ documents }} {{ unheard_of }}",
        "{% if tools is not none and tools|length > 0 %}{{ tools|length }}{% endif %}{{ messages[0].content }}",
        "{{ tools is defined }} {{ documents is defined }} {{ tools|tojson }}",
    ],
)
def test_tools_and_documents_are_none_as_in_transformers(template: str) -> None:
    from transformers import PreTrainedTokenizerFast

    from tokenizers import Tokenizer, models

    engine = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    theirs = PreTrainedTokenizerFast(tokenizer_object=engine, chat_template=template)
    messages = [{"role": "user", "content": "Hello"}]
    assert chat_template.render(template, [messages])[0] == theirs.apply_chat_template(messages, tokenize=False)
    tools = [{"type": "function", "function": {"name": "add"}}]
    ours = chat_template.render(template, [messages], tools=tools)[0]
    assert ours == theirs.apply_chat_template(messages, tools=tools, tokenize=False)
