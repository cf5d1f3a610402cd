"""CLIP's towers as older files name them, its two ways of finding a text's end, and images of another size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from tests.checkpoints.compare import close, compare
from tests.checkpoints.oracles import Case, make_case, make_oracle, save_oracle
from tests.checkpoints.oracles_vision import _CLIP_TEXT, ended_text


def test_the_largest_id_ends_a_text_where_the_config_says_2(tmp_path: Path) -> None:
    oracle = make_oracle("CLIPTextModel", eos_token_id=2)
    model = af.load(save_oracle(oracle, tmp_path))
    words, mask = ended_text(4)
    with torch.no_grad():
        close(model(words, attention_mask=mask).pooler_output, oracle(words, attention_mask=mask).pooler_output, "pool")


def test_older_files(tmp_path: Path) -> None:
    """Names with a prefix, a buffer of positions, and a config that says some things twice."""
    oracle = make_oracle("CLIPTextModel")
    save_oracle(oracle, tmp_path)
    file = tmp_path / "model.safetensors"
    older = {f"text_model.{name}": x for name, x in load_file(file).items()}
    older["text_model.embeddings.position_ids"] = torch.arange(24)[None]
    save_file(older, file, {"format": "pt"})
    case = make_case("CLIPTextModel")
    with torch.no_grad():
        compare(af.load(tmp_path)(**case.batch), oracle(**case.batch), case)
    both = make_oracle("CLIPModel", text_config_dict={**_CLIP_TEXT, "hidden_act": "gelu"})
    case = make_case("CLIPModel")
    with torch.no_grad():
        compare(af.load(save_oracle(both, tmp_path / "both"))(**case.batch), both(**case.batch), case)


def test_a_larger_picture(tmp_path: Path) -> None:
    oracle = make_oracle("CLIPVisionModelWithProjection")
    model = af.load(save_oracle(oracle, tmp_path))
    batch = {"pixel_values": torch.randn(2, 3, 40, 32), "interpolate_pos_encoding": True}
    with torch.no_grad():
        compare(model(**batch), oracle(**batch), Case(batch, {}))


def test_mistakes(tmp_path: Path) -> None:
    model = af.build("clip-tiny").eval()
    pictures = torch.randn(3, 3, 32, 32)
    with pytest.raises(af.InputError, match=r"2 texts .*3 images"):
        model(input_ids=torch.ones(2, 4, dtype=torch.long), pixel_values=pictures, return_loss=True)
    with pytest.raises(af.InputError, match="clip"):
        model.generate(input_ids=torch.ones(2, 4, dtype=torch.long))
    with pytest.raises(af.InputError, match=r"input_ids .*tokens"):
        model(input_ids=torch.ones(3, 0, dtype=torch.long), pixel_values=pictures)
