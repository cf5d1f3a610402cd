"""Bare models, classifiers and encoders alone, of families whose main class test_parity.py covers: outputs, loss, and
the way back to transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.checkpoints.cases import Batch, Case
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import family_of, hf_class, make_case, make_oracle, save_oracle

DECODERS = ("GPT2", "OpenAIGPT", "GPTNeoX", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3Text")
ARCHITECTURES = (
    *(f"{name}Model" for name in DECODERS),
    *(f"{name}ForSequenceClassification" for name in DECODERS),
    *("T5Model", "T5EncoderModel", "T5ForSequenceClassification"),
    *("MarianModel", "MambaModel", "BartForSequenceClassification", "BertForNextSentencePrediction"),
    *("ModernBertModel", "ModernBertForSequenceClassification", "Dinov2Model"),
    *("DetrModel", "ResNetModel", "ViTMAEModel", "GitModel"),
)
PAD, END = 0, 58


def case_of(architecture: str) -> Case:
    """Padding where the mask says so, and one end token a row for those who read a class there."""
    case = make_case(architecture)
    batch: Batch = dict(case.batch)
    if architecture in ("Dinov2Model", "DetrModel", "ResNetModel", "ViTMAEModel", "GitModel"):
        return case
    ends = architecture in ("T5ForSequenceClassification", "BartForSequenceClassification")
    for name, mask in (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask")):
        if name in batch and mask in batch:
            batch[name] = batch[name].clamp(1, END - 1).masked_fill(batch[mask] == 0, PAD)
    if ends:
        last = batch["attention_mask"].sum(dim=1) - 1
        batch["input_ids"][torch.arange(len(last)), last] = END
        batch = {name: value for name, value in batch.items() if not name.startswith("decoder")}
    if architecture == "T5EncoderModel":
        batch = {name: value for name, value in batch.items() if not name.startswith("decoder")}
        return Case(batch, {"": batch["attention_mask"]})
    return Case(batch, {"encoder": batch["attention_mask"]} if ends else case.masks)


def oracle_of(architecture: str) -> Any:
    classifies = architecture.endswith("ForSequenceClassification")
    more: dict[str, Any] = {"pad_token_id": PAD, "num_labels": 3} if classifies else {}
    if family_of(architecture) in ("T5", "Bart") and classifies:
        more = {"num_labels": 3, "eos_token_id": END}
    return make_oracle(architecture, **more)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_ways(architecture: str, tmp_path: Path) -> None:
    """Outputs, hidden states and loss; then saved, and read by transformers with the same weights and outputs."""
    oracle, case = oracle_of(architecture), case_of(architecture)
    model = af.load(save_oracle(oracle, tmp_path / "theirs"))
    with torch.no_grad():
        theirs = oracle(**case.batch, output_hidden_states=True)
        names = compare(model(**case.batch, output_hidden_states=True), theirs, case)
        assert "hidden_states" in " ".join(names)
        if architecture.endswith(("Classification", "Prediction")):
            labels = {"labels": torch.tensor([1, 0, 1, 0])}
            torch.testing.assert_close(model(**case.batch, **labels).loss, oracle(**case.batch, **labels).loss)
    model.save(tmp_path / "ours", format="hf")
    back, info = hf_class(architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in oracle.state_dict().items())
    with torch.no_grad():
        compare(model(**case.batch), back.eval()(**case.batch), case)


@pytest.mark.parametrize("architecture", ["GPT2Model", "LlamaModel", "GPTNeoXForSequenceClassification"])
def test_own_folder(architecture: str, tmp_path: Path) -> None:
    model, case = af.load(save_oracle(oracle_of(architecture), tmp_path / "theirs")), case_of(architecture)
    model.save(tmp_path / "own")
    with torch.no_grad():
        compare(af.load(tmp_path / "own")(**case.batch), model(**case.batch), case, tolerance=0.0)


def test_bare_weights_in_a_full_class(tmp_path: Path) -> None:
    """Files of GPT-2 with the prefix and with an output, whose config names the bare model."""
    full = make_oracle("GPT2LMHeadModel")
    folder = save_oracle(full, tmp_path)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("GPT2LMHeadModel", "GPT2Model"))
    case = case_of("GPT2Model")
    with torch.no_grad():
        compare(af.load(folder)(**case.batch), full.transformer(**case.batch), case)
