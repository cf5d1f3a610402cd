"""PyTorch's own files: read without pickle, equal to what transformers reads, and whatever is not a tensor refused."""

from __future__ import annotations

import collections
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import anyformer as af
from anyformer.checkpoints.files import read_tensors
from anyformer.checkpoints.torch_file import read_torch_file, state_dict
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import hf_class, make_case, make_oracle


def tensors(file: Path) -> dict[str, Tensor]:
    return {
        stored.name: tensor.clone() for stored, tensor in read_tensors(state_dict(read_torch_file(file), file).values())
    }


@pytest.fixture
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise AssertionError("unpickled")

    for module, name in ((torch, "load"), (pickle, "load"), (pickle, "loads")):
        monkeypatch.setattr(module, name, refuse)


KINDS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_type_and_view(tmp_path: Path, protocol: int, no_pickle: None) -> None:
    """Transposed, sliced, empty and tied tensors, parameters, scalars, of all types."""
    base = torch.randn(6, 8)
    saved = collections.OrderedDict(
        {
            **{str(kind): (torch.randn(3, 5) * 10).to(kind) for kind in KINDS},
            **{"turned": base.T, "part": base[1:4, 2:7:2], "tied": base, "one": torch.tensor(3.5)},
            **{"none": torch.zeros(0, 4), "parameter": torch.nn.Parameter(base.clone())},
        }
    )
    torch.save(saved, tmp_path / "x.pt", pickle_protocol=protocol)
    found = tensors(tmp_path / "x.pt")
    assert list(found) == list(saved)
    for name, tensor in saved.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def test_a_module_and_a_training_run(tmp_path: Path, no_pickle: None) -> None:
    """A state dict with versions of its modules, and one inside a run's file."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    more = {"epoch": 3, "lr": 1e-4, "names": ["a", None, True, -70000, 2**40, ("b", ())]}
    run = {**more, "state_dict": module.state_dict()}
    torch.save(run, tmp_path / "run.ckpt")
    found = tensors(tmp_path / "run.ckpt")
    assert found.keys() == module.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in module.state_dict().items())
    content = read_torch_file(tmp_path / "run.ckpt")
    assert {name: content[name] for name in more} == more


@pytest.mark.parametrize("form", ["file", "shards", "path"])
@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "BertForMaskedLM"])
def test_hf_folder(architecture: str, form: str, tmp_path: Path, no_pickle: None) -> None:
    """pytorch_model.bin, whole or in shards, gives the numbers of the model that transformers has."""
    oracle, case = make_oracle(architecture), make_case(architecture)
    oracle.config.architectures = [architecture]
    (tmp_path / "config.json").write_text(json.dumps(oracle.config.to_dict()))
    weights = oracle.state_dict()
    if form == "shards":
        names = sorted(weights)
        parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
        for file, some in parts.items():
            torch.save({name: weights[name] for name in some}, tmp_path / file)
        index = {"weight_map": {name: file for file, some in parts.items() for name in some}}
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    else:
        torch.save(weights, tmp_path / ("pytorch_model.bin" if form == "file" else "mine.pt"))
    model = af.load(tmp_path / "mine.pt" if form == "path" else tmp_path)
    with torch.no_grad():
        compare(model(**case.batch), oracle(**case.batch), case)


# Whisper.

DIMS = {
    **{"n_mels": 10, "n_audio_ctx": 20, "n_audio_state": 32, "n_audio_head": 4, "n_audio_layer": 2},
    **{"n_vocab": 51865, "n_text_ctx": 24, "n_text_state": 32, "n_text_head": 2, "n_text_layer": 3},
}
LAYER = {
    **{"attn.query": "self_attn.q_proj", "attn.key": "self_attn.k_proj", "attn.value": "self_attn.v_proj"},
    **{"attn.out": "self_attn.out_proj", "attn_ln": "self_attn_layer_norm"},
    **{"mlp.0": "fc1", "mlp.2": "fc2", "mlp_ln": "final_layer_norm"},
}
CROSS = {
    **{f"cross_{ours}": theirs.replace("self_attn", "encoder_attn") for ours, theirs in LAYER.items() if "attn" in ours}
}


def openai_state(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A Hugging Face Whisper's weights under the names of openai/whisper's model.py."""
    made = {}
    for side, table in (("encoder", LAYER), ("decoder", LAYER | CROSS)):
        made[f"{side}.positional_embedding"] = weights[f"model.{side}.embed_positions.weight"]
        for i in range(DIMS["n_audio_layer" if side == "encoder" else "n_text_layer"]):
            for ours, theirs in table.items():
                for end in ("weight", "bias"):
                    name = f"model.{side}.layers.{i}.{theirs}.{end}"
                    if name in weights:
                        made[f"{side}.blocks.{i}.{ours}.{end}"] = weights[name]
    names = {f"encoder.{conv}": f"model.encoder.{conv}" for conv in ("conv1", "conv2")}
    names |= {"encoder.ln_post": "model.encoder.layer_norm", "decoder.ln": "model.decoder.layer_norm"}
    for ours, theirs in names.items():
        made |= {f"{ours}.{end}": weights[f"{theirs}.{end}"] for end in ("weight", "bias")}
    made["decoder.token_embedding.weight"] = weights["model.decoder.embed_tokens.weight"]
    return made


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch.manual_seed(0)
    config = hf_class("WhisperConfig")(
        **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "max_source_positions": 20, "num_mel_bins": 10},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 2, "max_target_positions": 24},
        **{"encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 51865},
    )
    oracle = hf_class("WhisperForConditionalGeneration")(config).eval()
    weights = oracle.state_dict()
    made = openai_state(weights)
    assert len({tensor.data_ptr() for tensor in made.values()}) == len(made) == len(weights) - 1  # the output is tied
    file = tmp_path_factory.mktemp("whisper") / "tiny.pt"
    torch.save({"dims": DIMS, "model_state_dict": {name: value.half() for name, value in made.items()}}, file)
    return oracle.half().float(), file


def test_openai_whisper(whisper: tuple[Any, Path], no_pickle: None) -> None:
    """A file of OpenAI's alone: outputs, prompts and special tokens."""
    oracle, file = whisper
    model = af.load(file)
    assert model.dtype == torch.float16
    batch = {"input_features": torch.randn(2, 10, 40), "decoder_input_ids": torch.randint(0, 500, (2, 5))}
    with torch.no_grad():
        torch.testing.assert_close(
            af.load(file, dtype="float32")(**batch).logits, oracle(**batch).logits, rtol=2e-5, atol=2e-5
        )


def test_openai_whisper_ids(whisper: tuple[Any, Path]) -> None:
    """The special tokens that the published generation configs name; as Hugging Face's copy of the model has them."""
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    found = af.load(whisper[1]).origin.generation
    assert found["lang_to_id"] == {f"<|{code}|>": 50259 + i for i, code in enumerate([*LANGUAGES][:99])}
    assert found["task_to_id"] == {"translate": 50358, "transcribe": 50359}
    assert (found["decoder_start_token_id"], found["no_timestamps_token_id"], found["prev_sot_token_id"]) == (
        50258,
        50363,
        50361,
    )


def test_openai_whisper_saved(whisper: tuple[Any, Path], tmp_path: Path) -> None:
    """Converted to a Hugging Face folder, which transformers loads whole."""
    oracle, file = whisper
    af.load(file, dtype="float32").save(tmp_path / "hf", format="hf")
    back, info = hf_class("WhisperForConditionalGeneration").from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in oracle.state_dict().items())


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"n_vocab": 100}, "n_vocab 100"),
        ({"n_text_state": 16}, "n_text_state"),
        ({"n_mels": "ten"}, "n_mels"),
        ({"n_text_layer": 4}, "Missing"),
    ],
)
def test_wrong_dims(whisper: tuple[Any, Path], dims: dict[str, Any], message: str, tmp_path: Path) -> None:
    content = torch.load(whisper[1])
    torch.save({**content, "dims": {**DIMS, **dims}}, tmp_path / "x.pt")
    with pytest.raises(af.Error, match=message):
        af.load(tmp_path / "x.pt")


# What is refused.


class Calls:
    """Pickled as a call of a function."""

    def __init__(self, function: Any, *given: Any) -> None:
        self.function, self.given = function, given

    def __reduce__(self) -> Any:
        return self.function, self.given


def written(folder: Path, content: Any) -> Path:
    torch.save(content, folder / "x.pt")
    return folder / "x.pt"


def packed(folder: Path, program: bytes, **entries: bytes) -> Path:
    """A file of torch.save's form with this data.pkl. The first entry begins at byte 40."""
    with zipfile.ZipFile(folder / "x.pt", "w") as archive:
        for name, content in entries.items():
            archive.writestr(f"xxx/{name.replace('_', '/')}", content)
        archive.writestr("xxx/data.pkl", program)
    return folder / "x.pt"


def refused(file: Path, message: str) -> None:
    with pytest.raises(af.Error, match=message) as caught:
        state_dict(read_torch_file(file), file)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Calls(__import__("os").system, "touch /tmp/never"), r"posix\.system"),
        (Calls(eval, "1"), r"__builtin__\.eval"),
        (Calls(getattr, Calls(eval, "1"), "load"), r"__builtin__\.getattr"),
        (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
        ({"a": torch.Size([2])}, r"torch\.Size"),
        ({"a": {1, 2}}, "opcode|set"),
        ({"a": 3}, "no dict of tensors"),
        ([torch.zeros(2)], "no dict of tensors"),
        ({(1, 2): torch.zeros(2)}, "tuple as a key"),
        ({"a": torch.zeros(1).expand(10**6, 10**6)}, "not in its storage"),
        ({"a": torch.zeros(2, device="meta")}, "meta"),
        ({"a": torch.zeros(2, 2).to_sparse()}, "sparse"),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, "Complex"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_content(content: Any, message: str, tmp_path: Path) -> None:
    refused(written(tmp_path, content), message)
    assert not Path("/tmp/never").exists()


def test_old_form(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "x.pt", r"before PyTorch 1\.6")


def test_torchscript(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(tmp_path / "x.pt")
    refused(tmp_path / "x.pt", "TorchScript")


def storage(length: int, kind: str = "FloatStorage", key: str = "0") -> bytes:
    """The program that pushes a storage."""
    name = f"ctorch\n{kind}\n".encode()
    texts = [b"X" + struct.pack("<I", len(text)) + text for text in (b"storage", key.encode(), b"cpu")]
    return b"(" + texts[0] + name + texts[1] + texts[2] + b"J" + struct.pack("<i", length) + b"tQ"


def tensor(length: int, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    numbers = b"".join(b"(" + b"".join(b"J" + struct.pack("<i", n) for n in some) + b"t" for some in (shape, stride))
    view = b"(" + storage(length) + b"J" + struct.pack("<i", offset) + numbers + b"\x89N"
    return b"}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n" + view + b"tRs."


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (tensor(1000, 0, (2,), (1,)), "says that storage '0' has 1,000 numbers"),
        (tensor(4, 0, (5,), (1,)), "not in its storage"),
        (tensor(4, 3, (2,), (1,)), "not in its storage"),
        (tensor(4, 0, (2, 2), (0, 1)), "not in its storage"),
        (tensor(4, -1, (2,), (1,)), "shape or place"),
        (tensor(4, 0, (-2,), (1,)), "shape or place"),
        (tensor(4, 0, (2,), (-1,)), "shape or place"),
        (tensor(4, 0, (2,), (1, 1)), "shape or place"),
        (tensor(4, 0, (1,) * 20, (1,) * 20), "shape or place"),
        (storage(4, key="7") + b".", "damaged|data/7"),
        (storage(4, "os") + b".", "torch.os"),
        (b"", "ends too early"),
        (b".", "pop from empty"),
        (b"N" * 50, "ends too early"),
        (b"\x80\x02cposix\nsystem\n(X\x02\x00\x00\x00lstR.", r"posix\.system"),
        (b"\x8c\x05posix\x8c\x06system\x93.", r"posix\.system"),
        (b"}}\x93.", "unnamed function"),
        (b"(iposix\nsystem\n.", "opcode b'i'"),
        (b"ctorch\nFloatStorage\n)\x81.", "opcode"),
        (b"ctorch\nFloatStorage\n)R.", "torch.FloatStorage"),
        (b"K\x01K\x02}b.", "fills a int"),
        (b"](e" + b"\x85" * 10 + b"h\x00.", "damaged data.pkl"),
        (b"}K\x01\x85K\x01s.", "tuple as a key"),
    ],
)
def test_damaged_programs(program: bytes, message: str, tmp_path: Path) -> None:
    refused(packed(tmp_path, program, data_0=b"\0" * 16), message)


def test_bombs(tmp_path: Path) -> None:
    """Nesting that doubles with each step, and deep nesting, end at once."""
    doubling = b"]" + b"".join(b"q\x00h\x00\x86" for _ in range(2000)) + b"."
    refused(packed(tmp_path, doubling), "no dict of tensors")
    refused(packed(tmp_path, b")" + b"\x85" * 200_000 + b"."), "no dict of tensors")
    refused(packed(tmp_path, doubling[:-1] + b"h\x00\x93."), "unnamed function")
    refused(packed(tmp_path, b"N0" * 10), "opcode")
    refused(packed(tmp_path, b"N" * 3_000_001), "steps")


def test_odd_archives(tmp_path: Path) -> None:
    file = tmp_path / "x.pt"
    file.write_bytes(b"PK\x03\x04 and no more")
    refused(file, "damaged or cut short")
    file.write_bytes(b"weights")
    refused(file, "no zip archive")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refused(file, "git-lfs")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", b"}." * 50)
    refused(file, "compressed")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", b"hello")
    refused(file, r"no data\.pkl")
    refused(packed(tmp_path, b"}.", byteorder=b"big"), "big-endian")
    whole = written(tmp_path, {"a": torch.zeros(4)}).read_bytes()
    file.write_bytes(whole[:-30])
    refused(file, "damaged or cut short")


def test_a_file_alone(tmp_path: Path) -> None:
    """Tensors without a config, beside another model's, and a file that is no weights."""
    file = written(tmp_path, {"a": torch.zeros(2)})
    with pytest.raises(af.Error, match=r"put the config\.json of its model beside it"):
        af.load(file)
    af.build("gpt2-tiny").save(tmp_path / "own")
    torch.save({"a": torch.zeros(2)}, tmp_path / "own/x.pt")
    with pytest.raises(af.Error, match="give the folder"):
        af.load(tmp_path / "own/x.pt")
