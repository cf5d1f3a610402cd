"""Folders as they lie on the hub: older tensor names, missing prefixes, leftover buffers, older config fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import anyformer as af
from tests.checkpoints.compare import compare
from tests.checkpoints.oracles import Case, make_case, make_oracle, save_oracle

Tensors = dict[str, Tensor]


def rewrite(
    folder: Path, tensors: Callable[[Tensors], Tensors], config: dict[str, Any], drop: tuple[str, ...] = ("dtype",)
) -> Path:
    """Change a folder that today's transformers wrote into what an older one left."""
    file = folder / "model.safetensors"
    save_file({name: t.contiguous().clone() for name, t in tensors(load_file(file)).items()}, file, {"format": "pt"})
    path = folder / "config.json"
    today = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps({**today, "torch_dtype": "float32", "transformers_version": "4.6.0.dev0", **config}))
    return folder


def check(oracle: Any, folder: Path, case: Case) -> None:
    model = af.load(folder)
    with torch.no_grad():
        compare(model(**case.batch), oracle(**case.batch), case)


def test_gpt2(tmp_path: Path) -> None:
    """No prefix, the causal mask as a buffer, a copy of the tied matrix, n_ctx and task settings in the config."""

    def old(tensors: Tensors) -> Tensors:
        bare = {name.removeprefix("transformer."): t for name, t in tensors.items()}
        masks = {f"h.{i}.attn.bias": torch.ones(24, 24).tril().view(1, 1, 24, 24) for i in range(3)}
        masks |= {f"h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(3)}
        return {**bare, **masks, "lm_head.weight": bare["wte.weight"]}

    config = {
        "n_ctx": 24,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        "gradient_checkpointing": False,
    }
    oracle = make_oracle("GPT2LMHeadModel")
    drop = ("dtype", "add_cross_attention", "tie_word_embeddings", "scale_attn_by_inverse_layer_idx")
    check(oracle, rewrite(save_oracle(oracle, tmp_path), old, config, drop), make_case("GPT2LMHeadModel"))


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertForPreTraining", "BertModel"])
def test_bert(architecture: str, tmp_path: Path) -> None:
    """gamma and beta, the position buffer, the tied copy, heads that this architecture does not use."""
    pretrained = load_pretraining()

    def old(tensors: Tensors) -> Tensors:
        if architecture == "BertModel":
            tensors = {f"bert.{name}": t for name, t in tensors.items()}
        spelled = {**pretrained, **tensors}
        spelled["bert.embeddings.position_ids"] = torch.arange(24).unsqueeze(0)
        if architecture != "BertModel":
            spelled["cls.predictions.decoder.weight"] = spelled["bert.embeddings.word_embeddings.weight"]
        names = {
            n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            for n in spelled
        }
        return {names[n]: t for n, t in spelled.items()}

    config = {
        "position_embedding_type": "absolute",
        "gradient_checkpointing": False,
        "pooler_type": "first_token_transform",
    }
    oracle = make_oracle(architecture)
    folder = rewrite(save_oracle(oracle, tmp_path), old, config, ("dtype", "classifier_dropout"))
    check(oracle, folder, make_case(architecture))


def load_pretraining() -> Tensors:
    """The heads that a file of the whole pre-trained model holds."""
    state = make_oracle("BertForPreTraining", seed=5).state_dict()
    kept = {name: t for name, t in state.items() if name.startswith(("cls.", "bert.pooler."))}
    return {name: t for name, t in kept.items() if not name.startswith("cls.predictions.decoder")}


def test_bert_without_prefix(tmp_path: Path) -> None:
    """A bare encoder's file names under a class with a prefix, and the other way round."""
    oracle = make_oracle("BertModel")
    folder = rewrite(save_oracle(oracle, tmp_path), lambda t: {f"bert.{n}": v for n, v in t.items()}, {})
    check(oracle, folder, make_case("BertModel"))


def test_marian(tmp_path: Path) -> None:
    """Every tied copy, the sinusoids, and the many settings of the first converter."""
    oracle = make_oracle("MarianMTModel")

    def old(tensors: Tensors) -> Tensors:
        table = tensors["model.shared.weight"]
        copies = dict.fromkeys(
            ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"), table
        )
        sines = {
            f"model.{side}.embed_positions.weight": oracle.model.encoder.embed_positions.weight.data
            for side in ("encoder", "decoder")
        }
        return {**tensors, **copies, **sines}

    config = {
        "_num_labels": 3,
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "bad_words_ids": [[59]],
        "classif_dropout": 0.0,
        "classifier_dropout": 0.0,
        "gradient_checkpointing": False,
        "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
        "max_length": 512,
        "normalize_before": False,
        "normalize_embedding": False,
        "num_beams": 6,
        "num_hidden_layers": 2,
        "static_position_embeddings": True,
    }
    drop = ("dtype", "decoder_vocab_size", "share_encoder_decoder_embeddings", "tie_word_embeddings")
    check(oracle, rewrite(save_oracle(oracle, tmp_path), old, config, drop), make_case("MarianMTModel"))


@pytest.mark.parametrize("architecture", ["ViTForImageClassification", "ViTModel"])
def test_vit(architecture: str, tmp_path: Path) -> None:
    """The names that today's transformers has in memory, and a pooler that the classifier does not use."""
    oracle = make_oracle(architecture)

    def memory(tensors: Tensors) -> Tensors:
        extra = {"vit.pooler.dense.weight": torch.ones(32, 32), "vit.pooler.dense.bias": torch.ones(32)}
        return {**oracle.state_dict(), **(extra if architecture == "ViTForImageClassification" else {})}

    folder = rewrite(
        save_oracle(oracle, tmp_path), memory, {}, ("dtype", "pooler_act", "pooler_output_size", "qkv_bias")
    )
    check(oracle, folder, make_case(architecture))


@pytest.mark.parametrize("spelling", ["hub", "memory"])
def test_mae(spelling: str, tmp_path: Path) -> None:
    """The decoder's layers as the hub has them, and as transformers has them in memory."""
    oracle = make_oracle("ViTMAEForPreTraining")

    def old(tensors: Tensors) -> Tensors:
        if spelling == "memory":
            return dict(oracle.state_dict())
        return {name.replace("decoder_encoder.layer.", "decoder_layers."): t for name, t in tensors.items()}

    check(oracle, rewrite(save_oracle(oracle, tmp_path), old, {}), make_case("ViTMAEForPreTraining"))


def to_timm(name: str) -> str:
    """transformers' name of a tensor of the residual network -> timm's, written out from timm's module names."""
    prefix = "model.backbone.conv_encoder.model."
    if not name.startswith(prefix):
        return name
    name = name.removeprefix(prefix).replace("convolution", "conv").replace("normalization", "bn")
    if name.startswith("embedder.embedder."):
        return prefix + re.sub(r"embedder\.embedder\.(conv|bn)", r"\g<1>1", name)
    stage, block, rest = re.fullmatch(r"encoder\.stages\.(\d)\.layers\.(\d+)\.(.*)", name).groups()  # type: ignore[union-attr]
    head = f"{prefix}layer{int(stage) + 1}.{block}."
    if rest.startswith("shortcut"):
        return head + rest.replace("shortcut.conv", "downsample.0").replace("shortcut.bn", "downsample.1")
    number, kind, leaf = re.fullmatch(r"layer\.(\d)\.(conv|bn)\.(.*)", rest).groups()  # type: ignore[union-attr]
    return f"{head}{kind}{int(number) + 1}.{leaf}"


RESNET18 = {
    "embedding_size": 64,
    "hidden_sizes": [64, 128, 256, 512],
    "depths": [2, 2, 2, 2],
    "layer_type": "basic",
    "out_features": ["stage4"],
}


@pytest.mark.parametrize("dilation", [False, True], ids=["plain", "dc5"])
def test_detr_timm(dilation: bool, tmp_path: Path) -> None:
    """The hub's form: timm's tensor names, "backbone": "resnet18"; DC5 spreads the last stage's kernels."""
    oracle = make_oracle("DetrForObjectDetection", backbone_config=RESNET18)
    save_oracle(oracle, tmp_path)
    if dilation:
        dilate(oracle.model.backbone.model.encoder.stages[3])

    def old(tensors: Tensors) -> Tensors:
        tracked = {"model.backbone.conv_encoder.model.bn1.num_batches_tracked": torch.tensor(3)}
        return {**{to_timm(name): t for name, t in tensors.items()}, **tracked}

    config = {
        "backbone": "resnet18",
        "use_timm_backbone": True,
        "dilation": dilation,
        "max_position_embeddings": 1024,
        "scale_embedding": False,
        "num_hidden_layers": 2,
        "classifier_dropout": 0.0,
    }
    folder = rewrite(tmp_path, old, config, ("dtype", "backbone_config", "use_pretrained_backbone"))
    case = make_case("DetrForObjectDetection")
    if dilation:
        case = Case({"pixel_values": case.batch["pixel_values"]}, {})
    check(oracle, folder, case)
    model = af.load(folder)
    model.save(tmp_path / "again", format="hf")
    with torch.no_grad():
        again = af.load(tmp_path / "again")(**case.batch).logits
        assert torch.equal(again, model(**case.batch).logits)


def dilate(stage: Any) -> None:
    """What DC5 means, done to transformers' own network: no stride, kernels spread after the first block."""
    for number, block in enumerate(stage.layers):
        for module in block.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.stride = (1, 1)
        for place, layer in enumerate(block.layer):
            if layer.convolution.kernel_size == (3, 3) and (number > 0 or place > 0):
                layer.convolution.dilation = layer.convolution.padding = (2, 2)


def test_perceiver(tmp_path: Path) -> None:
    """An older config, without the fields that came later."""
    oracle = make_oracle("PerceiverForMaskedLM")
    folder = rewrite(save_oracle(oracle, tmp_path), lambda t: t, {"qk_channels": None}, ("dtype", "use_query_residual"))
    check(oracle, folder, make_case("PerceiverForMaskedLM"))


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "MarianMTModel", "DetrForObjectDetection"])
def test_sharded(architecture: str, tmp_path: Path) -> None:
    """Several files with an index."""
    oracle = make_oracle(architecture)
    save_oracle(oracle, tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    check(oracle, tmp_path, make_case(architecture))


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "BertForMaskedLM", "BertForPreTraining"])
def test_untied(architecture: str, tmp_path: Path) -> None:
    """An output matrix of its own."""
    oracle = make_oracle(architecture, tie_word_embeddings=False)
    check(oracle, save_oracle(oracle, tmp_path), make_case(architecture))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_marian_tables(shared: bool, tied: bool, tmp_path: Path) -> None:
    """One table for both languages or two, an output that shares it or not; a vocabulary for each side."""
    changes = {} if shared else {"decoder_vocab_size": 70}
    oracle = make_oracle("MarianMTModel", share_encoder_decoder_embeddings=shared, tie_word_embeddings=tied, **changes)
    case = make_case("MarianMTModel")
    check(oracle, save_oracle(oracle, tmp_path / "theirs"), case)
    af.load(tmp_path / "theirs").save(tmp_path / "ours", format="hf")
    back, info = type(oracle).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        assert torch.equal(back(**case.batch).logits, oracle(**case.batch).logits)
