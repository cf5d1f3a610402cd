"""DETR (Carion et al. 2020): as the original Transformer, except that the encoder reads the feature grid of a residual
network, the decoder reads learned queries all at once instead of words one by one, and positions are added to queries
and keys in every layer. Each query gives a class and a box.

Published: R50 42.0, DC5-R50 43.3, R101 43.5, DC5-R101 44.9 AP on COCO (table 1 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from anyformer.config import Settings
from anyformer.core.attention import AttentionConfig
from anyformer.core.block import Block, NormOrder
from anyformer.core.feedforward import FeedForwardConfig
from anyformer.core.init import InitConfig
from anyformer.core.positions import LearnedRowColumn, Positions, Sinusoidal2D
from anyformer.core.stack import Stack
from anyformer.heads.base import Head
from anyformer.heads.boxes import BoxHead
from anyformer.heads.embed import EmbeddingHead
from anyformer.heads.matcher import SetCriterionConfig
from anyformer.inputs.anchors import AnchorQueries, BoxEmbedding
from anyformer.inputs.backbone import BackboneInput
from anyformer.inputs.projection import ProjectedInput
from anyformer.inputs.queries import LearnedQueries
from anyformer.layers.mlp import MLP
from anyformer.layers.resnet import ConvStem, ConvStemConfig, PatchEmbed, ResNetConfig
from anyformer.layers.wrappers import NormedStack, RefiningStack
from anyformer.model import Model, Stage
from anyformer.recipes.common import pair_report, transformer_block
from anyformer.registry import Family, register

LEARNED_CELLS = 50  # rows and columns of the learned variant's tables


@dataclass(frozen=True, kw_only=True)
class DETRConfig(Settings):
    backbone: ResNetConfig = ResNetConfig()
    n_layers: int = 6
    n_decoder_layers: int = 6
    d_model: int = 256
    n_heads: int = 8
    n_decoder_heads: int = 8
    d_hidden: int = 2048
    d_decoder_hidden: int = 2048
    n_queries: int = 100
    image_size: tuple[int, ...] = (800, 1333)  # the shorter side that images are brought to, and the longer's limit
    n_labels: int = 91
    positions: Literal["sine", "learned"] = "sine"
    activation: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    stem: ConvStemConfig | None = None  # a small convolutional network instead of the residual one
    patch_size: int | None = None  # neither: plain ViT blocks on patches of this size
    n_patch_layers: int = 4
    anchors: bool = False  # queries are boxes that every layer moves (DAB-DETR); else learned vectors
    groups: int = 1  # sets of anchors in training, each matched by itself (Group DETR)
    auxiliary_loss: bool = False  # the decoder's norm after every layer, and a result and a loss of each
    class_cost: float = 1.0  # what counts when queries and objects are put together
    box_cost: float = 5.0
    giou_cost: float = 2.0
    box_weight: float = 5.0  # of the losses of those pairs, beside the class's 1
    giou_weight: float = 2.0
    no_object_weight: float = 0.1  # of the class "nothing there"
    head: Literal["base", "boxes"] = "boxes"

    def check(self) -> None:
        for heads in (self.n_heads, self.n_decoder_heads):
            self.require(self.d_model % heads == 0, f"d_model {self.d_model} is not a multiple of {heads} heads.")
        self.require(
            len(self.image_size) == 2 and 0 < self.image_size[0] <= self.image_size[1],
            f"image_size is {self.image_size}; it is two lengths, of the shorter side and of the longer at most.",
        )
        self.require(self.stem is None or self.patch_size is None, "take a stem or patches, not both.")
        self.require(self.anchors or self.groups == 1, "groups are sets of anchors: they need anchors=true.")
        self.require(self.auxiliary_loss or not self.anchors, "anchors are moved by every layer: auxiliary_loss=true.")


def _block(config: DETRConfig, n_heads: int, d_hidden: int, cross: bool, order: NormOrder = "post") -> Block:
    attention = AttentionConfig(d_query=config.d_model, n_heads=n_heads, dropout=config.attention_dropout)
    feedforward = FeedForwardConfig(
        d_model=config.d_model, d_hidden=d_hidden, activation=config.activation, dropout=config.hidden_dropout
    )
    memory = config.d_model if cross else None
    return transformer_block(attention, feedforward, d_context=memory, order=order, dropout=config.dropout)


def _image_stages(config: DETRConfig) -> list[Stage]:
    """The stages up to and with the encoder."""
    places: Positions = Sinusoidal2D(config.d_model)
    if config.positions == "learned":
        places = LearnedRowColumn(LEARNED_CELLS, LEARNED_CELLS, config.d_model)
    net: dict[str, Any] = {"resnet": config.backbone}
    if config.stem is not None:
        stem = config.stem
        net = {"resnet": None, "net": ConvStem(stem), "d_features": stem.d_out, "n_channels": stem.n_channels}
    elif config.patch_size is not None:
        channels, width = config.backbone.n_channels, config.d_model
        patches = PatchEmbed(channels, width, config.patch_size)
        net = {"resnet": None, "net": patches, "d_features": width, "n_channels": channels}
    images = BackboneInput(d_model=config.d_model, positions=places, dropout=config.dropout, **net)
    heads, hidden = config.n_heads, config.d_hidden
    encoder = Stack([_block(config, heads, hidden, cross=False) for _ in range(config.n_layers)])
    if config.patch_size is None:
        return [Stage("encoder", images, encoder)]
    blocks = [_block(config, heads, hidden, cross=False, order="pre") for _ in range(config.n_patch_layers)]
    bridge = ProjectedInput("backbone", config.d_model, config.d_model)
    backbone = Stack(blocks, nn.LayerNorm(config.d_model))
    return [Stage("backbone", images, backbone), Stage("encoder", bridge, encoder)]


def _decoder(config: DETRConfig) -> Stage:
    width, n, norm = config.d_model, config.n_queries, nn.LayerNorm(config.d_model)
    heads, hidden = config.n_decoder_heads, config.d_decoder_hidden
    blocks = [_block(config, heads, hidden, cross=True) for _ in range(config.n_decoder_layers)]
    if not config.anchors:
        queries = LearnedQueries(n, width, "encoder", as_pos_embed=True, prefix="decoder_")
        stack = NormedStack(blocks, norm) if config.auxiliary_loss else Stack(blocks, norm)
        return Stage("decoder", queries, stack, attends="encoder")
    anchors = AnchorQueries(n, width, "encoder", config.groups)
    refining = RefiningStack(blocks, norm, MLP(width, width, width, 4, zero=True), BoxEmbedding(width))
    decoder = Stage("decoder", anchors, refining, attends="encoder")
    decoder.packable = False  # the groups of an image share its cells
    return decoder


def build(config: DETRConfig) -> Model:
    stages = [*_image_stages(config), _decoder(config)]
    names = ("class_cost", "box_cost", "giou_cost", "box_weight", "giou_weight", "no_object_weight")
    loss = SetCriterionConfig(**{name: getattr(config, name) for name in names})
    head: Head = EmbeddingHead("decoder")
    if config.head == "boxes":
        head = BoxHead(
            config.d_model, config.n_labels, "decoder", config.auxiliary_loss, loss, config.anchors, config.groups
        )
    report = pair_report(config.n_layers, config.n_decoder_layers, normed=(False, True))
    return Model("detr", config, stages, {config.head: head}, report)


def init(config: DETRConfig) -> InitConfig:
    return InitConfig(linear="xavier", embedding_std=1.0)


_R101 = ResNetConfig(depths=(3, 4, 23, 3))

SIZES = {
    "detr-tiny": DETRConfig(
        backbone=ResNetConfig(block="basic", d_stem=8, widths=(8, 16, 24, 32), depths=(1, 1, 1, 1)),
        n_layers=1,
        n_decoder_layers=2,
        d_model=32,
        n_heads=4,
        n_decoder_heads=4,
        d_hidden=64,
        d_decoder_hidden=64,
        n_queries=10,
        image_size=(64, 96),
        n_labels=3,
    ),
    # For a few hundred images of some 320 x 240, from scratch.
    "detr-small": DETRConfig(
        image_size=(288, 512),
        stem=ConvStemConfig(),
        anchors=True,
        auxiliary_loss=True,
        n_layers=3,
        n_decoder_layers=3,
        d_hidden=1024,
        d_decoder_hidden=1024,
    ),
    "detr-small-vit": DETRConfig(
        image_size=(288, 512),
        patch_size=16,
        n_patch_layers=6,
        anchors=True,
        auxiliary_loss=True,
        n_layers=1,
        n_decoder_layers=3,
        d_hidden=1024,
        d_decoder_hidden=1024,
    ),
    "detr-r50": DETRConfig(),
    "detr-r50-dc5": DETRConfig(backbone=ResNetConfig(dilation=True)),
    "detr-r101": DETRConfig(backbone=_R101),
    "detr-r101-dc5": DETRConfig(backbone=_R101.replace(dilation=True)),
}

register(Family("detr", DETRConfig, build, init, __doc__ or ""), SIZES)
