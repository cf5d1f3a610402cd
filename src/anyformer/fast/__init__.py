"""Optional optimizations. Without this package the library is slower and computes the same numbers.

There are two mechanisms. Attention kernels add a chooser to `core.attend`. Modules are *swapped*: a finished module is
given a faster subclass of its own class, and `restore` undoes it (`swap.py`, `rewrite.py`), as PyTorch's `fully_shard`
does. Parameters, their names, taps, hooks and identity do not change.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from anyformer.core import rewrites
from anyformer.fast import attention as attention
from anyformer.fast.device import HAS_TRITON


def _later(module: str, name: str) -> Callable[..., Any]:
    """Return a function that imports `module` when it is called, so that importing anyformer stays fast."""
    return lambda *given, **named: getattr(import_module(f"anyformer.fast.{module}"), name)(*given, **named)


def _module(name: str) -> Callable[[], Any]:
    return lambda: import_module(f"anyformer.fast.{name}")


# torch.compile traces an import statement but not `import_module`, and these two are called in compiled passes.


def _check(model: nn.Module) -> None:
    from anyformer.fast.weight_copies import check_copies

    check_copies(model)


def _summed_entropy() -> Any:
    from anyformer.fast.triton_training import summed_entropy

    return summed_entropy


rewrites.RULES.update(
    optimize=_later("rewrite", "optimize"),
    optimize_on_use=_later("rewrite", "optimize_on_use"),
    optimize_products=_later("rewrite", "optimize_products"),
    optimize_decoding=_later("rewrite", "optimize_decoding"),
    packed_bytes=_later("rewrite", "packed_bytes"),
    restore=_later("rewrite", "restore_all"),
    check=_check,
    training=_later("rewrite", "training"),
    decoding=_later("rewrite", "decoding"),
    quantize=_later("int8", "quantize"),
    decode_graph=_module("decode_graph"),
    train_graph=_module("train_graph"),
)
if HAS_TRITON:
    rewrites.RULES.update(
        cross_entropy=_summed_entropy,
        topk_logsumexp=lambda: import_module("anyformer.fast.triton_decode").topk_logsumexp,
    )
