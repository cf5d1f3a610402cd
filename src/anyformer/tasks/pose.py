"""Pose estimation: keypoints of bodies, landmarks of faces.

pose = af.task("pose", "folder")
print(pose("runner.jpg"))               # right_ankle 20,98 · right_knee 36,69 · …
pose("runner.jpg").draw()               # the image with the keypoints and the bones between them
pose("team.jpg", boxes=[[10, 20, 90, 240], …])   # left, top, right, bottom of each person, where there are several
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from anyformer.config import Settings
from anyformer.data.examples import Example
from anyformer.data.images import draw
from anyformer.data.images.augment import Augmentation
from anyformer.data.images.image_file import ImageFile, original_size
from anyformer.data.images.person_crop import crop_person
from anyformer.data.images.processor import FILE, ResizeTransform
from anyformer.data.images.skeleton import FACE, Skeleton
from anyformer.data.rows import Rows
from anyformer.data.tables.formats import Row
from anyformer.errors import ConfigError, DataError, InputError
from anyformer.generation.keypoints import predict_keypoints
from anyformer.heads.keypoints import PoseHead
from anyformer.jsonfile import parse_object
from anyformer.metrics import keypoints
from anyformer.tasks.answers import Answer, Drawing
from anyformer.tasks.base import (
    DEFAULT_SETUP,
    Batch,
    Column,
    Loss,
    Metrics,
    Options,
    Progress,
    Source,
    TaskSetup,
    answering,
)
from anyformer.tasks.inputs import ImageInput
from anyformer.tasks.picture import ImageOptions, PictureTask
from anyformer.tasks.schedule_presets import schedule_for

SOME = 2000  # rows that a mean pose is taken over
OUTER_EYES = (36, 45)  # of the usual face


@dataclass(frozen=True)
class Pose(Answer):
    """`people` [n, keypoints, 3]: x and y in pixels of the image, and a score."""

    persons: Any = field(repr=False)
    names: tuple[str, ...]
    draw: Drawing = field(repr=False, compare=False)

    def __str__(self) -> str:
        return "\n".join(
            " · ".join(f"{name} {x:.0f},{y:.0f}" for name, (x, y, _) in zip(self.names, person, strict=True))
            for person in self.persons
        )


@dataclass(frozen=True, kw_only=True)
class PoseOptions(ImageOptions):
    augment: Augmentation = Augmentation(crop=(0.7, 1.25), pad=0.05, flip=0.5, rotate=30.0, color_jitter=0.3)
    # What the model sees: the whole image, or one person, cut out by a box. "auto": whole, unless the files have
    # several people in some images or the folder's own processor cuts them out.
    region: Literal["auto", "whole", "box"] = "auto"


class PoseTask(PictureTask[ImageInput, Pose]):
    name = "pose"
    about = "detect keypoints of bodies or landmarks of faces"
    columns = (
        Column("image"),
        Column("keypoints", ("landmarks", "joints", "points")),
        Column("box", ("bbox",), optional=True),
    )
    options_class = PoseOptions
    settings: PoseOptions
    takes = ("boxes",)
    objects = True
    label_column = "keypoints"
    steady = True
    wanted = "a keypoint model, such as keypoint-detr-128 or vitpose-s"

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.set_skeleton(Skeleton.of({}, len(self.labels)) if not self.labels else Skeleton(self.labels))
        self.mean_pose: Tensor | None = None  # [keypoints, 2], shares of what the model sees
        if self.settings.region == "auto":
            kind = parse_object(self.model.origin.files.get(FILE, b"{}"), FILE).get("image_processor_type", "")
            self.settings = self.settings.replace(region="box" if str(kind).startswith("VitPose") else "whole")

    def set_skeleton(self, skeleton: Skeleton) -> None:
        self.skeleton = skeleton
        self.swaps = None if skeleton.flip_indices is None else torch.tensor(skeleton.flip_indices)
        self.is_face = len(skeleton.names) == FACE
        self.metric, self.larger_is_better = ("nme", False) if self.is_face else ("pck", True)

    # From rows to a model.

    @classmethod
    def begin(cls, source: Source, rows: Rows, valid: Rows | None = None, setup: TaskSetup = DEFAULT_SETUP) -> Any:
        options: Any = setup.task if setup.task is not None else cls.options_class()
        if options.region == "auto" and _several(rows):
            options = options.replace(region="box")
        task = super().begin(source, rows, valid, replace(setup, task=options))
        task.set_skeleton(Skeleton.of(rows.metadata, len(task.labels)))
        task.name_processor()
        task.mean_pose = task.find_mean(rows)
        return task

    @classmethod
    def find_labels(cls, rows: Rows, options: Options, setup: TaskSetup) -> tuple[str, ...]:
        points = rows[0].get("keypoints")
        if not isinstance(points, np.ndarray) or points.ndim != 2:
            raise DataError(f"{rows.location(0)}, has no keypoints; give a list of [x, y] or [x, y, seen] in pixels.")
        return Skeleton.of(rows.metadata, len(points)).names

    @classmethod
    def fits(cls, config: Settings) -> bool:
        return "n_keypoints" in config.field_names()

    @classmethod
    def shape(cls, config: Settings, labels: Sequence[str], options: PoseOptions) -> Settings:
        return config.replace(n_keypoints=len(labels))

    def name_processor(self) -> None:
        """So that transformers, too, cuts people out of images for it."""
        if self.settings.region == "box":
            said = parse_object(self.model.origin.files[FILE], FILE)
            said |= {"image_processor_type": "VitPoseImageProcessor", "do_affine_transform": True}
            self.model.origin.files[FILE] = (json.dumps(said, indent=2) + "\n").encode()

    def find_mean(self, rows: Rows) -> Tensor:
        """Where each joint is on average: what a model that never looks would say."""
        total, count = torch.zeros(len(self.labels), 2), torch.zeros(len(self.labels), 1)
        for i in range(min(len(rows), SOME)):
            try:
                joints = torch.from_numpy(self.example(rows[i])["keypoints"])
            except (DataError, InputError):
                continue  # told of when it is its turn
            total += self.shares(joints[:, :2]) * joints[:, 2:]
            count += joints[:, 2:]
        return torch.where(count > 0, total / count.clamp(min=1), 0.5)

    def inferred(self) -> dict[str, str]:
        found = super().inferred()
        return {"joints": found.pop("classes"), **found}

    def describe(self) -> dict[str, Any]:
        mean = None if self.mean_pose is None else [[round(x, 4) for x in place] for place in self.mean_pose.tolist()]
        bones = [list(pair) for pair in self.skeleton.bones]
        return {"labels": list(self.labels), "bones": bones, "mean_pose": mean}

    def recall(self, said: Mapping[str, Any]) -> None:
        bones = {"joints": self.labels, "bones": said["bones"]} if "bones" in said else {}
        self.set_skeleton(Skeleton.of(bones or _known(self.labels), len(self.labels)))
        self.mean_pose = torch.tensor(said["mean_pose"]) if said.get("mean_pose") else None
        if self.mean_pose is not None and len(self.mean_pose) != len(self.labels):
            raise ConfigError(
                f'config.json: "mean_pose" has {len(self.mean_pose)} points; it must have {len(self.labels)}.'
            )

    # Rows to loss.

    def example(self, row: Row) -> Example:
        if self.settings.region == "whole":
            return super().example(row)
        image = row["image"].open(self.processor.mode)
        pixels, placement = crop_person(image, _box(row.get("box"), image), self.seen)
        return {"image": pixels, **self.targets(row, placement)}

    def targets(self, row: Row, placement: ResizeTransform) -> dict[str, Any]:
        """Keypoints in the pixels that the model sees, weight 0 where they lie outside the image or are not known; and
        where they truly are."""
        place = np.array([*placement.scale[::-1], *placement.offset[::-1]], dtype=np.float32)
        if row.get("keypoints") is None:
            return {"place": place}
        points = np.asarray(row["keypoints"], dtype=np.float32)
        n = len(self.labels)
        if points.shape != (n, 3):
            raise InputError(f"it has {len(points)} keypoints; other rows have {n}.")
        height, width = placement.original_size
        known = (points[:, 2] > 0) & np.isfinite(points[:, :2]).all(axis=1)
        inside = known & (points[:, :2] >= 0).all(axis=1) & (points[:, 0] <= width) & (points[:, 1] <= height)
        if known.any() and not inside.any():
            raise InputError(
                f"all its keypoints lie outside the image of {width} x {height}; give coordinates in pixels."
            )
        moved = placement.points(np.where(inside[:, None], points, 0.0))
        moved[:, 2] = inside & ((moved[:, :2] >= 0) & (moved[:, :2] <= placement.size[::-1])).all(axis=1)
        truth = np.concatenate([points[:, :2], inside[:, None]], axis=1).astype(np.float32)
        return {"keypoints": moved, "truth": truth, "place": place}

    def collate_targets(self, examples: Sequence[Example]) -> Batch:
        names = [name for name in ("keypoints", "truth", "place") if name in examples[0]]
        return {name: torch.from_numpy(np.stack([one[name] for one in examples])) for name in names}

    def ready(self, batch: Batch, generator: Generator | None) -> Batch:
        batch = super().ready(batch, generator)
        if "keypoints" in batch:
            joints = batch.pop("keypoints")
            batch["labels"] = torch.cat([self.shares(joints[..., :2]), joints[..., 2:]], dim=-1)
        return batch

    @property
    def seen(self) -> tuple[int, int]:
        """(rows, columns) of what the model sees."""
        size = self.processor.fixed
        if size is None:
            raise InputError("preprocessor_config.json must have a fixed size (size or crop_size) for pose.")
        return size

    def shares(self, pixels: Tensor) -> Tensor:
        """Places among the pixels that the model sees, as shares of them. Of a person cut out, the middles of the first
        and the last pixel are the edges."""
        edge = torch.tensor(self.seen[::-1], device=pixels.device, dtype=pixels.dtype)
        return pixels / edge if self.settings.region == "whole" else (pixels - 0.5) / (edge - 1)

    def back(self, shares: Tensor, place: Tensor) -> Tensor:
        """[B, keypoints, 2] shares -> pixels of the images."""
        edge = torch.tensor(self.seen[::-1], device=shares.device, dtype=shares.dtype)
        pixels = shares * edge if self.settings.region == "whole" else shares * (edge - 1) + 0.5
        return (pixels + place[:, None, 2:]) / place[:, None, :2]

    def loss(self, batch: Batch) -> Loss:
        out = self.model(pixel_values=batch["pixel_values"], labels=batch["labels"])
        count = batch["labels"][..., 2].sum().clamp(min=1)
        layers = out.get("layer_losses")
        parts = {} if layers is None else {f"layer_{i + 1}": one * count for i, one in enumerate(layers.detach())}
        return Loss(out.loss * count, count, parts)

    # Figures and answers.

    def evaluate(self, rows: Rows, progress: Progress | None = None) -> Metrics:
        found, right, still, total, count = [], [], [], 0.0, 0.0
        with answering(self.model):
            for _, batch in self.batches_of(self.prepared(rows), progress=progress):
                out = self.model(pixel_values=batch["pixel_values"], labels=batch["labels"])
                n = float(batch["labels"][..., 2].sum())
                total, count = total + float(out.loss) * n, count + n
                place = batch["place"].cpu()
                said = predict_keypoints(self.model, batch["pixel_values"]) if self.autoregressive else out
                found.append(self.back(self.head.keypoints(said)[..., :2].cpu(), place))
                right.append(batch["truth"].cpu())
                if self.mean_pose is not None:
                    still.append(self.back(self.mean_pose.expand(len(place), -1, -1), place))
        apart, truth = self._apart(found, right), torch.cat(right).double().numpy()
        figures = {**self.figures(apart, truth), "loss": total / max(count, 1.0)}
        if still:
            mean = keypoints.mean_error(self._apart(still, right), truth[..., 2])
            figures |= {"mean_pose_error": mean, "share_of_mean": float(figures["error"]) / max(mean, 1e-9)}
        return {**figures, **self.skipped()}

    @staticmethod
    def _apart(found: list[Tensor], right: list[Tensor]) -> Any:
        return keypoints.distances(torch.cat(found).double().numpy(), torch.cat(right)[..., :2].double().numpy())

    def figures(self, apart: Any, truth: Any) -> Metrics:
        lengths, said = self.reference(truth)
        counts = truth[..., 2]
        return {
            "pck": keypoints.pck(apart, counts, lengths),
            "nme": keypoints.normalized_mean_error(apart, counts, lengths),
            "error": keypoints.mean_error(apart, counts),
            "signature": f"PCK@{keypoints.ENOUGH} and NME by {said}; error in pixels; share_of_mean: error as a share"
            " of the mean pose's",
        }

    def reference(self, truth: Any) -> tuple[Any, str]:
        """The length by which each image's errors are measured, and its name."""
        both: tuple[int | None, int | None] = (
            self.skeleton.find("leftshoulder", "lshoulder"),
            self.skeleton.find("righthip", "rhip"),
        )
        said = "the torso (left shoulder to right hip)"
        if self.is_face:
            both, said = OUTER_EYES, "the distance of the outer corners of the eyes"
        if both[0] is not None and both[1] is not None:
            a, b = truth[:, both[0]], truth[:, both[1]]
            return np.linalg.norm(a[:, :2] - b[:, :2], axis=-1) * a[:, 2] * b[:, 2], said
        seen = truth[..., 2:] > 0
        high = np.where(seen, truth[..., :2], -np.inf).max(axis=1)
        low = np.where(seen, truth[..., :2], np.inf).min(axis=1)
        return np.nan_to_num((high - low).max(axis=1), neginf=0.0), "the longer side of the box around the keypoints"

    @property
    def autoregressive(self) -> bool:
        return bool(getattr(self.model.config, "autoregressive", False))

    @property
    def head(self) -> PoseHead:
        head = self.model.heads["pose"]
        assert isinstance(head, PoseHead)
        return head

    def answer(self, pictures: Sequence[ImageFile], boxes: Any = None, **options: Any) -> list[Pose]:
        """`boxes` [people, 4] (left, top, right, bottom) for an image; for several images a list of such."""
        every = [None] * len(pictures) if boxes is None else boxes if len(pictures) > 1 else [boxes]
        if len(every) != len(pictures):
            raise InputError(f"boxes has {len(every)} entries; there are {len(pictures)} images.")
        return [self._pose(picture, some) for picture, some in zip(pictures, every, strict=True)]

    def _pose(self, picture: ImageFile, boxes: Any) -> Pose:
        image = picture.open(self.processor.mode)
        whole = boxes is None or not len(boxes)
        if self.settings.region == "whole":
            if not whole:
                raise InputError("This model takes whole images and no boxes; crop the people first.")
            placed = [self.processor.resize(image)]
        else:
            placed = [crop_person(image, box, self.seen) for box in ([_box(None, image)] if whole else boxes)]
        with answering(self.model):
            pixels = torch.from_numpy(np.stack([one for one, _ in placed])).to(self.model.device)
            found = self.head.keypoints(predict_keypoints(self.model, **self.processor.normalize(pixels))).cpu()
        place = torch.tensor([[*where.scale[::-1], *where.offset[::-1]] for _, where in placed])
        people = torch.cat([self.back(found[..., :2], place), found[..., 2:]], dim=-1).numpy()
        return Pose(people, self.skeleton.names, lambda: draw.keypoints(picture.open(), people, self.skeleton.bones))

    @classmethod
    def advice(cls, fresh: bool, rows: int) -> dict[str, Any]:
        size, lr = 64 if rows >= 256 else 16, 1e-3 if fresh else 1e-4
        advice = schedule_for(
            rows, 200 if fresh else 20, size=size, least=300, most=100_000, lr=lr, evals=20, saves=5, weight_decay=0.05
        )
        return {**advice, "ema_decay": 0.999 if advice["steps"] > 2000 else 0.0}


def _several(rows: Rows) -> bool:
    """Whether some image has two people or more."""
    if "box" not in rows.columns:
        return False
    names = [rows[i]["image"].name for i in range(min(len(rows), SOME))]
    return len(set(names)) < len(names)


def _box(box: Any, image: Any) -> Any:
    return (0, 0, *original_size(image)[::-1]) if box is None else box


def _known(labels: Sequence[str]) -> dict[str, Any]:
    """Keypoints with their names; a face's own where those say nothing."""
    return {} if len(labels) == FACE and labels[0].startswith("LABEL_") else {"joints": labels}
