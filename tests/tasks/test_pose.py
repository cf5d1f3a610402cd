"""Keypoints: learned, measured, drawn; people cut out and put back as transformers does it; bad keypoints named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.images.augment import Augmentation
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.pose import PoseOptions
from tests.checkpoints.oracles import make_oracle
from tests.training import picture_files as pictures

PoseTask = find("pose")


@pytest.fixture
def squares(tmp_path: Path) -> Path:
    """The corners of squares as keypoints."""
    for name, content in pictures.coco().items():
        (tmp_path / name).write_bytes(content)
    return tmp_path / "x.json"


def begin(data: Path, recipe: str = "keypoint-detr-tiny", **options: Any) -> Any:
    torch.manual_seed(0)
    return PoseTask.begin(
        recipe, PoseTask.read(data), None, TaskSetup(None, DataSettings(), task=PoseOptions(**options))
    )


def change(path: Path, edit: Any) -> Path:
    whole = json.loads(path.read_text())
    edit(whole)
    path.write_text(json.dumps(whole))
    return path


def test_rows_bones_and_mirrors(squares: Path) -> None:
    task = begin(squares)
    assert task.labels == ("left_top", "right_top", "left_bottom", "right_bottom")
    assert task.skeleton.bones == ((0, 1),) and task.swaps.tolist() == [1, 0, 3, 2]
    assert task.model.config.n_keypoints == 4 and task.settings.region == "whole"
    assert task.metric == "pck" and task.larger_is_better


def test_it_learns(squares: Path, tmp_path: Path) -> None:
    """From nothing to the corners, on rows that it has seen, and back from its folder."""
    done = af.train(
        "pose",
        recipe="keypoint-detr-tiny",
        data=squares,
        valid=squares,
        out=tmp_path / "out",
        steps=120,
        batch_size=12,
        lr=4e-3,
        device="cpu",
        eval_every=120,
        save_every=120,
        **{"task.augment.rotate": 0.0, "task.augment.crop": None, "train.ema_decay": 0.0},
    )
    assert done.state.best is not None
    pose = af.task("pose", tmp_path / "out")
    figures = pose.evaluate(PoseTask.read(squares))
    assert figures["share_of_mean"] < 0.5 and figures["error"] < 0.5 * figures["mean_pose_error"]
    answer = pose(pictures.square((200, 40, 40), 5))
    assert answer.persons.shape == (1, 4, 3) and str(answer).startswith("left_top ")
    left, top = pictures.corner(5)
    assert np.abs(answer.persons[0, 0, :2] - [left, top]).max() < 4
    assert answer.draw().size == (224, 224)


def test_figures_of_what_is_said(squares: Path) -> None:
    """With everything two pixels to the right: the error is 2, and every figure follows."""
    task = begin(squares)
    rows = PoseTask.read(squares)
    truth = {i: rows[i]["keypoints"] for i in range(len(rows))}

    class Shifted:
        def keypoints(self, out: Any) -> torch.Tensor:
            return torch.cat([(out.said[..., :2] + torch.tensor([2.0, 0.0])) / 32, out.said[..., 2:]], dim=-1)

    class Said(dict[str, Any]):
        __getattr__ = dict.__getitem__

    def model(pixel_values: Any, labels: Any) -> Said:
        return Said(said=torch.cat([labels[..., :2] * 32, labels[..., 2:]], dim=-1), loss=torch.tensor(0.5))

    type(task).head, kept = property(lambda self: Shifted()), type(task).head
    try:
        task.model.forward = model
        figures = task.evaluate(rows)
    finally:
        type(task).head = kept
    assert figures["error"] == pytest.approx(2.0, abs=1e-4)
    assert figures["nme"] == pytest.approx(2 / 12, abs=1e-4)  # the squares have sides of 12
    assert figures["pck"] == 1.0 and figures["loss"] == pytest.approx(0.5)
    mean = np.stack(list(truth.values()))[..., :2].mean(axis=0)
    apart = np.mean([np.linalg.norm(points[:, :2] - mean, axis=-1).mean() for points in truth.values()])
    assert figures["mean_pose_error"] == pytest.approx(apart, abs=0.01)
    assert figures["share_of_mean"] == pytest.approx(2 / apart, abs=0.001)


def test_the_torso_and_the_eyes_are_the_reference() -> None:
    task = object.__new__(PoseTask)
    from anyformer.data.images.skeleton import Skeleton, face

    truth = np.zeros((1, 68, 3))
    truth[0, 45] = [30.0, 40.0, 1.0]
    truth[0, 36, 2] = 1.0
    task.set_skeleton(face())
    assert task.reference(truth)[0].tolist() == [50.0] and task.metric == "nme"
    task.set_skeleton(Skeleton(("head", "left_shoulder", "right_hip")))
    truth = np.array([[[0, 0, 1.0], [0, 0, 1], [6, 8, 1]], [[0, 0, 1], [0, 0, 1], [6, 8, 0]]])
    assert task.reference(truth)[0].tolist() == [10.0, 0.0]  # a torso that is not known is no length


@pytest.mark.parametrize("see", ["whole", "box"])
def test_a_picture_too_large_to_be_decoded_whole(see: str, squares: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened at half its size: the same keypoints, in the pixels of the whole."""
    task = begin(squares, region=see)
    content = pictures.encode(np.kron(pictures.square((200, 40, 40), 5), np.ones((20, 20, 1), dtype=np.uint8)), "JPEG")
    wanted = task(content).persons
    monkeypatch.setattr("anyformer.data.images.image_file.LARGEST", 640 * 640 // 4)
    found = task(content)
    np.testing.assert_allclose(found.persons, wanted, atol=20)
    assert found.draw().size == (320, 320)


def test_a_flipped_picture_has_its_sides_exchanged(squares: Path) -> None:
    task = begin(squares, augment=Augmentation(flip=1.0))
    examples = [task.example(PoseTask.read(squares)[i]) for i in range(3)]
    batch = task.collate(examples, torch.Generator())
    made = task.ready(dict(batch), torch.Generator().manual_seed(0))
    plain = task.ready(dict(batch), None)
    expected = plain["labels"][:, [1, 0, 3, 2]].clone()
    expected[..., 0] = 1 - expected[..., 0]
    torch.testing.assert_close(made["labels"], expected)
    torch.testing.assert_close(made["pixel_values"], plain["pixel_values"].flip(-1), atol=1e-4, rtol=0)


def test_people_are_cut_out_where_pictures_have_several(squares: Path) -> None:
    def twice(whole: dict[str, Any]) -> None:
        whole["annotations"] += [{**note, "id": 100 + note["id"]} for note in whole["annotations"]]

    task = begin(change(squares, twice), "vitpose-tiny")
    assert task.settings.region == "box" and len(PoseTask.read(squares)) == 48
    example = task.example(PoseTask.read(squares)[3])
    # The square fills 0.8 of what is seen, its corners at a tenth from the edges.
    shares = task.shares(torch.from_numpy(example["keypoints"])[:, :2])
    expected = torch.tensor([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]])
    torch.testing.assert_close(shares, expected, atol=1e-4, rtol=0)
    back = task.back(shares[None], torch.from_numpy(example["place"])[None])[0]
    torch.testing.assert_close(back.numpy(), example["truth"][:, :2], atol=1e-3, rtol=0)
    said = json.loads(task.model.origin.files["preprocessor_config.json"])
    assert said["image_processor_type"] == "VitPoseImageProcessor"


def test_a_vitpose_folder_answers_as_transformers_does(tmp_path: Path) -> None:
    """Boxes in, keypoints in pixels of the image out; without boxes the whole image is one."""
    from transformers.models.vitpose.image_processing_pil_vitpose import VitPoseImageProcessorPil

    from tests.data.images.test_person_crop import photo

    oracle = make_oracle("VitPoseForPoseEstimation", id2label={0: "nose", 1: "l_eye", 2: "r_eye", 3: "neck", 4: "hip"})
    with torch.no_grad():
        oracle.head.conv.bias += 3.0  # all maps above zero, where theirs looks for peaks
    oracle.save_pretrained(tmp_path)
    processor = VitPoseImageProcessorPil(size={"height": 32, "width": 24})
    processor.save_pretrained(tmp_path)
    pose, image = af.task("pose", tmp_path), photo(80, 100)
    boxes = [[10.0, 5.0, 60.0, 90.0], [0.0, 0.0, 80.0, 100.0]]
    theirs = [[[left, top, right - left, bottom - top] for left, top, right, bottom in boxes]]
    with torch.no_grad():
        out = oracle(**processor([image], boxes=theirs, return_tensors="pt"))
    expected = processor.post_process_pose_estimation(out, boxes=theirs)[0]
    answer = pose(image, boxes=boxes)
    assert answer.names == ("nose", "l_eye", "r_eye", "neck", "hip")
    for mine, person in zip(answer.persons, expected, strict=True):
        np.testing.assert_allclose(mine[:, 2], person["scores"], rtol=1e-3)
        near = np.abs(mine[:, :2] - person["keypoints"].numpy()).max(axis=1)
        assert np.median(near) < 0.2, near  # random maps are rough, and a flat top may lie anywhere
    np.testing.assert_allclose(pose(image).persons[0], answer.persons[1], rtol=1e-4)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([[200, 300, 2]] * 4, "image 6: .*keypoints .*32 x 32"),
        ([[1, 2, 2]] * 3, 'annotation 6, has "keypoints" that are not 4 times'),
    ],
)
def test_bad_keypoints_are_named(points: list[list[int]], words: str, squares: Path) -> None:
    def edit(whole: dict[str, Any]) -> None:
        whole["annotations"][5]["keypoints"] = [number for point in points for number in point]

    change(squares, edit)
    with pytest.raises(af.Error, match=words) as raised:
        make(squares, 5)
    assert "x.json" in str(raised.value)


def make(data: Path, row: int) -> Any:
    return begin(data).prepare(PoseTask.read(data))[row]


def test_a_list_with_uneven_keypoints(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(pictures.encode(pictures.square((200, 40, 40), 1)))
    rows = [{"file": "a.png", "keypoints": [[1, 2], [3, 4]]}, {"file": "a.png", "keypoints": [[1, 2]]}]
    (tmp_path / "x.json").write_text(json.dumps({"images": rows}))
    task = begin(tmp_path / "x.json")
    assert task.labels == ("point_1", "point_2")
    with pytest.raises(af.Error, match=r"image 2: .* 1 keypoints; .* 2\b"):
        task.prepare(PoseTask.read(tmp_path / "x.json"))[1]


def test_a_joint_outside_does_not_count(squares: Path) -> None:
    """Nor one that nobody saw; the others do."""

    def edit(whole: dict[str, Any]) -> None:
        whole["annotations"][0]["keypoints"][:6] = [40, 3, 2, 5, 5, 0]

    task = begin(change(squares, edit))
    made = task.example(PoseTask.read(squares)[0])
    assert made["keypoints"][:, 2].tolist() == [0, 0, 1, 1] and made["truth"][:, 2].tolist() == [0, 0, 1, 1]


def test_what_fits(squares: Path, tmp_path: Path) -> None:
    with pytest.raises(af.ConfigError, match=r'"vit-tiny" .*keypoint-detr-'):
        begin(squares, "vit-tiny")
    model = af.build("keypoint-detr-tiny").eval()
    model.save(tmp_path / "own")
    with pytest.raises(af.InputError, match="boxes"):
        af.task("pose", tmp_path / "own")(np.zeros((32, 32, 3), dtype=np.uint8), boxes=[[0, 0, 1, 1]])


def test_a_mean_pose_of_other_joints(squares: Path) -> None:
    task = begin(squares)
    task.recall(task.describe())
    with pytest.raises(af.ConfigError, match=r'"mean_pose" has 1 .* \d\.$'):
        task.recall({"mean_pose": [[0.5, 0.5]]})
