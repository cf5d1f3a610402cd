"""MetaLM (Hao et al. 2022), a language model with modality encoders: as GPT-2, except that encoders of any modality
provide some of its input tokens. Each vector that an encoder computes from an image or from audio is projected to the
width of the text tokens and replaces a placeholder token. Attention is bidirectional within a run of such tokens, and
within a question if the caller marks it; everything after it is causal. Images and text may alternate.

Published: MetaLM 82.2 CIDEr zero-shot on COCO captions (table 9 of the paper).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anyformer.config import Settings
from anyformer.core.init import InitConfig
from anyformer.errors import ConfigError
from anyformer.heads.language import LanguageHead
from anyformer.inputs.multimodal import MultimodalInput
from anyformer.inputs.text import TextInput
from anyformer.model import Model, OutputSpec, Stage
from anyformer.recipes.encoder_decoder import build_side, side
from anyformer.recipes.gpt2 import SIZES as GPT2_SIZES
from anyformer.recipes.gpt2 import GPT2Config
from anyformer.recipes.vit import SIZES as VIT_SIZES
from anyformer.recipes.vit import ViTConfig
from anyformer.registry import Family, register


@dataclass(frozen=True, kw_only=True)
class MetaLMConfig(Settings):
    decoder: dict[str, Any] = field(default_factory=dict, hash=False)  # {"family": "gpt2", "n_layers": 12, …}
    # Modality encoders by name: the placeholder token's id, and the settings of the encoder's family.
    # {"picture": {"token": 3, "encoder": {"family": "vit", …}}}
    encoders: dict[str, Any] = field(default_factory=dict, hash=False)
    padding: int | None = 0
    end: int | None = 1

    def check(self) -> None:
        self.require("family" in self.decoder, 'the decoder does not say its "family".')
        good = bool(self.encoders) and "decoder" not in self.encoders
        self.require(good, 'encoders need a name other than "decoder".')
        for name, dock in self.encoders.items():
            good = isinstance(dock.get("token"), int) and "family" in dock.get("encoder", {})
            self.require(good, f'encoders.{name} needs "token", an integer, and "encoder", settings with a "family".')


def _dock(name: str, encoder: Mapping[str, Any]) -> tuple[Stage, int]:
    """The encoder's stage, skipped if it has no input, and the width of its output."""
    inputs, stack, _ = build_side(encoder, name)
    inputs.mask_name = None  # attention_mask is the text's
    inputs.names = tuple(name for name in inputs.names if name != "attention_mask")
    return Stage(name, inputs, stack, optional=True), int(side(encoder)[1].to_json()["d_model"])


def build(config: MetaLMConfig) -> Model:
    text, stack, model = build_side(config.decoder, "decoder")
    heads = [head for head in model.heads.values() if isinstance(head, LanguageHead)]
    if not isinstance(text, TextInput) or not heads or heads[0].stage != "decoder":
        raise ConfigError("the decoder must read text and have a language head of its own, as GPT-2 has.")
    docked = {name: _dock(name, dock["encoder"]) for name, dock in config.encoders.items()}
    widths = {name: (dock["token"], docked[name][1]) for name, dock in config.encoders.items()}
    stage = Stage("decoder", MultimodalInput(text, widths), stack)
    if not stage.has_cache:
        raise ConfigError("the decoder must be causal.")
    report = OutputSpec(hidden=model.report.hidden, attentions={"attentions": ("decoder.blocks.*.self.weights",)})
    stages = [*(stage for stage, _ in docked.values()), stage]
    return Model("metalm", config, stages, {"language": heads[0]}, report, padding=config.padding)


def init(config: MetaLMConfig) -> InitConfig:
    family, settings = side(config.decoder)
    return family.init(settings)


def _one(encoder: ViTConfig, decoder: GPT2Config) -> MetaLMConfig:
    """The last id of the vocabulary keeps the places."""
    picture = {"token": decoder.vocab_size - 1, "encoder": {"family": "vit", **encoder.replace(head="base").to_json()}}
    return MetaLMConfig(decoder={"family": "gpt2", **decoder.to_json()}, encoders={"picture": picture})


SIZES = {
    "metalm-tiny": _one(VIT_SIZES["vit-tiny"], GPT2_SIZES["gpt2-tiny"].replace(d_model=48)),
    # A few thousand images of 160 x 160.
    "metalm-small": _one(
        ViTConfig(n_layers=6, d_model=256, n_heads=4, d_hidden=1024, image_size=(160, 160), dropout=0.1),
        GPT2Config(n_layers=4, d_model=256, n_heads=4, vocab_size=8000, max_length=256),
    ),
    "metalm-b16-124m": _one(VIT_SIZES["vit-b16"], GPT2_SIZES["gpt2-124m"]),
}

register(Family("metalm", MetaLMConfig, build, init, __doc__ or ""), SIZES)
