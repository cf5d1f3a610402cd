"""Summarization.

summarize = af.task("summarize", "folder")
print(summarize("Amanda: I baked cookies. Do you want some?\\nJerry: Sure!"))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.generation.plan import model_generation_config
from anyformer.metrics.text_generation import rouge
from anyformer.tasks.base import Column, Metrics
from anyformer.tasks.translate import SequenceToSequenceOptions, Translate

NO_REPEAT = 4  # tokens


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(SequenceToSequenceOptions):
    use_stemmer: bool = False  # whether ROUGE counts stems of words (Porter's) instead of words
    # No run of so many tokens is written twice, since small models fall into saying one thing for ever; 0: any may be.
    # None: as the folder's settings for generation are, or where it has none four, so that names in pieces may recur.
    no_repeat_ngram_size: int | None = None

    def check(self) -> None:
        super().check()
        self.require(
            self.no_repeat_ngram_size is None or self.no_repeat_ngram_size >= 0,
            f"no_repeat_ngram_size is {self.no_repeat_ngram_size}; it must be 0 or more.",
        )


class Summarize(Translate):
    name = "summarize"
    about = "summarize texts"
    columns = (
        Column("source", ("text", "document", "article", "dialogue", "dialog", "body", "content")),
        Column("target", ("summary", "highlights", "abstract", "headline", "title")),
    )
    options_class = SummarizeOptions
    settings: SummarizeOptions
    usual_length = 512

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        if not self.settings.infilling:
            self.metric, self.larger_is_better = "rougeL", True

    @property
    def manners(self) -> Mapping[str, Any]:
        if self.settings.no_repeat_ngram_size is not None:
            return {"no_repeat_ngram_size": self.settings.no_repeat_ngram_size}
        return {} if model_generation_config(self.model) else {"no_repeat_ngram_size": NO_REPEAT}

    def figures(self, said: list[str], wanted: list[str]) -> Metrics:
        return rouge(said, wanted, stem=self.settings.use_stemmer)
