"""A plugin with a score, a position encoding, a family that uses them, and a task. Tests copy this file."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import anyformer as af
from anyformer import plugins
from anyformer.core.positions import BiasedPositions
from anyformer.heads.language import LanguageConfig, LanguageHead
from anyformer.inputs.text import TextInput, TextInputConfig
from anyformer.recipes.common import stack_report
from anyformer.tasks.answers import Label
from anyformer.tasks.classify_text import ClassifyText


class Distance(nn.Module):
    """The score: minus the distance of a query and a key."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -torch.cdist(query, key)


class Parity(af.Positions):
    """Odd and even places, by a number that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.ones(1))

    def reset(self, std: float = 0.0) -> None:
        nn.init.ones_(self.step)

    def forward(self, tokens: af.Tokens) -> Tensor:
        places = torch.arange(tokens.x.shape[1], device=tokens.x.device)
        return (places % 2)[:, None] * self.step.expand(tokens.x.shape[-1])


class Slope(BiasedPositions):
    """A bias: keys that are further away get lower scores."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("steps", torch.linspace(0.1, 1.0, n_heads)[:, None, None], persistent=False)

    def reset(self, std: float = 0.0) -> None:
        self.steps = torch.linspace(0.1, 1.0, len(self.steps))[:, None, None]

    def forward(
        self, query: Tensor, key: Tensor, offset: int, scale: float, grid: tuple[int, ...] | None = None
    ) -> Tensor:
        rows = torch.arange(query.shape[2], device=query.device)[:, None] + offset
        distance = (rows - torch.arange(key.shape[2], device=key.device)).abs()
        return -self.steps * distance


@dataclass(frozen=True, kw_only=True)
class PebbleConfig(af.Settings):
    n_layers: int = 1
    d_model: int = 16
    n_heads: int = 2
    vocab_size: int = 300
    score: str = "distance"
    positions: str = "parity"


def block(config: PebbleConfig) -> af.Block:
    settings = af.AttentionConfig(d_query=config.d_model, n_heads=config.n_heads, mask=af.masks.Causal())
    score = plugins.SCORES[config.score](config.n_heads, config.d_model // config.n_heads)
    feedforward = af.FeedForwardConfig(d_model=config.d_model, d_hidden=2 * config.d_model)
    return af.Block(
        {
            "self": af.Sublayer(af.Attention(settings, score), nn.LayerNorm(config.d_model)),
            "feedforward": af.Sublayer(af.FeedForward(feedforward), nn.LayerNorm(config.d_model)),
        }
    )


def build(config: PebbleConfig) -> af.Model:
    positions = plugins.POSITIONS[config.positions](config)
    inputs = TextInput(TextInputConfig(vocab_size=config.vocab_size, d_model=config.d_model), positions)
    stack = af.Stack([block(config) for _ in range(config.n_layers)])
    language = LanguageConfig(
        d_model=config.d_model, vocab_size=config.vocab_size, stage="decoder", shift=True, keep=True
    )
    stage = af.Stage("decoder", inputs, stack)
    return af.Model(
        "pebble", config, [stage], {"language": LanguageHead(language)}, stack_report("decoder", config.n_layers)
    )


af.register("distance", score=lambda n_heads, d_head: Distance())
af.register("parity", positions=lambda config: Parity())
af.register("slope", positions=lambda config: Slope(config.n_heads))
af.register("pebble", config=PebbleConfig, build=build, sizes={"pebble-tiny": PebbleConfig()}, description="Pebbles")


@af.register
class Mood(ClassifyText[str, Label]):
    name = "mood"
    about = "tell the mood of a text"
