"""Claim 11: keypoints all at once or in turn, what DETR's slots specialize in, and four captioners.

python experiments/11_decoding.py
python experiments/11_decoding.py --model runs/cells --captioners runs/a,runs/b,runs/c,runs/d
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anyformer as af
from anyformer import pretrained
from anyformer.data.rows import Rows
from anyformer.generation.keypoints import predict_keypoints
from anyformer.layers.resnet import ConvStemConfig, ResNetConfig
from anyformer.tasks import find
from anyformer.tasks.evaluation import evaluate_task
from frame import Claim, Found, Options, Pace, Picture, Spread, Table, main, plot, spread
from models import parameters
from real import data, teach

CLAIM = Claim(
    number=11,
    name="decoding",
    title="Keypoints at once or in turn, DETR's slots, and four captioners",
    items=("002-6-03", "002-16-02", "003-3-04", "003-17-02"),
    says="Keypoints can be decoded all at once by learned queries, without the wait of one after another and without"
    " losing accuracy. DETR's query slots specialize: each looks after some places and sizes of boxes. And captioners"
    " get better from one vector (Show and Tell) to attention (Show, Attend and Tell) to transformers.",
    did="Keypoints: 68 landmarks of 1,500 faces at 48 x 48, the same small model (1 encoder and 2 decoder layers, 48"
    " wide) with all queries at once or each told where the one before was placed (the truth in training, its own"
    " answer later); error on 300 faces of other people, as a share of what the mean face gives, and the time for one"
    " image. Slots: the detector of blood cells that ships (`detr-small`), or `--model`, a detector's folder; where"
    " neither is at hand a small DETR learns for 200 steps. We ask how much of the variation of all boxes' middles the"
    " slot alone explains. Captioners: `--captioners` are four folders; without it the four tiny recipes learn from"
    " Flickr8k at 32 x 32 for 50 steps, one seed, which is far too short for captions: only the loss is worth a look"
    " (trained ones are in docs/results.md).",
    seeds=(1, 2),
    takes={"model": "a folder with a detector", "captioners": "folders of captioners, with commas between"},
)
LEARNED = 0.2  # AP50 from which a detector's slots mean anything
TURNS = {"all at once": False, "in turn": True}
CAPTIONERS = {
    "Show and Tell": "show-tell-tiny",
    "Show, Attend and Tell": "show-attend-tell-tiny",
    "CNN + transformer": "cnn-transformer-tiny",
    "ViT + transformer": "vision-encoder-decoder-tiny",
}


def run(options: Options) -> Found:
    poses = joints(options)
    boxes, detector = slots(options)
    captions = captioners(options)
    share = explained(boxes)
    verdict, words = judge(poses, share, detector, captions)
    return Found(
        tables=[
            joint_table(poses),
            Table("The detector", ["", "figure"], [*detector.items(), *share.items()]),
            caption_table(captions),
        ],
        pictures=[draw_joints(poses), draw_slots(boxes)],
        verdict=verdict,  # type: ignore[arg-type]
        words=words,
    )


# Keypoints


def joints(options: Options) -> dict[str, dict[str, Any]]:
    pace = Pace(len(TURNS) * len(options.seeds))
    found: dict[str, dict[str, Any]] = {name: {"share": [], "pixels": [], "ms": []} for name in TURNS}
    for seed in options.seeds:
        for name, in_turn in TURNS.items():
            task = learn_faces(in_turn, seed, options, pace, name)
            figures = task.evaluate(some(find("pose").read(data("face_landmarks/val.json")), options.pick(300, 8)))
            found[name]["share"].append(float(figures["share_of_mean"]))
            found[name]["pixels"].append(float(figures["error"]))
            found[name]["ms"].append(1000 * wait(task.model))
            found[name]["size"] = parameters(task.model)
    return found


def learn_faces(in_turn: bool, seed: int, options: Options, pace: Pace, label: str) -> Any:
    steps = options.pick(250, 2)
    net = ResNetConfig(block="basic", n_channels=1, d_stem=16, widths=(16, 32), depths=(1, 1), norm="batch")
    size = {"n_layers": 1, "n_decoder_layers": 2, "d_model": 48, "n_heads": 4, "d_hidden": 96, "image_size": (48, 48)}
    given = {
        **{f"model.{name}": value for name, value in size.items()},
        **{f"model.backbone.{name}": getattr(net, name) for name in ("d_stem", "widths", "depths")},
        "model.autoregressive": in_turn, "data.image_size": 48, "train.steps": steps, "train.batch_size": 32,
        "train.lr": 2e-3, "train.warmup_steps": max(steps // 10, 1),
    }  # fmt: skip
    files = data("face_landmarks/train.json")
    return teach("pose", "keypoint-detr-96", files, None, seed=seed, pace=pace, label=label, **given, **HELD).task


HELD = {"data.validation_split": 0.01}  # little is measured on the way; the figures come afterwards


def some(rows: Rows, n: int) -> Rows:
    return rows[: min(n, len(rows))]


def wait(model: Any, times: int = 9) -> float:
    """The median time for one image."""
    picture, taken = torch.randn(1, 1, 48, 48), []
    with torch.inference_mode():
        for _ in range(times):
            started = time.process_time()
            predict_keypoints(model, picture)
            taken.append(time.process_time() - started)
    return statistics.median(taken)


# Slots


def slots(options: Options) -> tuple[Tensor, dict[str, object]]:
    """Where each slot put its boxes over the images [images, slots, 4]; and how good the detector is."""
    val = data("bccd/val.json")
    cells = pretrained.find("cells")
    usual = None if options.quick or cells is None or cells.problem is not None else cells.name
    model = options.own.get("model", usual)
    if model is not None:
        found = evaluate_task("detect", model, val)
        assert found.query_boxes is not None
        name = Path(model).name
        return found.query_boxes, {"model": name, "AP": found.metrics["ap"], "AP50": found.metrics["ap50"]}
    steps = options.pick(200, 2)
    stem = ConvStemConfig(widths=(16, 32, 48, 64), depths=(0, 1, 1, 1))
    size = {
        "image_size": (96, 128), "n_queries": 16, "d_model": 64, "n_heads": 4, "n_decoder_heads": 4, "n_layers": 1,
        "n_decoder_layers": 2, "d_hidden": 128, "d_decoder_hidden": 128,
    }  # fmt: skip
    given = {
        **{f"model.{name}": value for name, value in size.items()},
        **{f"model.stem.{name}": getattr(stem, name) for name in ("widths", "depths")},
        "train.steps": steps, "train.batch_size": 8, "train.lr": 1e-3, "train.warmup_steps": max(steps // 10, 1),
    }  # fmt: skip
    files = data("bccd/train.json"), data("bccd/val.json")
    made = teach("detect", "detr-small", *files, seed=options.seeds[0], pace=Pace(1), label="blood cells", **given)
    assert made.task.slots is not None
    last = made.course.last
    return made.task.slots, {"model": f"trained for {steps} steps", "AP": last["ap"], "AP50": last["ap50"]}


def explained(boxes: Tensor) -> dict[str, object]:
    """How much of the variance the slot alone explains: 1, each always says the same; 0, they are all alike."""
    means = boxes.mean(dim=0)
    parts = {"their middles": slice(0, 2), "their sizes": slice(2, 4)}
    shares: dict[str, object] = {}
    for name, part in parts.items():
        total = boxes[..., part].flatten(0, 1).var(dim=0, unbiased=False).sum()
        shares[f"share of the variance of {name} that the slot explains"] = float(
            means[:, part].var(dim=0, unbiased=False).sum() / total
        )
    return shares


# Captioners


def captioners(options: Options) -> dict[str, dict[str, object]]:
    val = data("flickr8k/val_captions.json")
    if "captioners" in options.own:
        folders = [Path(folder) for folder in options.own["captioners"].split(",")]
        return {
            folder.name: {"parameters": parameters(af.load(folder)), **evaluate_task("caption", folder, val).metrics}
            for folder in folders
        }
    pace = Pace(len(CAPTIONERS))
    found = {}
    for name, recipe in CAPTIONERS.items():
        steps = options.pick(50, 1)
        given = {
            "train.steps": steps, "train.batch_size": 32, "train.lr": 2e-3, "train.warmup_steps": max(steps // 10, 1),
            "data.fraction": options.pick(0.5, 0.05), "data.validation_split": options.pick(0.03, 0.002),
        }  # fmt: skip
        files = data("flickr8k/train_captions.json")
        made = teach("caption", recipe, files, None, seed=options.seeds[0], pace=pace, label=name, **given)
        found[name] = {"parameters": parameters(made.task.model), **made.course.last}
    return found


# What is said of it


def judge(
    poses: dict[str, dict[str, Any]],
    share: dict[str, object],
    detector: dict[str, object],
    captions: dict[str, dict[str, object]],
) -> tuple[str, str]:
    once, turn = (spread(poses[name]["share"]) for name in TURNS)
    times = [spread(poses[name]["ms"]).mean for name in TURNS]
    apart = once.deviation + turn.deviation
    better = "no worse" if once.mean <= turn.mean + apart else "worse"
    middle = float(str(next(iter(share.values()))))
    losses = {name: float(str(one["loss"])) for name, one in captions.items()}
    best = min(losses, key=lambda name: losses[name])
    found = float(str(detector["AP50"]))
    slot = (
        f"The slot explains {middle:.0%} of where boxes lie"
        if found >= LEARNED
        else "The detector has learned next to nothing in so short a run, so its boxes lie where fresh queries put them"
        " and the slots are undecided: give a trained one by `--model`"
    )
    words = (
        f"All at once is {better} ({once} of the mean face's error against {turn}) and {times[1] / times[0]:.0f} times"
        f" faster. {slot} (AP50 {found:.2f}). Of the captioners {best} has the lowest loss ({losses[best]:.2f}); after"
        " runs this short that ranks how fast they start, not the four ideas: undecided."
    )
    return ("holds partly" if better == "no worse" else "does not hold here"), words


def joint_table(poses: dict[str, dict[str, Any]]) -> Table:
    rows = [
        [name, one["size"], spread(one["share"]), spread(one["pixels"]), spread(one["ms"])]
        for name, one in poses.items()
    ]
    columns = ["decoding", "parameters", "error, share of the mean face's", "error in pixels of 96", "ms an image"]
    return Table("Joints", columns, rows)


def caption_table(captions: dict[str, dict[str, object]]) -> Table:
    named = ("loss", "cider", "cider_commonest", "bleu1", "bleu4")
    figures = [name for name in named if all(name in one for one in captions.values())]
    rows = [
        [name, one["parameters"], *(round(float(str(one[figure])), 3) for figure in figures)]
        for name, one in captions.items()
    ]
    return Table("Captioners", ["model", "parameters", *(name.replace("_", " of the ") for name in figures)], rows)


def draw_joints(poses: dict[str, dict[str, Any]]) -> Picture:
    with plot(2, width=3.2) as (figure, (left, right)):
        for axes, key, label in ((left, "share", "error, share of the mean face's"), (right, "ms", "ms an image")):
            found: list[Spread] = [spread(one[key]) for one in poses.values()]
            axes.bar(list(poses), [one.mean for one in found], 0.5, yerr=[one.deviation for one in found], capsize=3)
            axes.set(ylabel=label)
    return Picture(figure, "68 landmarks decoded all at once and one after another.")


def draw_slots(boxes: Tensor) -> Picture:
    figure = af.plot.query_boxes(boxes, n=20)
    return Picture(figure, "Where each query slot places its boxes on images of blood cells: a dot an image.")


if __name__ == "__main__":
    main(CLAIM, run)
