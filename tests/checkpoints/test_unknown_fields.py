"""What a config.json says that anyformer does not know, how labels are counted, and how many layers there can be."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.checkpoints.hf_config import read_config
from anyformer.checkpoints.key_tables import TABLES
from tests.checkpoints import gguf_files
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import make_case, make_oracle, save_oracle

# Fields that PretrainedConfig of transformers 4 wrote into every folder, at their defaults.
OLDER = {
    **{"add_cross_attention": False, "is_decoder": False, "pruned_heads": {}, "tie_encoder_decoder": False},
    **{"torchscript": False, "use_bfloat16": False, "tf_legacy_loss": False, "torch_dtype": "float32"},
    **{"finetuning_task": None, "task_specific_params": None, "prefix": None, "problem_type": None},
    **{"chunk_size_feed_forward": 0, "cross_attention_hidden_size": None, "gradient_checkpointing": False},
    **{"max_length": 20, "min_length": 0, "do_sample": False, "num_beams": 1, "top_k": 50, "top_p": 1.0},
    **{"temperature": 1.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "no_repeat_ngram_size": 0},
    **{"num_return_sequences": 1, "output_past": True, "use_cache": True, "xla_device": None},
    **{"_name_or_path": "somewhere", "_num_labels": 2, "transformers_version": "4.6.0", "return_dict": True},
}


def change(folder: Path, drop: tuple[str, ...] = (), **fields: Any) -> Path:
    path = folder / "config.json"
    kept = {name: value for name, value in json.loads(path.read_text()).items() if name not in drop}
    path.write_text(json.dumps({**kept, **fields}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_oracle(make_oracle("BertForSequenceClassification"), tmp_path)


@pytest.mark.parametrize("kind", sorted(set(TABLES) - {"encoder-decoder", "vision-encoder-decoder"}))
@pytest.mark.parametrize("older", [False, True])
def test_the_defaults_of_transformers_are_known(kind: str, older: bool) -> None:
    from transformers import CONFIG_MAPPING

    config = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    config |= {"trocr": {"is_decoder": True}, "beit": {"out_indices": [3, 5, 7, 11]}}.get(kind, {})  # classes need it
    if older:
        config = {**OLDER, **config}
    for architecture in TABLES[kind].architectures:
        read_config(TABLES[kind], architecture, config, Path("folder"))


def test_an_unknown_field_is_an_error_that_says_how_to_load_anyway(folder: Path) -> None:
    oracle, case = make_oracle("BertForSequenceClassification"), make_case("BertForSequenceClassification")
    change(folder, use_parallel_residual=True, router={"n": 2})
    with pytest.raises(af.ConfigError, match=r'"use_parallel_residual" \(True\), "router".*ignore=') as error:
        af.load(folder)
    assert len(str(error.value)) < 400
    with pytest.raises(af.ConfigError, match='"router"'):
        af.load(folder, ignore=["use_parallel_residual"])
    with torch.no_grad():
        compare(af.load(folder, ignore=["use_parallel_residual", "router"])(**case.batch), oracle(**case.batch), case)


@pytest.mark.parametrize("value", [None, False])
def test_an_unknown_field_that_asks_for_nothing_is_none(folder: Path, value: Any) -> None:
    af.load(change(folder, use_parallel_residual=value))


@pytest.mark.parametrize(
    ("ignore", "said"),
    [(["hiden"], "does not have"), (["hidden_size"], "a field that anyformer knows"), ("router", "a list of field")],
)
def test_what_cannot_be_ignored(folder: Path, ignore: Any, said: str) -> None:
    with pytest.raises(af.ConfigError, match=said):
        af.load(change(folder, router=1), ignore=ignore)


def test_ignore_is_for_hugging_face_folders(tmp_path: Path) -> None:
    af.build("bert-tiny").save(tmp_path)
    with pytest.raises(af.ConfigError, match="Hugging Face"):
        af.load(tmp_path, ignore=["router"])


def test_a_field_inside_a_config(tmp_path: Path) -> None:
    save_oracle(make_oracle("CLIPModel"), tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    change(tmp_path, text_config={**text, **OLDER, "router": 2})
    with pytest.raises(af.ConfigError, match=r'text_config.*"router"'):
        af.load(tmp_path)
    af.load(tmp_path, ignore=["router"])


def test_quantized_weights_are_refused(folder: Path) -> None:
    with pytest.raises(af.ConfigError, match="quantization_config"):
        af.load(change(folder, quantization_config={"bits": 4}))


@pytest.mark.parametrize(
    "architecture",
    ["BertForSequenceClassification", "RobertaForTokenClassification", "ViTForImageClassification"],
)
def test_num_labels_without_names(architecture: str, tmp_path: Path) -> None:
    oracle, case = make_oracle(architecture, num_labels=5), make_case(architecture)
    folder = change(save_oracle(oracle, tmp_path / "theirs"), drop=("id2label", "label2id"), num_labels=5)
    model = af.load(folder)
    with torch.no_grad():
        compare(model(**case.batch), oracle(**case.batch), case)
    model.save(tmp_path / "ours", format="hf")
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["id2label"] == {str(i): f"LABEL_{i}" for i in range(5)}


BAD: list[dict[str, Any]] = [
    {"num_hidden_layers": 200_000},
    {"num_hidden_layers": 9_000},
    {"num_hidden_layers": 2**62},
    {"num_hidden_layers": -1},
    {"hidden_size": 2**40},
    {"vocab_size": 0},
    {"vocab_size": "30522"},
    {"type_vocab_size": 0},
    {"num_attention_heads": 0},
    {"layer_norm_eps": float("nan")},
    {"layer_norm_eps": -1e-12},
    {"layer_norm_eps": float("inf")},
    {"hidden_dropout_prob": 1.5},
    {"hidden_act": ["gelu"]},
    {"hidden_act": {"a": 1}},
    {"id2label": ["a", "b"]},
    {"id2label": {"first": "a"}},
    {"id2label": {"1": "a", "2": "b"}},
    {"id2label": {"0": "a", "2": "b"}},
    {"id2label": {"00": "a"}},
    {"id2label": {"0": None, "1": "b"}},
    {"id2label": {"0": {"a": 1}, "1": "b"}},
    {"architectures": [["BertModel"]]},
    {"architectures": {"BertModel": 1}},
    {"model_type": 3},
    {"num_labels": -1, "id2label": None},
    {"pad_token_id": "none"},
]


@pytest.mark.parametrize("fields", BAD, ids=str)
def test_a_bad_value_is_one_sentence_before_anything_is_built(folder: Path, fields: dict[str, Any]) -> None:
    change(folder, **fields)
    began = time.monotonic()
    with pytest.raises(af.Error) as error:
        af.load(folder)
    assert time.monotonic() - began < 5
    assert len(str(error.value)) < 400
    name = {"type_vocab_size": "token_type_embeddings"}.get(next(iter(fields)), next(iter(fields)))
    assert name in str(error.value) or "layers" in str(error.value)


def test_layers_are_bounded_before_a_table_counts_them(tmp_path: Path) -> None:
    """BEiT's makes a list of the names of all layers."""
    folder = change(save_oracle(make_oracle("BeitForImageClassification"), tmp_path), num_hidden_layers=2**31 - 1)
    began = time.monotonic()
    with pytest.raises(af.ConfigError, match="num_hidden_layers"):
        af.load(folder)
    assert time.monotonic() - began < 5


def test_layers_of_a_config_inside_a_config(tmp_path: Path) -> None:
    save_oracle(make_oracle("VitPoseForPoseEstimation"), tmp_path)
    inner = json.loads((tmp_path / "config.json").read_text())["backbone_config"]
    change(tmp_path, backbone_config={**inner, "num_hidden_layers": 2**31 - 1})
    began = time.monotonic()
    with pytest.raises(af.ConfigError, match="num_hidden_layers"):
        af.load(tmp_path)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("length", [10**6, 2**31 - 1])
def test_tables_that_a_formula_fills_are_bounded(tmp_path: Path, length: int) -> None:
    save_oracle(make_oracle("MarianMTModel"), tmp_path)
    began = time.monotonic()
    with pytest.raises(af.WeightsError, match="file"):
        af.load(change(tmp_path, max_position_embeddings=length))
    assert time.monotonic() - began < 5


def test_labels_that_are_no_texts_are_saved(tmp_path: Path) -> None:
    save_oracle(make_oracle("BertForSequenceClassification"), tmp_path / "theirs")
    model = af.load(change(tmp_path / "theirs", id2label={"0": True, "1": "b"}))
    model.save(tmp_path / "ours", format="hf")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["label2id"] == {"True": 0, "b": 1}


@pytest.mark.parametrize("n_layers", [9_000, 10**6, -1])
def test_our_own_folders_are_bounded_too(tmp_path: Path, n_layers: int) -> None:
    af.build("bert-tiny").save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model"]["n_layers"] = n_layers
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(af.Error, match="layers"):
        af.load(tmp_path)


def _patch(file: Path, name: str, value: bytes) -> None:
    """Write other bytes over the value of a field of a GGUF file."""
    content = bytearray(file.read_bytes())
    at = content.index(name.encode()) + len(name) + 4  # behind the name comes the number of the type
    content[at : at + len(value)] = value
    file.write_bytes(content)


NUMBERS = [
    ("llama.block_count", 1_000_000),
    ("llama.block_count", 0),
    ("llama.block_count", 9_000),
    ("llama.embedding_length", 0),
    ("llama.embedding_length", 2**32 - 1),
    ("llama.attention.head_count", 0),
    ("llama.context_length", 0),
    ("llama.attention.layer_norm_rms_epsilon", 0x7FC00000),  # NaN
    ("llama.attention.layer_norm_rms_epsilon", 0xBF800000),  # -1
    ("llama.rope.freq_base", 0x7F800000),  # infinite
    ("llama.rope.freq_base", 0),
]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_gguf_fields_are_checked_before_anything_is_built(name: str, value: int, tmp_path: Path) -> None:
    file = gguf_files.write(gguf_files.oracle("llama"), "llama", tmp_path / "model.gguf")
    _patch(file, name, struct.pack("<I", value))
    began = time.monotonic()
    with pytest.raises(af.Error) as error:
        af.load(file)
    assert time.monotonic() - began < 5
    assert name.partition(".")[2] in str(error.value) or "layers" in str(error.value)


def test_a_gguf_field_of_another_type(tmp_path: Path) -> None:
    file = gguf_files.write(gguf_files.oracle("llama"), "llama", tmp_path / "model.gguf")
    content = file.read_bytes()
    at = content.index(b"llama.block_count") + len("llama.block_count")
    file.write_bytes(content[:at] + struct.pack("<I", 6) + content[at + 4 :])  # the same bytes as a float
    with pytest.raises(af.Error, match="block_count"):
        af.load(file)


UNUSED: list[dict[str, Any]] = [
    {"initializer_range": float("nan")},
    {"temperature": float("-inf")},
    {"rope_scaling": [1.0, float("inf")]},
    {"task_specific_params": {"summarization": {"length_penalty": float("nan")}}},
    {"eos_token_id": float("nan")},
    {"eos_token_id": 1.5},
    {"bos_token_id": "<s>"},
    {"bos_token_id": True},
    {"sep_token_id": -2},
    {"pad_token_id": 2**40},
    {"eos_token_id": [1, "2"]},
    {"eos_token_id": [[1]]},
    {"decoder_start_token_id": 10**6},
    {"decoder_start_token_id": -1},
    {"forced_eos_token_id": 10**6},
]


@pytest.mark.parametrize("fields", UNUSED, ids=str)
def test_a_bad_number_is_refused_where_it_is_not_used(folder: Path, fields: dict[str, Any]) -> None:
    change(folder, **fields)
    with pytest.raises(af.ConfigError) as error:
        af.load(folder)
    names = [*fields, *(name for value in fields.values() if isinstance(value, dict) for name in value)]
    assert len(str(error.value)) < 400 and any(name in str(error.value) for name in names)


def test_ids_of_a_config_inside_a_config(tmp_path: Path) -> None:
    save_oracle(make_oracle("CLIPModel"), tmp_path)
    inner = json.loads((tmp_path / "config.json").read_text())["text_config"]
    change(tmp_path, text_config={**inner, "bos_token_id": "none"})
    with pytest.raises(af.ConfigError, match="bos_token_id"):
        af.load(tmp_path)


ODD: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"rope_theta": -1}),
    ("llama", {"rope_theta": "x"}),
    ("llama", {"rope_parameters": None, "rope_theta": 0}),
    ("gptneox", {"rotary_emb_base": -1}),
    ("gemma3", {"rope_local_base_freq": -1}),
    ("gemma3", {"rope_parameters": {"rope_theta": 10_000.0}}),
    ("gemma3", {"rope_parameters": {"sliding_attention": 5}}),
    ("llama", {"hidden_act": ["a"]}),
    ("bert", {"hidden_act": {"a": 1}}),
    ("bert", {"hidden_act": None}),
    *(
        (name, {field: value})
        for name in ("llama", "gptneox", "gemma3")
        for field, value in [
            ("rope_scaling", 5),
            ("rope_scaling", "x"),
            ("rope_scaling", [1]),
            ("rope_scaling", True),
            ("rope_parameters", 5),
        ]
    ),
    ("llama", {"rope_parameters": {"rope_type": ["x"]}}),
    ("llama", {"rope_parameters": {"rope_theta": [1]}}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "a"}}),
]


@pytest.mark.parametrize(("name", "fields"), ODD, ids=str)
def test_a_field_of_a_wrong_kind(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """Whether it is used or not, in our words."""
    af.build(f"{name}-tiny").save(tmp_path, format="hf")
    with pytest.raises(af.ConfigError) as error:
        af.load(change(tmp_path, **fields))
    said = str(error.value)
    assert any(field in said for field in fields)
    assert not any(
        words in said for words in ("object is not", "unhashable", "sequence", "could not convert", "float()")
    )


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
def test_ids_past_the_vocabulary_are_named(file: str, tmp_path: Path) -> None:
    af.build("llama-tiny").save(tmp_path, format="hf")
    kept = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    (tmp_path / file).write_text(json.dumps({**kept, "eos_token_id": [2, 10**9]}))
    with pytest.warns(UserWarning, match=rf"{file}.*eos_token_id.*1000000000.*256 tokens"):
        model = af.load(tmp_path)
    assert model.generate(torch.tensor([[5]]), max_new_tokens=2).shape[1] <= 3


def test_ids_that_say_nothing_load(folder: Path) -> None:
    """No id at all, none of several, and one past a vocabulary that was made smaller."""
    change(folder, pad_token_id=-1, eos_token_id=[5, 6], bos_token_id=50256, decoder_start_token_id=None)
    assert af.load(folder)
