"""Everything that exists for speed. Without this package the library is slower, with the same numbers.

Two mechanisms and no other. Attention kernels add a chooser to `core.attend`. Modules are *swapped*: a finished module
takes a faster subclass of its own class, and gives it back (`swap.py`, `rewrite.py`), as PyTorch's `fully_shard` does.
Parameters, their names, taps, hooks and identity stay as they are.
"""

from importlib import import_module
from typing import Any

from anyformer.core import rewrites
from anyformer.fast import attention as attention
from anyformer.fast.int8 import quantize
from anyformer.fast.rewrite import (
    decoding,
    optimize,
    optimize_on_use,
    optimize_products,
    packed_bytes,
    restore_all,
    training,
)
from anyformer.fast.weight_copies import check_copies


def _summed_entropy() -> Any:
    from anyformer.fast.triton_training import summed_entropy  # torch.compile follows no import_module

    return summed_entropy


rewrites.RULES.update(
    optimize=optimize,
    optimize_on_use=optimize_on_use,
    optimize_products=optimize_products,
    packed_bytes=packed_bytes,
    restore=restore_all,
    check=check_copies,
    training=training,
    decoding=decoding,
    quantize=quantize,
    cross_entropy=_summed_entropy,
    topk_logsumexp=lambda: import_module("anyformer.fast.triton_decode").topk_logsumexp,
    decode_graph=lambda: import_module("anyformer.fast.decode_graph"),
    train_graph=lambda: import_module("anyformer.fast.train_graph"),
)
