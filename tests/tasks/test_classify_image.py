"""A class for an image: learned from files, run and measured from the command line, and as transformers has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image

import anyformer as af
from anyformer.cli.main import main
from anyformer.data.images.image_file import ImageError
from anyformer.errors import ConfigError, DataError, Error, FolderError, InputError
from anyformer.tasks.base import TaskSetup
from anyformer.tasks.classify_image import ClassifyImage, mixed_loss
from tests.training import picture_files as files

QUICK = {"steps": 40, "batch_size": 12, "lr": 3e-3, "eval_every": 20, "device": "cpu", "warmup_steps": 4}
PLAIN = {f"task.augment.{name}": 0 for name in ("mixup", "cutmix", "random_erasing", "randaugment_ops")}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYFORMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "x.npz").write_bytes(files.npz(60))
    af.train("classify-image", recipe="vit-tiny", data=folder / "x.npz", out=folder / "model", **QUICK, **PLAIN)
    return folder / "model"


def test_it_learns_and_says_what_it_sees(trained: Path) -> None:
    classify = af.task("classify-image", trained)
    for i, (name, color) in enumerate(files.COLORS.items()):
        answer = classify(Image.fromarray(files.square(color, 100 + i)))
        assert answer.label == name and str(answer) == f"{name} ({answer.score:.2f})"
        assert sum(answer.scores.values()) == pytest.approx(1, abs=1e-5) and list(answer.scores) == list(files.COLORS)
    several = classify([files.square(color, 7) for color in files.COLORS.values()])
    assert [one.label for one in several] == list(files.COLORS) and classify([]) == []


def test_the_folder_has_a_processor_that_transformers_loads(trained: Path) -> None:
    saved = json.loads((trained / "preprocessor_config.json").read_text())
    assert saved["size"] == {"height": 32, "width": 32} and saved["image_processor_type"] == "ViTImageProcessor"
    af.load(trained).save(trained.parent / "hf", format="hf")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(trained.parent / "hf")
    processor = transformers.AutoImageProcessor.from_pretrained(trained.parent / "hf")
    image = Image.fromarray(files.square((40, 200, 40), 3)).resize((50, 40))
    wanted = theirs(**processor(image, return_tensors="pt")).logits.softmax(-1)[0]
    found = af.task("classify-image", trained)(image)
    assert theirs.config.id2label == dict(enumerate(files.COLORS))
    np.testing.assert_allclose(list(found.scores.values()), wanted.detach().numpy(), atol=2e-5)


def test_a_hugging_face_folder_is_honoured(tmp_path: Path) -> None:
    """Its preprocessor and its names of labels: the numbers that its own processor and class give."""
    config = transformers.DeiTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=24,
        patch_size=8,
        id2label={0: "cat", 1: "dog", 2: "cow"},
    )
    config.architectures = ["DeiTForImageClassification"]
    theirs = transformers.DeiTForImageClassification(config).eval()
    theirs.save_pretrained(tmp_path)
    sizes: dict[str, Any] = {"size": {"height": 30, "width": 30}, "crop_size": {"height": 24, "width": 24}}
    processor = transformers.DeiTImageProcessorPil(**sizes, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.1])
    processor.save_pretrained(tmp_path)
    image = Image.fromarray(files.square((40, 200, 40), 3)).resize((50, 40))
    wanted = theirs(**processor(image, return_tensors="pt")).logits.softmax(-1)[0]
    found = af.task("classify-image", tmp_path)(image)
    np.testing.assert_allclose([found.scores[name] for name in ("cat", "dog", "cow")], wanted.detach(), atol=2e-5)


def write_folders(folder: Path, n: int = 24) -> None:
    for i, (label, pixels) in enumerate(files.labeled(n)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{i}.png").write_bytes(files.encode(pixels))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of classes to train on, a zip with a TSV to measure on, a file to run on, and an image of it."""
    write_folders(tmp_path / "train")
    rows = files.labeled(9)
    (tmp_path / "p.zip").write_bytes(files.zipped({f"{i}.png": files.encode(one) for i, (_, one) in enumerate(rows)}))
    (tmp_path / "x.tsv").write_text(
        "file\tclass\n" + "".join(f"{i}.png\t{label}\n" for i, (label, _) in enumerate(rows))
    )
    data, model = str(tmp_path / "train"), str(tmp_path / "model")
    settings = [f"--set=train.{key}={value}" for key, value in {**QUICK, "steps": 4}.items()]
    run(["train", "classify-image", "--recipe", "vit-tiny", "--data", data, "--out", model, *settings])
    said = capsys.readouterr().out
    assert "images/s" in said and "data wait" in said
    rows_said = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    learned = [row for row in rows_said if "split" not in row]
    assert 0 <= learned[-1]["waiting"] <= 1 and learned[-1]["images_per_second"] > 0
    run(["eval", "classify-image", "--model", model, "--data", f"{tmp_path / 'p.zip'},{tmp_path / 'x.tsv'}"])
    assert "9 rows" in capsys.readouterr().out
    picture, out = str(tmp_path / "train" / "red" / "0.png"), tmp_path / "seen.png"
    run(["run", "classify-image", "--model", model, picture, picture, "--out", str(out)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all(line.startswith(f"{picture}: ") for line in lines)
    assert lines[0].removeprefix(f"{picture}: ").split(" (")[0] in files.COLORS
    for path in (out, tmp_path / "seen-2.png"):
        with Image.open(path) as seen:
            assert seen.width > 3 * 224  # the image, the last layer and the rollout


def run(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.jpg"], "none.jpg does not exist"),
        (["{broken}"], "broken.png is damaged"),
        (["{good}", "--out", "x.txt"], "--out is x.txt"),
        (["{good}", "--out", "/none/x.png"], "the folder /none"),
        (["{good}", "--temperature", "1"], "does not accept --temperature"),
    ],
)
def test_mistakes_when_it_runs(
    arguments: list[str], said: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = files.encode(files.square((1, 2, 3), 0))
    (tmp_path / "good.png").write_bytes(content)
    (tmp_path / "broken.png").write_bytes(content[:100])
    places = {"good": tmp_path / "good.png", "broken": tmp_path / "broken.png"}
    with pytest.raises(SystemExit) as stopped:
        main(["run", "classify-image", "--model", str(trained), *(one.format(**places) for one in arguments)])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and said in error and "Traceback" not in error


def test_broken_pictures_are_skipped_in_training_and_in_an_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_folders(tmp_path / "d")
    (tmp_path / "d" / "red" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    settings = {**QUICK, "steps": 4, "eval_every": 2}
    data = tmp_path / "d"
    done = af.train("classify-image", recipe="vit-tiny", data=data, valid=data, out=tmp_path / "m", **settings)
    assert done.metrics["skipped"] == 1 and "red/0.png" in capsys.readouterr().err
    figures = ClassifyImage.load(tmp_path / "m").evaluate(ClassifyImage.read(data))
    assert figures["skipped"] == 1 and "red/0.png" in capsys.readouterr().err


def test_mistakes_in_the_data(tmp_path: Path, trained: Path) -> None:
    write_folders(tmp_path / "d")
    only = tmp_path / "one" / "red"
    only.mkdir(parents=True)
    (only / "0.png").write_bytes(files.encode(files.square((1, 2, 3), 0)))
    (tmp_path / "one" / "blue").mkdir()
    with pytest.raises(DataError, match=r"one/blue"):
        ClassifyImage.read(tmp_path / "one")
    (tmp_path / "x.tsv").write_text(f"{tmp_path}/d/red/0.png\tviolet\n{tmp_path}/d/red/0.png\tred\n")
    task = ClassifyImage.load(trained)
    with pytest.raises(InputError, match=r'line 1: .*"violet" .*red, green, blue'):
        task.evaluate(ClassifyImage.read(tmp_path / "x.tsv"))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.png").write_bytes(files.encode(files.square((1, 2, 3), 0)))
    with pytest.raises(DataError, match=r'label column.*data\.columns="label=NAME"'):
        ClassifyImage.read(tmp_path / "plain")
    with pytest.raises(ConfigError, match="does not fit this task"):
        ClassifyImage.begin("gpt2-tiny", ClassifyImage.read(tmp_path / "d"))
    af.build("vit-tiny", head="base").save(tmp_path / "base")
    with pytest.raises(FolderError, match=r'"base".*anyformer train classify-image '):
        ClassifyImage.load(tmp_path / "base")


def test_another_head_for_other_labels(tmp_path: Path, trained: Path) -> None:
    """Fine-tuning keeps the encoder, and the head too where the labels are the same ones."""
    (tmp_path / "same.npz").write_bytes(files.npz(12))
    rows = ClassifyImage.read(tmp_path / "same.npz")
    before = af.load(trained).state_dict()
    task = ClassifyImage.begin(trained, rows)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    write_folders(tmp_path / "d")
    (tmp_path / "d" / "red").rename(tmp_path / "d" / "violet")
    other = ClassifyImage.begin(trained, ClassifyImage.read(tmp_path / "d"))
    assert other.labels == ("blue", "green", "violet")
    after = other.model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("stages"))
    assert not torch.equal(after["classify.classes.weight"], before["classify.classes.weight"])


def test_mixed_labels_are_soft_targets() -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    first, second, share = torch.arange(6) % 5, torch.arange(6).flip(0) % 5, torch.linspace(0, 1, 6)
    soft = share[:, None] * F.one_hot(first, 5) + (1 - share[:, None]) * F.one_hot(second, 5)
    soft = 0.9 * soft + 0.1 / 5
    wanted = F.cross_entropy(logits, soft, reduction="sum")
    found = mixed_loss(logits, first, share, 0.1) + mixed_loss(logits, second, 1 - share, 0.1)
    torch.testing.assert_close(found, wanted)


def test_sizes_that_models_take(tmp_path: Path) -> None:
    """The model's own size, unless another is asked for; a photograph that is larger or smaller fits all the same."""
    (tmp_path / "x.npz").write_bytes(files.npz(12))
    task = ClassifyImage.begin("vit-tiny", ClassifyImage.read(tmp_path / "x.npz"), setup=TaskSetup())
    for shape in ((1, 1, 3), (500, 20, 3), (40, 40)):
        assert task(np.full(shape, 90, dtype=np.uint8)).label in files.COLORS
    assert issubclass(ImageError, Error)


def test_what_fits_sees_pictures(tmp_path: Path) -> None:
    """Neither spectrograms nor clips, though both are cut into patches."""
    (tmp_path / "x.npz").write_bytes(files.npz(6))
    rows = ClassifyImage.read(tmp_path / "x.npz")
    with pytest.raises(ConfigError, match=r"such as beit-b16") as caught:
        ClassifyImage.begin("detr-tiny", rows)
    assert "ast-" not in str(caught.value) and "timesformer" not in str(caught.value)
    for recipe in ("ast-tiny", "timesformer-tiny", "videomae-tiny"):
        with pytest.raises(ConfigError, match="does not fit"):
            ClassifyImage.begin(recipe, rows)


def test_large_pictures_are_drawn_small(trained: Path) -> None:
    classify = af.task("classify-image", trained)
    assert classify(np.zeros((1000, 3000, 3), dtype=np.uint8)).draw().width == 3 * 1004 + 4
