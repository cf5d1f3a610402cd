"""Learning from a teacher: the loss by its formula, labels in another order, images of another size; other sizes and
shares of the data when training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import anyformer as af
from anyformer.data.images.processor import FILE, ImageProcessor
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.classify_image import ClassifyImage, ClassifyImageOptions
from anyformer.tasks.distill import Teacher
from tests.training import picture_files as pictures

LABELS = ("red", "green", "blue")
SETTINGS = {"steps": 4, "batch_size": 8, "lr": 1e-3, "eval_every": 0, "save_every": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, and a teacher whose labels stand in another order and whose images are smaller and darker."""
    home = tmp_path_factory.mktemp("distill")
    (home / "x.npz").write_bytes(pictures.npz(24))
    torch.manual_seed(0)
    teacher = af.build("resnet-tiny", n_labels=3).eval()
    with torch.no_grad():
        teacher.heads["classify"].classes.weight.mul_(50)  # type: ignore[union-attr, operator]
    teacher.origin.settings["task"] = {"name": "classify-image", "labels": ["blue", "red", "green"]}
    own = ImageProcessor(size=(16, 16), mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7))
    teacher.origin.files[FILE] = own.write()
    teacher.save(home / "teacher")
    return home


def begin(home: Path, recipe: str, **options: Any) -> ClassifyImage:
    rows = ClassifyImage.read(home / "x.npz")
    torch.manual_seed(1)
    chosen = ClassifyImageOptions(teacher=str(home / "teacher"), **options)
    return ClassifyImage.begin(recipe, rows, setup=TaskSetup(task=chosen))


def test_the_teacher_sees_what_its_own_processor_would_give(home: Path) -> None:
    options = ClassifyImageOptions(teacher=str(home / "teacher"))
    student = ImageProcessor(size=(32, 32))
    teacher = Teacher(options, student, LABELS)
    bright = torch.randint(0, 256, (2, 3, 32, 32))
    small = F.interpolate(bright.float(), size=(16, 16), mode="bilinear", antialias=True)
    expected = af.load(home / "teacher")(**teacher.processor.normalize(small)).logits[:, [1, 2, 0]]
    found = teacher.scores(student.normalize(bright)["pixel_values"])
    torch.testing.assert_close(found, expected.detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("recipe", ["vit-tiny", "deit-tiny"])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_the_loss_is_the_papers(kind: Any, recipe: str, home: Path) -> None:
    task = begin(home, recipe, distill=kind, distill_weight=0.3, temperature=2.0)
    pixels, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 1])
    out = task.model(pixel_values=pixels)
    own, taught = (out.cls_logits, out.distillation_logits) if recipe == "deit-tiny" else (out.logits, out.logits)
    assert task.teacher is not None
    says = task.teacher.scores(pixels)
    if kind == "hard":
        second = -taught.log_softmax(1)[range(4), says.argmax(1)].sum()
    else:
        p = (says / 2).exp() / (says / 2).exp().sum(1, keepdim=True)
        second = 4 * (p * (p.log() - (taught / 2).log_softmax(1))).sum()
    expected = 0.7 * F.cross_entropy(own, labels, reduction="sum") + 0.3 * second
    found = task.loss({"pixel_values": pixels, "labels": labels, "teacher": says})
    torch.testing.assert_close(found.total, expected, rtol=1e-4, atol=1e-4)
    assert set(found.parts) == {"labels", "teacher"}


def test_trained_by_the_command(home: Path) -> None:
    """The teacher is no part of the student, nor does it change; the folder of the student runs without it."""
    before = af.load(home / "teacher").state_dict()
    order = {**SETTINGS, "task.teacher": str(home / "teacher"), "task.distill": "soft"}
    done = af.train("classify-image", recipe="deit-tiny", data=home / "x.npz", out=home / "student", **order)
    assert af.load(done.folder).state_dict().keys() == af.build("deit-tiny", n_labels=3).state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in af.load(home / "teacher").state_dict().items())
    answer = af.task("classify-image", home / "student")(pictures.square((200, 40, 40), 5))
    assert answer.label in LABELS


def test_a_teacher_that_does_not_know_the_labels(home: Path, tmp_path: Path) -> None:
    teacher = af.load(home / "teacher")
    teacher.origin.settings["task"]["labels"] = ["cat", "dog", "cow"]
    teacher.save(tmp_path / "other")
    with pytest.raises(af.ConfigError, match=r"'red'.*'cat', 'dog', 'cow'"):
        Teacher(ClassifyImageOptions(teacher=str(tmp_path / "other")), ImageProcessor(), LABELS)


def test_taken_further_with_larger_pictures(home: Path) -> None:
    """Model and processor both follow data.image_size, from a recipe and from a folder."""
    order = {**SETTINGS, "data": home / "x.npz"}
    first = af.train("classify-image", recipe="vit-tiny", out=home / "small", **order)
    assert af.load(first.folder).config.image_size == (32, 32)  # type: ignore[attr-defined]
    for source, name in ((home / "small", "from-folder"), ("vit-tiny", "from-recipe")):
        done = af.train("classify-image", recipe=source, out=home / name, **order, **{"data.image_size": 48})
        task: Any = af.task("classify-image", done.folder)
        assert task.model.config.image_size == (48, 48) and task.processor.fixed == (48, 48)
        assert str(task(pictures.square((200, 40, 40), 5)))


def test_a_share_of_the_rows(home: Path) -> None:
    from anyformer.tasks.split import take_share

    rows = ClassifyImage.read(home / "x.npz")
    some, again = take_share(rows, 0.25), take_share(rows, 0.25)
    assert len(some) == 6 and [some.location(i) for i in range(6)] == [again.location(i) for i in range(6)]
    assert take_share(rows, 1.0) is rows
    with pytest.raises(af.ConfigError, match=r"fraction is 0\.0"):
        af.train("classify-image", recipe="vit-tiny", data=home / "x.npz", out=home / "no", **{"data.fraction": 0.0})
