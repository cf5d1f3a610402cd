"""Several texts in one row, told apart by `position_ids` that begin again, as transformers' flattening collator makes
them: each text is answered as if it were alone, and as transformers answers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from tests.checkpoints.compare import close
from tests.checkpoints.oracles import hf_class, make_oracle, save_oracle

transformers = pytest.importorskip("transformers")

DECODERS = (
    *("GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
    *("Gemma3ForCausalLM", "GPTNeoXForCausalLM"),
)
TEXTS = [[5, 9, 2, 41], [7, 7, 30, 12, 8, 3], [11], [6, 44, 13]]


def flattened() -> dict[str, Any]:
    batch = transformers.DataCollatorWithFlattening()([{"input_ids": text} for text in TEXTS], return_tensors="pt")
    return dict(batch)


def both(name: str, folder: Path) -> tuple[Any, af.Model]:
    theirs = make_oracle(name)
    save_oracle(theirs, folder)
    return hf_class(name).from_pretrained(folder).eval(), af.load(folder)


@pytest.mark.parametrize("name", DECODERS)
def test_equals_transformers_and_the_texts_alone(name: str, tmp_path: Path) -> None:
    theirs, ours = both(name, tmp_path)
    batch = flattened()
    with torch.no_grad():
        wanted = theirs(**batch, use_cache=False, output_hidden_states=True)
        out = ours(**batch, output_hidden_states=True)
        alone = torch.cat([ours(torch.tensor([text])).logits for text in TEXTS], dim=1)
        leaking = ours(batch["input_ids"]).logits
    close(out.logits, wanted.logits, "logits")
    close(out.loss, wanted.loss, "loss")
    close(out.hidden_states[1], wanted.hidden_states[1], "hidden states")
    close(out.logits, alone, "each text alone")
    assert float((leaking - wanted.logits).abs().max()) > 1e-3, "the texts would not differ if they leaked"


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_attention_stays_inside_a_text(name: str, tmp_path: Path) -> None:
    _, ours = both(name, tmp_path)
    with torch.no_grad():
        weights: Tensor = ours(**flattened(), output_attentions=True).attentions[0]
    number = torch.repeat_interleave(torch.tensor([len(text) for text in TEXTS]))
    across = number[:, None] != number[None, :]
    assert float(weights[:, :, across].abs().max()) == 0


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_gradients_equal(name: str, tmp_path: Path) -> None:
    """Also with two rows that are cut at different places, and positions that do not begin at 0."""
    theirs, ours = both(name, tmp_path)
    ids = torch.randint(1, 60, (2, 9))
    position_ids = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 0, 1, 0, 1]])
    found = []
    for model, more in ((theirs, {"use_cache": False}), (ours, {})):
        embeds = ids_to_vectors(theirs, ids)
        model(inputs_embeds=embeds, position_ids=position_ids, labels=ids, **more).loss.backward()
        found.append(embeds.grad)
    close(found[1], found[0], "gradient")


def ids_to_vectors(theirs: Any, ids: Tensor) -> Tensor:
    vectors: Tensor = theirs.get_input_embeddings()(ids).detach()
    return vectors.requires_grad_()


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_mask_says_that_a_row_is_one_text(name: str, tmp_path: Path) -> None:
    """As in transformers: positions that begin again cut a row only if there is no mask."""
    theirs, ours = both(name, tmp_path)
    batch = flattened()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    with torch.no_grad():
        close(ours(**batch).logits, theirs(**batch, use_cache=False).logits, "logits")
