"""Tiny Hugging Face models with random weights: the oracle that anyformer must equal."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints import oracles_decoders as decoders
from tests.checkpoints import (
    oracles_enc,
    oracles_old,
    oracles_pixels,
    oracles_pose,
    oracles_sound,
    oracles_vision,
    oracles_vit,
)
from tests.checkpoints.cases import Batch, Case, ids, ragged

# Where each class lives; importing from the submodule keeps the rest of transformers out.
_HOMES = {
    "GPT2": "gpt2",
    "Bert": "bert",
    "Marian": "marian",
    "ViTMAE": "vit_mae",
    "ViT": "vit",
    "Detr": "detr",
    "Perceiver": "perceiver",
    "ModernBert": "modernbert",
    "Dinov2": "dinov2",
    **oracles_old.HOMES,
    **decoders.HOMES,
    **oracles_enc.HOMES,
    **oracles_vit.HOMES,
    **oracles_pose.HOMES,
    **oracles_vision.HOMES,
    **oracles_pixels.HOMES,
    **oracles_sound.HOMES,
}


def hf_class(name: str) -> Any:
    home = next(folder for prefix, folder in _HOMES.items() if name.startswith(prefix))
    kind = "configuration" if name.endswith("Config") else "modeling"
    return getattr(importlib.import_module(f"transformers.models.{home}.{kind}_{home}"), name)


_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_PICTURE = {**_TEXT, "image_size": 24, "patch_size": 8}
_PERCEIVER = {
    "num_latents": 6,
    "d_latents": 32,
    "d_model": 24,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 4,
    "num_cross_attention_heads": 2,
    "max_position_embeddings": 20,
    "vocab_size": 50,
    "image_size": 6,
}
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 12, 16, 20],
    "depths": [1, 2, 1, 2],
    "layer_type": "basic",
    "out_features": ["stage4"],
}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60, "n_positions": 24}),
    "Bert": ("BertConfig", {**_TEXT, "vocab_size": 60, "max_position_embeddings": 24}),
    "Marian": (
        "MarianConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 40,
            "vocab_size": 60,
            "pad_token_id": 59,
            "decoder_start_token_id": 59,
            "max_position_embeddings": 24,
            "scale_embedding": True,
        },
    ),
    "ViTMAE": (
        "ViTMAEConfig",
        {
            **_PICTURE,
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 2,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 24,
        },
    ),
    "ViT": ("ViTConfig", _PICTURE),
    "Detr": (
        "DetrConfig",
        {
            "use_timm_backbone": False,
            "backbone_config": _RESNET,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 40,
            "num_queries": 5,
        },
    ),
    "ModernBert": (
        "ModernBertConfig",
        {**_TEXT, "num_hidden_layers": 4, "vocab_size": 60, "max_position_embeddings": 24, "local_attention": 6}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "Dinov2": (
        "Dinov2Config",
        {name: value for name, value in _PICTURE.items() if name != "intermediate_size"} | {"mlp_ratio": 2},
    ),
    "PerceiverForImageClassificationFourier": ("PerceiverConfig", {**_PERCEIVER, "num_cross_attention_heads": 1}),
    "Perceiver": ("PerceiverConfig", _PERCEIVER),
    **oracles_old.SMALL,
    **decoders.SMALL,
    **oracles_enc.SMALL,
    **oracles_vit.SMALL,
    **oracles_pose.SMALL,
    **oracles_vision.SMALL,
    **oracles_pixels.SMALL,
    **oracles_sound.SMALL,
}

ARCHITECTURES: tuple[str, ...] = (
    "GPT2LMHeadModel",
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertForQuestionAnswering",
    "BertForMultipleChoice",
    "MarianMTModel",
    "ViTModel",
    "ViTForImageClassification",
    "ViTMAEForPreTraining",
    "DetrForObjectDetection",
    "PerceiverForMaskedLM",
    "PerceiverForImageClassificationLearned",
    "PerceiverForImageClassificationFourier",
    "ModernBertForMaskedLM",
    "Dinov2ForImageClassification",
    *oracles_old.ARCHITECTURES,
    *decoders.ARCHITECTURES,
    *oracles_enc.ARCHITECTURES,
    *oracles_vit.ARCHITECTURES,
    *oracles_pose.ARCHITECTURES,
    *oracles_vision.ARCHITECTURES,
    *oracles_pixels.ARCHITECTURES,
    *oracles_sound.ARCHITECTURES,
)


def family_of(architecture: str) -> str:
    return next(prefix for prefix in SMALL if architecture.startswith(prefix))


def make_config(architecture: str, **changes: Any) -> Any:
    config_name, small = SMALL[family_of(architecture)]
    values = {**small, **changes}
    backbone = values.get("backbone_config")
    if isinstance(backbone, dict):
        kind = {"resnet": "ResNetConfig", "vitpose_backbone": "VitPoseBackboneConfig"}[
            backbone.get("model_type", "resnet")
        ]
        values["backbone_config"] = hf_class(kind)(**{k: v for k, v in backbone.items() if k != "model_type"})
    return hf_class(config_name)(**values)


def make_oracle(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """The Hugging Face model, in eval mode, every weight random and large enough to matter (biases and norms too)."""
    torch.manual_seed(seed)
    model = hf_class(architecture)(make_config(architecture, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad and "normalization" not in name:
                continue  # tables that a formula filled
            fan_in = parameter[0].numel() if parameter.dim() else 1
            noise = torch.randn_like(parameter) * (
                (1.0 if parameter.dim() > 2 else 1.5) * fan_in**-0.5 if parameter.dim() > 1 else 0.1
            )
            parameter.copy_(noise + (1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0))
        for name, buffer in model.named_buffers():
            if "running_var" in name:
                buffer.copy_(torch.rand_like(buffer) + 0.5)
            elif name.endswith(("running_mean", "normalization.bias", "final_logits_bias")):
                buffer.copy_(torch.randn_like(buffer) * 0.2)
            elif name.endswith("normalization.weight"):
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return model


def save_oracle(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def text_case(architecture: str) -> Case:
    mask = ragged(4, 9)
    batch: Batch = {"input_ids": ids(4, 9), "attention_mask": mask, "token_type_ids": torch.randint(0, 2, (4, 9))}
    return Case(batch, {"": mask})


def plain_text_case() -> Case:
    mask = ragged(4, 9)
    return Case({"input_ids": ids(4, 9), "attention_mask": mask}, {"": mask})


def own_labels(batch: Batch) -> Batch:
    """Every real token is a label."""
    return {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def decoder_case(architecture: str) -> Case:
    case = text_case(architecture)
    if architecture != "OpenAIGPTLMHeadModel":
        del case.batch["token_type_ids"]
    return case


def make_case(architecture: str, seed: int = 1) -> Case:
    torch.manual_seed(seed)
    builders: dict[str, Callable[[], Case]] = {
        "GPT2": lambda: text_case(architecture),
        "Bert": lambda: text_case(architecture),
        "Marian": _marian_case,
        "ViTMAE": lambda: Case({"pixel_values": torch.randn(2, 3, 24, 24), "noise": torch.rand(2, 9)}, {}),
        **dict.fromkeys(("ViT", "Dinov2"), lambda: Case({"pixel_values": torch.randn(2, 3, 24, 24)}, {})),
        "ModernBert": plain_text_case,
        "Detr": _detr_case,
        **dict.fromkeys(("Perceiver", "PerceiverForImageClassificationFourier"), lambda: _perceiver_case(architecture)),
        **dict.fromkeys(oracles_old.TEXT, plain_text_case),
        **{family: lambda: decoder_case(architecture) for family in decoders.SMALL},
        **{family: lambda: oracles_pose.make_case(architecture) for family in oracles_pose.SMALL},
        "ImageGPT": oracles_pixels.imagegpt_case,
    }
    family = family_of(architecture)
    others = {**oracles_enc.CASES, **oracles_sound.CASES, **oracles_vision.CASES, **oracles_vit.CASES}
    case = builders[family]() if family in builders else others[family](architecture)
    if architecture.endswith("ForMultipleChoice"):
        batch = {name: value.view(2, 2, 9) for name, value in case.batch.items()}
        return Case(batch, case.masks)
    return case


def _marian_case() -> Case:
    mask, target = ragged(4, 9), ragged(4, 7)
    batch = {
        "input_ids": ids(4, 9),
        "attention_mask": mask,
        "decoder_input_ids": ids(4, 7),
        "decoder_attention_mask": target,
    }
    return Case(batch, {"encoder": mask, "": target, "cross": target})


def _detr_case() -> Case:
    pixel_mask = torch.zeros(2, 64, 96, dtype=torch.long)
    pixel_mask[0] = 1
    pixel_mask[1, :40, :70] = 1
    small = torch.nn.functional.interpolate(pixel_mask[None].float(), size=(2, 3))[0].bool().flatten(1)
    return Case({"pixel_values": torch.randn(2, 3, 64, 96), "pixel_mask": pixel_mask}, {"encoder": small.long()})


def _perceiver_case(architecture: str) -> Case:
    if architecture == "PerceiverForMaskedLM":
        return Case({"inputs": ids(3, 12, high=50), "attention_mask": ragged(3, 12)}, {})
    return Case({"inputs": torch.randn(2, 3, 6, 6)}, {})


LABELS: dict[str, Callable[[Batch], Batch]] = {
    "GPT2LMHeadModel": lambda b: {"labels": b["input_ids"].masked_fill(b["attention_mask"] == 0, -100)},
    "BertForPreTraining": lambda b: {
        "labels": b["input_ids"].masked_fill(b["attention_mask"] == 0, -100),
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
    },
    "BertForMaskedLM": lambda b: {"labels": b["input_ids"].masked_fill(b["attention_mask"] == 0, -100)},
    "BertForSequenceClassification": lambda b: {"labels": torch.tensor([0, 1, 1, 0])},
    "BertForTokenClassification": lambda b: {"labels": b["token_type_ids"].masked_fill(b["attention_mask"] == 0, -100)},
    "BertForQuestionAnswering": lambda b: {
        "start_positions": torch.tensor([0, 1, 0, 40]),
        "end_positions": torch.tensor([3, 1, 0, 2]),
    },
    "BertForMultipleChoice": lambda b: {"labels": torch.tensor([1, 0])},
    "MarianMTModel": lambda b: {"labels": b["decoder_input_ids"].masked_fill(b["decoder_attention_mask"] == 0, -100)},
    "ModernBertForMaskedLM": own_labels,
    "Dinov2ForImageClassification": lambda b: {"labels": torch.tensor([0, 1])},
    "ViTForImageClassification": lambda b: {"labels": torch.tensor([0, 1])},
    "PerceiverForMaskedLM": lambda b: {"labels": ids(3, 20, high=50)},
    **dict.fromkeys(oracles_old.LABELED, own_labels),
    "PerceiverForImageClassificationLearned": lambda b: {"labels": torch.tensor([0, 1])},
    "PerceiverForImageClassificationFourier": lambda b: {"labels": torch.tensor([0, 1])},
    **{
        architecture: lambda b: {"labels": b["input_ids"].masked_fill(b["attention_mask"] == 0, -100)}
        for architecture in decoders.ARCHITECTURES
    },
    **oracles_enc.LABELS,
    **oracles_vit.LABELS,
    **oracles_pose.LABELS,
    **oracles_vision.LABELS,
    **oracles_pixels.LABELS,
    **oracles_sound.LABELS,
}


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
