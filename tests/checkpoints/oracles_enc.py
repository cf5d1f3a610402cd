"""The oracles of BERT's kin and of the encoder-decoders; `oracles` takes them up in its own tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.checkpoints.cases import Batch, Case, ids, ragged

HOMES = {
    "Roberta": "roberta",
    "DistilBert": "distilbert",
    "MPNet": "mpnet",
    "Electra": "electra",
    "RoFormer": "roformer",
    "Bart": "bart",
    "T5": "t5",
    "EncoderDecoder": "encoder_decoder",
    "VisionEncoderDecoder": "vision_encoder_decoder",
}

_TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_WORDS = {"vocab_size": 60, "max_position_embeddings": 24}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "Roberta": ("RobertaConfig", {**_TEXT, **_WORDS}),
    "DistilBert": ("DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, **_WORDS}),
    "MPNet": ("MPNetConfig", {**_TEXT, **_WORDS}),
    "Electra": ("ElectraConfig", {**_TEXT, **_WORDS, "embedding_size": 20}),
    "RoFormer": ("RoFormerConfig", {**_TEXT, **_WORDS, "embedding_size": 20}),
    "Bart": (
        "BartConfig",
        {
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 40,
            **_WORDS,
        },
    ),
    "T5": (
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 6,
            "d_ff": 48,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "vocab_size": 60,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 6,
            "decoder_start_token_id": 0,
        },
    ),
    "EncoderDecoder": (
        "EncoderDecoderConfig",
        {
            "encoder": {**_TEXT, **_WORDS, "model_type": "bert"},
            "decoder": {
                **_TEXT,
                **_WORDS,
                "model_type": "bert",
                "num_hidden_layers": 3,
                "is_decoder": True,
                "add_cross_attention": True,
            },
            "decoder_start_token_id": 2,
            "pad_token_id": 0,
        },
    ),
    "VisionEncoderDecoder": (
        "VisionEncoderDecoderConfig",
        {
            "encoder": {**_TEXT, "model_type": "vit", "image_size": 24, "patch_size": 8},
            "decoder": {
                "model_type": "gpt2",
                "n_embd": 24,  # narrower than the encoder: a projection lies between them
                "n_layer": 3,
                "n_head": 4,
                "vocab_size": 60,
                "n_positions": 24,
                "add_cross_attention": True,
            },
            "decoder_start_token_id": 2,
            "pad_token_id": 0,
        },
    ),
}

_USES = (
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)

ARCHITECTURES = (
    *(f"{family}{use}" for family in ("Roberta", "DistilBert", "MPNet", "Electra") for use in _USES),
    "ElectraForPreTraining",
    *(f"RoFormer{use}" for use in _USES[:-1]),
    "BartModel",
    "BartForConditionalGeneration",
    "T5ForConditionalGeneration",
    "EncoderDecoderModel",
    "VisionEncoderDecoderModel",
)


def text_case(architecture: str) -> Case:
    """No real token is the padding id, by which RoBERTa and MPNet count positions, and every padded one is."""
    mask = ragged(4, 9)
    words = ids(4, 9).clamp(min=6).masked_fill(mask == 0, 1)
    batch: Batch = {"input_ids": words, "attention_mask": mask}
    if not architecture.startswith(("DistilBert", "MPNet")):
        batch["token_type_ids"] = torch.randint(0, 2, (4, 9))
    return Case(batch, {"": mask})


def pair_case(architecture: str) -> Case:
    mask, target = ragged(4, 9), ragged(4, 7)
    batch = {
        "input_ids": ids(4, 9),
        "attention_mask": mask,
        "decoder_input_ids": ids(4, 7),
        "decoder_attention_mask": target,
    }
    return Case(batch, {"encoder": mask, "": target, "cross": target})


def picture_case(architecture: str) -> Case:
    target = ragged(4, 7)
    batch = {
        "pixel_values": torch.randn(4, 3, 24, 24),
        "decoder_input_ids": ids(4, 7),
        "decoder_attention_mask": target,
    }
    return Case(batch, {"": target, "cross": target})


CASES: dict[str, Callable[[str], Case]] = {
    **dict.fromkeys(HOMES, text_case),
    "Bart": pair_case,
    "T5": pair_case,
    "EncoderDecoder": pair_case,
    "VisionEncoderDecoder": picture_case,
}


def _tokens(batch: Batch) -> Batch:
    return {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def _flags(batch: Batch) -> Batch:
    return {"labels": (batch["input_ids"] % 2).masked_fill(batch["attention_mask"] == 0, -100)}


def _targets(batch: Batch) -> Batch:
    return {"labels": batch["decoder_input_ids"].masked_fill(batch["decoder_attention_mask"] == 0, -100)}


_LABELS: dict[str, Callable[[Batch], Batch]] = {
    "ForMaskedLM": _tokens,
    "ForSequenceClassification": lambda batch: {"labels": torch.tensor([0, 1, 1, 0])},
    "ForTokenClassification": _flags,
    "ForPreTraining": _flags,
    "ForQuestionAnswering": lambda batch: {
        "start_positions": torch.tensor([0, 1, 0, 40]),
        "end_positions": torch.tensor([3, 1, 0, 2]),
    },
    "ForMultipleChoice": lambda batch: {"labels": torch.tensor([1, 0])},
    "ForConditionalGeneration": _targets,
    "EncoderDecoderModel": _targets,
}
LABELS: dict[str, Callable[[Batch], Batch]] = {
    name: make for name in ARCHITECTURES for use, make in _LABELS.items() if name.endswith(use)
}

# How far the sweep in double precision may be off: T5's oracle takes the mean of squares in single precision.
TOLERANCES = {"T5": 1e-5}

# For the sweep over config fields: values of fields that these configs alone have, and what must change beside them.
VALUES: dict[str, Any] = {
    "dim": 40,
    "hidden_dim": 56,
    "n_heads": 2,
    "activation": "relu",
    "embedding_size": 24,
    "feed_forward_proj": "gated-gelu",
    "num_heads": 2,
    "d_kv": 10,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 9,
}
# Further values of fields whose values differ in kind.
MORE: list[tuple[str, str, Any]] = [
    ("T5ForConditionalGeneration", "feed_forward_proj", "gelu"),
    ("T5ForConditionalGeneration", "feed_forward_proj", "gated-silu"),
    ("T5ForConditionalGeneration", "tie_word_embeddings", False),
    ("RobertaForMaskedLM", "tie_word_embeddings", False),
]
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    (family, "add_cross_attention"): {"is_decoder": True} for family in ("Roberta", "Electra", "RoFormer")
}
