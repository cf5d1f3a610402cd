"""torch.compile sees one graph, whatever the lengths and the padding: nothing asks for a value on the way."""

from __future__ import annotations

import pytest
import torch

import anyformer as af


def padded(rows: int, source: int, target: int) -> dict[str, torch.Tensor]:
    batch = {}
    for prefix, length in (("", source), ("decoder_", target)):
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[1::2, length - 2 :] = 0
        batch |= {f"{prefix}input_ids": torch.randint(3, 250, (rows, length)), f"{prefix}attention_mask": mask}
    return batch


@pytest.mark.parametrize("name", ["transformer-tiny", "gpt2-tiny"])
def test_one_graph_for_all_lengths(name: str) -> None:
    torch.manual_seed(0)
    model = af.build(name, n_layers=1).eval()
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)  # a second graph would be an error
    for sizes in ((4, 7, 9), (6, 11, 8), (3, 15, 14)):
        batch = padded(*sizes)
        if name == "gpt2-tiny":
            batch = {key: value for key, value in batch.items() if not key.startswith("decoder_")}
        expected, found = model(**batch).logits, compiled(**batch).logits
        real = batch[next(key for key in reversed(batch) if key.endswith("mask"))].bool()
        torch.testing.assert_close(found[real], expected[real], atol=1e-6, rtol=0)
    assert len(graphs) == 1
