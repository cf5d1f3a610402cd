"""Finding things: it learns, is measured as COCO measures, answers as transformers does, and says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.settings import DataSettings
from anyformer.tasks import find
from anyformer.tasks.evaluation import evaluate_task
from tests.checkpoints.oracles import make_oracle, save_oracle
from tests.training import picture_files as pictures

SMALL = {
    "model.stem.widths": [16, 24, 32],
    "model.stem.depths": [0, 1, 1],
    "model.d_model": 32,
    "model.n_layers": 1,
    "model.n_decoder_layers": 2,
    "model.n_heads": 4,
    "model.n_decoder_heads": 4,
    "model.d_hidden": 64,
    "model.d_decoder_hidden": 64,
    "model.n_queries": 9,
    "model.groups": 2,
    "model.dropout": 0.0,
    "model.image_size": [32, 48],
}
TRAIN = {
    "steps": 160,
    "batch_size": 8,
    "lr": 3e-3,
    "eval_every": 160,
    "save_every": 0,
    "log_every": 20,
    "device": "cpu",
}


def write(folder: Path, change: Any = None) -> Path:
    for name, content in pictures.coco().items():
        (folder / name).write_bytes(content)
    if change is not None:
        whole = json.loads((folder / "x.json").read_text())
        change(whole)
        (folder / "x.json").write_text(json.dumps(whole))
    return folder / "x.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("detect")
    data = write(home)
    af.train("detect", recipe="detr-small", data=data, valid=data, out=home / "model", **{**SMALL, **TRAIN})
    return home


def test_it_learns_where_squares_are(folder: Path) -> None:
    task: Any = af.task("detect", folder / "model")
    square = pictures.square(pictures.COLORS["green"], 5)
    found = task(square, threshold=0.3)
    left, top = pictures.corner(5)
    assert found[0].label == "green" and str(found).startswith("green 0.")
    assert found[0].box == pytest.approx((left, top, left + 12, top + 12), abs=5)
    assert str(task(square, threshold=1.0)) == "nothing"
    image = found.draw()
    assert image.size == (224, 224) and not np.array_equal(
        np.asarray(image), np.asarray(task(square, threshold=1.0).draw())
    )
    assert [len(one) for one in task([square, square], threshold=1.0)] == [0, 0]


def test_the_log_shows_each_layers_loss_falling(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "split" not in row]
    for name in ("layer_1", "layer_2"):
        assert steps[-1][name] < 0.6 * steps[0][name]
    assert steps[-1]["loss"] == pytest.approx(steps[-1]["layer_1"] + steps[-1]["layer_2"], rel=1e-4)
    valid = [row for row in rows if row.get("split") == "valid"][-1]
    assert valid["ap50"] > 0.6


def test_figures_are_pycocotools_and_those_of_training(folder: Path) -> None:
    pytest.importorskip("pycocotools")
    task: Any = af.task("detect", folder / "model")
    figures = task.evaluate(task.read(folder / "x.json"))
    rows = [json.loads(line) for line in (folder / "model" / "metrics.jsonl").read_text().splitlines()]
    for name in ("ap", "ap50", "ap75"):
        assert figures[name] == pytest.approx(rows[-1][name], abs=1e-6)
    assert figures["aps"] == pytest.approx(figures["ap"]) and figures["apl"] == -1
    assert "pycocotools" in figures["signature"]


def test_eval_draws_where_slots_place_boxes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["eval", "detect", "--model", str(folder / "model"), "--data", str(folder / "x.json")]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--out", str(folder / "slots.png")])
    assert not ended.value.code
    assert "ap50" in capsys.readouterr().out
    assert (folder / "slots.png").read_bytes().startswith(b"\x89PNG")


def test_run_draws(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "one.png").write_bytes(pictures.encode(pictures.square(pictures.COLORS["red"], 3)))
    asked = ["run", "detect", "--model", str(folder / "model"), str(folder / "one.png"), "--threshold", "0.2"]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--out", str(folder / "seen.png")])
    assert not ended.value.code
    assert "red 0." in capsys.readouterr().out and (folder / "seen.png").exists()


def test_other_classes_keep_what_places_boxes(folder: Path, tmp_path: Path) -> None:
    """A folder taken further on other classes has fresh scores and the rest as it was; on the same ones, everything."""

    def rename(whole: Any) -> None:
        for i, kind in enumerate(whole["categories"]):
            kind["name"] = f"kind {i}"

    kind = find("detect")
    before = af.load(folder / "model").state_dict()
    same = kind.begin(folder / "model", kind.read(folder / "x.json"))
    other = kind.begin(folder / "model", kind.read(write(tmp_path, rename)))
    assert same.labels == ("red", "green", "blue") and other.labels == ("kind 0", "kind 1", "kind 2")
    assert all(torch.equal(value, before[name]) for name, value in same.model.state_dict().items())
    changed = [name for name, value in other.model.state_dict().items() if not torch.equal(value, before[name])]
    assert changed and all(name.startswith("boxes.classes.") for name in changed)


@pytest.mark.parametrize("every", [True, False])
def test_answers_are_transformers(every: bool, tmp_path: Path) -> None:
    """From the image to boxes in its pixels: their processor, model and post-processing; two images padded."""
    transformers = pytest.importorskip("transformers")
    oracle = make_oracle("DetrForObjectDetection", id2label={0: "cat", 1: "dog", 2: "cow"})
    save_oracle(oracle, tmp_path)
    processor = transformers.DetrImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96})
    processor.save_pretrained(tmp_path)
    chance = np.random.default_rng(0)
    images = [chance.integers(0, 255, size, dtype=np.uint8) for size in ((50, 90, 3), (120, 70, 3))]
    batch = processor(images, return_tensors="pt")
    with torch.no_grad():
        out = oracle(**batch)
    scores = out.logits.softmax(-1)[..., :-1].amax(-1).flatten().sort().values
    threshold = 0.0 if every else float(scores[4:6].mean())  # between two, so that rounding does not decide
    wanted = processor.post_process_object_detection(out, threshold, target_sizes=[(50, 90), (120, 70)])
    found = af.task("detect", tmp_path)(images, threshold=threshold)
    assert sum(len(one) for one in found) == (10 if every else 5)
    for ours, theirs, (height, width) in zip(found, wanted, [(50, 90), (120, 70)], strict=True):
        order = theirs["scores"].argsort(descending=True, stable=True)
        assert [thing.label for thing in ours] == [("cat", "dog", "cow")[i] for i in theirs["labels"][order]]
        assert [thing.score for thing in ours] == pytest.approx(theirs["scores"][order].tolist(), abs=1e-5)
        boxes = np.array([thing.box for thing in ours]).reshape(-1, 4)
        inside = theirs["boxes"][order].numpy().clip(0, [width, height, width, height])  # ours end at the edge
        np.testing.assert_allclose(boxes, inside, atol=1e-2)


def test_boxes_follow_padding_and_augmentation(folder: Path) -> None:
    """What the model learns: shares of the image, not of the canvas; a flip turns them around."""
    kind = find("detect")
    task = kind.begin("detr-tiny", kind.read(folder / "x.json"))
    row = {"boxes": [[10, 20, 30, 60]], "classes": ["red"]}
    examples = []
    for height, width in ((64, 64), (40, 96)):
        placement = task.processor.resize(_image(height, width))
        examples.append({"image": placement[0], **task.targets({**row, "image": None}, placement[1])})
    batch = task.ready(task.collate(examples, torch.Generator()), None)
    assert batch["pixel_mask"].shape[-2:] == (64, 96)
    wide = [20 / 96, 30 / 40, 20 / 96, 20 / 40]  # its lower half is outside the image
    np.testing.assert_allclose(batch["boxes"][:, 0], [[20 / 64, 40 / 64, 20 / 64, 40 / 64], wide], atol=0.02)
    task.settings = task.settings.replace(augment=type(task.settings.augment)(flip=1.0))
    turned = task.ready(task.collate(examples, torch.Generator()), torch.Generator().manual_seed(0))
    np.testing.assert_allclose(turned["boxes"][0, 0], [44 / 64, 40 / 64, 20 / 64, 40 / 64], atol=0.02)


def _image(height: int, width: int) -> Any:
    from PIL import Image

    return Image.fromarray(np.zeros((height, width, 3), dtype=np.uint8))


def test_boxes_of_nothing_are_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No width, no height, outside the image: not learned from; one that sticks out is cut."""

    def spoil(whole: Any) -> None:
        boxes = [[5, 5, 0, 9], [5, 5, 9, 0], [40, 2, 5, 5], [-6, -6, 16, 16]]
        for note, box in zip(whole["annotations"], boxes, strict=False):
            note.update(bbox=box, image_id=0)

    kind = find("detect")
    kind._left_out = 0
    rows = kind.read(write(tmp_path, spoil))
    task = kind.begin("detr-tiny", rows)
    made = task.example(rows[0])
    np.testing.assert_allclose(made["boxes"], np.array([[0, 0, 10, 10]]) * made["image"].shape[1] / 32)
    said = capsys.readouterr().err
    assert said.count("Skipped a box") == 3 and "0.png" in said


def test_pictures_of_nothing(tmp_path: Path) -> None:
    """A batch in which no image has a box is learned from and measured."""

    def clear(whole: Any) -> None:
        whole["annotations"] = whole["annotations"][-1:]

    kind = find("detect")
    rows = kind.read(write(tmp_path, clear))
    task = kind.begin("detr-tiny", rows)
    chance = torch.Generator().manual_seed(0)
    batch = task.ready(task.collate([task.example(rows[i]) for i in range(4)], chance), chance)
    loss = task.loss(batch)
    assert batch["boxes"].shape == (4, 0, 4) and torch.isfinite(loss.total) and float(loss.parts["loss_bbox"]) == 0
    loss.total.backward()
    assert 0 <= task.evaluate(rows)["ap"] <= 1


def test_pictures_of_nothing_at_all(folder: Path, tmp_path: Path) -> None:
    """A file without annotations is measured, and learned from beside others; alone there is nothing to learn."""
    kind = find("detect")
    empty = write(tmp_path, lambda whole: whole.update(annotations=[]))
    figures = af.task("detect", folder / "model").evaluate(kind.read(empty))
    assert figures["ap"] == -1 and np.isfinite(figures["loss"])
    assert kind.begin("detr-tiny", kind.read([empty, folder / "x.json"])).labels == ("red", "green", "blue")
    with pytest.raises(af.DataError, match=r"x\.json .*boxes.*classes"):
        kind.begin("detr-tiny", kind.read(empty))


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1)])
def test_pictures_of_one_row_or_column(size: tuple[int, int], folder: Path) -> None:
    assert af.task("detect", folder / "model")(np.zeros((*size, 3), dtype=np.uint8), threshold=0.0).draw()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda whole: whole["images"][2].update(file_name="gone.png"), "gone.png"),
        (lambda whole: whole["annotations"][1].update(category_id=9), "category_id 9"),
        (lambda whole: whole["annotations"][1].update(image_id=999), "999"),
        (lambda whole: whole["annotations"][1].update(bbox=[1, 2, 3]), '"bbox" .*four'),
    ],
)
def test_files_that_are_wrong(change: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(af.Error, match=says):
        find("detect").read(write(tmp_path, change), DataSettings())


def test_a_class_that_the_model_does_not_have(folder: Path, tmp_path: Path) -> None:
    def rename(whole: Any) -> None:
        whole["categories"][0]["name"] = "purple"

    task: Any = af.task("detect", folder / "model")
    with pytest.raises(af.Error, match=r'"purple" .*red, green, blue'):
        task.evaluate(task.read(write(tmp_path, rename)))


def test_recipes_and_folders_that_find_nothing(folder: Path, tmp_path: Path) -> None:
    kind = find("detect")
    with pytest.raises(af.Error, match="detr"):
        kind.begin("vit-tiny", kind.read(folder / "x.json"))
    af.build("vit-tiny").save(tmp_path / "vit")
    with pytest.raises(af.FolderError, match=r"vit model; detect .*DETR"):
        af.task("detect", tmp_path / "vit")
    with pytest.raises(af.InputError, match=r"classify-image .*--out"):
        evaluate_task("classify-image", tmp_path / "vit", folder / "x.json", draw=True)
