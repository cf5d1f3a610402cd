"""The published sizes of BERT's kin and of the encoder-decoders."""

from __future__ import annotations

from typing import Any


def _encoder(n_layers: int, width: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": n_layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        **more,
    }


def _bart(n_layers: int, width: int, heads: int) -> dict[str, Any]:
    sides = {"layers": n_layers, "attention_heads": heads, "ffn_dim": 4 * width}
    return {"d_model": width, **{f"{side}_{k}": v for side in ("encoder", "decoder") for k, v in sides.items()}}


def _t5(n_layers: int, width: int, heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    return {"num_layers": n_layers, "d_model": width, "num_heads": heads, "d_ff": hidden, **more}


_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_T5_1_1 = {
    "t5-v1.1-small": _t5(8, 512, 6, 1024, **_GATED),
    "t5-v1.1-base": _t5(12, 768, 12, 2048, **_GATED),
    "t5-v1.1-large": _t5(24, 1024, 16, 2816, **_GATED),
    "t5-v1.1-xl": _t5(24, 2048, 32, 5120, **_GATED),
    "t5-v1.1-xxl": _t5(24, 4096, 64, 10240, **_GATED),
}
_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}
_ELECTRA = {
    "electra-small": _encoder(12, 256, 4, embedding_size=128),
    "electra-base": _encoder(12, 768, 12, embedding_size=768),
    "electra-large": _encoder(24, 1024, 16, embedding_size=1024),
}
_GENERATORS = {
    f"{name}-generator": _encoder(size["num_hidden_layers"], 256, 4, embedding_size=size["embedding_size"])
    for name, size in _ELECTRA.items()
}

PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "minilm-l6": ("BertModel", "BertConfig", _encoder(6, 384, 12)),
    "roberta-base": ("RobertaForMaskedLM", "RobertaConfig", _ROBERTA),
    "roberta-large": ("RobertaForMaskedLM", "RobertaConfig", _encoder(24, 1024, 16, **_ROBERTA)),
    "distilbert-base": ("DistilBertForMaskedLM", "DistilBertConfig", {}),
    "modernbert-base": ("ModernBertForMaskedLM", "ModernBertConfig", {}),
    "modernbert-large": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2624},
    ),
    "mpnet-base": ("MPNetForMaskedLM", "MPNetConfig", {"max_position_embeddings": 514}),
    **{name: ("ElectraForPreTraining", "ElectraConfig", size) for name, size in _ELECTRA.items()},
    **{name: ("ElectraForMaskedLM", "ElectraConfig", size) for name, size in _GENERATORS.items()},
    "roformer-base": ("RoFormerForMaskedLM", "RoFormerConfig", {}),
    "bart-base": ("BartForConditionalGeneration", "BartConfig", _bart(6, 768, 12)),
    "bart-large": ("BartForConditionalGeneration", "BartConfig", _bart(12, 1024, 16)),
    "t5-small": ("T5ForConditionalGeneration", "T5Config", {}),
    "t5-base": ("T5ForConditionalGeneration", "T5Config", _t5(12, 768, 12, 3072)),
    "t5-large": ("T5ForConditionalGeneration", "T5Config", _t5(24, 1024, 16, 4096)),
    "t5-3b": ("T5ForConditionalGeneration", "T5Config", _t5(24, 1024, 32, 16384, d_kv=128)),
    "t5-11b": ("T5ForConditionalGeneration", "T5Config", _t5(24, 1024, 128, 65536, d_kv=128)),
    **{name: ("T5ForConditionalGeneration", "T5Config", size) for name, size in _T5_1_1.items()},
    "bert2bert-base": (
        "EncoderDecoderModel",
        "EncoderDecoderConfig",
        {
            "encoder": {"model_type": "bert"},
            "decoder": {"model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        },
    ),
    "vit-gpt2": (
        "VisionEncoderDecoderModel",
        "VisionEncoderDecoderConfig",
        {"encoder": {"model_type": "vit"}, "decoder": {"model_type": "gpt2", "add_cross_attention": True}},
    ),
}

# recipe -> the two published models that it holds at once
JOINT = {name.replace("electra", "electra-joint"): (name, f"{name}-generator") for name in _ELECTRA}

# What the published weights hold and transformers 5 does not: see the table of each.
BESIDES: dict[str, int] = {
    "roformer-base": -1536 * 64,  # its sines and cosines are computed here
    # The output matrix, which transformers 5 ties to the words in a model that it makes itself.
    **{name: 32128 * int(size["d_model"]) for name, size in _T5_1_1.items()},
}


def shared(name: str) -> int:
    return (30522 + 512 + 2) * int(_ELECTRA[name]["embedding_size"])
