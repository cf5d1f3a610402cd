"""The tokens themselves, and a vector for the whole."""

from __future__ import annotations

from typing import Any

from anyformer.heads.base import Head
from anyformer.heads.classify import Pool, PoolConfig, first_token
from anyformer.run import Run


class EmbedHead(Head):
    """`last_hidden_state` and, with a pooler, `pooler_output`."""

    def __init__(self, reads: str, pool: PoolConfig | None = None) -> None:
        super().__init__(reads)
        self.pool = Pool(pool) if pool is not None else None

    def forward(self, run: Run) -> dict[str, Any]:
        fields = {"last_hidden_state": run.padded(self.reads)}
        if self.pool is not None:
            fields["pooler_output"] = self.pool(first_token(run.tokens[self.reads]))
        return fields
