"""The loaded model takes the keywords of the class it was saved from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.checkpoints.compare import close, compare
from tests.checkpoints.oracles import Case, hf_class, ids, make_case, make_oracle, ragged, save_oracle


def pair(architecture: str, folder: Path, **changes: Any) -> tuple[Any, af.Model]:
    oracle = make_oracle(architecture, **changes)
    return oracle, af.load(save_oracle(oracle, folder))


def check(oracle: Any, model: af.Model, batch: dict[str, Any], masks: dict[str, Any] | None = None) -> None:
    with torch.no_grad():
        compare(model(**batch), oracle(**batch), Case(batch, masks or {}))


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "BertModel"])
def test_inputs_embeds_and_position_ids(architecture: str, tmp_path: Path) -> None:
    """Vectors instead of ids, and places of the caller's choice."""
    oracle, model = pair(architecture, tmp_path)
    places = torch.tensor([[3, 2, 1, 0, 7], [0, 0, 5, 6, 20]])
    check(oracle, model, {"inputs_embeds": torch.randn(2, 5, 32), "position_ids": places})
    check(oracle, model, {"input_ids": ids(2, 5), "position_ids": places})
    check(oracle, model, {"input_ids": ids(2, 5), "position_ids": places[:1]})


def test_marian_embeds(tmp_path: Path) -> None:
    """Vectors on both sides: the published code scales the decoder's and not the encoder's."""
    oracle, model = pair("MarianMTModel", tmp_path)
    check(oracle, model, {"inputs_embeds": torch.randn(2, 6, 32), "decoder_inputs_embeds": torch.randn(2, 4, 32)})


def test_marian_encoder_outputs(tmp_path: Path) -> None:
    """What the encoder made before need not be made again."""
    oracle, model = pair("MarianMTModel", tmp_path)
    case = make_case("MarianMTModel")
    with torch.no_grad():
        encoded = oracle.model.encoder(case.batch["input_ids"], attention_mask=case.batch["attention_mask"])
    batch = {**case.batch, "encoder_outputs": encoded}
    del batch["input_ids"]
    with torch.no_grad():
        close(model(**batch).logits[:1], oracle(**batch).logits[:1], "logits")


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "BertModel"])
def test_cross_attention(architecture: str, tmp_path: Path) -> None:
    """A decoder that attends to states of the caller's, and stands alone without them."""
    changes = {"is_decoder": True} if architecture == "BertModel" else {}
    oracle, model = pair(architecture, tmp_path, add_cross_attention=True, **changes)
    batch = {"input_ids": ids(3, 5)}
    check(oracle, model, batch)
    states = {"encoder_hidden_states": torch.randn(3, 7, 32), "encoder_attention_mask": ragged(3, 7)}
    check(oracle, model, {**batch, **states})
    check(oracle, model, {**batch, "encoder_hidden_states": torch.randn(3, 7, 32)})


def test_causal_bert(tmp_path: Path) -> None:
    """BERT as a decoder sees no future."""
    oracle, model = pair("BertForMaskedLM", tmp_path, is_decoder=True)
    check(oracle, model, {"input_ids": ids(2, 6)})


@pytest.mark.parametrize("architecture", ["ViTForImageClassification", "ViTModel", "ViTMAEForPreTraining"])
def test_other_picture_sizes(architecture: str, tmp_path: Path) -> None:
    """interpolate_pos_encoding stretches the position table."""
    oracle, model = pair(architecture, tmp_path)
    batch: dict[str, Any] = {"pixel_values": torch.randn(2, 3, 40, 32), "interpolate_pos_encoding": True}
    if architecture == "ViTMAEForPreTraining":
        batch["noise"] = torch.rand(2, 20)
    check(oracle, model, batch)


@pytest.mark.parametrize("positions", ["each", "shared", "absolute"])
@pytest.mark.parametrize("architecture", ["BeitModel", "BeitForSemanticSegmentation"])
def test_beit_takes_other_picture_sizes(architecture: str, positions: str, tmp_path: Path) -> None:
    """Without being asked, as published: tables of every kind are stretched."""
    names = {"shared": "use_shared_relative_position_bias", "absolute": "use_absolute_position_embeddings"}
    changes = {} if positions == "each" else {"use_relative_position_bias": False, names[positions]: True}
    oracle, model = pair(architecture, tmp_path, **changes)
    check(oracle, model, {"pixel_values": torch.randn(2, 3, 40, 32)})
    check(oracle, model, {"pixel_values": torch.randn(2, 3, 40, 40), "interpolate_pos_encoding": True})


def test_beit_covered_patches_and_vitpose_mirrors(tmp_path: Path) -> None:
    oracle, model = pair("BeitModel", tmp_path / "beit")
    covered = torch.rand(2, 9) < 0.4
    check(oracle, model, {"pixel_values": torch.randn(2, 3, 24, 24), "bool_masked_pos": covered})
    oracle, model = pair("VitPoseForPoseEstimation", tmp_path / "pose")
    mirrored = {"pixel_values": torch.randn(2, 3, 32, 24), "flip_pairs": torch.tensor([[0, 1], [3, 4]])}
    check(oracle, model, mirrored)


def test_perceiver_other_picture_size(tmp_path: Path) -> None:
    oracle, model = pair("PerceiverForImageClassificationLearned", tmp_path)
    check(oracle, model, {"inputs": torch.randn(2, 3, 9, 7), "interpolate_pos_encoding": True})


def test_perceiver_names(tmp_path: Path) -> None:
    """Its inputs go by the ecosystem's names as well."""
    oracle, model = pair("PerceiverForImageClassificationLearned", tmp_path / "image")
    check(oracle, model, {"pixel_values": torch.randn(2, 3, 6, 6)})
    oracle, model = pair("PerceiverForMaskedLM", tmp_path / "text")
    check(oracle, model, {"input_ids": ids(2, 9, high=50)})


def test_perceiver_rounds(tmp_path: Path) -> None:
    """The same layers several times over; hidden states and attentions of every round."""
    oracle = make_oracle("PerceiverForMaskedLM", num_blocks=3)
    model = af.load(save_oracle(oracle, tmp_path))
    batch = {"inputs": ids(2, 9, high=50), "output_hidden_states": True, "output_attentions": True}
    check(oracle, model, batch)


@pytest.mark.parametrize("kind", ["mask", "keys"])
def test_vit_attention_mask(kind: str, tmp_path: Path) -> None:
    """Patches that must not be looked at."""
    oracle, model = pair("ViTModel", tmp_path)
    mask = torch.ones(2, 10, dtype=torch.long)
    mask[1, 6:] = 0
    batch = {"pixel_values": torch.randn(2, 3, 24, 24), "attention_mask": mask}
    check(oracle, model, batch, {"": mask})


def test_detr_queries(tmp_path: Path) -> None:
    """Features and queries of the caller's, and queries that are left out."""
    oracle, model = pair("DetrForObjectDetection", tmp_path)
    pixels = torch.randn(2, 3, 64, 64)
    check(oracle, model, {"pixel_values": pixels, "decoder_inputs_embeds": torch.randn(2, 5, 32)})
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        batch = {"pixel_values": pixels, "decoder_attention_mask": mask}
        ours, theirs = model(**batch).logits, oracle(**batch).logits
    close(ours[mask.bool()], theirs[mask.bool()], "logits")
    features = {"inputs_embeds": torch.randn(2, 9, 32), "pixel_values": None}
    check(oracle, model, features)


PROBLEMS = {
    "regression": (1, torch.randn(4)),
    "single_label_classification": (3, torch.tensor([0, 2, 1, 2])),
    "multi_label_classification": (3, torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 1]])),
}


@pytest.mark.parametrize("said", [True, False], ids=["said", "guessed"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_problem_types(problem: str, said: bool, tmp_path: Path) -> None:
    """Numbers, classes and several labels at once, whether the config says so or the labels do."""
    n, labels = PROBLEMS[problem]
    oracle, model = pair(
        "BertForSequenceClassification", tmp_path, num_labels=n, problem_type=problem if said else None
    )
    batch = {"input_ids": ids(4, 6), "labels": labels}
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, oracle(**batch).loss, rtol=2e-5, atol=1e-6)


def test_regression_of_several_numbers(tmp_path: Path) -> None:
    oracle, model = pair("BertForSequenceClassification", tmp_path, num_labels=3, problem_type="regression")
    batch = {"input_ids": ids(4, 6), "labels": torch.randn(4, 3)}
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, oracle(**batch).loss, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "BertForMaskedLM", "BertForTokenClassification"])
def test_labels_at_padding(architecture: str, tmp_path: Path) -> None:
    """Labels that count at padded positions, as the ecosystem lets them, give its loss too."""
    oracle, model = pair(architecture, tmp_path)
    labels = torch.randint(0, 2, (3, 8))
    batch = {"input_ids": ids(3, 8), "attention_mask": ragged(3, 8), "labels": labels}
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).loss, oracle(**batch).loss, rtol=2e-5, atol=1e-6)


def test_teacher_forcing(tmp_path: Path) -> None:
    """labels alone: the decoder reads them shifted by one."""
    oracle, model = pair("MarianMTModel", tmp_path)
    labels = ids(3, 6)
    labels[1, 4:] = -100
    batch = {"input_ids": ids(3, 8), "labels": labels}
    check(oracle, model, batch)


def test_logits_to_keep(tmp_path: Path) -> None:
    oracle, model = pair("GPT2LMHeadModel", tmp_path)
    check(oracle, model, {"input_ids": ids(2, 6), "logits_to_keep": 2})


def test_cache(tmp_path: Path) -> None:
    """Step by step with past_key_values, as with transformers' own."""
    oracle, model = pair("GPT2LMHeadModel", tmp_path)
    tokens = ids(2, 8)
    with torch.no_grad():
        theirs = oracle(tokens).logits
        out = model(tokens[:, :5], use_cache=True)
        close(out.logits, theirs[:, :5], "prefill")
        for i in range(5, 8):
            out = model(tokens[:, i : i + 1], use_cache=True, past_key_values=out.past_key_values)
            close(out.logits[:, 0], theirs[:, i], f"step {i}")


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "ViTForImageClassification"])
def test_half_precision(architecture: str, tmp_path: Path) -> None:
    """bf16 loads as bf16, another type on request, and saves back as what it is."""
    oracle = make_oracle(architecture).to(torch.bfloat16)
    model = af.load(save_oracle(oracle, tmp_path / "theirs"))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    case = make_case(architecture)
    batch = {k: v.bfloat16() if v.is_floating_point() else v for k, v in case.batch.items()}
    with torch.no_grad():
        compare_loosely(model(**batch).logits, oracle(**batch).logits)
    assert af.load(tmp_path / "theirs", dtype=torch.float64).dtype == torch.float64
    assert af.load(tmp_path / "theirs", dtype="float32").dtype == torch.float32
    with pytest.raises(af.ConfigError, match="bfloat16"):
        af.load(tmp_path / "theirs", dtype="bfloat")
    model.save(tmp_path / "ours", format="hf")
    back = hf_class(architecture).from_pretrained(tmp_path / "ours")
    assert back.dtype == torch.bfloat16


def compare_loosely(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    real = ours.abs().sum(dim=-1) > 0  # padded positions are zeros
    difference = (ours - theirs)[real].abs().max() / theirs.abs().max()
    assert float(difference) < 0.03


def test_companions(tmp_path: Path) -> None:
    """Generation config, tokenizer and preprocessor files travel with the model, through both forms."""
    oracle = make_oracle("GPT2LMHeadModel")
    save_oracle(oracle, tmp_path / "a")
    (tmp_path / "a" / "tokenizer.json").write_text('{"model": 1}')
    (tmp_path / "a" / "merges.txt").write_text("a b")
    (tmp_path / "a" / "preprocessor_config.json").write_text('{"size": 3}')
    (tmp_path / "a" / "generation_config.json").write_text('{"max_new_tokens": 7, "eos_token_id": 3}')
    af.load(tmp_path / "a").save(tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    af.load(tmp_path / "b").save(tmp_path / "c", format="hf")
    assert (tmp_path / "c" / "tokenizer.json").read_text() == '{"model": 1}'
    assert (tmp_path / "c" / "merges.txt").exists() and (tmp_path / "c" / "preprocessor_config.json").exists()
    back = hf_class("GPT2LMHeadModel").from_pretrained(tmp_path / "c")
    assert back.generation_config.max_new_tokens == 7 and back.generation_config.eos_token_id == 3


def test_fresh_model_goes_to_transformers(tmp_path: Path) -> None:
    """A model that anyformer built, never having seen transformers, loads there with equal logits."""
    for name, architecture in (
        ("gpt2-tiny", "GPT2LMHeadModel"),
        ("bert-tiny", "BertForPreTraining"),
        ("transformer-tiny", "MarianMTModel"),
        ("vit-tiny", "ViTForImageClassification"),
        ("mae-tiny", "ViTMAEForPreTraining"),
        ("detr-tiny", "DetrForObjectDetection"),
        ("beit-tiny", "BeitForImageClassification"),
        ("vitpose-tiny", "VitPoseForPoseEstimation"),
        ("perceiver-tiny", "PerceiverForMaskedLM"),
    ):
        model = af.build(name).eval()
        model.save(tmp_path / name, format="hf")
        back, info = hf_class(architecture).from_pretrained(tmp_path / name, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        batch = fresh_batch(name)
        with torch.no_grad():
            field = {"bert-tiny": "prediction_logits", "vitpose-tiny": "heatmaps"}.get(name, "logits")
            close(model(**batch)[field], back.eval()(**batch)[field], name)


def fresh_batch(name: str) -> dict[str, Any]:
    pictures = {"vit-tiny": (2, 3, 32, 32), "mae-tiny": (2, 3, 32, 32), "detr-tiny": (2, 3, 64, 64)}
    pictures |= {"beit-tiny": (2, 3, 32, 32), "vitpose-tiny": (2, 3, 64, 64)}
    if name in pictures:
        noise = {"noise": torch.rand(2, 16)} if name == "mae-tiny" else {}
        return {"pixel_values": torch.randn(*pictures[name]), **noise}
    target = {"decoder_input_ids": ids(2, 4)} if name == "transformer-tiny" else {}
    return {"input_ids": ids(2, 6), **target}
