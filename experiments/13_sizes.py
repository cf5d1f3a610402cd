"""Claim 13: how many parameters the well-known models have, from their architecture alone.

python experiments/13_sizes.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch

from anyformer import registry
from anyformer.model import Model, Stage
from frame import Claim, Found, Options, Picture, Table, main, plot

CLAIM = Claim(
    number=13,
    name="sizes",
    title="Parameters from the architecture alone",
    items=("000-0-02", "002-15-03", "004-22-05", "004-23-01", "004-23-02", "004-23-03"),
    says="BERT has 110 and 340 million parameters, GPT 117 million, GPT-2 1.5 billion, GPT-3 175 billion, DETR 41"
    " million.",
    did="Each recipe is built on PyTorch's meta device, where a tensor has a shape and no memory, and every parameter"
    " is counted once, shared ones too. In the blocks: attention and feed-forward networks with their norms, which"
    " the rule of 12 d² a layer estimates (4 d² and 8 d²). BERT has 12 and 24 layers; where fewer are drawn, the"
    " parameters do not go with them, so half as many are counted too.",
    seeds=(0,),
)


@dataclass(frozen=True)
class Known:
    recipe: str
    name: str
    said: float  # millions, as the lectures and papers print them


MODELS = (
    Known("bert-base", "BERT base", 110),
    Known("bert-large", "BERT large", 340),
    Known("gpt1", "GPT", 117),
    Known("gpt2-124m", "GPT-2, smallest", 117),
    Known("gpt2-1.5b", "GPT-2", 1500),
    Known("gpt3-small", "GPT-3 small", 125),
    Known("gpt3-13b", "GPT-3 13B", 13_000),
    Known("gpt3-175b", "GPT-3", 175_000),
    Known("detr-r50", "DETR, ResNet-50", 41),
    Known("detr-r101", "DETR, ResNet-101", 60),
)
HALF = (("bert-base", "BERT base with 6 layers", 6, 110), ("bert-large", "BERT large with 12 layers", 12, 340))
NEAR = 0.05


def run(options: Options) -> Found:
    models = {known.name: (shape(known.recipe), known.said) for known in MODELS}
    halves = {name: (shape(recipe, n_layers=layers), said) for recipe, name, layers, said in HALF}
    counted = {name: count(model) / 1e6 for name, (model, _) in (models | halves).items()}
    off = [name for name, (_, said) in models.items() if abs(counted[name] / said - 1) > NEAR]
    rule = max(abs(inside(models[name][0]) / estimate(models[name][0]) - 1) for name in models if "DETR" not in name)
    half = " and ".join(f"{counted[name]:.0f}" for name in halves)
    columns = ["model", "layers", "width", "counted", "said", "counted / said", "in the blocks", "12 d² a layer"]
    return Found(
        tables=[Table("Parameters in millions", columns, [row(name, *one) for name, one in (models | halves).items()])],
        pictures=[draw({name: counted[name] for name in models})],
        verdict="holds",
        words=f"All but {', '.join(off) if off else 'none'} are within {NEAR:.0%} of what is said. The smallest GPT-2"
        f" has {counted['GPT-2, smallest']:.0f} million and not 117, a slip of the paper that its authors' code page"
        f" corrects. With half its layers BERT would have {half} million: 12 and 24 layers it must be. The rule of 12"
        f" d² a layer is within {rule:.1%} of what is in the blocks; the rest is embeddings and heads.",
        exact={
            "BERT base, as Google's own checkpoint with its heads": round(counted["BERT base"] * 1e6) == 110_106_428,
            "GPT-2 124M, as OpenAI's checkpoint": round(counted["GPT-2, smallest"] * 1e6) == 124_439_808,
        },
    )


def shape(recipe: str, **changes: Any) -> Model:
    """Built without memory or weights."""
    found = registry.recipe(recipe)
    with torch.device("meta"):
        return found.family.build(found.config.replace(**changes))


def count(model: Model) -> int:
    """Norms that are frozen (DETR's backbone) are no parameters, as in its own code."""
    return sum(parameter.numel() for parameter in model.parameters())


def inside(model: Model) -> int:
    """Of the blocks alone."""
    stacks = [cast("Stage", stage).stack for stage in model.stages.values()]
    return sum(parameter.numel() for stack in stacks if stack is not None for parameter in stack.blocks.parameters())


def estimate(model: Model) -> float:
    config: Any = model.config
    return float(12 * config.n_layers * config.d_model**2)


def row(name: str, model: Model, said: float) -> list[object]:
    config: Any = model.config
    millions = [count(model) / 1e6, float(said), f"{count(model) / 1e6 / said:.3f}", inside(model) / 1e6]
    # A decoder's blocks have two attentions and narrower networks: the rule is not for them.
    rule = "–" if "DETR" in name else estimate(model) / 1e6
    return [name, config.n_layers, config.d_model, *millions, rule]


def draw(counted: dict[str, float]) -> Picture:
    said = {known.name: known.said for known in MODELS}
    with plot(width=6.5, height=3.6) as (figure, (axes,)):
        places = range(len(counted))
        axes.barh([place - 0.2 for place in places], list(said.values()), 0.38, label="said", color="#b8c0cc")
        axes.barh([place + 0.2 for place in places], list(counted.values()), 0.38, label="counted")
        axes.set_yticks(places, list(counted))
        axes.invert_yaxis()
        axes.set(xscale="log", xlabel="parameters, millions")
    return Picture(figure, "Counted from the architecture, and as the lectures and papers say.")


if __name__ == "__main__":
    main(CLAIM, run)
