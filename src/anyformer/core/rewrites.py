"""What a package adds that makes finished models faster: functions by purpose.

anyformer.fast registers them. Without it nothing is registered: the plain modules run, slower, with the same numbers.

    optimize   (model, rows): prepare for inference           restore   (model): undo that
    optimize_on_use   (model): prepare, and copy weights when they are first used
    optimize_products (model, rows): only the linear layers
    optimize_decoding (model): only the linear layers, unless copies of their weights would take too much memory
    packed_bytes      (model): memory that copies of weights take
    check      (model): before every pass, drop what was made of weights that have changed since
    training   (model, compiled): a context manager, while the model is trained
    decoding   (model): a context manager, while a decode step on a GPU is captured
    quantize   (model, weights): round matrices
    decode_graph, train_graph: return modules that capture steps as CUDA graphs
    cross_entropy, topk_logsumexp: return kernels for a GPU, if there is one with Triton
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

RULES: dict[str, Any] = {}


def apply(purpose: str, *arguments: Any, **options: Any) -> Any:
    """Call the function registered for a purpose; None if there is none."""
    rule = RULES.get(purpose)
    return None if rule is None else rule(*arguments, **options)


def applied(purpose: str, *arguments: Any, **options: Any) -> AbstractContextManager[None]:
    """The context manager registered for a purpose; one that does nothing if there is none."""
    made = apply(purpose, *arguments, **options)
    return nullcontext() if made is None else made
