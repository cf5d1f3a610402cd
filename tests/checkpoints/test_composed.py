"""Models of two families: sides of one width and of two, names as in files and in memory, keywords of both sides."""

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
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import SMALL, Case, hf_class, make_case, make_oracle, save_oracle
from tests.checkpoints.oracles_vision import TROCR

PICTURES = "VisionEncoderDecoderModel"


def side(architecture: str, name: str, **changes: Any) -> dict[str, Any]:
    """The small settings of one side, some of them changed."""
    return {name: {**SMALL[architecture.removesuffix("Model")][1][name], **changes}}


def both_ways(
    architecture: str, folder: Path, batch: dict[str, Any], masks: dict[str, Tensor] | None = None, **changes: Any
) -> af.Model:
    """Load, compare, write back, load in transformers, compare."""
    oracle = make_oracle(architecture, **changes)
    model = af.load(save_oracle(oracle, folder / "theirs"))
    case = Case(batch, make_case(architecture).masks if masks is None else masks)
    with torch.no_grad():
        expected = oracle(**batch)
        compare(model(**batch), expected, case)
        model.save(folder / "ours", format="hf")
        back, info = hf_class(architecture).from_pretrained(folder / "ours", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        assert all(torch.equal(x, back.state_dict()[name]) for name, x in oracle.state_dict().items())
        if back.config.decoder.to_dict().get("use_learned_position_embeddings", True):
            compare(model(**batch), back(**batch), case)  # transformers forgets to fill TrOCR's sinusoids
    return model


def test_sides_of_one_width(tmp_path: Path) -> None:
    """Nothing lies between them then."""
    model = both_ways(PICTURES, tmp_path, make_case(PICTURES).batch, **side(PICTURES, "decoder", n_embd=32))
    assert list(model.stages) == ["encoder", "decoder"]


@pytest.mark.parametrize("architecture", ["EncoderDecoderModel", PICTURES])
def test_sides_of_two_widths(architecture: str, tmp_path: Path) -> None:
    name = "n_embd" if architecture == PICTURES else "hidden_size"
    changes = side(architecture, "decoder", **{name: 48})
    model = both_ways(architecture, tmp_path, make_case(architecture).batch, **changes)
    assert list(model.stages) == ["encoder", "bridge", "decoder"]


def test_pictures_with_bert_as_decoder(tmp_path: Path) -> None:
    changes = {"decoder": SMALL["EncoderDecoder"][1]["decoder"]}
    both_ways(PICTURES, tmp_path, make_case(PICTURES).batch, **changes)


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, ["encoder", "bridge", "decoder"]),
        ({"d_model": 32}, ["encoder", "decoder"]),
        ({"cross_attention_hidden_size": 32}, ["encoder", "decoder"]),
        ({"use_learned_position_embeddings": False}, ["encoder", "bridge", "decoder"]),
        ({"layernorm_embedding": False, "scale_embedding": True}, ["encoder", "bridge", "decoder"]),
        ({"tie_word_embeddings": False}, ["encoder", "bridge", "decoder"]),
    ],
)
def test_trocr(changes: dict[str, Any], stages: list[str], tmp_path: Path) -> None:
    """A reader of lines, in every form that its decoder comes in; written answers are the same, greedy and by beams."""
    decoder = {"model_type": "trocr", "is_decoder": True, **TROCR, **changes}
    mask = ragged(4, 7)
    words = ids(4, 7).clamp(min=6).masked_fill(mask == 0, 1)
    pixels = torch.randn(4, 3, 24, 24)
    batch = {"pixel_values": pixels, "decoder_input_ids": words, "decoder_attention_mask": mask}
    model = both_ways(PICTURES, tmp_path, batch, {"": mask, "cross": mask}, decoder=decoder, pad_token_id=1)
    assert list(model.stages) == stages
    oracle = make_oracle(PICTURES, decoder=decoder, pad_token_id=1)
    for beams in (1, 4):
        options: dict[str, Any] = {"max_new_tokens": 9, "num_beams": beams, "eos_token_id": [5, 7, 11, 13]}
        expected = oracle.generate(pixel_values=pixels, do_sample=False, **options)
        assert model.generate(pixel_values=pixels, **options).tolist() == expected.tolist()
        assert len({tuple(row) for row in expected.tolist()}) > 1


def test_trocr_behind_deit(tmp_path: Path) -> None:
    """As TrOCR's small models: an encoder with a distillation token, a decoder as wide as it wants to be."""
    decoder = {"model_type": "trocr", "is_decoder": True, **TROCR, "cross_attention_hidden_size": 32}
    encoder = {**SMALL["VisionEncoderDecoder"][1]["encoder"], "model_type": "deit"}
    batch = {"pixel_values": torch.randn(4, 3, 24, 24), "decoder_input_ids": ids(4, 7).clamp(min=6)}
    model = both_ways(PICTURES, tmp_path, batch, {}, encoder=encoder, decoder=decoder, pad_token_id=1)
    assert list(model.stages) == ["encoder", "decoder"]


def test_text_with_gpt2_as_decoder(tmp_path: Path) -> None:
    changes = {"decoder": SMALL["VisionEncoderDecoder"][1]["decoder"]}
    both_ways("EncoderDecoderModel", tmp_path, make_case("EncoderDecoderModel").batch, **changes)


def test_keywords_of_both_sides(tmp_path: Path) -> None:
    """Labels alone, another image size, types and places of the decoder's tokens, vectors, the encoder's output."""
    oracle = make_oracle(PICTURES)
    model = af.load(save_oracle(oracle, tmp_path))
    pixels, labels = torch.randn(2, 3, 24, 24), ids(2, 6)
    labels[1, 4:] = -100
    words, places = ids(2, 5), torch.tensor([[3, 2, 1, 0, 7]])
    large = {"pixel_values": torch.randn(2, 3, 40, 32), "interpolate_pos_encoding": True}
    with torch.no_grad():
        encoded = oracle.encoder(pixels)
        for batch in (
            {"pixel_values": pixels, "labels": labels},
            {**large, "decoder_input_ids": words},
            {"pixel_values": pixels, "decoder_input_ids": words, "decoder_token_type_ids": ids(2, 5)},
            {"pixel_values": pixels, "decoder_input_ids": words, "decoder_position_ids": places},
            {"pixel_values": pixels, "decoder_inputs_embeds": torch.randn(2, 5, 24)},
            {"encoder_outputs": (encoded.last_hidden_state,), "decoder_input_ids": words},
        ):
            theirs = oracle(**batch)
            compare(model(**batch), {k: v for k, v in theirs.items() if k != "past_key_values"}, Case(batch, {}))
            if "labels" in batch:
                torch.testing.assert_close(model(**batch).loss, theirs.loss, rtol=2e-5, atol=1e-6)


def test_newer_and_older_names(tmp_path: Path) -> None:
    """A file that holds the encoder's names as transformers has them in memory, and GPT-2's mask as a buffer."""
    oracle = make_oracle(PICTURES)
    expected = af.load(save_oracle(oracle, tmp_path))
    mask = {"decoder.transformer.h.0.attn.bias": torch.ones(1, 1, 24, 24).tril()}
    tensors = {name: x.clone() for name, x in oracle.state_dict().items()} | mask
    assert "encoder.layers.0.attention.q_proj.weight" in tensors
    file = tmp_path / "model.safetensors"
    assert "encoder.encoder.layer.0.attention.attention.query.weight" in load_file(file)
    save_file(tensors, file, {"format": "pt"})
    model, batch = af.load(tmp_path), make_case(PICTURES).batch
    assert torch.equal(model(**batch).logits, expected(**batch).logits)


def test_a_fresh_one_goes_to_transformers(tmp_path: Path) -> None:
    model = af.build("vision-encoder-decoder-tiny").eval()
    model.save(tmp_path, format="hf")
    back, info = hf_class(PICTURES).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    batch = {"pixel_values": torch.randn(2, 3, 32, 32), "decoder_input_ids": ids(2, 5)}
    with torch.no_grad():
        compare(model(**batch), back.eval()(**batch), Case(batch, {}))


def test_sides_that_do_not_fit(tmp_path: Path) -> None:
    """A decoder that reads images, an encoder that reads text, a decoder without cross-attention."""
    save_oracle(make_oracle(PICTURES), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    text = {**SMALL["EncoderDecoder"][1]["encoder"]}
    for changes, words in (
        ({"encoder": text}, "must read images"),
        ({"decoder": {**config["decoder"], "add_cross_attention": False}}, "cross-attention"),
        ({"decoder": {**config["decoder"], "model_type": "gpt5"}}, "gpt5"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(af.ConfigError, match=words):
            af.load(tmp_path)
