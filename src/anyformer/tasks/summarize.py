"""A long text into a short one.

summarize = af.task("summarize", "folder")
print(summarize("Amanda: I baked cookies. Do you want some?\\nJerry: Sure!"))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anyformer.metrics.writing import rouge
from anyformer.tasks.base import Column, Figures
from anyformer.tasks.translate import Translate, WriteOptions


@dataclass(frozen=True, kw_only=True)
class SummarizeOptions(WriteOptions):
    stem: bool = False  # whether ROUGE counts stems of words (Porter's) instead of words


class Summarize(Translate):
    name = "summarize"
    about = "a long text into a short one"
    columns = (
        Column("source", ("text", "document", "article", "dialogue", "dialog", "body", "content")),
        Column("target", ("summary", "highlights", "abstract", "headline", "title")),
    )
    options_class = SummarizeOptions
    usual_length = 512

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        if not self.settings.gaps:
            self.metric, self.larger_is_better = "rougeL", True

    def figures(self, said: list[str], wanted: list[str]) -> Figures:
        return rouge(said, wanted, stem=self.settings.stem)
