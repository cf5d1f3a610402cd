"""Text generation: a decoder continues a text, or answers it if the model has a chat template.

write = af.task("generate", "folder")
write("Once upon a time", stop=["\n"])              # an Answer; a list in, a list out
for piece in write.stream("Once upon a time"):      # text as it comes
    print(piece, end="", flush=True)
write("Italy", shots="capitals.tsv")                # examples first, as GPT-3 is asked
chat = write.chat(system="Be brief.")               # a conversation, by the model's own template
chat.say("Hello!"); chat.say("And now in French.")
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from anyformer.core.cache import Cache
from anyformer.errors import InputError
from anyformer.generation.engine import stream
from anyformer.generation.requests import decoding_stage
from anyformer.model import Model
from anyformer.tasks.answers import Answer
from anyformer.tasks.chat import Chat
from anyformer.tasks.text import list_of_texts
from anyformer.tokenizers.few_shot import Table, make_few_shot_prompt
from anyformer.tokenizers.streaming import IncrementalDecoder, StopStringFilter, find_stop
from anyformer.tokenizers.tokenizer import Tokenizer

NEW_TOKENS = 200  # where nobody says how long an answer may be

Stop = str | Sequence[str]


@dataclass(frozen=True)
class GeneratedText(Answer):
    """The generated text. `prompt` is the text of the prompt with special tokens; `ids` are the generated ids.

    `text` ends before a stop string, `ids` with the token that completes it. `logprobs` has one number for each id if
    requested.
    """

    text: str
    prompt: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class PromptRequest:
    """Prompts ready for encoding, and how to decode their answers."""

    prompts: list[str]
    framed: bool  # by a chat template, whose special tokens stand in the prompt
    strip: bool  # white space around an answer means nothing
    stops: tuple[str, ...]
    options: dict[str, Any]


class TextGenerator:
    """Generates a text for a text, or a list for a list.

    Every call takes `system` (the system message of a chat model), `shots` and `template` (few-shot examples, see
    `anyformer.tokenizers.few_shot`), `stop` (strings that end an answer) and the options of `model.generate`.

    `chat`, here or in a call: whether the chat template is applied to the prompt (default: if the model has one, which
    is printed once).
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, *, chat: bool | None = None, **options: Any) -> None:
        if decoding_stage(model).attends is not None:
            raise InputError(f"This {model.family} model is an encoder-decoder; generate needs a decoder-only model.")
        tokenizer.check(model.config.to_json()["vocab_size"])
        self.model, self.tokenizer = model, tokenizer
        self.templated = tokenizer.chat_template is not None if chat is None else chat
        self.options = options
        self._inferred = chat is None and self.templated  # and not said yet

    @overload
    def __call__(self, text: str, **options: Any) -> GeneratedText: ...
    @overload
    def __call__(self, text: Sequence[str], **options: Any) -> list[GeneratedText]: ...
    def __call__(self, text: str | Sequence[str], **options: Any) -> GeneratedText | list[GeneratedText]:
        texts = list_of_texts(text, "generate")
        answers = self._write(self._request(texts, **{**self.options, **options})) if texts else []
        return answers[0] if isinstance(text, str) else answers

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """The same answer in pieces, as they come: whole characters only, and nothing is taken back."""
        return self.pieces(self._request([text], **{**self.options, **options}))

    def chat(self, *, system: str | None = None, **options: Any) -> Chat:
        """A conversation that remembers what was said."""
        return Chat(self, system=system, **options)

    def _request(
        self,
        texts: list[str],
        *,
        chat: bool | None = None,
        system: str | None = None,
        shots: Table | None = None,
        template: str | None = None,
        stop: Stop | None = None,
        **options: Any,
    ) -> PromptRequest:
        if not all(isinstance(text, str) for text in texts):
            raise InputError("generate takes a string or a list of strings.")
        stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        if self._inferred and chat is None and system is None:
            self._say_framing(shots is not None)
        if shots is not None:
            if system is not None:
                raise InputError("system needs the chat template, and shots need plain text; give one of them.")
            made = make_few_shot_prompt(shots, template)
            stops = (made.stop,) if stop is None and made.stop else stops
            return PromptRequest([made.prompt(text) for text in texts], False, True, stops, options)
        if template is not None:
            raise InputError("template formats the examples in shots; give shots too.")
        if self.templated if chat is None else chat:
            return self.ask([self._messages(text, system) for text in texts], stops, options)
        if system is not None:
            raise InputError("system needs a model with a chat template; this model has none.")
        return PromptRequest(texts, False, False, stops, options)

    def _say_framing(self, shots: bool) -> None:
        """Print, once, how prompts are framed, where the model's template decides that and not the caller."""
        self._inferred = False
        framed = (
            "the prompt is framed as a chat turn by the model's template; chat=False (--no-chat) continues it as text"
        )
        plain = "examples are continued as plain text; the chat template is not used"
        print(f"anyformer: {plain if shots else framed}", file=sys.stderr, flush=True)

    def ask(
        self, conversations: list[list[dict[str, str]]], stops: tuple[str, ...], options: dict[str, Any]
    ) -> PromptRequest:
        """Conversations by the model's template."""
        return PromptRequest(self.tokenizer.chat(conversations), True, True, stops, options)

    @staticmethod
    def _messages(text: str, system: str | None) -> list[dict[str, str]]:
        before = [] if system is None else [{"role": "system", "content": system}]
        return [*before, {"role": "user", "content": text}]

    def _encode(self, request: PromptRequest) -> dict[str, Tensor]:
        batch = self.tokenizer(request.prompts, side="left", special=not request.framed)
        if int(batch["attention_mask"].sum(dim=1).min()) == 0:
            raise InputError("A prompt is empty; give at least one character.")
        return {name: batch[name].to(self.model.device) for name in ("input_ids", "attention_mask")}

    def _write(self, request: PromptRequest) -> list[GeneratedText]:
        batch = self._encode(request)
        options = self._decoding(request, batch["attention_mask"])
        if options.get("num_return_sequences", 1) != 1:
            raise InputError(
                "generate returns one answer for each text; for several, use model.generate with num_return_sequences."
            )
        out: Any = self.model.generate(**{**batch, **options}, return_dict_in_generate=True)
        prompt = batch["input_ids"].shape[1]
        answers = []
        for row, (text, length) in enumerate(zip(request.prompts, out.lengths.tolist(), strict=True)):
            ids = out.sequences[row, prompt:length].tolist()
            logprobs = None if "logprobs" not in out else tuple(out.logprobs[row, : len(ids)].tolist())
            answers.append(GeneratedText(self._read(ids, request), text, tuple(ids), logprobs))
        return answers

    def _decoding(self, request: PromptRequest, mask: Tensor) -> dict[str, Any]:
        """The options of model.generate. Where neither the model nor the caller says how a text ends, the tokenizer
        does; where nobody says how long an answer may be, it is NEW_TOKENS, or what the model has places for.
        """
        options = request.options
        settings = self.model.config.to_json()
        said = {**self.model.origin.hf_config, **self.model.origin.generation, **options}
        more: dict[str, Any] = {}
        if said.get("eos_token_id") is None and settings.get("end") is None and "eos_token_id" not in options:
            more["eos_token_id"] = self.tokenizer.end_id
        if said.get("pad_token_id") is None and settings.get("padding") is None and self.tokenizer.pad_id is not None:
            more["pad_token_id"] = self.tokenizer.pad_id
        if options.get("max_new_tokens") is None and options.get("max_length") is None:
            limit = decoding_stage(self.model).limit
            room = NEW_TOKENS if limit is None else limit + 1 - int(mask.sum(dim=1).max())
            more["max_new_tokens"] = max(min(NEW_TOKENS, room), 1)
        if request.stops:
            more |= {"stop_strings": request.stops, "tokenizer": self.tokenizer}
        return {**more, **options}

    def _read(self, ids: list[int], request: PromptRequest) -> str:
        text = self.tokenizer.decode(ids)
        text = text[: find_stop(text, request.stops)]
        return text.strip() if request.strip else text

    def pieces(
        self, request: PromptRequest, ids: Tensor | None = None, past: Cache | None = None
    ) -> Generator[str, None, GeneratedText]:
        """What a request's one prompt is answered with; `past` has read the first of its `ids`. Returns the Answer."""
        batch = self._encode(request) if ids is None else {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        steps = stream(
            self.model, **batch, **self._decoding(request, batch["attention_mask"]), past_key_values=past
        )  # mistakes show here
        return self._follow(steps, request)

    def _follow(self, steps: Iterator[Tensor], request: PromptRequest) -> Generator[str, None, GeneratedText]:
        reader, cut = IncrementalDecoder(self.tokenizer), StopStringFilter(request.stops, request.strip)
        ids: list[int] = []
        text = ""
        for tokens in steps:
            ids.append(int(tokens[0]))
            piece = cut.add(reader.add(ids[-1]))
            text += piece
            if piece:
                yield piece
            if cut.done:
                break
        rest = cut.add(reader.end()) + cut.end()
        if rest:
            yield rest
        return GeneratedText(text + rest, request.prompts[0], tuple(ids))
