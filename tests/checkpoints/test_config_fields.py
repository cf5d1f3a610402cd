"""Every field of every supported config, set to another value than its default: parity, or an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from tests.checkpoints import oracles_decoders as decoders
from tests.checkpoints import oracles_enc, oracles_pose, oracles_sound, oracles_vit
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import (
    _RESNET,
    ARCHITECTURES,
    SMALL,
    Case,
    family_of,
    hf_class,
    make_case,
    make_oracle,
    save_oracle,
)

# What a field is set to. Fields that are not here take a value by their type (see `another`).
VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "activation_function": "relu",
    "pooler_act": "sigmoid",
    "summary_type": "first",
    "summary_activation": "tanh",
    "problem_type": "multi_label_classification",
    "position_embedding_type": "learned",
    "cross_attention_shape_for_attention": "q",
    "id2label": {0: "a", 1: "b", 2: "c"},
    "label2id": {"a": 0, "b": 1},
    "layer_norm_eps": 0.01,
    "layer_norm_epsilon": 0.01,
    "backbone_config": {**_RESNET, "layer_type": "bottleneck"},
    "n_head": 2,
    "n_inner": 20,
    "num_attention_heads": 2,
    "num_self_attention_heads": 2,
    "num_cross_attention_heads": 4,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "decoder_num_attention_heads": 4,
    "hidden_size": 40,
    "n_embd": 40,
    "d_model": 40,
    "d_latents": 40,
    "decoder_hidden_size": 24,
    "qk_channels": 32,
    "v_channels": 32,
    "decoder_vocab_size": 60,
    "pooler_output_size": 12,
    "vocab_size": 70,
    "n_positions": 30,
    "max_position_embeddings": 30,
    "type_vocab_size": 3,
    "image_size": 32,
    "patch_size": 12,
    "num_channels": 1,
    "mask_ratio": 0.5,
    "pad_token_id": 5,
    "bos_token_id": 3,
    "eos_token_id": 4,
    "forced_eos_token_id": 7,
    "decoder_start_token_id": 6,
    "train_size": [10, 12],
    "output_shape": [1, 2, 8, 8],
    "dtype": "float32",
    "is_decoder": True,
    **decoders.VALUES,
    **oracles_enc.VALUES,
    **oracles_vit.VALUES,
    **oracles_pose.VALUES,
    **oracles_sound.VALUES,
}
# Another change that a field needs beside it, for transformers itself to accept it.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("Bert", "add_cross_attention"): {"is_decoder": True},
    ("Detr", "num_channels"): {"backbone_config": {**_RESNET, "num_channels": 1}},
    **decoders.BESIDE,
    **oracles_enc.BESIDE,
    **oracles_pose.BESIDE,
    **oracles_sound.BESIDE,
}
# Fields of the class that say nothing about one model.
MACHINERY = frozenset(
    "base_config_key sub_configs_defaults attribute_map base_model_tp_plan base_model_fsdp_plan base_model_pp_plan"
    " base_model_ep_plan _auto_class model_type transformers_version architectures".split()
)
# Further values of a field whose values differ in kind.
MORE: list[tuple[str, str, Any]] = [
    ("BertForMaskedLM", "hidden_act", "gelu_new"),
    ("BertForMaskedLM", "hidden_act", "quick_gelu"),
    ("GPT2LMHeadModel", "activation_function", "gelu"),
    ("GPT2LMHeadModel", "activation_function", "xielu"),
    ("ViTForImageClassification", "image_size", [24, 40]),
    ("ViTForImageClassification", "patch_size", [8, 4]),
    ("MarianMTModel", "activation_function", "swish"),
    ("DetrForObjectDetection", "backbone_config", {**_RESNET, "downsample_in_first_stage": True}),
    ("DetrForObjectDetection", "backbone_config", {**_RESNET, "hidden_act": "gelu"}),
    ("DetrForObjectDetection", "backbone_config", {**_RESNET, "out_features": ["stage2", "stage3"]}),
    (
        "DetrForObjectDetection",
        "backbone_config",
        {**_RESNET, "layer_type": "bottleneck", "downsample_in_bottleneck": True},
    ),
    *decoders.MORE,
    *oracles_enc.MORE,
    *oracles_vit.MORE,
    *oracles_pose.MORE,
    *oracles_sound.MORE,
]


# transformers' eager attention, the only one of these, gives NaN in double for a query whose window is all padding.
SINGLE_ONLY = ("Gemma2",)


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1 if isinstance(value, int) else (0.25 if value != 0.25 else 0.5)
    return None


def sweep() -> list[tuple[str, str, Any]]:
    chosen = []
    for architecture in ARCHITECTURES:
        family = family_of(architecture)
        config_class = hf_class(SMALL[family][0])
        small = SMALL[family][1]
        for name in config_class.__dataclass_fields__:
            if name in MACHINERY:
                continue
            value = VALUES.get(name, another(small.get(name, getattr(config_class(), name, None))))
            if value is not None:
                chosen.append((architecture, name, value))
    return chosen + MORE


def fit_batch(case: Case, config: Any, changed: str) -> Case:
    """Images of the size and channels that the config asks for."""
    batch = dict(case.batch)
    for name in ("pixel_values", "inputs"):
        if name in batch and batch[name].dim() == 4:
            size = getattr(config, "image_size", 24)
            rows, columns = (size, size) if isinstance(size, int) else size
            if changed in ("image_size", "patch_size", "num_channels"):
                shape = (2, config.num_channels, 64, 96) if "pixel_mask" in batch else (2, 3, rows, columns)
                batch[name] = torch.randn(shape[0], getattr(config, "num_channels", 3), *shape[2:])
    if changed == "backbone_config":  # its grid may be another than the one that the mask was made for
        batch.pop("pixel_mask", None)
    if "noise" in batch:
        batch["noise"] = torch.rand(2, (config.image_size // config.patch_size) ** 2)
    batch.update(oracles_sound.fit(batch, config))
    return Case(batch, case.masks)


def in_double(case: Case) -> Case:
    return Case({k: v.double() if v.is_floating_point() else v for k, v in case.batch.items()}, case.masks)


@pytest.mark.parametrize(("architecture", "field", "value"), sweep(), ids=lambda value: str(value)[:40])
def test_field(architecture: str, field: str, value: Any, tmp_path: Path) -> None:
    """Parity, or an error with the field's name in it."""
    changes = {field: value, **BESIDE.get((family_of(architecture), field), {})}
    try:
        oracle = make_oracle(architecture, **changes)
        case = fit_batch(make_case(architecture), oracle.config, field)
        if family_of(architecture) not in SINGLE_ONLY:  # a sharper eye than float32
            oracle, case = oracle.double(), in_double(case)
        with torch.no_grad():
            oracle(**case.batch)
            theirs = oracle(**case.batch, return_dict=True)
        save_oracle(oracle, tmp_path)
    except Exception as error:
        pytest.skip(f"transformers itself does not take {field}={value!r}: {type(error).__name__}")
    try:
        model = af.load(tmp_path)
    except af.Error as error:
        assert field in str(error)  # noqa: PT017 - one or the other
        return
    with torch.no_grad():
        assert isinstance(model(**case.batch), tuple) == (field == "return_dict")
        # transformers' RMS norms and rotations stay in single precision
        tolerance = 5e-6 if family_of(architecture) in decoders.SINGLE else 1e-6
        tolerance = 2e-5 if family_of(architecture) in SINGLE_ONLY else tolerance
        tolerance = oracles_enc.TOLERANCES.get(family_of(architecture), tolerance)
        compare(model(**case.batch, return_dict=True), theirs, case, tolerance=tolerance)


def test_the_errors_are_few(tmp_path: Path) -> None:
    """Of the settings above only an activation that nobody uses is refused."""
    oracle = make_oracle("GPT2LMHeadModel", activation_function="xielu")
    with pytest.raises(af.ConfigError, match="activation_function"):
        af.load(save_oracle(oracle, tmp_path))
