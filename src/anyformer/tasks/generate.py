"""Generate: a decoder continues a text, or answers it where it came with a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, overload

import torch
from torch import Tensor

from anyformer.decode.engine import decoding_stage
from anyformer.errors import InputError
from anyformer.model import Model
from anyformer.text.tokenizer import Tokenizer
from anyformer.weights.folder import load as load_model

NEW_TOKENS = 200  # where nobody says how long an answer may be


@dataclass(frozen=True)
class Answer:
    """What the model wrote. `prompt` is the text that it read, special tokens and all; `ids` what it wrote, as ids."""

    text: str
    prompt: str
    ids: tuple[int, ...]

    def __str__(self) -> str:
        return self.text


class Generate:
    """A text in, an `Answer` out; a list in, a list out."""

    def __init__(self, model: Model, tokenizer: Tokenizer, *, chat: bool | None = None, **options: Any) -> None:
        if decoding_stage(model).attends is not None:
            raise InputError(f"This {model.family} model turns one text into another; generate wants a plain decoder.")
        tokenizer.check(model.config.to_json()["vocab_size"])
        self.model, self.tokenizer = model, tokenizer
        self.chat = tokenizer.chat_template is not None if chat is None else chat
        self.options = {"max_new_tokens": NEW_TOKENS, **options}

    @overload
    def __call__(self, text: str, *, system: str | None = None, **options: Any) -> Answer: ...
    @overload
    def __call__(self, text: Sequence[str], *, system: str | None = None, **options: Any) -> list[Answer]: ...
    def __call__(
        self, text: str | Sequence[str], *, system: str | None = None, **options: Any
    ) -> Answer | list[Answer]:
        """`system` is what a chat model is told before the question; `options` are those of `model.generate`."""
        texts = [text] if isinstance(text, str) else list(text)
        prompts = self._prompts(texts, system)
        answers = self._write(prompts, {**self.options, **options}) if prompts else []
        return answers[0] if isinstance(text, str) else answers

    def _prompts(self, texts: list[str], system: str | None) -> list[str]:
        if not self.chat:
            if system is not None:
                raise InputError("system is for models with a chat template; this one continues the text as it stands.")
            return texts
        before = [] if system is None else [{"role": "system", "content": system}]
        return self.tokenizer.chat([[*before, {"role": "user", "content": text}] for text in texts]) if texts else []

    def _write(self, prompts: list[str], options: dict[str, Any]) -> list[Answer]:
        batch = self.tokenizer(prompts, side="left", special=not self.chat)
        empty = int(batch["attention_mask"].sum(dim=1).min()) == 0
        if empty:
            raise InputError("A text is empty: there is nothing to continue.")
        ids = batch["input_ids"].to(self.model.device)
        mask = batch["attention_mask"].to(self.model.device)
        written = self.model.generate(input_ids=ids, attention_mask=mask, **self._ends(options))[:, ids.shape[1] :]
        return [self._answer(prompt, row) for prompt, row in zip(prompts, written, strict=True)]

    def _ends(self, options: dict[str, Any]) -> dict[str, Any]:
        """Where neither the model nor the caller says how a text ends, the tokenizer does."""
        settings = self.model.config.to_json()
        said = {**self.model.origin.hf_config, **self.model.origin.generation, **options}
        more: dict[str, Any] = {}
        if said.get("eos_token_id") is None and settings.get("end") is None and "eos_token_id" not in options:
            more["eos_token_id"] = self.tokenizer.end_id
        if said.get("pad_token_id") is None and settings.get("padding") is None and self.tokenizer.pad_id is not None:
            more["pad_token_id"] = self.tokenizer.pad_id
        return {**more, **options}

    def _answer(self, prompt: str, row: Tensor) -> Answer:
        text = self.tokenizer.decode(row.tolist())
        return Answer(text.strip() if self.chat else text, prompt, tuple(row.tolist()))


def load(
    path: str | PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    weights: str | None = None,
    chat: bool | None = None,
    **options: Any,
) -> Generate:
    """`chat=False` continues a text as it stands, whatever template the model came with."""
    model = load_model(path, device=device, dtype=dtype, weights=weights)
    return Generate(model, Tokenizer.load(path), chat=chat, **options)
