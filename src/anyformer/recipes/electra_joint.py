"""ELECTRA's training (Clark et al. 2020, §3): as ELECTRA, except that generator and discriminator are two stages of one
model with one set of word, position and type vectors. The generator says the chosen words (by maximum likelihood, not
against the discriminator), a word is drawn from its answer for each, and the discriminator says which tokens of the
result differ from the original: a word drawn right counts as real. Loss: masked words + 50 · replaced tokens.

Give `input_ids` with the masked tokens and `labels` with the words that stood there, -100 elsewhere.

Two models of one size may share everything but their heads (§3.2), or the discriminator may begin as the generator is
(§3.3, `task.from_generator`, of two that share their vectors alone). Small models learn to look at neighbors in short
windows first (data.max_length 16, then longer ones; docs/results.md).

Published: generators of a quarter to a half of the discriminator's size work best (figure 3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import nn

from anyformer import registry
from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.core.positions import LearnedPositions
from anyformer.errors import ConfigError
from anyformer.heads.language import LanguageHead
from anyformer.heads.tag import DiscriminatorHead
from anyformer.inputs.replaced_tokens import ReplacedTokensInput
from anyformer.inputs.text import TextInput
from anyformer.model import Model, Stage
from anyformer.recipes import electra
from anyformer.recipes.base import init as normal_init
from anyformer.recipes.base import stack
from anyformer.recipes.common import stack_report
from anyformer.recipes.electra import ELECTRAConfig
from anyformer.recipes.text import text_input
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class JointELECTRAConfig(Settings):
    discriminator: ELECTRAConfig = ELECTRAConfig()
    generator: ELECTRAConfig = ELECTRAConfig(d_model=256, d_embedding=768, n_heads=4, d_hidden=1024, head="masked")
    weight: float = 50.0  # of the discriminator's loss
    tied: Literal["vectors", "all"] = "vectors"  # what the two share: word, position and type vectors, or all but heads

    def check(self) -> None:
        for name in ("width", "vocab_size", "max_length", "n_types"):
            ours, theirs = getattr(self.generator, name), getattr(self.discriminator, name)
            self.require(ours == theirs, f"generator and discriminator share word vectors; their {name} differs.")
        self.require(self.tied == "vectors" or self.alike, 'tied "all" wants a generator of the discriminator\'s size.')

    @property
    def alike(self) -> bool:
        """Whether the two differ in their heads alone."""
        return self.generator.replace(head=self.discriminator.head) == self.discriminator


def _tie(one: TextInput, other: TextInput) -> None:
    """Both read the same vectors; their norms and projections stay their own."""
    other.words.weight = one.words.weight
    if one.types is not None and other.types is not None:
        other.types.weight = one.types.weight
    assert isinstance(one.positions, LearnedPositions) and isinstance(other.positions, LearnedPositions)
    other.positions.weight = one.positions.weight


def _share(one: nn.Module, other: nn.Module) -> None:
    """Every parameter of the other becomes the one's; what is done to tokens on the way stays apart."""
    for name, module in other.named_modules():
        for key in list(module._parameters):
            setattr(module, key, getattr(one.get_submodule(name), key))


def build(config: JointELECTRAConfig) -> Model:
    generator, discriminator = config.generator, config.discriminator
    masked, corrupted = text_input(generator), text_input(discriminator)
    first, second = stack(generator), stack(discriminator)
    if config.tied == "all":
        _share(masked, corrupted)
        _share(first, second)
    else:
        _tie(masked, corrupted)
    words = LanguageHead(generator.language("generator"), masked.words)
    stages = [
        Stage("generator", masked, first),
        Stage("discriminator", ReplacedTokensInput(corrupted, words, "generator"), second),
    ]
    head = DiscriminatorHead(discriminator.d_model, discriminator.activation, "discriminator", config.weight)
    report = stack_report("discriminator", discriminator.n_layers)
    return Model("electra-joint", config, stages, {"replaced": head}, report)


def init(config: JointELECTRAConfig) -> InitConfig:
    return normal_init(config.discriminator)


def copy_generator(model: Model) -> None:
    """Make the discriminator's layers those of the generator; their heads stay apart."""
    config = cast("JointELECTRAConfig", model.config)
    if config.tied == "all":
        raise ConfigError("task.from_generator: the two share everything already; build them with model.tied=vectors.")
    if not config.alike:
        raise ConfigError("task.from_generator wants a generator of the discriminator's size.")
    one, other = (cast("Any", model.stages[name]) for name in ("generator", "discriminator"))
    other.blocks.load_state_dict(one.blocks.state_dict())
    other.inputs.text.load_state_dict(one.inputs.state_dict())


def discriminator(model: Model) -> Model:
    """The discriminator as an ELECTRA model by itself: what is fine-tuned after pre-training (§3.1)."""
    single = registry.build_config(registry.family("electra"), model.config.discriminator)  # type: ignore[attr-defined]
    ours = {
        name.replace("discriminator.inputs.text.", "encoder.inputs.").replace("discriminator.", "encoder."): value
        for name, value in model.state_dict().items()
    }
    single.load_state_dict(ours, strict=False, assign=model.device.type == "meta")
    single.origin.files = dict(model.origin.files)
    return single.to(device=model.device, dtype=model.dtype)


def _pair(size: str) -> JointELECTRAConfig:
    sizes = electra.SIZES
    return JointELECTRAConfig(discriminator=sizes[size], generator=sizes[f"{size}-generator"])


_TINY = electra.SIZES["electra-tiny"]
_MINI = ELECTRAConfig(n_layers=4, d_model=256, n_heads=4, d_hidden=1024)  # as bert-mini

SIZES = {
    "electra-joint-tiny": JointELECTRAConfig(
        discriminator=_TINY, generator=_TINY.replace(d_model=48, d_hidden=96, head="masked")
    ),
    "electra-joint-mini": JointELECTRAConfig(
        discriminator=_MINI, generator=_MINI.replace(head="masked"), tied="all", weight=10.0
    ),
    "electra-joint-small": _pair("electra-small"),
    "electra-joint-base": _pair("electra-base"),
    "electra-joint-large": _pair("electra-large"),
}

register(Family("electra-joint", JointELECTRAConfig, build, init, __doc__ or "", discriminator), SIZES)
