"""A conversation with a chat model; tokens of earlier turns stay in the cache."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import torch

from anyformer.core.cache import Cache
from anyformer.generation.cache_marks import CacheMark, rewind, set_mark

if TYPE_CHECKING:  # the task makes chats
    from anyformer.tasks.generate import GeneratedText, TextGenerator


class Chat:
    """`say` returns the answer, `stream` yields it in pieces; `messages` is the conversation so far.

    The key/value cache of earlier turns is kept while the next prompt begins with the same tokens. If the model's
    answer is tokenized differently in the prompt, the cache is reused up to the last question.
    """

    def __init__(self, task: TextGenerator, *, system: str | None = None, stop: Any = None, **options: Any) -> None:
        self.task = task
        self.stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
        self.options = {**task.options, **options}
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.state: Cache | None = None
        self.read: list[int] = []  # the tokens that the state has seen
        self.question: CacheMark | None = None  # in the state, before the last token of the last question

    def send(self, text: str, **options: Any) -> GeneratedText:
        turn = self._turn(text, options)
        while True:
            try:
                next(turn)
            except StopIteration as end:
                answer: GeneratedText = end.value
                return answer

    def stream(self, text: str, **options: Any) -> Iterator[str]:
        """A turn that is broken off before its end has not been said."""
        return self._turn(text, options)

    def _turn(self, text: str, options: dict[str, Any]) -> Generator[str, None, GeneratedText]:
        messages = [*self.messages, {"role": "user", "content": text}]
        request = self.task.ask([messages], self.stops, {**self.options, **options})
        ids = self.task.tokenizer.encode(request.prompts[0], special=False)
        state, mark = self._prepare(ids)
        row = torch.tensor([ids], device=self.task.model.device)
        return self._receive(self.task.pieces(request, row, state), messages, ids, state, mark)

    def _receive(
        self,
        pieces: Generator[str, None, GeneratedText],
        messages: list[dict[str, str]],
        ids: list[int],
        state: Cache,
        mark: CacheMark,
    ) -> Generator[str, None, GeneratedText]:
        answer = yield from pieces
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        self.state, self.question = state, mark
        state.checked = False  # the weights may change until the next turn
        self.read = [*ids, *answer.ids][: state.length]
        return answer

    def _prepare(self, ids: list[int]) -> tuple[Cache, CacheMark]:
        """A state that has read all of the prompt but its last token, and a mark there for the next turn."""
        state, self.state = self._known(ids), None
        rest = ids[state.length : -1]
        if rest:
            with torch.inference_mode():
                row = torch.tensor([rest], device=self.task.model.device)
                self.task.model(input_ids=row, past_key_values=state, logits_to_keep=1)
        return state, set_mark(state)

    def _known(self, ids: list[int]) -> Cache:
        """As much of the last turn's state as the new prompt begins with."""
        state, mark, read = self.state, self.question, self.read
        if state is None or mark is None:
            return Cache()
        if len(ids) > len(read) and ids[: len(read)] == read:
            return state
        if len(ids) > mark.length and ids[: mark.length] == read[: mark.length]:
            with torch.inference_mode():
                rewind(state, mark)
            return state
        return Cache()
