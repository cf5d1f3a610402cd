"""The published sizes have the parameter counts of the Hugging Face class at the published config."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.registry import recipe
from tests.checkpoints.oracles import hf_class
from tests.recipes import sizes_decoders as decoders
from tests.recipes import sizes_enc, sizes_pose, sizes_sound, sizes_vision, sizes_vit
from tests.tiny import tiny_recipes

_BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_BASE = {
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
}
_BIG = {
    **_BASE,
    "d_model": 1024,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
}


def vit(n_layers: int, width: int, heads: int, patch: int = 16) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "patch_size": patch,
        "num_labels": 1000,
    }


def detr(depths: tuple[int, ...] = (3, 4, 6, 3)) -> dict[str, Any]:
    return {"resnet": {"depths": depths, "out_features": ["stage4"]}, "num_labels": 91}


def imagegpt(n_layers: int, width: int, heads: int) -> dict[str, Any]:
    return {"n_layer": n_layers, "n_embd": width, "n_head": heads}


def mamba(n_layers: int, width: int) -> dict[str, Any]:
    return {"num_hidden_layers": n_layers, "hidden_size": width}


# recipe -> (class, config class, config)
PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2-124m": ("GPT2LMHeadModel", "GPT2Config", {}),
    "gpt2-355m": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 1024, "n_layer": 24, "n_head": 16}),
    "gpt2-774m": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "gpt2-1.5b": ("GPT2LMHeadModel", "GPT2Config", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
    "bert-base": ("BertForPreTraining", "BertConfig", {}),
    "bert-large": ("BertForPreTraining", "BertConfig", _BERT_LARGE),
    "transformer-base": ("MarianMTModel", "MarianConfig", {**_BASE, "vocab_size": 37000, "pad_token_id": 0}),
    "transformer-big": ("MarianMTModel", "MarianConfig", {**_BIG, "vocab_size": 37000, "pad_token_id": 0}),
    "marian-opus": ("MarianMTModel", "MarianConfig", {**_BASE, "max_position_embeddings": 512}),
    "vit-ti16": ("ViTForImageClassification", "ViTConfig", vit(12, 192, 3)),
    "vit-s16": ("ViTForImageClassification", "ViTConfig", vit(12, 384, 6)),
    "vit-b16": ("ViTForImageClassification", "ViTConfig", vit(12, 768, 12)),
    "vit-b32": ("ViTForImageClassification", "ViTConfig", vit(12, 768, 12, 32)),
    "vit-l16": ("ViTForImageClassification", "ViTConfig", vit(24, 1024, 16)),
    "vit-l32": ("ViTForImageClassification", "ViTConfig", vit(24, 1024, 16, 32)),
    "vit-h14": ("ViTForImageClassification", "ViTConfig", vit(32, 1280, 16, 14)),
    "mae-b16": ("ViTMAEForPreTraining", "ViTMAEConfig", vit(12, 768, 12)),
    "mae-l16": ("ViTMAEForPreTraining", "ViTMAEConfig", vit(24, 1024, 16)),
    "mae-h14": ("ViTMAEForPreTraining", "ViTMAEConfig", vit(32, 1280, 16, 14)),
    "detr-r50": ("DetrForObjectDetection", "DetrConfig", detr()),
    "detr-r50-dc5": ("DetrForObjectDetection", "DetrConfig", detr()),
    "detr-r101": ("DetrForObjectDetection", "DetrConfig", detr((3, 4, 23, 3))),
    "detr-r101-dc5": ("DetrForObjectDetection", "DetrConfig", detr((3, 4, 23, 3))),
    "imagegpt-cifar": ("ImageGPTForCausalImageModeling", "ImageGPTConfig", imagegpt(8, 384, 6)),
    "imagegpt-small": ("ImageGPTForCausalImageModeling", "ImageGPTConfig", imagegpt(24, 512, 8)),
    "imagegpt-medium": ("ImageGPTForCausalImageModeling", "ImageGPTConfig", imagegpt(36, 1024, 8)),
    "imagegpt-large": ("ImageGPTForCausalImageModeling", "ImageGPTConfig", imagegpt(48, 1536, 16)),
    "mamba-130m": ("MambaForCausalLM", "MambaConfig", mamba(24, 768)),
    "mamba-370m": ("MambaForCausalLM", "MambaConfig", mamba(48, 1024)),
    "mamba-790m": ("MambaForCausalLM", "MambaConfig", mamba(48, 1536)),
    "mamba-1.4b": ("MambaForCausalLM", "MambaConfig", mamba(48, 2048)),
    "mamba-2.8b": ("MambaForCausalLM", "MambaConfig", mamba(64, 2560)),
    "perceiver-language": ("PerceiverForMaskedLM", "PerceiverConfig", {}),
    "perceiver-image": (
        "PerceiverForImageClassificationLearned",
        "PerceiverConfig",
        {
            "num_latents": 512,
            "d_latents": 1024,
            "num_blocks": 8,
            "num_self_attends_per_block": 6,
            "num_cross_attention_heads": 1,
            "image_size": 224,
            "num_labels": 1000,
        },
    ),
    "perceiver-fourier": (
        "PerceiverForImageClassificationFourier",
        "PerceiverConfig",
        {
            "num_latents": 512,
            "d_latents": 1024,
            "num_blocks": 8,
            "num_self_attends_per_block": 6,
            "num_cross_attention_heads": 1,
            "num_labels": 1000,
        },
    ),
    **decoders.PUBLISHED,
}

PUBLISHED |= sizes_enc.PUBLISHED
PUBLISHED |= sizes_vision.PUBLISHED
PUBLISHED |= sizes_vit.PUBLISHED
PUBLISHED |= sizes_pose.PUBLISHED
PUBLISHED |= sizes_sound.PUBLISHED

# Recipes of families that have no Hugging Face class, with the count that the paper prints.
PAPERS: dict[str, float] = {
    "dalle-12b": 12e9,
    "transformer-xl-41m": 41e6,
    "transformer-xl-277m": 277e6,
    "sutskever-384m": 384e6,
}


def gates(n: int, d_in: int, d: int) -> int:
    """Parameters of a PyTorch cell with n gates."""
    return n * d * (d_in + d + 2)


# Values of three channels and the first token; rows, columns, channels; eight blocks; a norm; the output.
_PIXELS = sum(
    (
        (3 * 256 + 1) * 384,
        (32 + 32 + 3) * 384,
        8 * (4 * 384**2 + 2 * 384 * 1536 + 1536 + 384 + 4 * 384),
        2 * 384,
        256 * 384,
    )
)

# And, where it prints none, the sum of what it describes.
COUNTED: dict[str, int] = {
    **sizes_sound.COUNTED,
    # bytes, padding and colors; places of the text, rows, columns; eight blocks; a norm
    "dalle-cifar": (257 + 512 + 16 + 32 + 32) * 384 + 8 * (12 * 384**2 + 13 * 384) + 2 * 384,
    # latents; reading pixels of 133 features; eight blocks; the query; answering; the classes
    "perceiver-cifar": sum(
        (
            128 * 256,
            2 * 256 + 2 * 133 + (256 + 2 * 133 + 3) * 133 + 133 * 256 + 256 + 2 * 256 + 2 * (256**2 + 256),
            8 * (4 * 256 + 4 * (256**2 + 256) + 4 * 256**2 + 3 * 256),
            256,
            6 * 256 + 6 * (256**2 + 256),
            10 * 257,
        )
    ),
    "image-transformer-cifar-1d": _PIXELS,
    "image-transformer-cifar-2d": _PIXELS,
    # words of both sides, encoder, start, score, decoder, maxout, output
    "bahdanau-search50": sum(
        (
            2 * 30_000 * 620,
            2 * gates(3, 620, 1000),
            1000 * 1000 + 1000,
            1000 * (1000 + 2000) + 1000,
            gates(3, 620 + 2000, 1000),
            1000 * (1000 + 620 + 2000) + 1000,
            30_000 * 500 + 30_000,
        )
    ),
    # words of both sides, encoder, decoder whose first layer is fed, score, attentional vector, output
    "luong-general": sum(
        (
            2 * 50_000 * 1000,
            4 * gates(4, 1000, 1000),
            gates(4, 2000, 1000) + 3 * gates(4, 1000, 1000),
            1000 * 1000,
            1000 * 2000,
            50_000 * 1000 + 50_000,
        )
    ),
}


COUNTED |= sizes_vit.COUNTED
COUNTED |= sizes_pose.COUNTED


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def theirs(name: str) -> int:
    architecture, config_class, values = PUBLISHED[name]
    resnet, vitpose = values.get("resnet"), values.get("vitpose")
    values = {key: value for key, value in values.items() if key not in ("resnet", "vitpose")}
    if vitpose is not None:
        values |= {"backbone_config": hf_class("VitPoseBackboneConfig")(**vitpose)}
    if resnet is not None:
        values |= {"use_timm_backbone": False, "backbone_config": hf_class("ResNetConfig")(**resnet)}
    besides = {**sizes_enc.BESIDES, **sizes_pose.BESIDES, **sizes_sound.BESIDES}.get(name, 0)
    with torch.device("meta"):
        return count(hf_class(architecture)(hf_class(config_class)(**values))) + besides


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_count(name: str) -> None:
    found = recipe(name)
    with torch.device("meta"):
        ours = count(found.family.build(found.config))
    assert ours == theirs(name)


# Sizes of our own for some ten thousands of rows: there is no published count to compare with.
SMALL_DATA = frozenset(
    "bahdanau-small bert-mini bilstm-small bytenet-small convs2s-small detr-small detr-small-vit electra-joint-mini"
    " gpt2-char gpt2-char-cpu gpt2-mini luong-small mamba-mini sutskever-small textcnn-small transformer-small"
    " transformer-xl-mini".split()
)


def test_every_published_size_is_checked() -> None:
    sizes = set(af.recipes()) - set(tiny_recipes())
    own = SMALL_DATA | sizes_vision.OWN
    assert sizes == set(PUBLISHED) | set(PAPERS) | set(COUNTED) | set(sizes_enc.JOINT) | own


@pytest.mark.parametrize("name", sorted(SMALL_DATA))
def test_sizes_for_small_data_are_small(name: str) -> None:
    """Words aside, whose number the data decide."""
    found = recipe(name)
    names = {"vocab_size", "target_vocab_size"} & set(found.config.field_names())
    few = found.config.replace(**dict.fromkeys(names, 256))
    with torch.device("meta"):
        assert count(found.family.build(few)) < 20_000_000


@pytest.mark.parametrize("name", sorted(sizes_enc.JOINT))
def test_joint_parameter_count(name: str) -> None:
    """Two published models that share their word, position and type vectors."""
    discriminator, generator = sizes_enc.JOINT[name]
    found = recipe(name)
    with torch.device("meta"):
        ours = count(found.family.build(found.config))
    assert ours == theirs(discriminator) + theirs(generator) - sizes_enc.shared(discriminator)


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_parts_add_up(name: str) -> None:
    found = recipe(name)
    with torch.device("meta"):
        assert count(found.family.build(found.config)) == COUNTED[name]


def test_the_papers_own_figures() -> None:
    """The counts that the papers print, where they print them: BERT 110M and 340M, GPT-2 1.5B, DETR-R50 41M."""
    figures = {"bert-base": 110e6, "bert-large": 340e6, "gpt2-1.5b": 1.54e9, "vit-b16": 86e6, "detr-r50": 41e6}
    for name, published in {**figures, **PAPERS, **decoders.FIGURES}.items():
        found = recipe(name)
        with torch.device("meta"):
            ours = count(found.family.build(found.config))
        assert abs(ours - published) / published < 0.02, (name, ours)
