"""A PyTorch without oneDNN, as some builds are: builds, runs, generates and trains tiny models, and prints "done"."""

from __future__ import annotations

from typing import Any

import torch


class Missing:
    """A package of operators that has none."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this build has no operator {name}")


torch.backends.mkldnn.is_available = lambda: False  # type: ignore[assignment]
torch._C.has_mkldnn = False  # type: ignore[attr-defined]
torch.ops.mkldnn = Missing()

import anyformer as af
from tests.recipes.batches import training_batch

for name in ("gpt2-tiny", "bert-tiny", "vit-tiny", "transformer-tiny"):
    torch.manual_seed(0)
    batch = training_batch(name)
    model = af.build(name).eval()
    with torch.no_grad():
        plain = model(**batch)[0]
        torch.testing.assert_close(model.optimize()(**batch)[0], plain)
    model.train()(**batch).loss.backward()
    if name == "gpt2-tiny":
        model.eval().generate(torch.tensor([[7, 8, 9]]), max_new_tokens=4)
print("done")
