"""Folders of BERT's kin and of the encoder-decoders as they lie on the hub, and keywords of those classes alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from tests.checkpoints.cases import ids, ragged
from tests.checkpoints.compare import close, compare
from tests.checkpoints.oracles import Case, edit_config, hf_class, make_case, make_oracle, save_oracle


def rewrite(folder: Path, **tensors: Tensor) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})


def both(architecture: str, folder: Path, **changes: Any) -> tuple[Any, af.Model]:
    oracle = make_oracle(architecture, **changes)
    return oracle, af.load(save_oracle(oracle, folder))


def check(oracle: Any, model: af.Model, batch: dict[str, Any]) -> None:
    with torch.no_grad():
        compare(model(**batch), oracle(**batch), Case(batch, {}))


def test_t5_1_1(tmp_path: Path) -> None:
    """An output matrix of its own, said by tie_word_embeddings alone; it comes back the same from what we write."""
    oracle = make_oracle("T5ForConditionalGeneration", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    save_oracle(oracle, tmp_path / "theirs")
    output = torch.randn(60, 32)
    rewrite(tmp_path / "theirs", **{"lm_head.weight": output})

    def old(config: dict[str, Any]) -> None:
        for name in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act"):
            config.pop(name, None)
        config["tie_word_embeddings"] = False

    edit_config(tmp_path / "theirs", old)
    model = af.load(tmp_path / "theirs")
    assert torch.equal(model.heads["language"].words.weight, output)
    oracle.lm_head.weight = torch.nn.Parameter(output)
    case = make_case("T5ForConditionalGeneration")
    with torch.no_grad():
        compare(model(**case.batch), oracle(**case.batch), case)
    model.save(tmp_path / "ours", format="hf")
    back = hf_class("T5ForConditionalGeneration").from_pretrained(tmp_path / "ours")
    assert torch.equal(back.lm_head.weight, output) and not back.config.scale_decoder_outputs


@pytest.mark.parametrize("gated", [False, True])
def test_fresh_t5_loads_in_transformers(gated: bool, tmp_path: Path) -> None:
    activation = "gelu_tanh" if gated else "relu"
    model = af.build("t5-tiny", gated=gated, tied=not gated, activation=activation).eval()
    model.save(tmp_path, format="hf")
    back, info = hf_class("T5ForConditionalGeneration").from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    check(back.eval(), model, {"input_ids": ids(2, 6), "decoder_input_ids": ids(2, 4)})


FRESH = {
    "roberta-tiny": "RobertaForMaskedLM",
    "distilbert-tiny": "DistilBertForMaskedLM",
    "mpnet-tiny": "MPNetForMaskedLM",
    "electra-tiny": "ElectraForPreTraining",
    "roformer-tiny": "RoFormerForMaskedLM",
    "bart-tiny": "BartForConditionalGeneration",
    "encoder-decoder-tiny": "EncoderDecoderModel",
}


@pytest.mark.parametrize("name", FRESH)
def test_fresh_models_load_in_transformers(name: str, tmp_path: Path) -> None:
    model = af.build(name).eval()
    model.save(tmp_path, format="hf")
    back, info = hf_class(FRESH[name]).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    pair = {"decoder_input_ids": ids(2, 4)} if name.startswith(("bart", "encoder")) else {}
    check(back.eval(), model, {"input_ids": ids(2, 6).clamp(min=6), **pair})


def test_the_joint_model_has_no_such_form(tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match="Hugging Face"):
        af.build("electra-joint-tiny").save(tmp_path / "x", format="hf")


@pytest.mark.parametrize("architecture", ["RobertaModel", "MPNetModel"])
def test_positions_behind_the_padding(architecture: str, tmp_path: Path) -> None:
    """Counted from the mask, so that left-padded = right-padded; given ones are rows of the table as they stand."""
    oracle, model = both(architecture, tmp_path)
    words = ids(2, 5).clamp(min=6)
    check(oracle, model, {"input_ids": words})
    check(oracle, model, {"inputs_embeds": torch.randn(2, 5, 32)})
    check(oracle, model, {"input_ids": words, "position_ids": torch.tensor([[3, 2, 1, 0, 7]])})
    left = torch.cat([torch.full((2, 3), 1), words], dim=1)
    mask = (left != 1).long()
    with torch.no_grad():
        close(model(left, attention_mask=mask).last_hidden_state[:, 3:], model(words).last_hidden_state, "left")
        close(model(left, attention_mask=mask).last_hidden_state[:, 3:], oracle(words).last_hidden_state, "theirs")


@pytest.mark.parametrize("architecture", ["RobertaModel", "ElectraModel", "RoFormerModel"])
def test_cross_attention(architecture: str, tmp_path: Path) -> None:
    oracle, model = both(architecture, tmp_path, add_cross_attention=True, is_decoder=True)
    batch = {"input_ids": ids(3, 5).clamp(min=6)}
    states = {"encoder_hidden_states": torch.randn(3, 7, 32), "encoder_attention_mask": ragged(3, 7)}
    check(oracle, model, {**batch, **states})


def test_bart_reads_its_source(tmp_path: Path) -> None:
    """Nothing for the decoder: it reads the source, shifted."""
    for architecture in ("BartModel", "BartForConditionalGeneration"):
        oracle, model = both(architecture, tmp_path / architecture)
        check(oracle, model, {"input_ids": ids(2, 6)})


@pytest.mark.parametrize("architecture", ["BartForConditionalGeneration", "T5ForConditionalGeneration"])
def test_teacher_forcing_and_embeds(architecture: str, tmp_path: Path) -> None:
    oracle, model = both(architecture, tmp_path)
    labels = ids(3, 6)
    labels[1, 4:] = -100
    check(oracle, model, {"input_ids": ids(3, 8), "labels": labels})
    check(oracle, model, {"inputs_embeds": torch.randn(2, 6, 32), "decoder_inputs_embeds": torch.randn(2, 4, 32)})


def test_other_decoders(tmp_path: Path) -> None:
    """A RoBERTa reads, a GPT-2 writes."""
    changes = {
        "encoder": {"model_type": "roberta", "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2,
                    "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 24},
        "decoder": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 60,
                    "n_positions": 24, "add_cross_attention": True, "is_decoder": True},
    }  # fmt: skip
    oracle, model = both("EncoderDecoderModel", tmp_path, **changes)
    check(oracle, model, {"input_ids": ids(2, 6).clamp(min=6), "decoder_input_ids": ids(2, 4)})


def test_electra_small_summary(tmp_path: Path) -> None:
    """Another summary than the published one changes the numbers of one class, and is refused by name there."""
    save_oracle(make_oracle("ElectraForMultipleChoice", summary_type="mean"), tmp_path)
    with pytest.raises(af.ConfigError, match="summary_type"):
        af.load(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["summary_type"] == "mean"
