"""What saved settings and tensors were called in the past: folders and runs saved then keep loading.

The one place for old names. Add a row when a saved setting, family, value or tensor is renamed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

# Class of settings -> old name of a field -> today's name.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "AnswerOptions": {"max_answer": "max_answer_length"},
    "Augmentation": {
        "erase": "random_erasing",
        "jitter": "color_jitter",
        "mixed": "mix_prob",
        "operations": "randaugment_ops",
        "turn": "rotate",
    },
    "AutoencoderConfig": {"normalise_pixels": "norm_pix_loss"},
    "BEiTConfig": {
        "d_helper": "d_auxiliary",
        "gain": "layer_scale",
        "helper": "auxiliary",
        "helper_keeps": "auxiliary_concat_input",
        "helper_weight": "auxiliary_weight",
        "n_helper": "n_auxiliary_convs",
        "relative": "relative_position_bias",
    },
    "CaptionOptions": {"plain": "normalize_text"},
    "CaptionerConfig": {"net": "backbone"},
    "ClassifyOptions": {"agree": "r_drop"},
    "CompleteImageOptions": {"given": "prompt_fraction", "samples": "num_samples"},
    "DETRConfig": {"every_layer": "auxiliary_loss", "nothing_weight": "no_object_weight"},
    "DataSettings": {"held_out": "validation_split", "share": "fraction"},
    "DistillOptions": {"teacher_weight": "distill_weight"},
    "EmbedOptions": {"highest": "max_score", "normalise": "normalize", "pool": "pooling"},
    "GPT3Config": {"band": "local_window"},
    "ImageTextOptions": {"max_target": "max_target_length"},
    "KeypointDecoderConfig": {"in_turn": "autoregressive", "n_joints": "n_keypoints"},
    "LanguageOptions": {"carry": "carry_memory"},
    "LineReaderConfig": {"spelling": "ctc_weight"},
    "LuongConfig": {"feed": "input_feeding"},
    "MaskOptions": {"rate": "mask_prob"},
    "MatchOptions": {"max_target": "max_target_length"},
    "MetaLMConfig": {"docks": "encoders"},
    "OcrOptions": {"wide": "overflow"},
    "PairOptions": {"either_way": "symmetric"},
    "PerceiverConfig": {
        "cross_widen": "cross_widening_factor",
        "n_rounds": "n_repeats",
        "sound_patch": "audio_patch_size",
        "widen": "widening_factor",
    },
    "PoseOptions": {"see": "region"},
    "ResNetConfig": {
        "dilate_last": "dilation",
        "downsample_first": "downsample_in_first_stage",
        "kind": "block",
        "stride_early": "downsample_in_bottleneck",
    },
    "ResNetClassifierConfig": {"net": "backbone"},
    "RoFormerConfig": {"turn_values": "rotary_value"},
    "RopeConfig": {
        "base": "theta",
        "fast": "beta_fast",
        "gain": "attention_factor",
        "high": "high_freq_factor",
        "kind": "rope_type",
        "low": "low_freq_factor",
        "share": "partial_rotary_factor",
        "slow": "beta_slow",
        "trained": "original_max_length",
    },
    "SequenceToSequenceOptions": {"agree": "r_drop", "gaps": "infilling", "max_target": "max_target_length"},
    "ShowAttendTellConfig": {"coverage": "coverage_weight", "entropy": "entropy_weight", "hard": "hard_attention"},
    "SummarizeOptions": {"no_repeat": "no_repeat_ngram_size", "stem": "use_stemmer"},
    "SutskeverConfig": {"show_context": "context_every_step"},
    "TimeSformerConfig": {"attends": "attention_type"},
    "TrainSettings": {
        "accumulate": "gradient_accumulation",
        "average": "average_checkpoints",
        "checkpointing": "gradient_checkpointing",
        "clip": "max_grad_norm",
        "ema": "ema_decay",
        "explode": "divergence_factor",
        "keep": "keep_checkpoints",
        "minutes": "max_minutes",
        "record": "cuda_graphs",
        "warmup": "warmup_steps",
    },
    "TrainState": {"stale": "evals_without_improvement"},
    "TransformerXLConfig": {"order": "norm_order"},
    "TrOCRConfig": {"norm_embedding": "embedding_norm"},
    "VideoMAEConfig": {"qv_bias": "qkv_bias"},
    "ViTPoseConfig": {"hidden_ratio": "mlp_ratio", "n_joints": "n_keypoints", "spread": "heatmap_sigma"},
}


# Class of settings -> field (today's name) -> old value -> today's value.
VALUES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "ClassifyOptions": {"problem": {"classes": "classification", "number": "regression"}},
    "ELECTRAConfig": {"head": {"discriminate": "replaced_tokens"}},
    "RopeConfig": {"rope_type": {"blend": "llama3"}},
    "ViTConfig": {"positions": {"sine": "sinusoidal", "sine-2d": "sinusoidal-2d"}},
}


def _rebuild_llama(saved: dict[str, Any]) -> None:
    if saved.pop("sandwich", False):
        saved["norm_order"] = "sandwich"


def _rebuild_gptneox(saved: dict[str, Any]) -> None:
    if "rope" in saved:
        saved["ropes"] = [saved.pop("rope")]
    if "bias" in saved:
        saved["qkv_bias"] = saved["out_bias"] = saved.pop("bias")


def _rebuild_gpt2(saved: dict[str, Any]) -> None:
    if not saved.pop("scale_by_width", True):
        saved["score"] = "dot"


def _rebuild_mae(saved: dict[str, Any]) -> None:
    for name in ("image_size", "patch_size"):
        if isinstance(saved.get(name), int):
            saved[name] = [saved[name]] * 2


def _rebuild_pooling(saved: dict[str, Any], otherwise: str) -> None:
    for name in ("mean_pooling", "average"):
        if name in saved:
            saved["pooling"] = "mean" if saved.pop(name) else otherwise


def _rebuild_trocr(saved: dict[str, Any]) -> None:
    if not saved.pop("learned_positions", True):
        saved["positions"] = "sinusoidal"


# Class of settings -> what changes in saved ones besides names.
REBUILT: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "BEiTConfig": partial(_rebuild_pooling, otherwise="class"),
    "GPT2Config": _rebuild_gpt2,
    "GPTNeoXConfig": _rebuild_gptneox,
    "LlamaConfig": _rebuild_llama,
    "MAEConfig": _rebuild_mae,
    "TrOCRConfig": _rebuild_trocr,
    "VideoMAEConfig": partial(_rebuild_pooling, otherwise="first"),
}

# Old name of a task's column, as data.columns gives it -> today's name.
COLUMNS: Mapping[str, str] = {"sound": "audio"}

# Old name of a family -> today's name. Names of recipes begin with that of their family.
FAMILIES: Mapping[str, str] = {"joints": "keypoint-detr"}


def fields_of(cls: type) -> dict[str, str]:
    """The old names of a class's fields and those of its bases, each with today's name."""
    return {old: new for base in reversed(cls.__mro__) for old, new in FIELDS.get(base.__name__, {}).items()}


def upgrade(cls: type, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved of an object of a class, under today's names."""
    names = fields_of(cls)
    renamed = {names.get(name, name): value for name, value in saved.items()}
    for base in cls.__mro__:
        if base.__name__ in REBUILT:
            REBUILT[base.__name__](renamed)
    return {name: upgrade_value(cls, name, value) for name, value in renamed.items()}


def upgrade_value(cls: type, name: str, value: Any) -> Any:
    """Today's value of a field. Values that were not renamed are returned as they are."""
    if (cls.__name__, name) == ("DataSettings", "columns") and isinstance(value, str):
        return upgrade_columns(value)
    for base in cls.__mro__ if isinstance(value, str) else ():
        value = VALUES.get(base.__name__, {}).get(name, {}).get(value, value)
    return value


def upgrade_columns(text: str) -> str:
    """Today's form of data.columns.  upgrade_columns("sound=clip,label=2") -> "audio=clip,label=2"."""
    pairs = [part.partition("=") for part in text.split(",")]
    return ",".join(f"{COLUMNS.get(name.strip(), name)}{sign}{value}" for name, sign, value in pairs)


def upgrade_recipe(name: str) -> str:
    """Today's name of a recipe (or family).  upgrade_recipe("joints-96") -> "keypoint-detr-96"."""
    family, dash, size = name.partition("-")
    return f"{FAMILIES.get(family, family)}{dash}{size}"


def renamed(old: str, new: str) -> str:
    """The hint of an error message for an old name: empty if the name was not changed."""
    return f' "{old}" was renamed to "{new}".' if new != old else ""


# Tensors: an old name as a pattern, and today's. The first row is of checkpoints of runs, which had longer names.
TENSORS: tuple[tuple[str, str], ...] = (
    (r"^((?:\w+/)?)(?:stages|heads)\.", r"\1"),
    (r"(\.blocks)\.(\d+)\.self\.positions\.", r".block_positions.\2."),
    (r"(\.blocks\.\d+\.\w+)\.gain\.", r"\1.layer_scale."),
    (r"(\.blocks\.\d+\.\w+)\.after\.", r"\1.post_norm."),
    (r"\.(?:between|step)\.boxes\.", ".step."),
    (r"\.between\.code\.", ".place.code."),
    (r"((?:^|/)(?:base|classify))\.(?:pool|average)\.norm\.", r"\1.norm."),
    (r"(\.net\.stages\.\d+\.\d+)\.first\.", r"\1.layers.0."),
    (r"(\.net\.stages\.\d+\.\d+)\.second\.", r"\1.layers.1."),
    (r"(\.inputs\.blocks\.\d+)\.first\.", r"\1.layers.0.filter."),
    (r"(\.inputs\.blocks\.\d+)\.first_norm\.", r"\1.layers.0.norm."),
    (r"(\.inputs\.blocks\.\d+)\.second\.", r"\1.layers.1.filter."),
    (r"(\.inputs\.blocks\.\d+)\.second_norm\.", r"\1.layers.1.norm."),
    (r"(\.inputs\.blocks\.\d+)\.aside\.", r"\1.shortcut."),
)
LEVELS = frozenset({"stack", "sublayers", "part"})  # that names of checkpoints had


def tensor_name(saved: str) -> str:
    """Today's name of a tensor."""
    if re.match(r"(?:\w+/)?(?:stages|heads)\.", saved):
        saved = ".".join(word for word in saved.split(".") if word not in LEVELS)
    for pattern, name in TENSORS:
        saved = re.sub(pattern, name, saved)
    return saved
