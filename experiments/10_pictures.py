"""Claim 10: vision transformers need more data than convolutions, and one layer of theirs sees the whole image.

python experiments/10_pictures.py
python experiments/10_pictures.py --device cuda --full     # the real recipes, 200 epochs
python experiments/10_pictures.py --trained runs           # the same, trained already by benchmarks/results.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

import anyformer as af
from anyformer.layers.resnet import ResNetConfig
from anyformer.model import Model
from anyformer.tasks import find
from anyformer.training.report import read_metrics
from frame import Claim, Found, Options, Pace, Picture, Table, main, plot, spread
from learn import Batch, learn
from models import accuracy, parameters
from real import data, teach

CLAIM = Claim(
    number=10,
    name="pictures",
    title="ViT, hybrid and ResNet on a share of CIFAR-10, and what one layer sees",
    items=("000-1-04", "001-9-04", "001-9-05", "003-23-05", "004-25-03"),
    says="A vision transformer knows nothing about images beforehand, so it needs more of them than a convolutional"
    " network; a hybrid stands between. In return one layer of attention already reaches every pixel, where a"
    " convolution reaches its neighbors and needs many layers for the rest.",
    did="Small ones of the three, from nothing, on 1%, 10% and 100% of CIFAR-10's 50,000 training images, brought"
    " to 16 x 16 so that a run takes seconds: the same 200 steps of 32 images (mirrored by chance) at every share,"
    " the same rate (0.002, falling), accuracy on 2,000 others. So short a run does not show what many epochs would;"
    " `--device cuda --full` trains the recipes at 32 x 32 for their 200 epochs. Then, with fresh weights and in"
    " float64: the gradient of one output in the middle of a 32 x 32 image with respect to every pixel, and how"
    " many pixels have one, after one layer of self-attention on single pixels and after 3 x 3 convolutions.",
    takes={
        "device": "of the full version: cpu or cuda",
        "trained": "a folder with the runs vit-1, vit-10, vit-100, hybrid-1 … of benchmarks/results.py: nothing is"
        " trained, their best evaluations are read",
    },
    switches={"full": "the recipes vit-lite, hybrid-cifar and resnet-cifar as they are, hours on a processor"},
)
SHARES = (0.01, 0.1, 1.0)
SIDE = 16
CHANCE = 0.1  # of ten classes


def net(*widths: int, depth: int = 1, d_stem: int = 8) -> ResNetConfig:
    depths = (depth,) * len(widths)
    return ResNetConfig(block="basic", d_stem=d_stem, widths=widths, depths=depths, stem="small", norm="batch")


SMALL: dict[str, Any] = {
    "image_size": (SIDE, SIDE), "n_layers": 2, "d_model": 48, "n_heads": 4, "d_hidden": 96, "drop_path": 0.0,
}  # fmt: skip
MODELS: dict[str, Callable[[], Model]] = {
    "ViT": lambda: af.build("vit-lite", patch_size=(2, 2), **SMALL),
    "hybrid": lambda: af.build("hybrid-cifar", patch_size=(2, 2), backbone=net(8), **{**SMALL, "n_layers": 1}),
    "ResNet": lambda: af.build("resnet-cifar", image_size=(SIDE, SIDE), net=net(12, 24, 32, d_stem=12)),
}
RECIPES = {"ViT": "vit-lite", "hybrid": "hybrid-cifar", "ResNet": "resnet-cifar"}


def run(options: Options) -> Found:
    scores, sizes = trained(Path(options.own["trained"])) if "trained" in options.own else learned(options)
    maps = influence()
    seen = {name: (grid > 0).double().mean().item() for name, grid in maps.items()}
    rows = [
        [f"{share:.0%}", int(50_000 * share), *(spread(scores[name, share]) for name in MODELS)] for share in SHARES
    ]
    tables = [
        Table(
            "Accuracy", ["share", "pictures", *(f"{name}, {size:,} parameters" for name, size in sizes.items())], rows
        ),
        Table(
            "Pixels of a 32 x 32 image that one output in its middle depends on",
            ["layers", "pixels", "share"],
            [[name, round(1024 * share), f"{share:.1%}"] for name, share in seen.items()],
        ),
    ]
    verdict, words = judge(scores, seen)
    return Found(
        tables=tables,
        pictures=[draw_scores(scores), draw_maps(maps)],
        verdict=verdict,  # type: ignore[arg-type]
        words=words,
        exact={
            "one layer of attention reaches every pixel": seen[ATTENTION] == 1.0,
            "n convolutions of 3 x 3 reach (2n + 1) squared": all(
                round(1024 * seen[f"{n} convolutions"]) == (2 * n + 1) ** 2 for n in (1 + 2, 1 + 4, 1 + 6)
            ),
        },
    )


# Learning from a share


def learned(options: Options) -> tuple[dict[tuple[str, float], list[float]], dict[str, int]]:
    return full(options) if options.own.get("full") else small(options)


def trained(folder: Path) -> tuple[dict[tuple[str, float], list[float]], dict[str, int]]:
    """One run of each recipe at each share."""
    scores = {}
    for name, recipe in RECIPES.items():
        for share in SHARES:
            run = folder / f"{recipe.partition('-')[0]}-{round(100 * share)}"
            found = [row["accuracy"] for row in read_metrics(run / "metrics.jsonl") if "accuracy" in row]
            if not found:
                raise SystemExit(f"{run} has no run that was evaluated.")
            scores[name, share] = [max(found)]
    return scores, {name: parameters(af.build(recipe).eval()) for name, recipe in RECIPES.items()}


def small(options: Options) -> tuple[dict[tuple[str, float], list[float]], dict[str, int]]:
    pictures, labels = pixels("cifar10/train.npz", options.pick(50_000, 600))
    others = pixels("cifar10/val.npz", options.pick(2000, 100))
    test = {"pixel_values": normal(others[0]), "labels": others[1]}
    scores: dict[tuple[str, float], list[float]] = {}
    pace = Pace(len(MODELS) * len(SHARES) * len(options.seeds))
    for seed in options.seeds:
        order = torch.randperm(len(pictures), generator=Generator().manual_seed(seed))
        for share in SHARES:
            draw = drawing(pictures, labels, order[: max(round(len(order) * share), 1)])
            for name, make in MODELS.items():
                torch.manual_seed(seed)
                model = make()
                steps = options.pick(200, 2)
                learn(
                    model, draw, steps=steps, seed=seed, pace=pace, label=f"{name} on {share:.0%}", lr=2e-3,
                    warmup_steps=steps // 10, schedule="cosine", weight_decay=0.05,
                )  # fmt: skip
                scores.setdefault((name, share), []).append(accuracy(model.eval(), test))
    return scores, {name: parameters(make()) for name, make in MODELS.items()}


def full(options: Options) -> tuple[dict[tuple[str, float], list[float]], dict[str, int]]:
    scores: dict[tuple[str, float], list[float]] = {}
    pace = Pace(len(RECIPES) * len(SHARES) * len(options.seeds))
    given = {"train.device": options.own.get("device", "cpu")}
    for seed in options.seeds:
        for share in SHARES:
            for name, recipe in RECIPES.items():
                files = data("cifar10/train.npz"), data("cifar10/val.npz")
                done = teach(
                    "classify-image", recipe, *files, seed=seed, pace=pace, label=f"{recipe} on {share:.0%}",
                    **{"data.fraction": share, **given},
                )  # fmt: skip
                scores.setdefault((name, share), []).append(done.course.last["accuracy"])
    return scores, {name: parameters(af.build(recipe).eval()) for name, recipe in RECIPES.items()}


def pixels(place: str, most: int) -> tuple[Tensor, Tensor]:
    """[n, 3, side, side] of bytes, and classes."""
    rows = find("classify-image").read(data(place))
    n = min(most, len(rows))
    first = [rows[i] for i in range(n)]
    whole = torch.from_numpy(np.stack([np.asarray(row["image"].open("RGB")) for row in first])).permute(0, 3, 1, 2)
    names = sorted({str(row["label"]) for row in first})
    labels = torch.tensor([names.index(str(row["label"])) for row in first])
    return F.avg_pool2d(whole.float(), whole.shape[-1] // SIDE).byte(), labels


def normal(pictures: Tensor) -> Tensor:
    return pictures.float() / 127.5 - 1


def drawing(pictures: Tensor, labels: Tensor, rows: Tensor) -> Callable[[int, Generator], Batch]:
    def draw(n: int, generator: Generator) -> Batch:
        chosen = rows[torch.randint(len(rows), (n,), generator=generator)]
        drawn = normal(pictures[chosen])
        mirrored = torch.rand(n, generator=generator) < 0.5
        return {
            "pixel_values": torch.where(mirrored[:, None, None, None], drawn.flip(-1), drawn),
            "labels": labels[chosen],
        }

    return draw


# What one output depends on

ATTENTION = "1 layer of self-attention"


def influence() -> dict[str, Tensor]:
    """How much each pixel of a 32 x 32 image moves one output in its middle, as shares of all."""
    torch.manual_seed(0)
    vit = af.build("vit-lite", n_layers=1, patch_size=(1, 1), d_model=32, n_heads=4, d_hidden=64, drop_path=0.0).eval()
    maps = {ATTENTION: gradient(vit, lambda x: tokens(vit, x)[:, 16 * 32 + 16])}
    for blocks in (1, 2, 3):
        resnet = af.build("resnet-cifar", net=net(8, depth=blocks)).eval()
        maps[f"{1 + 2 * blocks} convolutions"] = gradient(resnet, lambda x, own=resnet: tokens(own, x)[:, 16 * 32 + 16])
    return maps


def tokens(model: Model, pictures: Tensor) -> Tensor:
    with af.look(model, "encoder.output") as seen:
        model(pixel_values=pictures)
    return seen["encoder.output"]


def gradient(model: Model, output: Callable[[Tensor], Tensor]) -> Tensor:
    picture = torch.randn(1, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    model.double()
    out = output(picture)
    (found,) = torch.autograd.grad((out * torch.randn_like(out)).sum(), picture)
    return found[0].abs().sum(dim=0) / found.abs().sum()


# What is said of it


def judge(scores: dict[tuple[str, float], list[float]], seen: dict[str, float]) -> tuple[str, str]:
    found = {key: spread(values) for key, values in scores.items()}
    mean = {key: one.mean for key, one in found.items()}
    gaps = {share: mean["ResNet", share] - mean["ViT", share] for share in SHARES}
    gained = {name: mean[name, 1.0] - mean[name, SHARES[0]] for name in MODELS}
    ahead = all(gap > 0 for gap in gaps.values())
    noise = sum(found[name, share].deviation for name in ("ResNet", "ViT") for share in (SHARES[0], 1.0))
    closes = gaps[SHARES[0]] - gaps[1.0] > noise
    said = ", ".join(f"{gap:+.3f} at {share:.0%}" for share, gap in gaps.items())
    ends = {share: sorted((mean["ViT", share], mean["ResNet", share])) for share in SHARES}
    between = all(low <= mean["hybrid", share] <= high for share, (low, high) in ends.items())
    shrinks = "shrinks with more data"
    if not closes:
        shrinks = "does not shrink with more data by more than the seeds differ, and a run this short sees few of them"
    words = (
        f"The ResNet's lead over the ViT is {said}: it {shrinks}."
        f" From 1% to 100% the ViT gains {gained['ViT']:.3f}, the hybrid {gained['hybrid']:.3f}, the ResNet"
        f" {gained['ResNet']:.3f}. The hybrid {'stands' if between else 'does not stand'} between the two everywhere."
        f" One layer of attention reaches {seen[ATTENTION]:.0%} of the pixels, three convolutions"
        f" {seen['3 convolutions']:.1%}: exact."
    )
    return ("holds" if ahead and closes else "holds partly"), words


def draw_scores(scores: dict[tuple[str, float], list[float]]) -> Picture:
    with plot() as (figure, (axes,)):
        for name in MODELS:
            found = [spread(scores[name, share]) for share in SHARES]
            axes.errorbar(
                [100 * share for share in SHARES], [one.mean for one in found], [one.deviation for one in found],
                marker="o", capsize=3, label=name,
            )  # fmt: skip
        axes.axhline(CHANCE, color="grey", linestyle=":", label="chance")
        axes.set(xscale="log", xlabel="share of the training images, %", ylabel="accuracy")
    return Picture(figure, "Accuracy on images not seen, after the same number of steps.")


def draw_maps(maps: dict[str, Tensor]) -> Picture:
    with plot(len(maps), width=2.3, height=2.5) as (figure, panels):
        for axes, (name, grid) in zip(panels, maps.items(), strict=True):
            axes.imshow((grid > 0).double() * 0.15 + grid / grid.max() * 0.85, cmap="Blues", vmin=0, vmax=1)
            axes.set_title(name, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
    return Picture(
        figure, "Which pixels one output in the middle depends on (pale: at all; dark: most), fresh weights."
    )


if __name__ == "__main__":
    main(CLAIM, run)
