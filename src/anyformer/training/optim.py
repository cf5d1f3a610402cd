"""How weights move: the optimizer, the rate of every step, who decays, who stays, and a moving average of it all."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.core.linear import Linear
from anyformer.errors import ConfigError, nearest
from anyformer.inputs.text import Embedding
from anyformer.training.muon import TURNED, Muon
from anyformer.training.settings import TrainSettings

PAPER_BETAS, PAPER_EPS = (0.9, 0.98), 1e-9  # Vaswani et al. 2017, §5.3
BETAS, EPS = (0.9, 0.95), 1e-8  # as GPT-3 (Brown et al. 2020, appendix B) and most since


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019), Adam as the Transformer paper sets it, or Muon."""
    paper = settings.optimizer == "adam"
    betas = settings.betas if settings.betas is not None else (PAPER_BETAS if paper else BETAS)
    eps = settings.eps if settings.eps is not None else (PAPER_EPS if paper else EPS)
    makers = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "muon": Muon}
    maker: type[torch.optim.Adam] = makers[settings.optimizer]
    groups = parameter_groups(model, settings.weight_decay, settings.layer_decay)
    groups = muon_groups(model, groups) if maker is Muon else groups
    return maker(groups, lr=settings.lr, betas=(betas[0], betas[1]), eps=eps, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float, layer_decay: float = 1.0) -> list[dict[str, Any]]:
    """What is trained, by decay and by share of the rate ("share").

    Matrices decay; norms, biases, embeddings and positions do not, nor does an output matrix tied to embeddings.
    """
    tables = {id(module.weight) for module in model.modules() if isinstance(module, Embedding)}
    matrices = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (Linear, nn.Conv2d)) and id(module.weight) not in tables
    }
    depths = layer_depths([name for name, _ in model.named_parameters()])
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            key = (id(parameter) in matrices, layer_decay ** depths[name])
            groups.setdefault(key, []).append(parameter)
    return [
        {"params": parameters, "weight_decay": weight_decay if decays else 0.0, "share": share}
        for (decays, share), parameters in sorted(groups.items(), key=lambda item: (not item[0][0], -item[0][1]))
    ]


def muon_groups(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The matrices inside blocks, which Muon turns, in groups of their own; adapters are too narrow for it."""
    inside = {
        id(module.weight)
        for name, module in model.named_modules()
        if isinstance(module, Linear) and ".blocks." in name and min(module.weight.shape) > 1
    }
    apart = []
    for group in groups:
        for turned in (False, True):
            chosen = [parameter for parameter in group["params"] if (id(parameter) in inside) is turned]
            apart += [{**group, "params": chosen, TURNED: turned}] if chosen else []
    return apart


def layer_depths(names: Sequence[str]) -> dict[str, int]:
    """How far below its stage's answer each parameter stands: heads 0, the last block 1, …, the inputs last."""
    found = {name: re.match(r"(\w+)\.blocks\.(\d+)\.", name) for name in names}
    heights: dict[str, int] = {}
    for match in found.values():
        if match is not None:
            heights[match[1]] = max(heights.get(match[1], 0), int(match[2]) + 1)
    depths = {}
    for name, match in found.items():
        stage = re.match(r"(\w+)\.inputs\.", name)
        if match is not None:
            depths[name] = heights[match[1]] - int(match[2])
        else:
            depths[name] = heights.get(stage[1], 0) + 1 if stage is not None else 0
    return depths


def freeze(model: nn.Module, globs: Sequence[str]) -> None:
    """Leave parameters as they are, by the names that they have in files: encoder.blocks.0.*"""
    names = dict(model.named_parameters())
    for glob in globs:
        chosen = fnmatch.filter(names, glob)
        if not chosen:
            begins = any(name.startswith(f"{glob}.") for name in names)
            hint = f' All in it: "{glob}.*".' if begins else nearest(glob, names)
            raise ConfigError(f'train.freeze: no parameter is named "{glob}".{hint}')
        for name in chosen:
            names[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in names.values()):
        raise ConfigError("train.freeze leaves no parameter to train.")


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The learning rate of a step, from 1: a straight line up during the warm-up, then down as the schedule says."""
    peak, floor, warmup = settings.lr, settings.min_lr, settings.warmup_steps
    if settings.schedule == "inverse_sqrt":
        return inverse_sqrt(step, peak, warmup)
    if step <= warmup:
        return peak * step / warmup
    left = 1 - (step - warmup) / max(settings.steps - warmup, 1)  # from 1 after the warm-up to 0 at the last step
    if settings.schedule == "cosine":
        return floor + (peak - floor) * 0.5 * (1 - math.cos(math.pi * left))
    return floor + (peak - floor) * left if settings.schedule == "linear" else peak


def inverse_sqrt(step: int, peak: float, warmup: int) -> float:
    """Up in a straight line to `peak` at `warmup`, then down with 1/√step.

    With peak = paper_peak(d_model, warmup) it is the paper's d_model^-½ · min(step^-½, step · warmup^-1½).
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))


def paper_peak(d_model: int, warmup: int) -> float:
    return 1.0 / math.sqrt(d_model * warmup)


class EMA:
    """A moving average of the weights, which often does better than the last ones (Polyak and Juditsky 1992), and of
    the `statistics` that batch norms follow."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float, statistics: Sequence[Tensor] = ()) -> None:
        self.parameters: list[Tensor] = [*parameters, *statistics]
        self.decay, self.trained = decay, len(parameters)
        self.values: list[Tensor] = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        for part in (slice(self.trained), slice(self.trained, None)):  # apart: the parameters may be shares
            if self.parameters[part]:
                torch._foreach_lerp_(self.values[part], self.parameters[part], 1 - self.decay)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """The model with the averaged weights; afterwards it has its own again, to the bit."""
        own = [parameter.detach().clone() for parameter in self.parameters]
        try:
            self.put()
            yield
        finally:
            self.put(own)

    @torch.no_grad()
    def put(self, values: Sequence[Tensor] | None = None) -> None:
        """Give the model the averaged weights, or others."""
        for parameter, value in zip(self.parameters, self.values if values is None else values, strict=True):
            parameter.copy_(value)
