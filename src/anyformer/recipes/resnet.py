"""Residual network (He et al. 2016): not a transformer, and here as the one that vision transformers are measured
against. As the backbone of DETR, except that batch norm learns, and the mean over the image is classified.

Published: 18 30.2%, 34 26.7%, 50 23.9%, 101 22.6%, 152 22.2% top-1 error on ImageNet, ten crops (table 4 of the
paper, 50 and deeper table 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.heads.base import Head
from anyformer.heads.classify import ClassificationConfig, ClassificationHead, Problem
from anyformer.heads.embed import FeatureMapHead
from anyformer.inputs.backbone import FeatureInput
from anyformer.layers.resnet import ResNetConfig
from anyformer.model import Model, OutputSpec, Stage
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class ResNetClassifierConfig(Settings):
    backbone: ResNetConfig = ResNetConfig(norm="batch")
    image_size: tuple[int, ...] = (224, 224)  # of the images that it is trained on; it takes any
    head: Literal["base", "classify"] = "classify"
    n_labels: int = 1000
    problem: Problem | None = None

    @property
    def n_channels(self) -> int:
        return self.backbone.n_channels


def build(config: ResNetClassifierConfig) -> Model:
    classify = ClassificationConfig(
        d_model=config.backbone.d_out,
        n_labels=config.n_labels,
        stage="encoder",
        pooling="mean",
        problem=config.problem,
    )
    base = config.head == "base"
    head: Head = FeatureMapHead("encoder") if base else ClassificationHead(classify)
    report = OutputSpec(features={"hidden_states": ("encoder.inputs.resnet.features",)})
    return Model("resnet", config, [Stage("encoder", FeatureInput(config.backbone), None)], {config.head: head}, report)


def init(config: ResNetClassifierConfig) -> InitConfig:
    return InitConfig(std=0.01)


def _size(depths: tuple[int, ...], kind: Literal["basic", "bottleneck"] = "bottleneck") -> ResNetClassifierConfig:
    widths = (64, 128, 256, 512) if kind == "basic" else (256, 512, 1024, 2048)
    return ResNetClassifierConfig(backbone=ResNetConfig(block=kind, widths=widths, depths=depths, norm="batch"))


def _small(d_stem: int, widths: tuple[int, ...], depths: tuple[int, ...]) -> ResNetClassifierConfig:
    """For images of 32 x 32, as in the paper's section 4.2."""
    backbone = ResNetConfig(block="basic", d_stem=d_stem, widths=widths, depths=depths, stem="small", norm="batch")
    return ResNetClassifierConfig(backbone=backbone, image_size=(32, 32), n_labels=10)


SIZES = {
    "resnet-tiny": _small(8, (8, 16, 24), (1, 1, 1)),
    "resnet-cifar": _small(64, (64, 128, 256), (2, 2, 3)),
    "resnet-18": _size((2, 2, 2, 2), "basic"),
    "resnet-34": _size((3, 4, 6, 3), "basic"),
    "resnet-50": _size((3, 4, 6, 3)),
    "resnet-101": _size((3, 4, 23, 3)),
    "resnet-152": _size((3, 8, 36, 3)),
}

register(Family("resnet", ResNetClassifierConfig, build, init, __doc__ or ""), SIZES)
